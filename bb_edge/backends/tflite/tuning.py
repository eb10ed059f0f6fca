"""Reads and writes tuning files: per flatbuffer, the best number of threads, or NumPy.

`bb-edge bench --tune` writes the file, a small JSON file beside the artifact. It is valid for one board,
interpreter and version of NumPy; for any other it is ignored, with a note.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bb_edge.backends.tflite.probe import MAX_THREADS, Interpreter
from bb_edge.input_files import FileRefused, read_regular
from bb_edge.ir.plain_values import from_json
from bb_edge.roles.errors import BackendError

__all__ = ["Choice", "TuningError", "load_tuning", "save_tuning", "signature"]

FORMAT = 1
MAX_BYTES = 1 << 20
"""Bytes of the largest tuning file; an entry takes some 80."""


class TuningError(BackendError):
    """A file is not a tuning file, or was written on another device."""


class Choice(NamedTuple):
    """How to run one flatbuffer: on this many threads of the interpreter; 0 means NumPy."""

    threads: int


def signature(interpreter: Interpreter) -> str:
    """Everything that a measurement depends on: processor, cores, interpreter and NumPy."""
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
    """Writes the file whole or not at all, even if the power fails. Raises OSError."""
    from bb_shims import write_whole

    content = {
        "format": FORMAT,
        "device": signature(interpreter),
        "threads": {digest: choice.threads for digest, choice in sorted(choices.items())},
    }
    write_whole(path, f"{json.dumps(content, indent=1)}\n".encode())


def load_tuning(path: Path, interpreter: Interpreter) -> dict[str, Choice]:
    """The choices in a file. Raises TuningError where it is damaged, too large, or of another device."""
    where = str(path)
    try:
        content: Any = from_json(read_regular(path, MAX_BYTES))
        if content["format"] != FORMAT:
            raise TuningError(f"it has format {content['format']!r}, {FORMAT} is known", where, "tune again")
        device, counts = content["device"], content["threads"]
        choices = {str(digest): Choice(int(threads)) for digest, threads in counts.items()}
    except FileRefused as error:
        raise TuningError(error.what, where, "tune again") from error
    except OSError as error:
        raise TuningError(error.strerror or str(error), where) from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise TuningError("it is not a tuning file", where, "tune again") from error
    if device != signature(interpreter):
        raise TuningError("it was measured on another device or with other versions", where, "tune again")
    if any(not 0 <= choice.threads <= MAX_THREADS for choice in choices.values()):
        raise TuningError(f"a number of threads is not 0 to {MAX_THREADS}", where, "tune again")
    return choices
