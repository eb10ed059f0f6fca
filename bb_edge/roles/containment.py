"""Turns what users' code raises into errors of an op, except what must end the process."""

from __future__ import annotations

from types import CodeType

from bb_edge.roles.errors import ComponentError

__all__ = ["contained"]


def contained(error: BaseException) -> Exception:
    """Returns what users' code raised as an error of the op that called it, or raises it again.

    A component that calls `sys.exit` fails its op, and the node goes on. Raised again are Ctrl-C, and what a
    signal handler of the host raises while a component runs.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, GeneratorExit) or _of_a_signal(error):
        raise error
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    failure = ComponentError(
        f"{what}: only the host ends the process", hint="let the component raise an Exception"
    )
    failure.__cause__ = error
    return failure.with_traceback(error.__traceback__)


def _of_a_signal(error: BaseException) -> bool:
    """Returns whether a signal handler raised it.

    Python runs handlers on the main thread, between any two steps.
    """
    import signal  # only errors need them
    import threading

    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    if isinstance(error, KeyboardInterrupt) and _code(handlers.get(signal.SIGINT)) is None:
        return True
    codes = {code for code in map(_code, handlers.values()) if code is not None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: object) -> CodeType | None:
    """Returns the code of a handler that is written in Python."""
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None
