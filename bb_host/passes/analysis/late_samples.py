"""Warns of samples whose `min` no round waits for, because other ops of the round come before them.

A round begins once the samples that wait for nothing but its start find as many peers. A later one takes
nobody where fewer are there, when the round has begun: what ran before it is run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.ir import keys
from bb_host.errors import label, source
from bb_host.ir.program import Op
from bb_host.ir.queries import is_entry, reads
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.slot_table import TargetSlots
from bb_host.passes.one_pass import Stats


def warn_of_late_samples(targets: Sequence[TargetSlots], stats: Stats) -> None:
    """Warns of each sample with a `min` that stands behind another op of a round."""
    for target in targets:
        ops = target.main.ops
        if keys.ROLE_PEER_SELECTOR_DOMAIN not in flow.summary(ops).domains:
            continue
        samples = [op for op in ops if op.domain == keys.ROLE_PEER_SELECTOR_DOMAIN and _least(op)]
        if not samples or not any(map(_is_rounds, ops)):
            continue
        makers = {name: op for op in ops for name in op.outputs if name}
        for op in samples:
            if (earlier := _earlier(op, makers)) is not None:
                where = f" ({source(earlier)})" if source(earlier) else ""
                stats.warn(
                    "late-minimum",
                    f"{label(op)}: its round does not wait for min={_least(op)} peers, because it begins with"
                    f" other ops: {label(earlier)}{where} comes before the sample",
                    source(op),
                    "choose the peers first, with after= the start of the round alone; or leave min out, and"
                    " let what needs answers wait for them: g.when(g.onnx.size(r.responses) > 0)",
                )


def _least(op: Op) -> int:
    least = op.attrs.get("min")
    return least if isinstance(least, int) else 0


def _is_rounds(op: Op) -> bool:
    return op.domain == keys.SYSCALL_DOMAIN and op.op_type == "Repeat"


def _earlier(sample: Op, makers: Mapping[str, Op]) -> Op | None:
    """The op of a round that comes right before the sample and may give nothing. None: there is no such op.

    None, too, where no round leads to the sample: whatever starts it does not wait for peers.
    """
    first: Op | None = None
    in_round, after, seen = False, [sample], {id(sample)}
    while after:
        for name in reads(after.pop()):
            maker = makers.get(name)
            if maker is None or id(maker) in seen:
                continue
            seen.add(id(maker))
            if _is_rounds(maker):
                in_round = True
            elif is_entry(maker):
                return None
            else:
                if first is None and maker.domain in _MAY_NOT_COME:
                    first = maker
                after.append(maker)
    return first if in_round else None


_MAY_NOT_COME = frozenset({keys.WIRE_DOMAIN, keys.GATE_DOMAIN, keys.SYSCALL_DOMAIN, *keys.ROLE_DOMAINS})
"""Domains with ops that may give nothing, or only later; the device goes by the same (`quorum.py`)."""
