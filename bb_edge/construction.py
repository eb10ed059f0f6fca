"""What a component is built from, as the artifact says it (docs/design/artifact.md, "Construction state")."""

from __future__ import annotations

import json
from typing import Any

import cbor2

from bb_edge.engine.program.node_values import LoadError
from bb_edge.ir.onnx_pb2 import AttributeProto
from bb_edge.ir.tensors import from_tensor_proto
from bb_edge.ir.type_protos import from_type_proto
from bb_edge.roles.component import Component, ComponentEnv
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import ComponentError, RoleError


def build(kind: type[Component], env: ComponentEnv) -> Component:
    """A component of a class, its configuration checked first.

    Whatever its code raises is a ComponentError with the slot, the type, the exception's class and the line.
    """
    env.check(kind)
    try:
        made: object = kind.construct(env)
    except RoleError as error:
        if error.where:
            raise
        raise env.error(error.what, hint=error.hint) from error
    except BaseException as error:
        raise _not_built(kind, env, contained(error)) from error
    if not isinstance(made, Component):
        raise env.error(
            f"{kind.TYPE_NAME} cannot be built: construct gives {made!r:.60}",
            hint="let construct return the component",
        )
    return made


def _not_built(kind: type[Component], env: ComponentEnv, error: Exception) -> ComponentError:
    from bb_edge.ir.fault_lines import fault_line

    line, text = fault_line(error), str(error)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    what = f"{kind.TYPE_NAME} cannot be built: {said}" + (f", at {line}" if line else "")
    given = f"it has {', '.join(sorted(env.config))}" if env.config else "it is empty"
    hint = f"mend the component, or the slot's configuration ({given}; --set {env.slot}.KEY=VALUE)"
    return env.error(what, hint=hint)


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
