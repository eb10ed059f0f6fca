"""The ports of a function that is being recorded: its own, and those of modules around it that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, cast

from bb_edge.ir import keys, types
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import ValueType
from bb_host.dsl.literals import TypeLike, as_type, lift, no_bfloat16
from bb_host.dsl.misuse import typed_calls
from bb_host.dsl.output import Output, Value
from bb_host.dsl.received import Answers, Received, one_or_many
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.session import Caller, ModuleRecord, Session
from bb_host.errors import ModuleError, PortNameError, UnknownPortError
from bb_host.ir.program import Function


class Made(Protocol):
    """A call of a module, as the graph that made it knows it."""

    def network_ports(self) -> list[str]: ...
    def network_port(self, name: str) -> Received | Answers | None: ...


@typed_calls
class PortGraph(Recorder):
    """A recorder with ports: what calls of modules, sends and requests record into."""

    _SPOKEN: ClassVar[str] = "Graph"
    """What messages call it: authors know no other graph."""

    def __init__(self, session: Session, name: str, phase: str, parent: Recorder | None = None) -> None:
        super().__init__(session, name, phase, parent)
        self.ports: dict[str, Answers | Received] = {}
        self.given_inputs: dict[str, ValueType] = {}
        self.calls: list[ModuleRecord] = []
        self.made: list[Made] = []
        self.caller: Caller | None = None  # whose call records this module
        self.borrowed: dict[str, tuple[str, int]] = {}
        self._lent_ports: dict[str, Answers | Received] = {}
        self.started: list[Function] = []

    def received(self, hint: str, sent: Output) -> Received:
        """The receiver's view of a value."""
        found = self.fresh(hint, sent.type, Received)
        found.parts = sent.parts
        assert isinstance(found, Received)
        return found

    def input(
        self,
        name: str,
        type: TypeLike | None = None,
        shape: Sequence[int | str | None] | None = None,
    ) -> Output:
        """An input port. `type`: a NumPy dtype, an element name (`F32`), a type id (`PeerIdVec`) or a
        TypeNode; `shape`: numbers, names of free sizes, None. Untyped inputs take their type from the
        caller, else `Any`.

        It belongs to the scope `with g.at(…)`, else to the module's home.
        """
        if self.parent is not None:
            raise self.error(
                PortNameError, f"input {name!r} stands in a branch", "declare it outside If and Loop"
            )
        name = self.port_name(name, "the input", [*self.inputs, *self.outputs])
        if type is None:
            like: TypeLike = types.TENSOR if shape is not None else self.given_inputs.get(name, types.ANY)
        else:
            like = type
        known = as_type(self, like, shape)
        if known.node is types.TENSOR_BF16 and type is not None:
            raise no_bfloat16(self, f"input {name!r}")
        found = self.fresh(name, known)
        self.inputs[name] = found
        if self.at_scopes:
            self.input_classes[name] = self.at_scopes[-1]
        return found

    def output(self, name: str, value: Value) -> Output:
        """An output port: the host sees its value as an AppEvent, a caller as `.output(name)`."""
        if self.parent is not None:
            raise self.error(
                PortNameError, f"output {name!r} stands in a branch", "return it from the branch"
            )
        if self.open_branch is not None:
            raise self.error(
                PortNameError,
                f"output {name!r} is declared by the function of a branch",
                "return the value from the branch, and declare what g.onnx.if_ or loop returns",
            )
        if self.open_loops:
            raise self.error(
                PortNameError,
                f"output {name!r} stands in a loop",
                "declare it behind the block: step.result, or rows = step.collect(x)",
            )
        if self.phase == keys.MODULE_PHASE_BOOTSTRAP:
            raise self.error(
                ModuleError,
                f"output {name!r} stands in the bootstrap of {self.name!r}: a bootstrap has no outputs",
                "tell the host with g.app_emit, or keep the value in a component",
            )
        name = self.port_name(name, "the output", [*self.inputs, *self.outputs])
        found = lift(self, value)
        self.outputs[name] = found
        return found

    def lookup_output(self, name: str) -> Output:
        """What stands at an output or network port that was recorded before: its receivers' view of a send.

        Network ports are also those of modules that this one calls, and of modules that its callers have
        called before it. UnknownPortError where there is none.
        """
        found = self.outputs.get(name) if name in self.outputs else self._network_port(name)
        if found is None:
            known = [*self.outputs, *self._known_ports()]
            hint = (
                suggestion(name, known, "there are: ") or "none is recorded yet: call the module that sends"
            )
            raise self.error(UnknownPortError, f"no output {name!r}", hint)
        return found  # type: ignore[return-value]

    def _known_ports(self) -> list[str]:
        above = [] if self.caller is None else self.caller._known_ports()
        return [*self.ports, *(port for made in self.made for port in made.network_ports()), *above]

    def _network_port(self, name: str) -> Answers | Received | None:
        """A port of this graph, of a module that it calls, or of the graphs around it."""
        if self.parent is not None:
            return cast(PortGraph, self.parent)._network_port(name)
        if name in self.ports:
            return self.ports[name]
        if name in self._lent_ports:
            return self._lent_ports[name]
        made = [made for made in self.made if name in made.network_ports()]
        if len(made) > 1:
            raise self.error(
                UnknownPortError,
                f"{len(made)} calls have a network port {name!r}",
                f"say whose: call.output({name!r}), and hand it in with .input(…)",
            )
        if made:
            return made[0].network_port(name)
        above = None if self.caller is None else self.caller._network_port(name)
        if above is not None:
            self._lent_ports[name] = self._borrow(name, above)
        return self._lent_ports.get(name)

    def _borrow(self, name: str, above: Answers | Received) -> Answers | Received:
        """Inputs for the values of a port of another module, and for their sender; the caller fills them."""
        parts = tuple(above) if isinstance(above, Answers) else (above,)
        found: list[Output] = []
        for place, value in enumerate((*parts, above.sender)):
            place = place if place < len(parts) else -1
            wanted = (
                f"{name}_sender" if place < 0 else f"{name}_{place}" if len(parts) > 1 else f"{name}_received"
            )
            while wanted in self.inputs or wanted in self.outputs:
                wanted += "_"
            handle = self.received(wanted, value)
            self.inputs[wanted] = handle
            self.borrowed[wanted] = (name, place)
            found.append(handle)
        return one_or_many(found[:-1], found[-1], len(parts) == 1)

    def lent(self, port: str, place: int, module: str) -> Output:
        """What this graph hands into a module that reads a port of another one. UnknownPortError without."""
        found = self._network_port(port)
        if found is None:
            raise self.error(
                UnknownPortError,
                f"module {module!r} reads network port {port!r}, which nothing here sends to",
                "call the module that sends first",
            )
        if place < 0:
            return found.sender
        return found[place] if isinstance(found, Answers) else found
