"""Between the light form and ONNX protos. Nothing is lost: what a record does not name goes into its `extra`.

`from_proto` takes any class of the ONNX schema (the `onnx` package's or the runtime's own); `to_proto` gives
`onnx.ModelProto`. `to_proto(from_proto(m)) == m` for every model that `to_proto` wrote.
"""

from __future__ import annotations

from bb_host.ir.proto.reader import array_of, from_proto, read_attribute, read_graph, read_tensor, rest_of
from bb_host.ir.proto.writer import function_to_proto, op_to_proto, to_bytes, to_proto, write_attribute

__all__ = [
    "array_of",
    "from_proto",
    "function_to_proto",
    "op_to_proto",
    "read_attribute",
    "read_graph",
    "read_tensor",
    "rest_of",
    "to_bytes",
    "to_proto",
    "write_attribute",
]
