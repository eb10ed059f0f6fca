"""What reads files that an operator hands in, and what an artifact says of a component."""

from __future__ import annotations

import io

import cbor2
import numpy as np

from bb_edge.array_files import unpacked
from bb_edge.construction import construction
from bb_edge.ir.onnx_pb2 import AttributeProto

from . import mutations
from .campaign import Subject

KIB, MIB = 1 << 10, 1 << 20


def array_files() -> Subject:
    seeds = []
    for save in (np.savez, np.savez_compressed):
        written = io.BytesIO()
        save(written, x=np.arange(6, dtype=np.float32).reshape(2, 3), y=np.arange(2))
        seeds.append(written.getvalue())
    plain = io.BytesIO()
    np.save(plain, np.zeros((2, 2), order="F"))
    # A compressed member may be a thousand times as large as its bytes.
    return Subject(
        "array files",
        [*seeds, plain.getvalue()],
        (mutations.blind,),
        lambda data: unpacked(io.BytesIO(data), "file"),
        lambda n: 1100 * n + 4 * MIB,
    )


def construction_states() -> Subject:
    """Configuration of a slot as CBOR, and as a graph with JSON."""
    text = AttributeProto(name="s", type=AttributeProto.STRING)
    text.s = cbor2.dumps({"rate": 0.5, "names": ["a", "b"], "deep": [[[{"x": None}]]]}, canonical=True)
    graph = AttributeProto(name="g", type=AttributeProto.GRAPH)
    graph.g.metadata_props.add(key="layers", value='[[1, 2], {"a": [true, null, 1e9]}]')
    graph.g.initializer.add(name="w", data_type=1, dims=[2, 2], raw_data=bytes(16))

    def read(data: bytes) -> object:
        state = AttributeProto(name="s", type=AttributeProto.STRING, s=data)
        return construction(state, "slot 's'")

    def read_graph(data: bytes) -> object:
        state = AttributeProto(name="g", type=AttributeProto.GRAPH)
        state.g.metadata_props.add(key="layers", value=data.decode("latin-1"))
        return construction(state, "slot 's'")

    def either(data: bytes) -> object:
        return read_graph(data[1:]) if data[:1] == b"{" else read(data)

    seeds = [text.s, b"{" + graph.g.metadata_props[0].value.encode()]
    return Subject("construction states", seeds, (mutations.blind,), either, lambda n: 256 * n + MIB)
