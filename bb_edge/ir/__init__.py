"""The vocabulary that host and device share: ids, addresses, types, tensors, opsets.

Names are loaded when they are first used, so that a program which wants a peer id does not pay for NumPy
and protobuf. Submodules are imported as usual (`from bb_edge.ir import keys`).
"""

from __future__ import annotations

from bb_edge.ir.lazy_exports import lazy_exports

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
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "bb_edge.ir.address": "Address, AddressError",
            "bb_edge.ir.errors": "AuthoringError, BBError, CompileError, InstallError, WireError",
            "bb_edge.ir.ids": "PeerId, PeerIdError, fnv1a_64, site_id",
            "bb_edge.ir.tensors": (
                "TensorError, decode_tensor, encode_tensor, from_tensor_proto, to_tensor_proto"
            ),
            "bb_edge.ir.type_protos": "from_type_proto, to_type_proto, value_info",
            "bb_edge.ir.types": "TypeNode, TypeRegistrationError, ValueType, register_type, tensor_type",
        },
    )


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
]
