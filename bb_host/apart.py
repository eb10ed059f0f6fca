"""Work in a process of its own, which gives back all that it took: compiling, before a long run begins.

The compiler and what it imports stay in a process for as long as it lives, some 40 MiB that a simulation has
no use for.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from bb_edge.ir.errors import BBError

T = TypeVar("T")

COMPILER_NEEDS = "onnx"
"""Where this module is imported, the compiler is there already or costs little more."""


def apart(function: Callable[..., T], *arguments: object) -> T:
    """Returns `function(*arguments)`, computed in a new process that has ended then.

    As for every process that Python spawns: the function is one of a module, what goes in and comes out can
    be pickled, and a script calls this under `if __name__ == "__main__":`. What the function prints appears
    as ever. Raises what it raises. A process that has imported onnx already, or may start none, computes it
    itself: it would gain nothing.
    """
    if COMPILER_NEEDS in sys.modules or current_process().daemon:
        return function(*arguments)
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_compute, args=(theirs, function, arguments), name="bb-apart")
    process.start()
    theirs.close()
    answer: tuple[str, Any] | None = None
    with contextlib.closing(ours):
        try:
            with contextlib.suppress(EOFError, ConnectionResetError):
                answer = ours.recv()
        except BaseException:  # an interrupt: nobody waits for it any more
            process.kill()
            raise
        finally:
            process.join()
    if answer is None:  # what ended it does so here too, where its traceback belongs to somebody
        return function(*arguments)
    kind, value = answer
    if kind == "error":
        raise value
    result: T = value
    return result


def _compute(connection: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """The life of the process: it answers with the result, with an error that can be sent, or not at all."""
    told: tuple[str, object] | None = None
    try:
        told = "value", function(*arguments)
    except (BBError, OSError, SystemExit) as error:
        told = "error", _sendable(error)
    except KeyboardInterrupt:
        pass  # who asked was interrupted too
    # The border to authors' code: whoever asked runs it again, and shows the traceback.
    except Exception:  # noqa: BLE001
        pass
    sys.stdout.flush()
    sys.stderr.flush()
    if told is not None:
        with contextlib.suppress(BrokenPipeError):
            connection.send(told)


def _sendable(error: BBError | OSError | SystemExit) -> BaseException:
    """The error, or one with the same texts where its class cannot be sent."""
    # A class of the author's: its `__init__` may take or raise anything.
    with contextlib.suppress(Exception):
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    if not isinstance(error, BBError):
        return BBError(str(error))
    plain = BBError(error.what, error.where, error.hint)
    plain.table = getattr(error, "table", "")  # type: ignore[attr-defined]
    return plain
