"""Flatbuffers and artifacts on an interpreter; as a script, in an environment of its own for a test session.

The script reads messages, a length in four bytes and an `.npz` of that many: `what`, `data` and the inputs in
order; it answers with the results in the same form, or with `error`.
"""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def flatbuffer(interpreter: Callable[..., Any], data: bytes, inputs: Sequence[Array]) -> list[Array]:
    """Twice: what a first run leaves must not show in a second."""
    it = interpreter(model_content=data, num_threads=1)
    places = it.get_input_details()
    for place, x in zip(places, inputs, strict=True):
        if tuple(place["shape"]) != x.shape:
            it.resize_tensor_input(place["index"], x.shape, strict=True)
    it.allocate_tensors()
    for _ in range(2):
        for place, x in zip(places, inputs, strict=True):
            it.set_tensor(place["index"], x)
        it.invoke()
    return [it.get_tensor(place["index"]) for place in it.get_output_details()]


def opened(data: bytes, inputs: Sequence[Array]) -> list[Array]:
    """By `open_model`, which needs no engine here."""
    import bb_edge

    model = bb_edge.open_model(data)
    assert model.program is not None
    found = model(*inputs)
    return list(found.values()) if isinstance(found, dict) else [found]


def invoked(data: bytes, inputs: Sequence[Array]) -> list[Array]:
    """By `Node.invoke`."""
    from bb_edge import NodeConfig, PeerId, install, load
    from bb_edge.engine.steps import AppEvent, OpFailed

    program = load(data)
    (target,) = program.targets
    node = install(PeerId.from_name("t"), (), program, [target], NodeConfig(app_event_bytes=1 << 20), seed=0)
    graph = program.graphs[program.targets[target].main]
    node.invoke(target, dict(zip(graph.inputs, inputs, strict=True)))
    found = {}
    for now in range(1, 4):
        for step in node.poll(now):
            assert not isinstance(step, OpFailed), step
            if isinstance(step, AppEvent):
                found[step.topic] = np.asarray(step.value)
    return [found[name] for name in graph.outputs]


def receive(stream: BinaryIO) -> dict[str, Array] | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    with np.load(io.BytesIO(stream.read(struct.unpack("<I", head)[0]))) as found:
        return dict(found)


def send(stream: BinaryIO, arrays: dict[str, Array]) -> None:
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    stream.write(struct.pack("<I", packed.tell()) + packed.getvalue())
    stream.flush()


def main() -> None:
    from bb_edge.backends.tflite.probe import interpreter

    chosen = interpreter().make
    assert chosen is not None, str(interpreter())
    while (message := receive(sys.stdin.buffer)) is not None:
        what, data = str(message.pop("what")), message.pop("data").tobytes()
        inputs = [message[f"x{i}"] for i in range(len(message))]
        try:
            if what == "flatbuffer":
                results = flatbuffer(chosen, data, inputs)
            else:
                results = {"opened": opened, "invoked": invoked}[what](data, inputs)
            answer = {f"y{i}": y for i, y in enumerate(results)}
        except Exception as error:  # noqa: BLE001  (the session's test fails with it)
            answer = {"error": np.array(f"{type(error).__name__}: {error}")}
        send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    main()
