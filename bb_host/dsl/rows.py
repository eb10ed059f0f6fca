"""What recording knows of ops: one row per op, made once, of the catalog or of ONNX's schemas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bb_edge.ir.opsets import Attr
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.dsl.drafts import SubgraphDraft
from bb_host.dsl.names import snake
from bb_host.dsl.output import Output
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.remarks import has_remarks
from bb_host.ir.program import AttrValue


@dataclass(frozen=True, slots=True, eq=False)
class Formal:
    """One input of a row. `spoken` is what messages say where it is missing."""

    name: str
    spoken: str
    node: TypeNode
    variable: str
    """Inputs of one variable have one type; empty where the type is fixed."""
    optional: bool
    variadic: bool
    least: bool
    """Whether a variadic one takes one value at least."""
    is_tensor: bool
    """Whether a number may stand here."""
    is_list: bool = False
    """Whether a tensor of one dimension has to stand here, of which a number is one of one element."""
    fits: set[str] = field(default_factory=set)
    """Types that were found to fit: each is asked for once."""


Given = list[tuple[Formal, Any]]
"""What the author passed, by input; None is an optional one that was left out."""
Attrs = dict[str, "AttrValue | SubgraphDraft"]


class Row(ABC):
    """What recording knows of an op, and what its kind of op does with inputs and results."""

    takes_lists = False
    """Whether a list stands for the values of a variadic input."""

    def __init__(self, name: str, domain: str, inputs: Sequence[Formal], attrs: Sequence[Attr]) -> None:
        self.name = name
        self.domain = domain
        self.inputs = tuple(inputs)
        self.attrs = tuple(attrs)
        self.variadic = any(formal.variadic for formal in inputs)
        self.attr_names = {attr.name: None for attr in attrs}
        self.names = [*self.attr_names, *(f.name for f in inputs if f.name not in self.attr_names)]
        self.known = frozenset(self.names)
        self.hint = snake(name)
        self.remarked = has_remarks(domain, name)

    def too_many(self, count: int) -> tuple[str, str]:
        """What is said where so many inputs are given."""
        most = f"{len(self.inputs)} input{'' if len(self.inputs) == 1 else 's'}"
        hint = f"its inputs: {', '.join(f.name for f in self.inputs) or 'none'}; attributes go by name"
        return f"{self.name} takes {most}, not {count}", hint

    @abstractmethod
    def take(self, graph: Recorder, given: Given) -> list[Output | None]:
        """The inputs: values of types that may go there, constants of numbers. Raises ValueTypeError."""

    @abstractmethod
    def results(
        self, graph: Recorder, given: Given, inputs: Sequence[Output | None], attrs: Attrs, count: int | None
    ) -> list[tuple[str, ValueType]]:
        """What the outputs are called, and their types. `count`: as many as the author asks for."""
