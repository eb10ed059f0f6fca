"""The recorder beneath `Graph`: drafts of ops over value handles, made into a Function at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from bb_edge.ir import keys, types
from bb_edge.ir.errors import AuthoringError
from bb_edge.ir.types import ValueType
from bb_host.author_lines import author_line, authoring_error, short_line
from bb_host.diagnostics import ProgramWarning
from bb_host.dsl.closed import Closed
from bb_host.dsl.drafts import Draft, Names, finish
from bb_host.dsl.misuse import Suggests
from bb_host.dsl.names import PORT_NAME, VALUE_IN_NAME, holds_value
from bb_host.dsl.output import Output, Value
from bb_host.dsl.session import Session
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import (
    ForeignValueError,
    OpInSubgraph,
    PortNameError,
    TooManyOps,
    UnknownAttributeError,
    ValueTypeError,
    WireInSubgraph,
)
from bb_host.ir.facts import FunctionFacts, OpFacts
from bb_host.ir.program import Array, Function
from bb_host.ir.queries import unfit_for_body
from bb_host.ir.text.names import implied_opsets

_MOST_SHARED = 16
"""Elements of a constant that is recorded once for all who write it."""

MOST_OPS = 250_000
"""Ops of a program. A loop of Python's that never ends records as many in a quarter of a minute, in 0.3 GB.
Programs that people write have hundreds, and unrolled ones some ten thousand."""

_E = TypeVar("_E", bound=AuthoringError)


@dataclass(frozen=True, slots=True, eq=False)
class OpenLoop:
    """A `with g.loop(…)` block that is being recorded: where it begins, and what is recorded around it."""

    line: tuple[str, int]
    around: list[Draft]
    constants: dict[tuple[object, ...], Output]
    times: int = 1  # iterations with those of the loops around it, as far as literals say them


class Ports(dict[str, Output]):
    """The ports of a graph by name. Its attribute is one letter away from the call that declares one."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self._call = call

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise authoring_error(
            UnknownAttributeError,
            f"a Graph has no call {self._call + 's'!r}",
            f"did you mean {self._call!r}?",
        )


