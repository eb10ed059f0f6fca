"""What recording and compiling a program refuses, and how messages name an op.

All are CompileErrors. An AuthoringError has the author's file and line; recording raises it there, a pass a
PassError at the op that it refuses.
"""

from __future__ import annotations

from typing import Protocol

from bb_edge.ir import keys
from bb_edge.ir.errors import AuthoringError, CompileError


class Recorded(Protocol):
    """An op, as far as messages name it."""

    @property
    def op_type(self) -> str: ...
    @property
    def domain(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def source(self) -> str: ...


def label(op: Recorded) -> str:
    """How messages call an op: its name, else its type and first output. A hoisted module goes by its own."""
    kind = op.op_type
    if kind.startswith(keys.HOIST_PREFIX) and op.domain == keys.MODULE_DOMAIN:
        kind = kind.removeprefix(keys.HOIST_PREFIX).rpartition("_")[0]
    if op.name:
        return f"{kind} {op.name!r}"
    return f"{kind} → {op.outputs[0]}" if op.outputs else kind


def source(op: Recorded) -> str:
    """`file.py:12`, or an empty text where the op has no author."""
    return op.source


def named(op: Recorded) -> str:
    """The op with its line, for messages that speak of more than one."""
    line = source(op)
    return f"{label(op)} ({line})" if line else label(op)


def place_of(op: Recorded) -> str:
    """Names an op for a reader: the author's line, its name, else what it writes."""
    label = (
        f"{op.op_type} {op.name!r}" if op.name else f"{op.op_type} → {', '.join(filter(None, op.outputs))}"
    )
    return f"{op.source}, {label}" if op.source else label


class PassError(AuthoringError):
    """A program that a pass refuses. `where` is the author's line, or the op where it has none.

    `file` and `line` are the author's, empty and 0 where they are not known; `op` names the op.
    """

    def __init__(
        self,
        what: str,
        where: str = "",
        hint: str = "",
        op: Recorded | None = None,
        file: str = "",
        line: int = 0,
    ) -> None:
        self.op = ""
        if op is not None:
            self.op = label(op)
            what = f"{self.op}: {what}"
            where = where or source(op)
            of_op, _, number = source(op).rpartition(":")
            if number.isdigit():
                file, line = of_op, int(number)
        super().__init__(what, where, hint, file, line)


# --- recording --------------------------------------------------------------------------------------------


class PortNameError(AuthoringError):
    """A port's name is taken, or is not a name."""


class UnknownPortError(AuthoringError):
    """A port that the module does not have, or an input that it has and did not get."""


class TooManyOps(AuthoringError):
    """More ops than any program needs: a loop of Python's that never ends, while it is recorded."""


class ArityError(AuthoringError):
    """An op with too few or too many inputs, or an empty list where a value is needed."""


class EmptyBundleError(ArityError):
    """A bundle of nothing."""


class AttributeValueError(AuthoringError):
    """An attribute that the op does not have, lacks, or that has a value of the wrong kind."""


class ValueTypeError(AuthoringError):
    """A value of a type that does not go there, or something that is not a value."""


class UnknownAttributeError(AuthoringError, AttributeError):
    """An attribute that a value, a graph, a slot or a module does not have; `hasattr` says False."""


class CallError(AuthoringError):
    """A call whose arguments are not those of the method: a misspelt keyword, too many, too few."""


class TooLargeError(AuthoringError):
    """A constant that no ONNX file can hold."""


class ForeignValueError(AuthoringError):
    """A value of another graph."""


class AnswerModeError(AuthoringError):
    """Answers read both one by one and as a batch, or before there is a reply."""


class RoundsError(AuthoringError):
    """`g.rounds` used otherwise than as one `with` block."""


class LoopError(AuthoringError):
    """A loop that does nothing or never ends, and what stands on the wrong side of its block."""


class SlotError(AuthoringError):
    """A slot declared twice with different meanings, or wrongly."""


class ModuleError(AuthoringError):
    """A module that cannot be recorded: no name, no body, a call of itself."""


# --- validate ---------------------------------------------------------------------------------------------


class ValidationError(PassError):
    """The recorded program is malformed."""


class UnknownOp(ValidationError):
    """No catalog, opset, component or function of the program has that op."""


class DanglingInput(ValidationError):
    """An op reads a value that nothing yields."""


class DuplicateOutput(ValidationError):
    """Two ops yield the same value."""


class MissingTypeInfo(ValidationError):
    """A function input has no type."""


class MalformedSlotMetadata(ValidationError):
    """A role op that says neither (concrete type, instance) nor (required trait, slot id), or a bad name."""


class CyclicGraph(ValidationError):
    """The graph, or the functions that call each other, go in a circle."""


class OpsetNotImported(ValidationError):
    """An op's domain is missing among the opset imports."""


class MalformedOp(ValidationError):
    """Too few or too many inputs, or an attribute that is missing."""


class WireInSubgraph(ValidationError):
    """A wire op inside a branch or a loop body."""


class OpInSubgraph(ValidationError):
    """An op inside a branch or a loop body that the engine runs and a backend does not."""


# --- bootstraps -------------------------------------------------------------------------------------------


class BootstrapCompositionGap(PassError):
    """A bootstrap calls one that the program does not have."""


class BootstrapCompositionCycle(PassError):
    """Bootstraps that call each other in a circle."""


class WireInBootstrap(PassError):
    """A wire op in a bootstrap: nobody answers yet."""


class EntryInBootstrap(PassError):
    """An op in a bootstrap that starts executions of its own: there it would never fire."""


# --- types ------------------------------------------------------------------------------------------------


class UnresolvedType(PassError):
    """A value whose type could not be inferred."""


class TypeConstraintFailed(PassError):
    """Types or shapes that cannot be those of one op."""


class UnsupportedType(PassError):
    """A value of a type that no device computes with, where one would have to."""


class NotWireEligible(PassError):
    """A value whose type does not travel."""


# --- placement --------------------------------------------------------------------------------------------


class CrossClassDataflow(PassError):
    """A value of one class of devices is read on another, without a send between."""


class AmbiguousPlacement(PassError):
    """Nothing says on which class of devices an op runs, or where a send goes."""


class CrossExecutionJoin(PassError):
    """An op needs values that never meet in one execution."""


class JoinAcrossSends(CrossExecutionJoin):
    """An op needs values that arrive by different sends."""


class InvalidClassName(PassError):
    """A class of devices whose name cannot stand in keys and topics."""


# --- wire -------------------------------------------------------------------------------------------------


class UnpairedWireRequest(PassError):
    """A request without exactly one reply, or a reply without its request."""


class MalformedWireOp(PassError):
    """A wire op whose inputs, outputs or stamps are not those of its kind."""


class DuplicatePort(PassError):
    """Two sends or requests of one name: their sites would be the same."""


class MissingRound(PassError):
    """An aggregator's sums are told apart by the round, and one of its ops has none."""


class MissingDeadline(PassError):
    """A request without a deadline would wait for ever."""


class InfeasibleDeadline(PassError):
    """A deadline that is shorter than the declared budget of the hops below it."""


# --- slots and the rest -----------------------------------------------------------------------------------


class AmbiguousRole(PassError):
    """A role is served by a concrete and by a generic slot in one partition."""


class UnboundSlot(PassError):
    """A generic slot that nothing is bound to."""


class BackendLacksOps(PassError):
    """ONNX operators that the backend of their slot does not have; all of a target are named."""


class BackwardWithoutForward(PassError):
    """A Backward without a Forward of its model in its execution, or of a model without gradient."""


class BindingError(PassError):
    """A binding that names no slot of the program, the wrong role, or a config that cannot be written.

    Codecs of two classes on the way of one code, too.
    """


class StateNotSaved(BindingError):
    """A component of a durable partition keeps state that a restart would lose."""


class AbsentPeers(PassError):
    """Peers that may be away are asked, or sent to without `durable`."""


class RuntimeIncomplete(PassError):
    """The compiled form lacks an op that the runtime counts on."""


class SeamError(CompileError):
    """A stage left the program malformed: a defect of that stage, not of the author's program."""


class StageError(CompileError):
    """A stage from outside that raises what is not a typed error, or gives no program."""


class UnknownStage(CompileError):
    """A stage that does not exist, or is named twice."""


class UnsupportedModule(CompileError):
    """Something that is not a module, model or program."""
