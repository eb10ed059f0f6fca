"""A TFLite graph as the bytes of a flatbuffer (identifier TFL3), with the `flatbuffers` package alone.

1. Buffer 0 is empty: tensors without contents point at it. Equal constants share one buffer, aligned to 16.
2. Every scalar is stored, those at their default too: old readers differ in some defaults.
3. Operator codes are numbered in order of first use, one per version. A version is the lowest that covers
   what is written, so that the oldest runtime we serve takes it.
4. A dynamic dimension is 1 in `shape` and -1 in `shape_signature`.
5. Equal graphs have equal bytes: nothing here iterates over a set or asks for an address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bb_host.errors import LoweringError
from bb_host.tflite.graph import DYNAMIC, Operator, Tensor, TfliteGraph
from bb_host.tflite.schema import DTYPES, OPERATORS

FILE_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_ALIGNMENT = 16
_PLACEHOLDER_CODE = 127  # what the old one-byte code field says for codes beyond it


def write(graph: TfliteGraph, name: str = "main") -> bytes:
    """The flatbuffer. LoweringError for an operator, option or dtype that the schema table lacks."""
    return _Writer().model(graph, name)


class _Writer:
    def __init__(self) -> None:
        import flatbuffers

        self.builder: Any = flatbuffers.Builder(4096)
        self.buffers: list[int] = []
        self.of_payload: dict[bytes, int] = {}
        self.codes: dict[tuple[str, int], int] = {}

    # --- primitives

    def table(self, fields: Sequence[tuple[int, str, Any]]) -> int:
        """Fields are (slot, kind, value); an `Offset` points at what is written, None is left out."""
        builder = self.builder
        builder.StartObject(max((slot for slot, _, _ in fields), default=-1) + 1)
        for slot, kind, value in fields:
            if value is None:
                continue
            if kind == "Offset":
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                getattr(builder, f"Prepend{kind}Slot")(slot, value, None)
        return int(builder.EndObject())

    def vector(self, values: Sequence[Any], size: int, kind: str) -> int:
        builder = self.builder
        builder.StartVector(size, len(values), size)
        prepend = getattr(builder, f"Prepend{kind}")
        for value in reversed(values):
            prepend(value)
        return int(builder.EndVector())

    def ints(self, values: Sequence[int]) -> int:
        return self.vector([int(v) for v in values], 4, "Int32")

    def offsets(self, values: Sequence[int]) -> int:
        return self.vector(values, 4, "UOffsetTRelative")

    # --- parts

    def buffer(self, data: Any) -> int:
        raw = np.asarray(data).tobytes()
        if raw not in self.of_payload:
            builder = self.builder
            builder.StartVector(1, len(raw), _ALIGNMENT)  # CreateByteVector does not align its contents
            builder.head -= len(raw)
            builder.Bytes[builder.head : builder.head + len(raw)] = raw
            self.of_payload[raw] = len(self.buffers)
            self.buffers.append(self.table([(0, "Offset", builder.EndVector())]))
        return self.of_payload[raw]

    def tensor(self, tensor: Tensor) -> int:
        if tensor.dtype not in DTYPES:
            raise LoweringError(f"no TFLite type for {tensor.dtype}", f"tensor {tensor.name!r}")
        buffer = 0 if tensor.data is None else self.buffer(tensor.data)
        quantization = None
        if tensor.quantization is not None:
            known = tensor.quantization
            scale = self.vector([float(s) for s in np.ravel(known.scale)], 4, "Float32")
            zero = self.vector([int(z) for z in np.ravel(known.zero_point)], 8, "Int64")
            quantization = self.table([(2, "Offset", scale), (3, "Offset", zero), (6, "Int32", known.axis)])
        name = self.builder.CreateString(tensor.name)
        shape = self.ints([1 if d == DYNAMIC else d for d in tensor.shape])
        signature = self.ints(tensor.shape) if DYNAMIC in tensor.shape else None
        return self.table(
            [
                (0, "Offset", shape),
                (1, "Int8", DTYPES[tensor.dtype]),
                (2, "Uint32", buffer),
                (3, "Offset", name),
                (4, "Offset", quantization),
                (7, "Offset", signature),
                (8, "Bool", True),
            ]
        )

    def operator(self, op: Operator, graph: TfliteGraph) -> int:
        schema = OPERATORS.get(op.kind)
        if schema is None:
            raise LoweringError(f"operator {op.kind} is not in the schema table", "TFLite writer")
        types = {graph.tensors[i].dtype for i in op.inputs[:1]}
        version = schema.version_int8 if "int8" in types else schema.version
        code = self.codes.setdefault((op.kind, version), len(self.codes))
        unknown = sorted(set(op.options) - set(schema.slots))
        if unknown:
            raise LoweringError(f"{op.kind} has no option {', '.join(unknown)}", "TFLite writer")
        options = None
        if schema.tag:
            options = self.table([(*schema.slots[key], value) for key, value in sorted(op.options.items())])
        inputs, outputs = self.ints(op.inputs), self.ints(op.outputs)
        return self.table(
            [
                (0, "Uint32", code),
                (1, "Offset", inputs),
                (2, "Offset", outputs),
                (3, "Uint8", schema.tag if schema.tag else None),
                (4, "Offset", options),
            ]
        )

    def model(self, graph: TfliteGraph, name: str) -> bytes:
        self.buffers.append(self.table([]))
        tensors = [self.tensor(tensor) for tensor in graph.tensors]
        operators = [self.operator(op, graph) for op in graph.operators]
        codes = []
        for kind, version in self.codes:
            code = OPERATORS[kind].code
            codes.append(
                self.table(
                    [(0, "Int8", min(code, _PLACEHOLDER_CODE)), (2, "Int32", version), (3, "Int32", code)]
                )
            )
        title = self.builder.CreateString(name)
        parts = [
            self.offsets(tensors),
            self.ints(graph.inputs),
            self.ints(graph.outputs),
            self.offsets(operators),
            title,
        ]
        subgraph = self.table([(slot, "Offset", part) for slot, part in enumerate(parts)])
        maps = [self.signature_map(graph, graph.inputs), self.signature_map(graph, graph.outputs)]
        key = self.builder.CreateString("serving_default")
        signature = self.table(
            [(0, "Offset", maps[0]), (1, "Offset", maps[1]), (2, "Offset", key), (4, "Uint32", 0)]
        )
        fields = [
            (0, "Uint32", _SCHEMA_VERSION),
            (1, "Offset", self.offsets(codes)),
            (2, "Offset", self.offsets([subgraph])),
            (4, "Offset", self.offsets(self.buffers)),
            (7, "Offset", self.offsets([signature])),
        ]
        self.builder.Finish(self.table(fields), file_identifier=FILE_IDENTIFIER)
        return bytes(self.builder.Output())

    def signature_map(self, graph: TfliteGraph, indices: Sequence[int]) -> int:
        pairs = []
        for index in indices:
            name = self.builder.CreateString(graph.tensors[index].name)
            pairs.append(self.table([(0, "Offset", name), (1, "Uint32", index)]))
        return self.offsets(pairs)
