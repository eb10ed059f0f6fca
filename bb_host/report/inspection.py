"""What a model holds, JSON-ready: partitions, slots, bindings, wire edges, in all three forms.

Of an ordinary model: ports, operators, parameters, and how far each backend takes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bb_edge.backends.stored_plan import MemoryPlanError, decode
from bb_edge.ir import keys
from bb_edge.ir.bodies import body_keys
from bb_edge.ir.onnx_pb2 import TensorProto
from bb_edge.ir.opsets.wire import (
    OP_RECV,
    OP_RECV_REQ,
    OP_RECV_RESP,
    OP_RECV_RESP_BATCHED,
    OP_SEND,
    OP_SEND_REQ,
    OP_SEND_RESP,
    SEND_FLAVORED,
)
from bb_edge.ir.plain_values import from_cbor
from bb_edge.ir.type_protos import TypeProtoError, from_type_proto
from bb_edge.ir.types import by_wire_hash
from bb_host.columns import columns
from bb_host.ir.program import Function, Op, Program, Slot, Subgraph, walk_ops
from bb_host.ir.proto import array_of
from bb_host.ir.queries import is_constant
from bb_host.report.reach import Reach, reach_of

ORDINARY = "ordinary ONNX model"
"""The form of a model that was not recorded here."""

_KINDS = {
    **dict.fromkeys((OP_SEND, OP_RECV), "one way"),
    **dict.fromkeys((OP_SEND_REQ, OP_RECV_REQ), "request"),
    **dict.fromkeys((OP_SEND_RESP, OP_RECV_RESP, OP_RECV_RESP_BATCHED), "reply"),
}


def form_of(program: Program) -> str:
    """`recorded`, `compiled` or `edge`."""
    if program.facts.stripped:
        return "edge"
    return "compiled" if program.facts.compiled else "recorded"


def describe(program: Program, size: int = 0) -> dict[str, Any]:
    """The program as a JSON-ready dict; `size` is its file's, in bytes.

    `partitions` are the targets of a compiled program, the modules of a recorded one.
    """
    form = form_of(program)
    if form == "recorded":
        suffix = keys.BOOTSTRAP_SUFFIX
        tops = [f for f in program.functions if not f.name.endswith(suffix)]
    else:
        tops = [f for f in program.functions if f.facts.entry]
    return {
        "form": form,
        "module": program.facts.module or program.name,
        "bytes": size,
        "program": program.facts.program,
        "accepts": list(program.facts.accepts),
        "contracts": dict(sorted(program.facts.contracts.items())),
        "functions": len(program.functions),
        "opsets": dict(sorted(program.opsets.items())),
        "partitions": [_partition(program, f) for f in tops],
        "wire": _wire(tops, form != "recorded"),
        "memory": [entry for f in program.functions for entry in _memory(f)],
        "tflite": [entry for f in program.functions for entry in _models(f)],
    }


# --- partitions -----------------------------------------------------------------------------------


def describe_model(model: Any, size: int = 0) -> dict[str, Any]:
    """An ordinary ONNX model as a JSON-ready dict; `size` is its file's, in bytes, without external data.

    `backends` says how far each takes it, which needs compiling.
    """
    graph = model.graph
    elements = {t.name: math.prod(t.dims) for t in graph.initializer}
    return {
        "form": ORDINARY,
        "module": graph.name or "unnamed",
        "bytes": size,
        "opsets": {o.domain or keys.ONNX_DOMAIN_ALIAS: o.version for o in model.opset_import},
        "inputs": [_value(v) for v in graph.input if v.name not in elements],
        "outputs": [_value(v) for v in graph.output],
        "ops": len(graph.node),
        "ops_by_type": dict(Counter(node.op_type for node in graph.node).most_common()),
        "tensors": len(elements),
        "parameters": sum(elements.values()),
        "backends": reach_of(model).to_dict(),
    }


def _value(info: Any) -> str:
    """A port of an ordinary model with its type; a tensor of an element type that no value here has, too."""
    try:
        known = from_type_proto(info.type)
    except TypeProtoError:  # of a tensor's elements
        declared = info.type.tensor_type
        names = {number: name.lower() for name, number in TensorProto.DataType.items()}
        element = names.get(declared.elem_type, f"element type {declared.elem_type}")
        sizes = [str(dim.dim_value or dim.dim_param or "?") for dim in declared.shape.dim]
        return f"{info.name}: {element}" + (f"[{','.join(sizes)}]" if declared.HasField("shape") else "")
    return f"{info.name}: {known}"


def _partition(program: Program, function: Function) -> dict[str, Any]:
    names = {f.name for f in program.functions}
    ops = [op for op in _with_bodies(program, function) if not is_constant(op)]
    return {
        "name": function.name,
        "class": function.facts.partition or function.facts.home,
        "inputs": [_port(function, v) for v in function.inputs],
        "outputs": [_port(function, v) for v in function.outputs],
        "bootstrap": function.name + keys.BOOTSTRAP_SUFFIX in names,
        "ops": len(ops),
        "ops_by_domain": dict(sorted(Counter(_short(op.domain) for op in ops).items())),
        "slots": _slots(program, function),
    }


def _with_bodies(program: Program, function: Function) -> Iterator[Op]:
    """The ops of a function, and those of the bodies that its loops and branches run, once each."""
    keyed = {f.key: f for f in program.functions}
    todo, seen = [function.key], {function.key}
    while todo:
        for op in walk_ops(keyed[todo.pop()].ops):
            yield op
            for key in body_keys(op.domain, op.op_type, op.attrs):
                if key in keyed and key not in seen:
                    seen.add(key)
                    todo.append(key)


def _port(function: Function, value: str) -> str:
    known = function.types.get(value)
    return value if known is None else f"{value}: {known}"


def _short(domain: str) -> str:
    """A domain without our prefix; ONNX's own by its alias."""
    return domain.removeprefix(f"{keys.PREFIX}.") or keys.ONNX_DOMAIN_ALIAS


