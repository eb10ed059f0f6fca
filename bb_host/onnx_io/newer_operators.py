"""Operators newer than the opset that models are trained in, written out by ONNX's own definition of them."""

from __future__ import annotations

import onnx
import onnx.inliner

from bb_host.ir.queries import ONNX_DOMAINS


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own opset that a model imports; 0 where it imports none."""
    return max((e.version for e in model.opset_import if e.domain in ONNX_DOMAINS), default=0)


def without_newer(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with what came after `opset` (Attention, RMSNormalization, Swish, …) as older operators.

    An operator whose definition ONNX cannot write out stays; the conversion to `opset` then names it.
    """
    version = opset_of(model)
    newer = sorted({n.op_type for n in model.graph.node if _is_newer(n, version, opset)})
    if not newer:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _spelled_out(copy, newer, version)
    for op_type in newer:  # one by one: one may fail without the rest
        try:
            copy = onnx.inliner.inline_selected_functions(copy, [("", op_type)], False, True)
        except (TypeError, RuntimeError):  # a body that needs types which are not known
            continue
    return copy


def _is_newer(node: onnx.NodeProto, version: int, opset: int) -> bool:
    if node.domain not in ONNX_DOMAINS or not onnx.defs.has(node.op_type, version):
        return False
    schema = onnx.defs.get_schema(node.op_type, version)
    has_body = schema.has_function or schema.has_context_dependent_function
    return has_body and not onnx.defs.has(node.op_type, opset)


def _spelled_out(model: onnx.ModelProto, op_types: list[str], version: int) -> None:
    """Types of initializers and default attributes, which bodies read, written down."""
    for tensor in model.graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.value_info.append(info)
    for node in model.graph.node:
        if node.op_type not in op_types:
            continue
        given = {attribute.name for attribute in node.attribute}
        for name, attribute in onnx.defs.get_schema(node.op_type, version).attributes.items():
            if name not in given and attribute.default_value.type:
                node.attribute.append(attribute.default_value)
