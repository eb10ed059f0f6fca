"""Artifacts that a test changes, and seals again, so that what is changed gets past the digest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_edge.ir.seals import seal


def resealed(model: Any) -> bytes:
    """The bytes of a model, with the digest that belongs to them if it is one for devices."""
    proto = ModelProto.FromString(model.SerializeToString())
    kept = [entry for entry in proto.metadata_props if entry.key != keys.DIGEST_KEY]
    was_sealed = any(e.key == keys.COMPILED_KEY and e.value == keys.SEALED_VERSION for e in kept)
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    data: bytes = proto.SerializeToString(deterministic=True)
    return seal(data) if was_sealed else data


def unsealed(data: bytes) -> bytes:
    """An artifact as passport v1 had it: without a digest, so that mutations of it get behind that check."""
    model = ModelProto.FromString(data)
    for entry in model.metadata_props:
        if entry.key == keys.COMPILED_KEY:
            entry.value = keys.COMPILED_VERSION
    return resealed(model)


def changed(data: bytes, change: Callable[[Any], object]) -> bytes:
    """An artifact after `change(model)`, sealed again."""
    model = ModelProto.FromString(data)
    change(model)
    return resealed(model)
