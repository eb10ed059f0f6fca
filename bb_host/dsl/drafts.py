"""Ops while they are recorded, over value handles, and the names that values get when they are finished.

Names are given last, ports first, so that a port's name is the value's and every other name is readable,
unique and the same at every recording (`forward_3`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bb_edge.ir.types import ValueType
from bb_host.dsl.output import Output
from bb_host.ir.facts import NO_FACTS, OpFacts, shared
from bb_host.ir.program import AttrValue, Op, Subgraph


@dataclass(slots=True)
class Draft:
    """One op while it is recorded. `attrs` may hold a `SubgraphDraft`."""

    op_type: str
    domain: str
    inputs: list[Output | None]
    outputs: list[Output]
    attrs: dict[str, AttrValue | SubgraphDraft] = field(default_factory=dict)
    facts: OpFacts = NO_FACTS
    name: str = ""
    is_call: bool = False

    def say(self, more: OpFacts) -> None:
        """Adds to what the op says."""
        self.facts |= more


@dataclass(slots=True)
class SubgraphDraft:
    """A branch or loop body while it is recorded."""

    name: str
    inputs: list[Output]
    outputs: list[Output]
    drafts: list[Draft]


class Names:
    """Names by value: fixed ones for ports, `hint_n` for the others. `facts` are what the ops share, `kinds`
    the records of types that values share, those of other functions of the program too.
    """

    def __init__(self, kinds: dict[object, ValueType]) -> None:
        self.facts: dict[object, OpFacts] = {}
        self._kinds = kinds
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def fix(self, value: Output, name: str) -> None:
        self._names[id(value)] = name
        self._taken.add(name)

    def of(self, value: Output | None) -> str:
        if value is None:
            return ""
        name = self._names.get(id(value))
        return self._new(value) if name is None else name

    def kind(self, value: Output) -> ValueType:
        """The value's type, in the record that all values of that type share."""
        found = value.type
        return self._kinds.setdefault((id(found.node), found.shape), found)

    def _new(self, value: Output) -> str:
        hint = value.hint
        count = self._counts.get(hint, 0) + 1
        while (name := f"{hint}_{count}") in self._taken:
            count += 1
        self._counts[hint] = count
        self.fix(value, name)
        return name


def finish(draft: Draft, names: Names, value_types: dict[str, ValueType]) -> Op:
    """The op of a draft; adds the types of its outputs."""
    inputs = tuple([names.of(value) for value in draft.inputs])
    attrs: dict[str, Any] = draft.attrs
    if SubgraphDraft in map(type, attrs.values()):
        attrs = {
            key: _finish_subgraph(value, names) if isinstance(value, SubgraphDraft) else value
            for key, value in attrs.items()
        }
    outputs = []
    for value in draft.outputs:
        name = names.of(value)
        value_types[name] = names.kind(value)
        outputs.append(name)
    if not inputs and not outputs:
        # ONNX refuses a node with neither, such as a call of a bootstrap: one output left out.
        outputs.append("")
    facts = shared(draft.facts, names.facts)
    return Op(draft.op_type, draft.domain, inputs, tuple(outputs), attrs, facts, draft.name, b"")


def _finish_subgraph(draft: SubgraphDraft, names: Names) -> Subgraph:
    inputs = tuple([names.of(value) for value in draft.inputs])
    value_types = dict(zip(inputs, map(names.kind, draft.inputs), strict=True))
    ops = tuple([finish(inner, names, value_types) for inner in draft.drafts])
    return Subgraph(draft.name, inputs, tuple(map(names.of, draft.outputs)), ops, value_types)
