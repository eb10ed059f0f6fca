"""How a component answers later: it returns a `Later`, which any thread may complete.

A handle is settled exactly once, by whoever comes first: the component (`complete`, `fail`) or the engine
(`revoke`: the deadline has passed, or the execution is gone). The return value tells the one who comes
second, and the sink counts it, so that a slow thread is neither an error nor invisible.
"""

from __future__ import annotations

import threading
from typing import Protocol

__all__ = ["CompletionHandle", "CompletionSink", "Later"]


class CompletionSink(Protocol):
    """Where completions go: the engine's thread-safe entrance for them."""

    def deliver(self, token: int, result: object, error: BaseException | None) -> None:
        """Takes the outcome of the parked op `token`; called at most once per token, from any thread."""

    def late(self, token: int) -> None:
        """Counts an outcome that came after the op had been settled; called from any thread."""


class CompletionHandle:
    """The right to finish one parked op, once. Thread-safe."""

    __slots__ = ("_lock", "_settled", "_sink", "token")

    def __init__(self, sink: CompletionSink, token: int) -> None:
        self.token = token
        self._sink = sink
        self._lock = threading.Lock()
        self._settled = False

    @property
    def settled(self) -> bool:
        """Whether somebody has completed, failed or revoked it."""
        return self._settled

    def complete(self, result: object = None) -> bool:
        """Hands the op's result in: a value, a tuple for several outputs, None for a `CommandId`.

        Returns False where the op had been settled before; the result is then dropped and counted.
        """
        return self._settle(result, None)

    def fail(self, error: BaseException) -> bool:
        """Fails the op with `error`; returns as `complete` does."""
        return self._settle(None, error)

    def revoke(self) -> bool:
        """Settles the handle without an outcome, for the engine. False where an outcome came first."""
        return self._claim()

    def _settle(self, result: object, error: BaseException | None) -> bool:
        if not self._claim():
            self._sink.late(self.token)
            return False
        self._sink.deliver(self.token, result, error)
        return True

    def _claim(self) -> bool:
        with self._lock:
            first = not self._settled
            self._settled = True
        return first


class Later:
    """What a method returns whose result comes later, made by `ctx.later()`.

    The component keeps it until it completes it. `deadline_ns` is relative to the call, in nanoseconds; None
    takes the engine's default for the op (30 s).
    """

    __slots__ = ("deadline_ns", "handle")

    def __init__(self, handle: CompletionHandle, deadline_ns: int | None = None) -> None:
        self.handle = handle
        self.deadline_ns = deadline_ns

    def complete(self, result: object = None) -> bool:
        """Completes the op, as `CompletionHandle.complete` does."""
        return self.handle.complete(result)

    def fail(self, error: BaseException) -> bool:
        """Fails the op, as `CompletionHandle.fail` does."""
        return self.handle.fail(error)
