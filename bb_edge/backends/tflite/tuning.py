"""What was measured on this device: per flatbuffer, the interpreter's best number of threads, or NumPy.

A small JSON file beside the artifact, written by `bb-edge bench --tune`. It is of one board, interpreter and
NumPy; where any of these is another one now, it is left aside and said so.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bb_edge.backends.tflite.probe import MAX_THREADS, Interpreter
from bb_edge.roles.errors import BackendError

__all__ = ["Choice", "TuningError", "load_tuning", "save_tuning", "signature"]

FORMAT = 1
MAX_BYTES = 1 << 20


class TuningError(BackendError):
    """A tuning file that is none, or of another device."""


class Choice(NamedTuple):
    """How to run one flatbuffer; `threads` 0 is NumPy."""

    threads: int


def signature(interpreter: Interpreter) -> str:
    """What a measurement is worth nothing without."""
    return "|".join(
        (
            platform.machine(),
            platform.processor() or platform.node(),
            str(os.cpu_count()),
            interpreter.package,
            interpreter.version,
            np.__version__,
        )
    )


def save_tuning(path: Path, choices: Mapping[str, Choice], interpreter: Interpreter) -> None:
    """Writes the file whole or not at all. OSError."""
    content = {
        "format": FORMAT,
        "device": signature(interpreter),
        "threads": {digest: choice.threads for digest, choice in sorted(choices.items())},
    }
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(content, stream, indent=1)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load_tuning(path: Path, interpreter: Interpreter) -> dict[str, Choice]:
    """The choices of a file. TuningError where it is none, too large, or of another device."""
    where = str(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise TuningError(f"it is larger than {MAX_BYTES} bytes", where, "tune again")
        content: Any = json.loads(data)
        if content["format"] != FORMAT:
            raise TuningError(f"format {content['format']!r}", where, "tune again")
        device, found = content["device"], content["threads"]
        choices = {str(digest): Choice(int(threads)) for digest, threads in found.items()}
    except OSError as error:
        raise TuningError(error.strerror or str(error), where) from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise TuningError("it is no tuning file", where, "tune again") from error
    if device != signature(interpreter):
        raise TuningError("it was measured on another device or with other versions", where, "tune again")
    if any(not 0 <= choice.threads <= MAX_THREADS for choice in choices.values()):
        raise TuningError("a number of threads that cannot be", where, "tune again")
    return choices