def _slots(program: Program, function: Function) -> list[dict[str, Any]]:
    bound = {slot: b for (target, slot), b in program.facts.bindings.items() if target == function.name}
    found = []
    for name in dict.fromkeys((*function.slots, *bound)):
        slot = function.slots.get(name, Slot(""))
        known = bound.get(name)
        role, type_name = (slot.role, slot.concrete_type) if known is None else known[:2]
        entry: dict[str, Any] = {"slot": name, "role": role, "type": type_name or None}
        if known is not None:
            entry["slot_id"] = known.slot_id
        for key, text in (("at", slot.at), ("peer_class", slot.peer_class)):
            if text:
                entry[key] = text
        entry.update(_state(slot))
        found.append(entry)
    return found


def _state(slot: Slot) -> dict[str, Any]:
    """Configuration, and the size of what tensors there are."""
    if isinstance(slot.state, Subgraph):
        tensors = [array_of(t) for t in slot.state.initializers.values()]
        return {
            "config": dict(slot.state.config),
            "tensors": len(tensors),
            "parameters": sum(int(np.prod(t.shape)) for t in tensors),
        }
    if isinstance(slot.state, bytes):
        try:
            config = from_cbor(slot.state)
        except ValueError:
            config = None
        if not isinstance(config, dict):
            return {"config": f"damaged CBOR, {len(slot.state)} bytes"}
        return (
            {"config": {str(k): v if _is_plain(v) else repr(v) for k, v in config.items()}} if config else {}
        )
    return {}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


# --- memory plans -------------------------------------------------------------------------------------------


