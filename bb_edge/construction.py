"""Builds components from their construction state in the artifact.

docs/design/artifact.md, "Construction state", describes its forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from bb_edge.engine.errors import LoadError
from bb_edge.ir import types
from bb_edge.ir.onnx_pb2 import AttributeProto
from bb_edge.ir.plain_values import from_cbor, from_json
from bb_edge.ir.tensors import from_tensor_proto
from bb_edge.ir.type_protos import from_type_proto
from bb_edge.ir.types import ValueType
from bb_edge.roles.component import Component, ComponentEnv
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import ConstructionFailed, RoleError


def build(kind: type[Component], env: ComponentEnv) -> Component:
    """Builds a component of a class, after checking its configuration.

    Raises ComponentError, whatever the code of the class raises; it names the slot, the type, the class of
    the exception and the line.
    """
    env.check(kind)
    try:
        component: object = kind.construct(env)
    except RoleError as error:
        if error.where:
            raise
        raise env.error(error.what, hint=error.hint) from error
    except BaseException as error:
        raise _not_built(kind, env, contained(error)) from error
    if not isinstance(component, Component):
        raise env.error(
            f"{kind.TYPE_NAME} cannot be built: construct returns {component!r:.60}",
            hint="let construct return the component",
        )
    notes: object = component.notes
    if not isinstance(notes, (list, tuple)) or not all(isinstance(note, str) for note in notes):
        raise env.error(
            f"{kind.TYPE_NAME} has {notes!r:.60} as its notes, and sentences for the log are expected",
            hint="give an attribute of another meaning another name",
        )
    if not getattr(kind.port_types, "__module__", "").startswith("bb_edge."):
        component.promised_types = env.once(("promised", kind), lambda: _promised(kind, env))
    return component


def _promised(kind: type[Component], env: ComponentEnv) -> Mapping[str, ValueType]:
    """What an author's class says in `port_types` that its ports have, without their shapes.

    A class that fails to answer promises nothing here: the compiler refuses it.
    """
    try:
        declared = kind.port_types(deepcopy(dict(env.compiled)), dict(env.tensors))
        said = {str(port): str(text).partition("[")[0].strip() for port, text in declared.items()}
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError):
        return {}
    nodes = {port: types.by_id(f"Tensor<{text}>") or types.by_id(text) for port, text in said.items()}
    return {port: ValueType(node) for port, node in nodes.items() if node is not None}


def _not_built(kind: type[Component], env: ComponentEnv, error: Exception) -> ConstructionFailed:
    from bb_edge.ir.fault_lines import fault_line

    line, text = fault_line(error), str(error)
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    what = f"{kind.TYPE_NAME} cannot be built: {reason}" + (f", at {line}" if line else "")
    keys_of = f"it has {', '.join(sorted(env.config))}" if env.config else "it is empty"
    hint = f"correct the component, or the slot's configuration ({keys_of}; --set {env.slot}.KEY=VALUE)"
    refusal = env.error(what, hint=hint)
    return ConstructionFailed(refusal.what, refusal.where, refusal.hint)


def construction(state: AttributeProto | None, where: str) -> tuple[dict[str, object], dict[str, Any]]:
    """Returns (config, tensors) of a slot's construction state. Raises LoadError where it is damaged."""
    if state is None:
        return {}, {}
    if state.type == AttributeProto.GRAPH:
        config: dict[str, object] = {}
        for entry in state.g.metadata_props:
            try:
                config[entry.key] = from_json(entry.value)
            except ValueError as error:
                raise LoadError(f"config {entry.key!r} is not JSON: {error}", where, _AGAIN) from error
        return config, {t.name: from_tensor_proto(t) for t in state.g.initializer}
    if state.type == AttributeProto.TENSOR:
        return {}, {state.t.name or "value": from_tensor_proto(state.t)}
    if state.type == AttributeProto.TYPE_PROTO:
        return {"type": from_type_proto(state.tp)}, {}
    if not state.s:
        return {}, {}
    try:
        decoded = from_cbor(state.s)
    except ValueError as error:
        raise LoadError(f"its construction state is not CBOR: {error}", where, _AGAIN) from error
    if not isinstance(decoded, dict) or not all(isinstance(k, str) for k in decoded):
        raise LoadError("its construction state is not a map with names as keys", where, _AGAIN)
    return decoded, {}


_AGAIN = "copy the artifact again, or compile it again"
