"""Artifacts of programs in the text notation."""

from __future__ import annotations

import functools

from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import ModelProto


@functools.cache
def compiled(text: str) -> bytes:
    """A compiled artifact: the text's functions with `entry=1`, passport and a NumPy backend per target."""
    from program_text import parse

    from bb_host.ir.proto import to_bytes

    model = ModelProto.FromString(to_bytes(parse(text)))
    props = {p.key for p in model.metadata_props}
    if keys.COMPILED_KEY not in props:
        model.metadata_props.add(key=keys.COMPILED_KEY, value=keys.COMPILED_VERSION)
    for function in model.functions:
        if any(p.key == keys.ENTRY_KEY for p in function.metadata_props):
            model.metadata_props.add(
                key=f"{keys.BINDING_PREFIX}{function.name}.backend", value="backend|bb.NumPyBackend|99"
            )
    data: bytes = model.SerializeToString()
    return data
