"""A compiler pass of one's own: refuses programs whose raw data would leave a device."""

from __future__ import annotations

from bb_host.extend import Function, Op, Options, PassError, Program, Stats, is_send, keys, sent_values

BATCHES = "NextBatch"
"""The op of a data source that yields raw samples."""


class RawDataLeaves(PassError):
    """A batch, as it came from a data source, is sent to another device."""


class KeepRawDataHome:
    """Looks at what is sent; a bundle is as raw as what is put into it. The program stays as it is."""

    NAME = "keep_raw_data_home"

    def run(self, program: Program, options: Options, stats: Stats) -> Program:
        for function in program.functions:
            self._check(function, stats)
        return program

    def _check(self, function: Function, stats: Stats) -> None:
        makers = {name: op for op in function.ops for name in op.outputs}
        for op in function.ops:
            if is_send(op):
                stats.count("sends_checked")
                for value in sent_values(op):
                    self._refuse_raw(value, op, makers)

    def _refuse_raw(self, value: str, sends: Op, makers: dict[str, Op]) -> None:
        maker = makers.get(value)
        if maker is None:
            return
        if maker.op_type == BATCHES:
            raise RawDataLeaves(
                f"it sends raw data of slot {maker.slot!r}",
                hint="send what was computed from it: a gradient, a loss, a count",
                op=sends,
            )
        if maker.domain == keys.COMPOSITE_DOMAIN:
            for part in maker.inputs:
                self._refuse_raw(part, sends, makers)
