"""From what a device reports back to the author: short value names and op names to ops and source lines.

A JSON object:

    {"version": 1, "module": "FederatedDigits", "target": "Client", "artifact": "<sha256>",
     "functions": {"Client": {
        "values": {"b": "forward_1"},
        "ops": {"subgraph_…_3": [{"op": "Softmax", "name": "p", "source": "fed.py:31", "value": "d"}]}}}}

Ops are named as the device names them: by the node, else `<op type>_<index>`, Constants not counted. A call
of a backend function leads to the ops that it stands for; `value` is what an error in the body calls an op's
first output. `symbolize.py` reads it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from bb_edge.ir.opsets import lookup
from bb_host.ir.program import Op, Program
from bb_host.passes.device.strip import Stripped
from bb_host.passes.tensor.collapse import Origin, Origins

VERSION = 1


def source_map(collapsed: Program, origins: Origins, stripped: Stripped, artifact: bytes) -> dict[str, Any]:
    """`collapsed` is the program that `stripped` was made from; `artifact` its bytes."""
    functions: dict[str, Any] = {}
    before = {f.key: f for f in collapsed.functions}
    for function in stripped.program.functions:
        original = before[function.key]
        values = {new: old for old, new in stripped.names.get(function.key, {}).items()}
        graph = function.is_tensor_work
        ops: dict[str, list[dict[str, str]]] = {}
        index = 0
        for op, short in zip(original.ops, function.ops, strict=True):
            if _is_constant(op):
                continue
            called = origins.get((function.key, op.outputs[0] if op.outputs else ""))
            names = stripped.names.get((short.domain, short.op_type) if called else function.key, {})
            itself = (Origin(op, op.outputs[0] if graph and op.outputs else ""),)
            found = [entry for o in called or itself if (entry := _entry(o.op, names.get(o.value, o.value)))]
            if found:
                ops[short.name or f"{short.op_type}_{index}"] = found
            index += 1
        if values or ops:
            functions[function.name] = {"values": values, "ops": ops}
    return {
        "version": VERSION,
        "module": (stripped.program.facts.module or stripped.program.name),
        "target": stripped.target,
        "artifact": hashlib.sha256(artifact).hexdigest(),
        "functions": functions,
    }


def _is_constant(op: Op) -> bool:
    """Whether a device has a value in place of the op: numbers, text and bytes."""
    row = lookup(op.domain, op.op_type)
    return row is not None and row.relation == "constant"


def _entry(op: Op, value: str) -> dict[str, str]:
    """Nothing for an op that has neither a name nor a line."""
    entry = {"op": op.op_type}
    if op.name:
        entry["name"] = op.name
    if op.source:
        entry["source"] = op.source
    if len(entry) == 1:
        return {}
    return {**entry, "value": value} if value else entry


def to_json(content: dict[str, Any]) -> bytes:
    """Deterministic bytes."""
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
