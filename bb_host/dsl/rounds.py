"""`with g.rounds(times) as start:`: what repeats.

Rule P24 of the specification.
"""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn

from bb_edge.ir import keys
from bb_host.author_lines import author_line, short_line
from bb_host.dsl.call_tables import natural_row
from bb_host.dsl.calls import record_call
from bb_host.dsl.catalog_ops import find_op
from bb_host.dsl.misuse import Suggests, typed_calls
from bb_host.dsl.onnx_ops import refuse_constant_condition
from bb_host.dsl.output import Output, Value
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.relations import number_type
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import RoundsError


@typed_calls
class Rounds(Suggests):
    """The rounds of a program: entered with `with`, once. `start.round` is the round's number, 0-D I64 from
    1.

    What happens in a round depends on it: `after=start` takes it, and so does `after=start.round`.
    """

    def __init__(self, graph: Recorder, times: int, pause_ns: int) -> None:
        self._graph = graph
        self._times = times
        self._pause_ns = pause_ns
        self._line = author_line()
        self._round: Output | None = None
        self._attempt: Output | None = None
        self._used = False
        graph.session.begin(
            self, "g.rounds(…) stands without `with`: nothing repeats", "write: with g.rounds(…) as start:"
        )

    def __repr__(self) -> str:
        return "<rounds: no value; the number is .round, and after= takes it>"

    def __iter__(self) -> NoReturn:
        what = "g.rounds is not a Python loop: its block is recorded once, and repeats on the device"
        raise self._graph.error(RoundsError, what, "write: with g.rounds(…) as start:")

    @property
    def round(self) -> Output:
        """The round's number."""
        if self._round is None:
            raise self._graph.error(
                RoundsError, "rounds were not entered", "write: with g.rounds(…) as start:"
            )
        self._used = True
        return self._round

    @property
    def attempt(self) -> Output:
        """When this attempt of the round began, in nanoseconds of the wall clock, 0-D I64.

        A round that reached nobody is repeated with its number, and a server that begins anew counts from 1:
        neither has an attempt of another. What is to be done once in an attempt (`bb.OncePerRound`) goes by
        it.
        """
        if self._attempt is None:
            g = self._graph
            began = record_call(g, natural_row("Threshold"), (self.round,), {"n": 1})
            now = record_call(g, natural_row("Clock"), began, {})[0]
            to = number_type(g, now).elem_type
            self._attempt = record_call(g, find_op(g, keys.SYSCALL_DOMAIN, "AsTensor"), (now,), {"to": to})[0]
            self._attempt.hint = "attempt"
        return self._attempt

    def stop(self, when: Value, *, after: After = UNORDERED) -> None:
        """Ends the rounds behind this one where `when`, one BOOL, holds: early stopping.

        It is asked on the device that has the rounds. A round that does not count, since nobody was reached,
        ends nothing. Whoever runs until the rounds are done (`--until-done`) ends then, too.
        """
        g = self._graph
        if self._round is None or not g.open_rounds:
            raise g.error(RoundsError, "start.stop stands outside of the rounds' block")
        refuse_constant_condition(g, "StopRounds", when)
        record_call(g, find_op(g, keys.SYSCALL_DOMAIN, "StopRounds"), (when,), {}, after=after)

    def after_values(self) -> tuple[Output, ...]:
        return (self.round,)

    def __enter__(self) -> Rounds:
        g = self._graph
        g.session.end(self)
        if self._round is not None:
            raise g.error(RoundsError, "these rounds were entered before", "call g.rounds again")
        if g.open_rounds:
            outer = short_line(g.open_rounds[-1])
            raise g.error(
                RoundsError, f"rounds within rounds (the outer ones are at {outer})", "one with block each"
            )
        if g.phase == keys.MODULE_PHASE_BOOTSTRAP:
            raise g.error(RoundsError, "rounds stand in a bootstrap", "record them in the body")
        if g.parent is not None:
            raise g.error(RoundsError, "rounds stand in a branch of If or Loop", "record them outside")
        g.open_rounds.append(self._line)
        attrs = {"times": self._times, "pause_ns": self._pause_ns}
        self._round = record_call(g, find_op(g, keys.SYSCALL_DOMAIN, "Repeat"), (), attrs)[0]
        self._round.hint = "round"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._graph.open_rounds.pop()
        if kind is None and not self._used:
            raise self._graph.error(
                RoundsError,
                "no op in this `with` block depends on the round",
                "pass `after=start` to its first op",
                self._line,
            )
