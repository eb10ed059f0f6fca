"""A program as a drawing: partitions (or modules) as boxes, wire edges between them, in Graphviz notation."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import onnx.shape_inference

from bb_edge.ir import keys, opsets
from bb_edge.ir.bodies import body_keys
from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED, OP_SEND, RECV_FLAVORED, SEND_FLAVORED
from bb_edge.ir.type_protos import TypeProtoError
from bb_host.errors import DrawingError, ProgramProtoError, SparseTensorError
from bb_host.ir.program import Function, Op, Program, Subgraph
from bb_host.ir.proto import read_graph
from bb_host.ir.sparse_tensors import densified
from bb_host.ir.text.printer import print_type
from bb_host.onnx_io.model import refuse_outputs
from bb_host.passes.program.validate import in_order

MOST_OPS = 2_000
"""Above this many ops a drawing shows partitions only: `dot` would take minutes, and nobody reads it."""

_PATIENCE_S = 120.0
"""How long `dot` may take."""

_COLOURS: Mapping[str, str] = {
    keys.WIRE_DOMAIN: "#c7dcf5",
    keys.GATE_DOMAIN: "#e3e3e3",
    keys.SYSCALL_DOMAIN: "#fbe7c2",
    keys.COMPOSITE_DOMAIN: "#f3e8d2",
    keys.ONNX_DOMAIN: "#ffffff",
    keys.BACKEND_DOMAIN: "#ffffff",
    **dict.fromkeys(keys.ROLE_DOMAINS, "#d5ecd0"),
}
_OTHER_COLOUR = "#eadcf2"


def draw(program: Program, ops: bool | None = None) -> str:
    """The program in Graphviz notation, deterministic.

    Compiled programs show a box per partition, recorded ones a box per module; inside stand the ops with
    their dataflow (constants left out, control edges dashed), between them the wire edges, labelled with port
    and types. `ops=False` draws partitions as single nodes; None does so above `MOST_OPS` ops.
    """
    tops = _tops(program)
    if ops is None:
        ops = sum(len(f.ops) for f in tops) <= MOST_OPS
    lines = [
        f"digraph {_quoted(program.facts.module or program.name)} {{",
        '  graph [rankdir=TB, fontname="Helvetica", compound=true, nodesep=0.25, ranksep=0.35];',
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=8, color="#707070"];',
    ]
    for number, function in enumerate(tops):
        lines += _cluster(function, number) if ops else _single(function, number)
    lines += _wire_edges(tops, ops)
    return "\n".join([*lines, "}"]) + "\n"


def program_of_model(model: onnx.ModelProto) -> Program:
    """An ordinary ONNX model as a program of one function, to be drawn, whatever its operators.

    Weights are left out, like all constants. Raises DrawingError for a graph that is damaged.
    """
    with contextlib.suppress(onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)  # else: with the types that it has
    name, graph = model.graph.name or "model", _graph_of(model)
    inputs = tuple(port for port in graph.inputs if port not in graph.initializers)
    function = Function(name, keys.PROGRAM_DOMAIN, inputs, graph.outputs, graph.ops, graph.types)
    return Program(name, (function,))


def check_model(model: onnx.ModelProto) -> None:
    """DanglingInput, DuplicateOutput or CyclicGraph where the graph of an ordinary model is unsound.

    InvalidModelError where its outputs are: none, or others than it declares. DrawingError where it cannot be
    read at all.
    """
    graph = _graph_of(model)
    inputs = tuple(dict.fromkeys((*graph.inputs, *graph.initializers)))
    in_order(Function(model.graph.name, keys.PROGRAM_DOMAIN, inputs, graph.outputs, graph.ops))
    refuse_outputs(model)


def check_program(program: Program) -> None:
    """DanglingInput, DuplicateOutput or CyclicGraph where a function of the program is unsound."""
    for function in program.functions:
        if function.domain != keys.COMPONENT_DOMAIN:
            in_order(function)


def _graph_of(model: onnx.ModelProto) -> Subgraph:
    try:
        return read_graph(densified(model).graph)
    except (ProgramProtoError, TypeProtoError, SparseTensorError, ValueError) as error:
        where = f"model {model.graph.name or 'model'!r}"
        raise DrawingError(f"its graph cannot be read: {error}", where, "export it again") from error


def write_drawing(program: Program, out: Path, ops: bool | None = None) -> None:
    """Writes the drawing, atomically.

    `.dot` and `.gv` are the notation itself; `.svg`, `.png` and `.pdf` are rendered by Graphviz. DrawingError
    for other formats, where Graphviz is not installed, and where it refuses.
    """
    text = draw(program, ops)
    kind = out.suffix.lstrip(".").lower()
    if kind in ("dot", "gv"):
        _put(out, text.encode())
        return
    if kind not in ("svg", "png", "pdf"):
        raise DrawingError(
            f"no format {out.suffix or 'without a suffix'!r}", str(out), ".svg, .png, .pdf or .dot"
        )
    dot = shutil.which("dot")
    if dot is None:
        raise DrawingError(
            f"a {out.suffix} is rendered by Graphviz, whose program `dot` is not installed",
            str(out),
            f"install it (Debian: apt install graphviz), or write its notation: -o {out.with_suffix('.dot')}",
        )
    _put(out, _rendered(dot, kind, text, out))


def _rendered(dot: str, kind: str, text: str, out: Path) -> bytes:
    try:
        done = subprocess.run(
            [dot, f"-T{kind}"], input=text.encode(), capture_output=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DrawingError(
            f"`dot` took more than {_PATIENCE_S:.0f} s", str(out), "draw without ops"
        ) from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise DrawingError(f"`dot` failed: {said}", str(out), "write the .dot and look at it")
    return done.stdout


def _put(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


# --- what is drawn --------------------------------------------------------------------------------


def _tops(program: Program) -> list[Function]:
    """The functions that get a box: partitions and bootstraps, or modules, and bodies of loops and branches;
    what is called stays a call.
    """
    compiled = program.facts.compiled
    if compiled:
        names = {f.name for f in program.functions if f.facts.entry}
        starts = {name + keys.BOOTSTRAP_SUFFIX for name in names}
        ops = (op for f in program.functions for op in f.ops)
        bodies = {key for op in ops for key in body_keys(op.domain, op.op_type, op.attrs)}
        return [
            f
            for f in program.functions
            if (f.name in names | starts and f.domain != keys.COMPONENT_DOMAIN) or f.key in bodies
        ]
    return [f for f in program.functions if f.domain != keys.COMPONENT_DOMAIN]


def _title(function: Function) -> str:
    where = function.facts.partition or function.facts.home or ""
    return function.name if not where or where == function.name else f"{function.name} ({where})"


def _cluster(function: Function, number: int) -> Iterator[str]:
    yield f"  subgraph cluster_{number} {{"
    yield f'    label={_quoted(_title(function))}; style="rounded"; color="#404040"; fontsize=12;'
    drawn = [(i, op) for i, op in enumerate(function.ops) if not _is_constant(op)]
    yields = {name: f"f{number}_{i}" for i, op in drawn for name in op.outputs if name}
    for port, name in enumerate(function.inputs):
        yields[name] = f"f{number}_in{port}"
        yield f"    f{number}_in{port} [label={_quoted(_typed(function, name))}, shape=ellipse];"
    for i, op in drawn:
        yield f"    f{number}_{i} [label={_quoted(_label(op))}, fillcolor={_quoted(_colour(op))}];"
    if not drawn and not function.inputs:
        yield f"    f{number}_empty [style=invis];"
    for i, op in drawn:
        yield from _edges(function, op, f"f{number}_{i}", yields)
    for port, name in enumerate(function.outputs):
        yield f"    f{number}_out{port} [label={_quoted(_typed(function, name))}, shape=ellipse];"
        if name in yields:
            yield f"    {yields[name]} -> f{number}_out{port};"
    yield "  }"


def _edges(function: Function, op: Op, node: str, yields: Mapping[str, str]) -> Iterator[str]:
    data = len(op.inputs) - op.facts.control
    seen: set[tuple[str, bool]] = set()
    for position, name in enumerate(op.inputs):
        source, dashed = yields.get(name), position >= data
        if source is None or (source, dashed) in seen:
            continue
        seen.add((source, dashed))
        notes = ["style=dashed"] if dashed else []
        known = function.types.get(name)
        if known is not None and not dashed:
            notes.append(f"label={_quoted(print_type(known))}")
        yield f"    {source} -> {node}{' [' + ', '.join(notes) + ']' if notes else ''};"


def _single(function: Function, number: int) -> Iterator[str]:
    slots = "".join(f"\n{name}: {slot.role}" for name, slot in function.slots.items() if slot.role)
    text = f"{_title(function)}\n{len(function.ops)} ops{slots}"
    yield f"  f{number}_0 [label={_quoted(text)}];"


def _wire_edges(tops: list[Function], ops: bool) -> Iterator[str]:
    """From each sending half to its receiving halves; recorded programs have one node for both."""
    sends: dict[str, tuple[int, int, Op]] = {}
    receives: list[tuple[int, int, Op]] = []
    for number, function in enumerate(tops):
        for i, op in enumerate(function.ops):
            if op.domain == keys.WIRE_DOMAIN:
                if op.op_type in SEND_FLAVORED:
                    sends[op.facts.wire_id] = (number, i, op)
                elif op.op_type in RECV_FLAVORED:
                    receives.append((number, i, op))
    for number, i, op in receives:
        found = sends.get(op.facts.wire_id)
        if found is None or (op.op_type == OP_RECV_RESP_BATCHED and not op.facts.sites):
            continue
        source = f"f{found[0]}_{found[1] if ops else 0}"
        target = f"f{number}_{i if ops else 0}"
        label, constraint = _quoted(_wire_label(found[2], tops[found[0]])), str(ops).lower()
        yield f'  {source} -> {target} [label={label}, color="#1f5fa8", penwidth=2, constraint={constraint}];'


def _wire_label(send: Op, function: Function) -> str:
    tail = 1 if send.op_type == OP_SEND else 2
    types = function.types
    kinds = [print_type(types[name]) if name in types else "?" for name in send.inputs[:-tail]]
    parts = [send.facts.port, ", ".join(kinds)]
    if send.facts.durable:
        parts.append("durable")
    return "\n".join(filter(None, parts))


def _is_constant(op: Op) -> bool:
    return op.op_type == "Constant" and op.domain in (keys.ONNX_DOMAIN, keys.SYSCALL_DOMAIN)


def _typed(function: Function, name: str) -> str:
    known = function.types.get(name)
    return name if known is None else f"{name}: {print_type(known)}"


def _label(op: Op) -> str:
    slot = op.slot
    port = op.facts.port if op.domain == keys.WIRE_DOMAIN else None
    if op.domain == keys.BACKEND_DOMAIN:
        slot, name = "", "subgraph"
    else:
        name = op.op_type
    text = f"{slot}.{name}" if slot else name
    return f"{text}\n{port}" if port else text


def _colour(op: Op) -> str:
    return _COLOURS.get(opsets.normalize_domain(op.domain), _OTHER_COLOUR)


def _quoted(text: str) -> str:
    """A Graphviz string; a line break there is the two characters backslash and n, as in JSON."""
    return json.dumps(text, ensure_ascii=False)
