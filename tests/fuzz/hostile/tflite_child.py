"""A process that loads flatbuffers, or artifacts with flatbuffers in them, one after the other.

Messages of its parent are a length in four bytes and that many bytes. The answer to each is a text of the
same form: `taken`; `refused` and the error's class; `failed` and what was raised that should not have been.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from typing import Any, BinaryIO

import numpy as np

from bb_edge import open_model
from bb_edge.backends.tflite.flatbuffer import Reader
from bb_edge.backends.tflite.probe import INTERPRETERS, attempt
from bb_edge.backends.tflite.program import TFLiteProgram
from bb_edge.backends.tflite.verify import verify
from bb_edge.ir.errors import BBError

LARGEST = 1 << 24
"""Elements of inputs, bytes of results; a model that asks for more is loaded and not run."""


def receive(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    return stream.read(struct.unpack("<I", head)[0]) if len(head) == 4 else None


def send(stream: BinaryIO, data: bytes) -> None:
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def ports(data: bytes) -> tuple[int, int]:
    """How many inputs and outputs a flatbuffer says that it has."""
    try:
        reader = Reader(data)
        (graph,) = reader.children(reader.root(), 2)
        return len(reader.numbers(graph, 1, "i")), len(reader.numbers(graph, 2, "i"))
    except ValueError:
        return 1, 1


def shaped(shape: tuple[Any, ...], rows: int) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) and d >= 0 else rows for d in shape)


def of_flatbuffer(data: bytes) -> None:
    """Forged: the digest is right."""
    digest = hashlib.sha256(data).hexdigest().encode()
    program = TFLiteProgram(CHOSEN, data, digest, *ports(data), 1, "the model")
    if verify(data) > LARGEST:
        return
    for rows in (1, 3):
        shapes = [shaped(shape, rows) for _, shape in program.ports]
        if sum(int(np.prod(shape, dtype=float)) for shape in shapes) > LARGEST:
            return
        program.run([np.ones(shape, dtype) for (dtype, _), shape in zip(program.ports, shapes, strict=True)])


def of_artifact(data: bytes) -> None:
    model = open_model(data)
    shapes = [shaped(value.shape or (), 2) for value in model.inputs.values()]
    if sum(int(np.prod(shape, dtype=float)) for shape in shapes) <= LARGEST:
        model(*(np.ones(shape, np.float32) for shape in shapes))


def answer(data: bytes, read: Any) -> str:
    try:
        read(data)
    except BBError as error:
        return f"refused {type(error).__name__}"
    except Exception as error:  # noqa: BLE001  (this is what is looked for)
        return f"failed {type(error).__name__}: {error}"
    return "taken"


if __name__ == "__main__":
    what, distribution = sys.argv[1:]
    (package,) = [p for p, d in INTERPRETERS if d == distribution]
    CHOSEN, wrong = attempt(package)
    if CHOSEN is None:
        sys.exit(wrong)
    read = {"flatbuffers": of_flatbuffer, "artifacts": of_artifact}[what]
    while (message := receive(sys.stdin.buffer)) is not None:
        send(sys.stdout.buffer, answer(message, read).encode())
