"""Refuses programs whose structure is malformed, before other passes rely on it.

1. Every op is one of the catalog, an ONNX operator, an op of a bound component's own opset, or a call of a
   function of the program: `UnknownOp`.
2. Every value that is read is yielded or a function input: `DanglingInput`; by one op: `DuplicateOutput`.
3. Inputs of the root and its bootstrap have types: `MissingTypeInfo` (those of sub-modules come from the
   calls).
4. A role op says which slot it runs on, and either (concrete type, instance) or (required trait, slot id),
   and names can stand in metadata keys: `MalformedSlotMetadata`.
5. Values go round in no circle: `CyclicGraph`. Ops that merely stand before what they read are put in order,
   stably; that is the only thing that this pass changes.
6. Every domain in use is imported: `OpsetNotImported`.
7. No wire op stands in a branch or loop body: `WireInSubgraph`; no other op that the engine runs, and no call
   of a function that holds one: `OpInSubgraph`. A backend runs a branch, and knows ONNX operators alone.
8. An event with the name of a declared output of the root is warned of: a host knows both by their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from bb_edge.ir import keys, opsets
from bb_host.errors import (
    CyclicGraph,
    DanglingInput,
    DuplicateOutput,
    MalformedSlotMetadata,
    MissingTypeInfo,
    OpInSubgraph,
    OpsetNotImported,
    UnknownOp,
    WireInSubgraph,
    named,
    source,
)
from bb_host.ir.program import Function, Op, Program, walk_ops
from bb_host.ir.queries import ONNX_DOMAINS, has_subgraph, onnx_opset, reads
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.sound_names import Names, names_of_all
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options

_EVENTS = frozenset(((keys.SYSCALL_DOMAIN, "AppEmit"), (keys.SYSCALL_DOMAIN, "AppNotify")))
_UNWRITABLE = frozenset("|,=# \n\t")


def run(program: Program, options: Options, stats: Stats) -> Program:
    known = _Known(program, options)
    heads = 2 if len(program.functions) > 1 and flow.is_bootstrap(program.functions[1]) else 1
    functions = []
    count = 0
    for index, function in enumerate(program.functions):
        if function.domain == keys.COMPONENT_DOMAIN:
            functions.append(function)
            continue
        count += len(function.ops)
        checked = in_order(function)
        _ops(checked, known, program)
        if index < heads or flow.is_main(function):
            _typed_inputs(checked)
        functions.append(checked)
        _events(checked, program.functions[0].outputs, stats)
    stats.count("nodes", count)
    stats.count("validation_errors", 0)
    return program.with_functions(functions)


def _events(function: Function, outputs: Sequence[str], stats: Stats) -> None:
    """Rule 8."""
    if not outputs or _EVENTS.isdisjoint(flow.summary(function.ops).kinds):
        return
    for op in function.ops:
        topic = op.attrs.get("name") if (op.domain, op.op_type) in _EVENTS else None
        name = topic.decode("utf-8", "replace") if isinstance(topic, bytes) else ""
        if name in outputs:
            stats.warn(
                "event-like-output",
                f"the event {name!r} has the name of an output: the host cannot tell one from the other",
                source(op),
                "give one of them another name; an output reaches the host by itself",
            )


# --- values -----------------------------------------------------------------------------------------------


def in_order(function: Function) -> Function:
    """Rules 2 and 5: DuplicateOutput, DanglingInput, CyclicGraph. Ops that stand in order are walked once."""
    names = names_of_all(function)
    if names is None or len(function.inputs) + 1 != len({*function.inputs, ""}):
        _duplicate(function)
        function = _sorted(function)
        names = Names.of(function)
    flow.summary(function.ops).sound = names
    return function


def _duplicate(function: Function) -> None:
    """Raises DuplicateOutput where a name is yielded twice."""
    yielder: dict[str, str] = {}
    for name in function.inputs:
        if name in yielder:
            raise DuplicateOutput(f"input {name!r} is declared twice", f"function {function.name}")
        yielder[name] = "an input of the function"
    for op in function.ops:
        for name in op.outputs:
            if name and name in yielder:
                raise DuplicateOutput(f"{name!r} is yielded by {yielder[name]} already", op=op)
            yielder[name] = named(op)


def _sorted(function: Function) -> Function:
    """A stable topological order; DanglingInput or CyclicGraph where there is none."""
    known = {"", *function.inputs}.union(*[op.outputs for op in function.ops])
    for op in function.ops:
        for name in reads(op):
            if name not in known:
                raise DanglingInput(f"it reads {name!r}, which nothing yields", op=op)
    for name in function.outputs:
        if name not in known:
            raise DanglingInput(f"output {name!r} is yielded by nothing", f"function {function.name}")
    there = {*function.inputs, ""}
    left = list(function.ops)
    done: list[Op] = []
    while left:
        waiting = []
        for op in left:
            if there.issuperset(reads(op)):
                done.append(op)
                there.update(op.outputs)
            else:
                waiting.append(op)
        if len(waiting) == len(left):
            raise CyclicGraph(
                f"values go round in a circle: {', '.join(named(op) for op in _circle(waiting))}",
                f"function {function.name}",
            )
        left = waiting
    return function.with_ops(done)


def _circle(ops: list[Op]) -> list[Op]:
    """Only the ops of one circle, out of those that wait for each other."""
    yields = {name: op for op in ops for name in op.outputs if name}
    path: list[Op] = []
    at = ops[0]
    while at not in path:
        path.append(at)
        at = next(yields[name] for name in reads(at) if name in yields)
    return path[path.index(at) :]


def _typed_inputs(function: Function) -> None:
    for name in function.inputs:
        if name not in function.types:
            raise MissingTypeInfo(f"input {name!r} has no type", f"function {function.name}", "give it one")


# --- ops --------------------------------------------------------------------------------------------------


class _Known:
    """Which (domain, op type) there is, remembered as they are met."""

    def __init__(self, program: Program, options: Options) -> None:
        self._calls = {f.key: f for f in program.functions}
        self._engine_ops: dict[tuple[str, str], Op | None] = {}
        self._own: dict[tuple[str, str], bool] = {}
        for binding in options.bindings:
            declare = getattr(binding.component, "atomic_opset", None)
            if callable(declare):
                table = declare()
                self._own.update(((table.domain, name), True) for name in table.ops)
        # Protocol slots whose type this host does not have: taken on trust here, checked at install.
        self._trusted = {
            op.domain
            for f in program.functions
            if not flow.summary(f.ops).domains <= flow.LEAF_DOMAINS
            for op in f.ops
            if op.domain not in flow.LEAF_DOMAINS and op.facts.slot
        }
        self.seen: set[tuple[str, str]] = set()

    def engine_op(self, op: Op) -> Op | None:
        """The op itself where only the engine runs it; for a call the first such op that it leads to."""
        key = (op.domain, op.op_type)
        if key not in self._calls:
            return None if op.domain in ONNX_DOMAINS and not op.facts.slot else op
        if key not in self._engine_ops:
            self._engine_ops[key] = None  # a circle of calls is refused elsewhere
            found = map(self.engine_op, walk_ops(self._calls[key].ops))
            self._engine_ops[key] = next((inner for inner in found if inner is not None), None)
        return self._engine_ops[key]

    def check(self, op: Op, version: int) -> None:
        key = (op.domain, op.op_type)
        self.seen.add(key)
        if key in self._calls or key in self._own or opsets.lookup(*key) is not None:
            return
        if op.domain in ONNX_DOMAINS and (op.op_type in opsets.ONNX_ALIASES or _in_onnx(op.op_type, version)):
            return
        if op.domain in self._trusted and not any(d == op.domain for d, _ in (*self._calls, *self._own)):
            return
        domain = op.domain or keys.ONNX_DOMAIN_ALIAS
        raise UnknownOp(
            f"no op {op.op_type!r} in {domain}", hint="check its name, or bind its component", op=op
        )


@lru_cache(maxsize=1024)
def _in_onnx(op_type: str, version: int) -> bool:
    from onnx import defs

    if not 0 < version < 2**31:
        return False
    try:
        defs.get_schema(op_type, version, "")
    except (defs.SchemaError, RuntimeError):
        return False
    return True


def _ops(function: Function, known: _Known, program: Program) -> None:
    imported = function.opsets
    version = onnx_opset(imported)
    known.seen.clear()
    domains: set[str] = set()
    there = flow.summary(function.ops)
    new = set(there.kinds)
    for op in function.ops:
        if not new:
            break
        domain = op.domain
        if (domain, op.op_type) in new:
            known.check(op, version)
            new.discard((domain, op.op_type))
            if domain not in domains:
                domains.add(domain)
                _imported(op, domain, imported, program.opsets)
    if there.has_subgraphs:
        for op in function.ops:
            if op.attrs and has_subgraph(op):
                _inner(op, known, version, domains, imported, program.opsets)
    if not there.domains.isdisjoint(_ROLE_DOMAINS) or "slot" in there.said:
        _slots(function)


def _slots(function: Function) -> None:
    """Rule 4, once for all ops of a domain that share what they say."""
    checked: set[tuple[str, int]] = set()
    for op in function.ops:
        said = op.domain, id(op.facts)
        if said not in checked:
            checked.add(said)
            if op.facts.slot or op.domain in _ROLE_DOMAINS:
                _slot(op)


def _inner(
    op: Op, known: _Known, version: int, domains: set[str], imported: dict[str, int], outer: dict[str, int]
) -> None:
    for _, graph in op.subgraphs():
        for inner in walk_ops(graph.ops):
            if flow.is_wire(inner):
                raise WireInSubgraph(
                    f"{inner.op_type} stands in a branch or loop body",
                    hint="send outside of it",
                    op=inner if source(inner) else op,
                )
            if (inner.domain, inner.op_type) not in known.seen:
                known.check(inner, version)
            if inner.domain not in ONNX_DOMAINS or inner.facts.slot:
                _tensor_work(inner, op, known)
            if inner.domain not in domains:
                domains.add(inner.domain)
                _imported(inner, inner.domain, imported, outer)


def _tensor_work(inner: Op, outer: Op, known: _Known) -> None:
    """Rule 7 for what is not a plain ONNX operator."""
    found = known.engine_op(inner)
    if found is None:
        return
    place = inner if source(inner) else outer
    if found is not inner:
        raise OpInSubgraph(
            f"a branch or loop body calls a module that holds {named(found)}",
            hint="call it outside of If and Loop",
            op=place,
        )
    raise OpInSubgraph(
        "it stands in a branch or loop body, where only ONNX operators run",
        hint="record it outside of If and Loop",
        op=place,
    )


def _imported(op: Op, domain: str, imported: Iterable[str], outer: Iterable[str]) -> None:
    names = ONNX_DOMAINS if domain in ONNX_DOMAINS else (domain,)
    if not any(name in imported or name in outer for name in names):
        raise OpsetNotImported(
            f"domain {domain or keys.ONNX_DOMAIN_ALIAS!r} is not imported",
            hint="add it to the opset imports",
            op=op,
        )


_ROLE_DOMAINS = frozenset(keys.ROLE_DOMAINS)


def _slot(op: Op) -> None:
    facts = op.facts
    name = facts.slot
    if not name:
        raise MalformedSlotMetadata("it names no slot", hint="record it through a slot", op=op)
    if "." in name or not _UNWRITABLE.isdisjoint(name):
        raise MalformedSlotMetadata(
            f"{name!r} is not a valid name for a slot", hint="letters, digits, _ and -", op=op
        )
    concrete = bool(facts.concrete_type) and facts.instance is not None
    generic = bool(facts.trait) and facts.slot_id is not None
    if concrete == generic:
        detail = "both concrete and generic" if concrete else "neither a concrete type nor a required trait"
        raise MalformedSlotMetadata(f"slot {name!r} says {detail}", op=op)
