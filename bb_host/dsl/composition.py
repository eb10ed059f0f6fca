"""Modules within modules: `child.call().input("query", q).build(g).output("response")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from bb_edge.ir import keys, types
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import ValueType
from bb_host.dsl.drafts import Draft
from bb_host.dsl.literals import lift
from bb_host.dsl.misuse import Suggests, typed_calls
from bb_host.dsl.module_ports import expose, port_names
from bb_host.dsl.output import Output, Value
from bb_host.dsl.port_graph import PortGraph
from bb_host.dsl.received import Answers, Received, one_or_many
from bb_host.dsl.session import RECORDING, ModuleRecord, Recordable, is_engine_op, unfit
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import (
    ModuleError,
    OpInSubgraph,
    PortNameError,
    UnknownPortError,
    ValueTypeError,
    WireInBootstrap,
    WireInSubgraph,
)
from bb_host.ir.program import Function
from bb_host.ir.queries import unfit_for_body


@typed_calls
class ModuleOutputs(Suggests):
    """What a call yields, by port name."""

    def __init__(
        self, graph: PortGraph, module: str, values: dict[str, Output], record: ModuleRecord, call: Draft
    ) -> None:
        self._graph = graph
        self._module = module
        self._values = values
        self._record = record
        self._call = call

    def output(self, name: str) -> Output:
        """The value at an output port, or at a network port as its receivers see it, with `.sender`.

        UnknownPortError where the module has none of that name.
        """
        if name in self._values:
            return self._values[name]
        found = self.network_port(name)
        if found is None:
            known = [*self._values, *self.network_ports()]
            hint = suggestion(name, known, "its outputs: ") or "it has none"
            raise self._graph.error(UnknownPortError, f"module {self._module!r} has no output {name!r}", hint)
        return cast(Output, found)

    def network_ports(self) -> list[str]:
        """The names of the module's network ports, those of modules that it calls included."""
        return list(port_names(self._graph.session, self._record.function))

    def network_port(self, name: str) -> Received | Answers | None:
        """What stands at a network port, None where there is none of that name."""
        names = expose(self._graph.session, self._record, name)
        if names is None:
            return None
        function, outputs = self._record.function, self._call.outputs
        for port in function.outputs[len(outputs) :]:
            type_ = function.types.get(port, ValueType(types.ANY))
            outputs.append(self._graph.fresh(f"{function.name.lower()}_{port}", type_, Received))
        *values, sender = (outputs[function.outputs.index(port)] for port in names)
        return one_or_many(values, sender, len(values) == 1)

    def __getitem__(self, name: str) -> Output:
        return self.output(name)

    def __iter__(self) -> Iterator[Output]:
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)