def _memory(function: Function) -> Iterable[dict[str, Any]]:
    """The plans of a function, one per set of shapes; what is wrong with them where they are damaged."""
    text = function.facts.memory_plan
    if not text:
        return
    try:
        plan = decode(text, function.name)
    except MemoryPlanError as error:
        yield {"function": function.name, "damaged": error.what}
        return
    for entry in plan.entries:
        yield {
            "function": function.name,
            "shapes": [f"{spec.dtype.name}{list(spec.shape)}" for spec in entry.inputs],
            "results": entry.results,
            "steps": entry.steps,
            "arena_bytes": entry.arena,
            "live_bytes": entry.live,
            "buffers": [
                {"offset": offset, "bytes": life.nbytes, "first": life.first, "last": life.last}
                for offset, life in zip(entry.offsets, entry.lives, strict=True)
            ],
        }


def _models(function: Function) -> Iterable[dict[str, Any]]:
    """The flatbuffers of a function: their size, digest, and what they stand for."""
    for op in function.ops:
        if op.domain == keys.TFLITE_DOMAIN:
            said = {key: op.attrs.get(key, b"") for key in ("model", "sha256", "ops", "fallback")}
            texts = {
                key: value.decode()
                for key, value in said.items()
                if isinstance(value, bytes) and key != "model"
            }
            data = said["model"]
            size = len(data) if isinstance(data, bytes) else 0
            yield {"function": function.name, "bytes": size, **texts}


# --- wire edges -----------------------------------------------------------------------------------


def _wire(functions: Iterable[Function], placed: bool) -> list[dict[str, Any]]:
    """One entry per wire id: who sends, who receives, what.

    A half that is not in the file is None; so are both before the compiler has placed what is recorded.
    """
    found: dict[str, dict[str, Any]] = {}
    for function in functions:
        for op in walk_ops(function.ops):
            if op.domain != keys.WIRE_DOMAIN or op.op_type not in _KINDS:
                continue
            wire_id = op.facts.wire_id
            edge = found.setdefault(
                f"{wire_id or op.outputs}",
                {"wire_id": int(wire_id) if wire_id.isdigit() else None, "from": None, "to": None},
            )
            if placed:
                edge["from" if op.op_type in SEND_FLAVORED else "to"] = function.name
            _wire_facts(op, edge)
    return sorted(found.values(), key=lambda e: (e["wire_id"] is None, e["wire_id"]))


def _wire_facts(op: Op, edge: dict[str, Any]) -> None:
    edge["kind"] = _KINDS[op.op_type]
    facts = op.facts
    said = {"port": facts.port, "transport": facts.transport, "answers": facts.answer_mode}
    edge.update((name, text) for name, text in said.items() if text)
    if facts.enough is not None:
        edge["enough"] = str(facts.enough)
    if facts.durable:
        edge["durable"] = True
    deadline = op.attrs.get(keys.ATTR_DEADLINE_NS)
    if isinstance(deadline, int) and op.op_type in SEND_FLAVORED:
        edge["deadline_ns"] = deadline
    if facts.type_hashes:
        edge["payload"] = [_type_name(h) for h in facts.type_hashes]
    if facts.max_bytes:
        edge["max_bytes"] = list(facts.max_bytes)


def _type_name(wire_hash: int) -> str:
    node = by_wire_hash(wire_hash) if wire_hash else None
    return "Any" if not wire_hash else node.id if node else f"{wire_hash:#x}"


# --- for people -----------------------------------------------------------------------------------


def _model_lines(found: dict[str, Any]) -> list[str]:
    ops = ", ".join(f"{op_type} {n}" for op_type, n in found["ops_by_type"].items())
    opsets = ", ".join(f"{domain} {version}" for domain, version in found["opsets"].items())
    reach = found["backends"]
    stays = tuple((entry["op"], entry["reason"], entry["times"]) for entry in reach["stays"])
    return [
        f"  inputs: {', '.join(found['inputs']) or 'none'}",
        f"  outputs: {', '.join(found['outputs']) or 'none'}",
        f"  {found['ops']} ops: {ops}",
        f"  opset: {opsets}",
        f"  parameters: {found['parameters']:,} in {found['tensors']} tensor{'s' * (found['tensors'] != 1)}",
        *Reach(**{**reach, "stays": stays}).lines(),
    ]


