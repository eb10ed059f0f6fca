"""`bb.BoardConditions`: ops that say whether the board is cool, on mains, idle, and one that waits for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_edge.ir.opsets import Opset, Table
from bb_edge.ir.values import TRIGGER, Trigger
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import ProtocolComponent
from bb_edge.roles.settings import Setting
from bb_shims import COOL_CELSIUS, IDLE_LOAD, Board, Conditions, ShimError, detect

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.completion import Later
    from bb_edge.roles.context import ProtocolCtx

__all__ = ["BoardConditions"]

_MS = 1_000_000


class BoardConditions(ProtocolComponent):
    """Tells a program whether now is a good time for heavy work.

    `fit(g, go)` gives a 0-D BOOL: whether all conditions hold now; `when_fit(g, go)` gives a trigger once
    they do, and fails with the reason after `wait_ms`.

    - `conditions`: a list of `cool`, the processor is below `cool_celsius` (65); `mains`, no battery is being
      emptied; `idle`, the load of the last minute is below `idle_load` per core (0.7; it counts the node's
      own work). All three by default. What this board has no sensor for is refused at the start.
    - `wait_ms`: how long `when_fit` waits (3,600,000: an hour); `poll_ms`: how often it looks (1,000).
    - `root`: the folder below which the kernel's files lie (`/`).
    """

    TYPE_NAME: ClassVar[str] = "bb.BoardConditions"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "conditions": Setting.anything(),
        "cool_celsius": Setting.number(COOL_CELSIUS),
        "idle_load": Setting.number(IDLE_LOAD, above=0.0),
        "wait_ms": Setting.integer(3_600_000, 0),
        "poll_ms": Setting.integer(1_000, 1),
        "root": Setting.text("/"),
    }
    stateless: ClassVar[bool | None] = True
    restartable: ClassVar[bool] = True
    concurrent: ClassVar[bool] = True

    def __init__(self, conditions: Conditions, wait_ms: int = 3_600_000, poll_ms: int = 1_000) -> None:
        self._conditions = conditions
        self._wait_ns, self._poll_ns = wait_ms * _MS, poll_ms * _MS
        self._waiting: list[tuple[Later, int]] = []  # with until when

    @classmethod
    def construct(cls, env: ComponentEnv) -> BoardConditions:
        read = env.settings(cls)
        given = read["conditions"]
        names = ("cool", "mains", "idle") if given is None else given
        if isinstance(names, str) or not isinstance(names, Sequence) or not names:
            raise env.error(
                f"{given!r:.60} is not a list of conditions", "conditions", 'give ["cool", "mains"]'
            )
        try:
            board: Board = detect(read["root"])
            conditions = Conditions(board, map(str, names), read["cool_celsius"], read["idle_load"])
        except ShimError as error:
            raise env.error(str(error), "conditions", "name only what the board tells") from error
        return cls(conditions, read["wait_ms"], read["poll_ms"])

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table(cls.TYPE_NAME)
        table.op("Fit", "go:Trigger", "fit:Tensor<BOOL>", "", "Whether all conditions hold now, 0-D.")
        table.op("WhenFit", "go:Trigger", "fit:Trigger", "", "Fires once all conditions hold.")
        return table.opset()

    def fit(self, ctx: ProtocolCtx, go: Trigger) -> Array:
        """Returns whether all conditions hold."""
        return np.array(not self._conditions.unmet())

    def when_fit(self, ctx: ProtocolCtx, go: Trigger) -> Trigger | Later:
        """Returns the trigger once all conditions hold."""
        if not self._conditions.unmet():
            return TRIGGER
        later = ctx.later(self._wait_ns + 2 * self._poll_ns)  # it fails by itself, and says why
        if not self._waiting:
            ctx.scheduler.after(self._poll_ns, self.look)
        self._waiting.append((later, ctx.now_ns + self._wait_ns))
        return later

    def look(self, ctx: ProtocolCtx) -> None:
        """Looks again at the board for those that wait."""
        why = self._conditions.unmet()
        waiting, self._waiting = self._waiting, []
        for later, until_ns in waiting:
            if not why:
                later.complete(TRIGGER)
            elif ctx.now_ns >= until_ns:
                later.fail(TimeoutError(f"{why}, and so it was for {self._wait_ns // _MS} ms"))
            elif not later.handle.settled:
                self._waiting.append((later, until_ns))
        if self._waiting:
            ctx.scheduler.after(self._poll_ns, self.look)
