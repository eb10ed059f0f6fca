"""The vocabulary that host and device share: ids, addresses, types, tensors, wire shape, opsets.

Names are loaded when they are first used, so that a program which wants a peer id does not pay for NumPy
and protobuf. Submodules are imported as usual (`from bb_edge.ir import keys`).
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as in `bb_edge`: without `typing`
if TYPE_CHECKING:
    from bb_edge.ir.address import Address, AddressError
    from bb_edge.ir.errors import AuthoringError, BBError, CompileError, InstallError, WireError
    from bb_edge.ir.ids import PeerId, PeerIdError, fnv1a_64, site_id
    from bb_edge.ir.tensors import (
        TensorError,
        decode_tensor,
        encode_tensor,
        from_tensor_proto,
        to_tensor_proto,
    )
    from bb_edge.ir.type_protos import from_type_proto, to_type_proto, value_info
    from bb_edge.ir.types import TypeNode, TypeRegistrationError, ValueType, register_type, tensor_type
    from bb_edge.ir.wire_shape import WireShapeViolation, verify_wire_shape

_HOME = {
    "Address": "address",
    "AddressError": "address",
    "AuthoringError": "errors",
    "BBError": "errors",
    "CompileError": "errors",
    "InstallError": "errors",
    "WireError": "errors",
    "PeerId": "ids",
    "PeerIdError": "ids",
    "fnv1a_64": "ids",
    "site_id": "ids",
    "TensorError": "tensors",
    "decode_tensor": "tensors",
    "encode_tensor": "tensors",
    "from_tensor_proto": "tensors",
    "to_tensor_proto": "tensors",
    "from_type_proto": "type_protos",
    "to_type_proto": "type_protos",
    "value_info": "type_protos",
    "TypeNode": "types",
    "TypeRegistrationError": "types",
    "ValueType": "types",
    "register_type": "types",
    "tensor_type": "types",
    "WireShapeViolation": "wire_shape",
    "verify_wire_shape": "wire_shape",
}

__all__ = [
    "Address",
    "AddressError",
    "AuthoringError",
    "BBError",
    "CompileError",
    "InstallError",
    "PeerId",
    "PeerIdError",
    "TensorError",
    "TypeNode",
    "TypeRegistrationError",
    "ValueType",
    "WireError",
    "WireShapeViolation",
    "decode_tensor",
    "encode_tensor",
    "fnv1a_64",
    "from_tensor_proto",
    "from_type_proto",
    "register_type",
    "site_id",
    "tensor_type",
    "to_tensor_proto",
    "to_type_proto",
    "value_info",
    "verify_wire_shape",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