def render(found: dict[str, Any], name: str) -> str:
    """A description as text."""
    size = f", {found['bytes']:,} bytes" if found["bytes"] else ""
    lines = [f"{name}: {found['module']}, {found['form']}{size}"]
    if found["form"] == ORDINARY:
        return "\n".join([*lines, *_model_lines(found)])
    if found["program"]:
        also = ", ".join(f"{one[:16]}…" for one in found["accepts"])
        lines.append(f"program {found['program'][:16]}…{f'; takes nodes of {also} too' if also else ''}")
    lines += [f"contract {pair}: {digest[:16]}…" for pair, digest in found["contracts"].items()]
    for part in found["partitions"]:
        kind = "module" if found["form"] == "recorded" else "target"
        where = f" (class {part['class']})" if part["class"] else ""
        domains = ", ".join(f"{domain} {n}" for domain, n in part["ops_by_domain"].items())
        lines += ["", f"{kind} {part['name']}{where}: {part['ops']} ops: {domains}"]
        for port in ("inputs", "outputs"):
            if part[port]:
                lines.append(f"  {port}: {', '.join(part[port])}")
        if part["bootstrap"]:
            lines.append(f"  bootstrap: {part['name']}{keys.BOOTSTRAP_SUFFIX}")
        if part["slots"]:
            cells = [
                [f"  slot {s['slot']}", s["role"], s["type"] or "unbound", _slot_notes(s)]
                for s in part["slots"]
            ]
            lines += columns(cells).splitlines()
    if found["wire"]:
        lines += ["", "wire edges"]
        cells = [
            [
                f"  {edge['wire_id']}",
                edge.get("port", ""),
                edge["kind"],
                f"{edge['from'] or '…'} → {edge['to'] or '…'}",
                ", ".join(edge.get("payload", [])),
                _wire_notes(edge),
            ]
            for edge in found["wire"]
        ]
        lines += columns(cells).splitlines()
    if found["memory"]:
        lines += ["", "memory plans", *columns([_plan_cells(plan) for plan in found["memory"]]).splitlines()]
    if found["tflite"]:
        rows = [
            [f"  {m['function']}", f"{m['bytes']:,} bytes", m["ops"], m["sha256"][:12], m["fallback"]]
            for m in found["tflite"]
        ]
        lines += ["", "TFLite models", *columns(rows).splitlines()]
    return "\n".join(lines)


def _plan_cells(plan: dict[str, Any]) -> list[str]:
    if "damaged" in plan:
        return [f"  {plan['function']}", f"damaged: {plan['damaged']}", "", ""]
    ratio = plan["arena_bytes"] / plan["live_bytes"] if plan["live_bytes"] else 1.0
    return [
        f"  {plan['function']}",
        ", ".join(plan["shapes"]) or "no inputs",
        f"{len(plan['buffers'])} buffers in {plan['steps']} steps",
        f"arena {plan['arena_bytes']:,} bytes, {ratio:.2f}× the lower bound",
    ]


def _slot_notes(slot: dict[str, Any]) -> str:
    notes = [f"{key}={slot[key]}" for key in ("at", "peer_class") if key in slot]
    if "parameters" in slot:
        notes.append(f"{slot['parameters']:,} parameters in {slot['tensors']} tensors")
    config = slot.get("config")
    if isinstance(config, dict):
        notes += [f"{key}={value}" for key, value in config.items()]
    elif config:
        notes.append(str(config))
    return ", ".join(notes)


def _wire_notes(edge: dict[str, Any]) -> str:
    notes = (
        [edge["transport"]]
        if edge.get("transport", keys.WIRE_TRANSPORT_DATA) != keys.WIRE_TRANSPORT_DATA
        else []
    )
    if edge.get("deadline_ns"):
        notes.append(f"deadline {edge['deadline_ns'] / 1e9:g} s")
    notes += ["durable"] if edge.get("durable") else []
    notes += [f"enough {edge['enough']}"] if "enough" in edge else []
    return ", ".join(notes)