@typed_calls
class ModuleCall(Suggests):
    """One call being put together; `build` records it."""

    def __init__(self, module: Recordable, name: str | None, phase: str) -> None:
        self._module = module
        self._name = name
        self._phase = phase
        self._inputs: dict[str, Value] = {}
        self._repeated = ""
        session = RECORDING.get()
        if session is not None:
            session.begin(
                self, f"a call of module {module.module_name!r} is not recorded", "end it with .build(g)"
            )

    def input(self, name: str, value: Value) -> ModuleCall:
        """Gives an input port its value."""
        if name in self._inputs:
            self._repeated = name
        self._inputs[name] = value
        return self

    def build(self, g: PortGraph, *, after: After = UNORDERED) -> ModuleOutputs:
        """Records the call, and the module where it was not yet recorded with inputs of these types.

        Raises UnknownPortError for inputs that the module does not have, or has and did not get.
        """
        g.session.end(self)
        name = self._module.module_name
        if self._repeated:
            raise g.error(PortNameError, f"input {self._repeated!r} of {name!r} is given twice")
        if self._name is not None:
            g.port_name(self._name, "the call", ())
        values = {port: lift(g, value) for port, value in self._inputs.items()}
        boot = self._phase == keys.MODULE_PHASE_BOOTSTRAP
        if boot:
            record = g.session.any_record(self._module)
        else:
            record = g.session.module(self._module, {port: value.type for port, value in values.items()})
        function = record.bootstrap if boot else record.function
        if boot and g.phase != keys.MODULE_PHASE_BOOTSTRAP:
            raise g.error(
                ModuleError, f"the bootstrap of {name!r} is called in a body", "call it in bootstrap(g)"
            )
        if function is None:
            raise g.error(ModuleError, f"module {name!r} has no bootstrap")
        if boot:
            g.started.append(function)
        else:
            g.calls.append(record)
        for port in values:
            if port not in function.inputs:
                hint = suggestion(port, function.inputs, "its inputs: ") or "it has none"
                raise g.error(UnknownPortError, f"module {name!r} has no input {port!r}", hint)
        for port, (lent, place) in record.borrowed.items() if not boot else ():
            values[port] = g.lent(lent, place, name)
        missing = [port for port in function.inputs if port not in values]
        if missing:
            hint = f"give it with .input({missing[0]!r}, value)"
            raise g.error(UnknownPortError, f"module {name!r}: input {missing[0]!r} is not given", hint)
        for port, value in values.items():
            wanted = function.types.get(port, ValueType(types.ANY)).node
            if not types.compatible(value.node, wanted):
                raise g.error(
                    ValueTypeError,
                    f"module {name!r}: input {port} expects a {wanted}, got {value!r}",
                    "pass a value of that type, or declare the input otherwise",
                )
        self._check_shapes(g, function, values)
        self._check_place(g, record)
        call = add_call(g, function, [values[port] for port in function.inputs], self._name or "", after)
        outputs = ModuleOutputs(g, name, dict(zip(function.outputs, call.outputs, strict=True)), record, call)
        if not boot:
            g.made.append(outputs)
        return outputs

    def _check_shapes(self, g: PortGraph, function: Function, values: Mapping[str, Output]) -> None:
        """What is known of the values' shapes fits what the inputs declare; names stand for one size each."""
        name = self._module.module_name
        sizes: dict[str, tuple[int, str]] = {}
        for port, value in values.items():
            wanted = function.types.get(port)
            if wanted is None or wanted.shape is None or value.shape is None:
                continue
            fits = len(wanted.shape) == len(value.shape)
            for want, have in zip(wanted.shape, value.shape, strict=False):
                if isinstance(want, int) and isinstance(have, int):
                    fits = fits and want == have
                elif isinstance(want, str) and isinstance(have, int):
                    first, where = sizes.setdefault(want, (have, port))
                    if first != have:
                        raise g.error(
                            ValueTypeError,
                            f"module {name!r}: {want!r} is {first} at input {where} and {have} at {port}",
                            "pass values of equal sizes, or give the sizes names of their own",
                        )
            if not fits:
                raise g.error(
                    ValueTypeError,
                    f"module {name!r}: input {port} expects a {wanted}, got {value!r}",
                    "pass a value of that shape, or declare the input otherwise",
                )

    def _check_place(self, g: PortGraph, record: ModuleRecord) -> None:
        """In a bootstrap no module may send; in a body a module starts and sends nothing, and has no
        bootstrap.
        """
        name = self._module.module_name
        if g.parent is not None or g.open_branch is not None or g.open_loops:
            if g.session.sends(record.function):
                raise g.error(
                    WireInSubgraph,
                    f"module {name!r} sends, and is called in a branch or loop body",
                    "call it outside of If and Loop",
                )
            around = g.open_branch is not None and g.parent is None
            inner = g.session.first_op(record.function, is_engine_op if around else unfit)
            if inner is not None:
                line = inner.facts.source
                why = unfit_for_body(inner.domain, inner.op_type)
                if around:
                    why = "would run whether or not the branch does, in the graph around it"
                raise g.error(
                    OpInSubgraph,
                    f"module {name!r} is called in a branch or loop body, and holds {inner.op_type}, which"
                    f" {why}{f' ({line})' if line else ''}",
                    "call it outside of If and Loop, or in a branch with the branch's graph",
                )
            if record.bootstrap is not None:
                raise g.error(
                    OpInSubgraph,
                    f"module {name!r} has a bootstrap, and is called in a branch or loop body",
                    "call it outside of If and Loop",
                )
        if g.phase == keys.MODULE_PHASE_BOOTSTRAP and g.session.sends(record.function):
            raise g.error(
                WireInBootstrap,
                f"module {name!r} sends, and is called in a bootstrap",
                "call it in the body",
            )


def add_call(g: PortGraph, function: Function, inputs: Sequence[Output], name: str, after: After) -> Draft:
    """The call's node, with its outputs."""
    outputs: list[Output] = []
    for port in function.outputs:
        hint = f"{name or function.name.lower()}_{port}"
        # Each may be what a network port receives; then it gets its sender.
        outputs.append(g.fresh(hint, function.types.get(port, ValueType(types.ANY)), Received))
    draft = Draft(function.name, function.domain, list(inputs), outputs, name=name, is_call=True)
    g.put(draft, after)
    return draft