class Recorder(Suggests, ABC):
    """Records one function (or one subgraph of it, with `parent` set).

    `at_scopes`, `invoke_scopes` and `module_scopes` are stacks of open `with` blocks.
    """

    def __init__(self, session: Session, name: str, phase: str, parent: Recorder | None = None) -> None:
        self.session = session
        self.name = name
        self.phase = phase
        self.parent = parent
        self.drafts: list[Draft] = []
        self.at_scopes: list[str] = [] if parent is None else list(parent.at_scopes)
        self.invoke_scopes: list[str] = []
        self.module_scopes: list[str] = [name] if parent is None else list(parent.module_scopes)
        self.inputs: dict[str, Output] = Ports("input")
        self.outputs: dict[str, Output] = Ports("output")
        self.input_classes: dict[str, str] = {}
        self.slots_used: dict[str, None] = {} if parent is None else parent.slots_used
        self.may_go_unread: list[Output] = [] if parent is None else parent.may_go_unread
        self.open_rounds: list[tuple[str, int]] = []
        """Where the `with` blocks of rounds begin."""
        self.open_loops: list[OpenLoop] = []
        """The `with` blocks of loops, the innermost last."""
        self.open_branch: Recorder | None = None
        """The branch or loop body that is being recorded inside this graph."""
        self.slot_facts: dict[object, OpFacts] = {}
        """What ops on slots say that this graph has used."""
        self._constants: dict[tuple[object, ...], Output] = {}

    def __repr__(self) -> str:
        return f"<graph of {self.describe()}: {len(self.drafts)} ops recorded>"

    # --- values

    def error(self, kind: type[_E], what: str, hint: str = "", line: tuple[str, int] | None = None) -> _E:
        """An AuthoringError at the author's line, or at an earlier one that it is about."""
        return authoring_error(kind, what, hint, line)

    def warn(self, code: str, what: str, hint: str = "", line: tuple[str, int] | None = None) -> None:
        """Warns at the author's line, or at an earlier one that it is about."""
        where = short_line(author_line() if line is None else line)
        self.session.warnings.append(ProgramWarning(code, what, where, hint))

    def warn_at(self, draft: Draft, code: str, what: str, hint: str = "") -> None:
        """Warns at the line of an op that was recorded before."""
        where = draft.facts.source
        self.session.warnings.append(ProgramWarning(code, what, where, hint))

    def fresh(
        self,
        hint: str,
        type: ValueType,
        cls: type[Output] = Output,
        line: tuple[str, int] | None = None,
    ) -> Output:
        """A handle for a value that an op of this graph will yield; `line` is the author's, where known."""
        return cls(self, type, hint, author_line() if line is None else line)

    def own(self, value: object, what: str = "a value") -> Output:
        """Checks that something is a value of this graph, or of one around it."""
        if not isinstance(value, Output):
            raise self.error(
                ValueTypeError, f"{what} is wanted, not {value!r}", "pass what a DSL call returned"
            )
        if value.graph is self:
            return value
        graph = self.parent
        while graph is not None:
            if value.graph is graph:
                return value
            graph = graph.parent
        raise self.error(
            ForeignValueError,
            f"{value!r} of {value.graph.describe()}, {short_line(value.line)}, is unknown here",
            value.graph.remedy
            if isinstance(value.graph, Closed)
            else "hand values in with .input(…) and out with .output(…)",
        )

    def describe(self) -> str:
        """What this recorder records, for messages."""
        if self.parent is not None:
            return f"a branch of {self.parent.describe()}"
        return f"{self.name}{keys.BOOTSTRAP_SUFFIX if self.phase == keys.MODULE_PHASE_BOOTSTRAP else ''}"

    def after_values(self, after: After) -> list[Output]:
        """The values that `after=` names, each once."""
        found: list[Output] = []
        if after is UNORDERED:
            return found
        if after is None:
            raise self.error(
                ValueTypeError,
                "after=None orders nothing: the call that it comes from yields no value",
                "name a value that the first op yields, or leave after= out",
            )
        if isinstance(after, Output):
            found.append(self.own(after))
        elif hasattr(after, "after_values"):  # rounds, and calls that yield nothing
            found.extend(self.own(v) for v in after.after_values())
        elif isinstance(after, (list, tuple)):
            for item in after:
                found.extend(self.after_values(item))
        else:
            raise self.error(
                ValueTypeError, f"after= takes values, not {after!r}", "pass what a DSL call returned"
            )
        return list({id(value): value for value in found}.values())

    # --- ops

    def add(self, draft: Draft) -> Draft:
        """Appends an op, stamped with its place in the module tree, its class scope and its source line."""
        if self.parent is not None or self.open_branch is not None or self.open_loops:
            self._in_body(draft)
        said = {**vars(draft.facts), "scope": "_".join(self.module_scopes)}
        if self.at_scopes and not (draft.domain == keys.ONNX_DOMAIN and draft.op_type == "Constant"):
            said["at"] = self.at_scopes[-1]
        if self.invoke_scopes:
            said["on_invoke"] = True
        # The outputs come from the same call of the author's, and have found its line.
        line = draft.outputs[0].line if draft.outputs else author_line()
        said["source"] = short_line(line)
        draft.facts = OpFacts(**said)
        self.session.ops += 1
        if self.session.ops > MOST_OPS:
            raise self.error(
                TooManyOps,
                f"the program records more than {MOST_OPS:,} ops, the last ones here",
                "Python's loops run while the program is recorded: is this one without an end"
                " (`while True:`)? Repeat on the device with g.loop(n), or g.rounds()",
            )
        self.drafts.append(draft)
        return draft

    def put(self, draft: Draft, after: After) -> list[Output]:
        """Appends an op behind what `after=` names; its outputs, gated where ONNX knows no other order."""
        gates = [] if after is UNORDERED else self.order(draft, self.after_values(after))
        while draft.inputs and draft.inputs[-1] is None:
            draft.inputs.pop()
        self.add(draft)
        return [self.gated(value, gates) for value in draft.outputs] if gates else draft.outputs

    def _in_body(self, draft: Draft) -> None:
        """A body runs in one execution: what starts or crosses executions is refused in it.

        So is what the function of a branch records into the graph around it, and what would run whether or
        not the branch does. Calls were checked where they were made.
        """
        if draft.is_call or draft.domain == keys.ONNX_DOMAIN:
            return
        if self.open_branch is not None and self.parent is None:
            raise self.error(
                WireInSubgraph if draft.domain == keys.WIRE_DOMAIN else OpInSubgraph,
                f"{draft.op_type} is recorded into {self.describe()} by the function of a branch: it would"
                " run whether or not the branch does",
                "record it into the graph that the function is given: lambda b: b.app_emit(…)",
            )
        where = self.describe() if self.parent is not None else "a branch or loop body"
        if self.open_loops:
            where = f"the loop at {short_line(self.open_loops[-1].line)}"
        if draft.domain == keys.WIRE_DOMAIN:
            raise self.error(
                WireInSubgraph,
                f"{draft.op_type} stands in {where}, which runs in one execution, on one device",
                "send before or behind it; rounds of requests are g.rounds(…)",
            )
        why = unfit_for_body(draft.domain, draft.op_type)
        if why:
            raise self.error(
                OpInSubgraph,
                f"{draft.op_type} {why}, and stands in {where}",
                "record it outside of If and Loop; g.onnx.if_ chooses in a body",
            )

    def order(self, draft: Draft, after: Sequence[Output]) -> list[Output]:
        """Applies `after=` to an op that is not yet added; returns gates that its outputs must pass instead.

        An op without data inputs gets trailing control inputs, any other a GateDispatch on its first data
        input. ONNX knows no control inputs: the result of an ONNX op without inputs is gated.
        """
        if not after:
            return []
        at = next((i for i, value in enumerate(draft.inputs) if value is not None), None)
        if at is not None:
            first = draft.inputs[at]
            assert first is not None
            draft.inputs[at] = self.gated(first, after)
            return []
        if draft.domain == keys.ONNX_DOMAIN:
            return list(after)
        draft.inputs.extend(after)
        draft.say(OpFacts(control=len(after)))
        return []

    def gated(self, value: Output, gates: Iterable[Output]) -> Output:
        """`value`, once `gates` are there: a GateDispatch, or a GateManyDispatch for several."""
        found = self.fresh(value.hint, value.type)
        found.parts = value.parts
        inputs: list[Output | None] = [value, *gates]
        op = "GateDispatch" if len(inputs) == 2 else "GateManyDispatch"
        self.add(Draft(op, keys.SYSCALL_DOMAIN, inputs, [found]))
        return found

    def tensor_constant(self, array: Array) -> Output:
        """A tensor constant; equal small ones of one module scope are one op."""
        array = np.array(array)
        array.setflags(write=False)
        key = None
        if array.size <= _MOST_SHARED:
            key = ("_".join(self.module_scopes), array.dtype, array.shape, array.tobytes())
            graph: Recorder | None = self
            while graph is not None:
                if key in graph._constants:
                    return graph._constants[key]
                graph = graph.parent
        found = self.fresh("const", ValueType(types.tensor_type(array.dtype), tuple(array.shape)))
        self.add(Draft("Constant", keys.ONNX_DOMAIN, [], [found], {"value": array}))
        if key is not None:
            self._constants[key] = found
        found._array = array
        return found

    @abstractmethod
    def onnx_op(self, op_type: str, args: Sequence[Value], **attrs: object) -> Output:
        """Records an ONNX operator with one output."""

    @abstractmethod
    def by_element(self, symbol: str, left: Value, right: Value) -> Output:
        """Records an operator of Python's whose meaning the element type decides."""

    @abstractmethod
    def subgraph(self, name: str) -> Recorder:
        """The graph of a branch; it sees this graph's values."""

    def unpacking(self, about: str) -> None:
        self.session.unpacked = (about, author_line())

    # --- ports

    def port_name(self, name: object, kind: str, taken: Iterable[str]) -> str:
        """Checks a port's name. PortNameError where it is none, or taken."""
        if not isinstance(name, str) or not PORT_NAME.fullmatch(name):
            raise self.error(
                PortNameError,
                f"{name!r} is not a valid name for {kind}",
                VALUE_IN_NAME
                if isinstance(name, str) and holds_value(name)
                else "letters, digits, '_', '-' and '.', and a letter first",
            )
        if name in taken:
            raise self.error(PortNameError, f"{kind} {name!r} is there already", "choose another name")
        return name

    # --- finishing

    def function(self, name: str, domain: str, slots: Mapping[str, Any], facts: FunctionFacts) -> Function:
        """The recorded function; values get their names here."""
        self._expose_outputs()
        names = Names(self.session.kinds)
        for port, value in self.inputs.items():
            names.fix(value, port)
        for port, value in self.outputs.items():
            names.fix(value, port)
        value_types = {port: names.kind(value) for port, value in self.inputs.items()}
        ops = tuple([finish(draft, names, value_types) for draft in self.drafts])
        if self.input_classes:
            facts |= FunctionFacts(input_classes=dict(self.input_classes))
        return Function(
            name,
            domain,
            tuple(self.inputs),
            tuple(self.outputs),
            ops,
            value_types,
            dict(slots),
            facts,
            implied_opsets(ops),
        )

    def _expose_outputs(self) -> None:
        """Gives every output port a value of its own: not an input, not another port's."""
        seen = set(map(id, self.inputs.values()))
        for port, value in self.outputs.items():
            if id(value) in seen:
                self.outputs[port] = value = self.copy(value)
            seen.add(id(value))

    def copy(self, value: Output) -> Output:
        """The same value under a name of its own."""
        found = self.fresh(value.hint, value.type)
        tensor = types.is_subtype(value.node, types.TENSOR)
        domain, op = (keys.ONNX_DOMAIN, "Identity") if tensor else (keys.SYSCALL_DOMAIN, "PassThrough")
        self.add(Draft(op, domain, [value], [found]))
        return found
