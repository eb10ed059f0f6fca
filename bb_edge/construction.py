"""What a component is built from, as the artifact says it (docs/design/artifact.md, "Construction state")."""

from __future__ import annotations

import json
from typing import Any

import cbor2

from bb_edge.engine.node_values import LoadError
from bb_edge.ir.onnx_pb2 import AttributeProto
from bb_edge.ir.tensors import from_tensor_proto
from bb_edge.ir.type_protos import from_type_proto


def construction(state: AttributeProto | None, where: str) -> tuple[dict[str, object], dict[str, Any]]:
    """(config, tensors) of a slot's construction state (docs/design/artifact.md)."""
    if state is None:
        return {}, {}
    if state.type == AttributeProto.GRAPH:
        config: dict[str, object] = {}
        for entry in state.g.metadata_props:
            try:
                config[entry.key] = json.loads(entry.value)
            except ValueError as error:
                raise LoadError(f"config {entry.key!r} is no JSON", where=where) from error
        return config, {t.name: from_tensor_proto(t) for t in state.g.initializer}
    if state.type == AttributeProto.TENSOR:
        return {}, {state.t.name or "value": from_tensor_proto(state.t)}
    if state.type == AttributeProto.TYPE_PROTO:
        return {"type": from_type_proto(state.tp)}, {}
    if not state.s:
        return {}, {}
    try:
        decoded = cbor2.loads(state.s)
    except (cbor2.CBORError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise LoadError("its construction state is no CBOR", where=where) from error
    if not isinstance(decoded, dict) or not all(isinstance(k, str) for k in decoded):
        raise LoadError("its construction state is no map of names", where=where)
    return decoded, {}
