"""Work in a process of its own, which gives back all that it took: compiling, before a long run begins.

The compiler and what it imports stay in a process for as long as it lives, some 40 MiB that a simulation has
no use for.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import traceback
from collections.abc import Callable
from multiprocessing import Pipe, current_process
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

from bb_edge.ir.errors import BBError
from bb_host.spawned import Spawned

T = TypeVar("T")

COMPILER_NEEDS = "onnx"
"""Where this module is imported, the compiler is there already or costs little more."""


def apart(function: Callable[..., T], *arguments: object) -> T:
    """Returns `function(*arguments)`, computed in a new process that has ended then.

    As for every process that Python spawns: the function is one of a module, what goes in and comes out can
    be pickled, and a script calls this under `if __name__ == "__main__":`. What the function prints appears
    as ever. Raises what it raises; of what no author is told by itself (a defect) the traceback there is the
    cause. A process that has imported onnx already, or may start none, computes it itself: it would gain
    nothing.
    """
    if COMPILER_NEEDS in sys.modules or current_process().daemon:
        return function(*arguments)
    ours, theirs = Pipe(duplex=False)
    process = Spawned(target=_compute, args=(theirs, function, arguments), name="bb-apart")
    process.start()
    theirs.close()
    answer: tuple[Any, BaseException | None, str] | None = None
    with contextlib.closing(ours):
        try:
            with contextlib.suppress(EOFError, ConnectionResetError):
                answer = ours.recv()
        except BaseException:  # an interrupt: nobody waits for it any more
            process.kill()
            raise
        finally:
            process.join()
    if answer is None:  # it was killed: what did so does it here too, where it belongs to somebody
        return function(*arguments)
    result, error, there = answer
    if error is not None:
        raise error from (ErrorApart(there) if there else None)
    return cast("T", result)


class ErrorApart(Exception):
    """The traceback of an error in the process that raised it."""

    def __str__(self) -> str:
        return f"in a process of its own\n{self.args[0]}"


def _compute(connection: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """The life of the process: it answers with the result, or with an error and where it was raised."""
    told: tuple[object, BaseException | None, str]
    try:
        told = function(*arguments), None, ""
    except (BBError, OSError, SystemExit) as error:
        told = None, _sendable(error), ""
    except KeyboardInterrupt:
        return  # who asked was interrupted too
    except Exception as error:  # noqa: BLE001 (the border to authors' code: who asked raises it)
        told = None, _sendable(error), traceback.format_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(BrokenPipeError):
        connection.send(told)


def _sendable(error: Exception | SystemExit) -> BaseException:
    """The error, or one with the same texts where its class cannot be sent."""
    # A class of the author's: its `__init__` may take or raise anything.
    with contextlib.suppress(Exception):
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    if isinstance(error, (OSError, SystemExit)):
        return BBError(str(error))
    if not isinstance(error, BBError):
        return RuntimeError(f"{type(error).__name__}: {error}")
    plain = BBError(error.what, error.where, error.hint)
    plain.table = getattr(error, "table", "")  # type: ignore[attr-defined]
    return plain
