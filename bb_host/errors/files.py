"""What is refused of models, artifacts, texts and other files, by learning and by commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bb_edge.ir.errors import AuthoringError, BBError, CompileError
from bb_host.errors.programs import Recorded, place_of

# --- models -----------------------------------------------------------------------------------------------


class OnnxModelError(CompileError):
    """An ONNX model that cannot be compiled as it is; nothing was written."""


class InvalidModelError(OnnxModelError):
    """Not a valid ONNX model, or one whose data lies elsewhere."""


class UnsupportedValueError(OnnxModelError):
    """A value that is not a tensor, or of an element type that the runtime has no arrays for."""


class ModelTooLargeError(OnnxModelError):
    """A model whose weights no artifact can hold."""


class ShapeArgumentError(OnnxModelError):
    """A shape for an input that the model has not, or that does not fit what the model says."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One operator that cannot run, and why. `version` is that of its opset, 0 for one of another domain."""

    node: str
    op_type: str
    version: int
    reason: str = ""

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        opset = f" (opset {self.version})" if self.version else ""
        return f"{self.op_type}{opset} at {self.node}{reason}"


class UnsupportedOperatorError(OnnxModelError):
    """Operators that the backend has not; `refusals` names every one."""

    def __init__(self, refusals: Sequence[Refusal], where: str = "", hint: str = "") -> None:
        self.refusals = tuple(refusals)
        super().__init__(
            "cannot run " + "; ".join(str(refusal) for refusal in self.refusals),
            where,
            hint or "export the model with other operators: docs/reference/operators.md lists those that run",
        )


class TrainingModeError(UnsupportedOperatorError):
    """An operator in its training mode: such a model is not an inference model."""


# --- learning ---------------------------------------------------------------------------------------------


class LearnError(CompileError):
    """A model that cannot be made trainable."""


class NotDifferentiableError(LearnError):
    """No gradient for this op, or not in this form; `node` is the op's place, `op_type` its operator.

    Where several operators have no rule, `operators` names each once, and the rest is about the first.
    """

    def __init__(
        self,
        op: Recorded,
        what: str = "it has no gradient here",
        hint: str = "",
        operators: tuple[str, ...] = (),
        where: str = "",
    ) -> None:
        super().__init__(what, where or place_of(op), hint)
        self.node = op.name or (op.outputs[0] if op.outputs else "")
        self.op_type = op.op_type
        self.operators = operators or (op.op_type,)


class ModelImportError(LearnError):
    """An ONNX model that is not what a trainable model is made of."""


class ParameterMismatchError(LearnError):
    """Parameters that are not those of the model: missing, unknown, of another shape or dtype, or broken."""


# --- artifacts --------------------------------------------------------------------------------------------


class EdgeError(CompileError):
    """An artifact that would not be valid, or cannot be written."""


class OverwriteError(EdgeError):
    """A file of another program or model lies where the result belongs."""


class ArtifactTooLargeError(CompileError):
    """A program that is larger than a protobuf message may be."""


class StripError(CompileError):
    """A program that is not compiled, or has no such target."""


class BudgetError(CompileError):
    """A program that does not fit, or whose needs cannot be told. `table` shows what takes how much."""

    def __init__(self, what: str, where: str = "", hint: str = "", table: str = "") -> None:
        super().__init__(what, where, hint)
        self.table = table


class LoweringError(CompileError):
    """A TFLite graph that cannot be written: a defect of the lowering, not of the program."""


class IdentityError(CompileError):
    """A program that cannot be accepted beside this one."""


class QuantizeError(CompileError):
    """A program, or an option, that quantization cannot follow; nothing was written."""


class NothingToQuantizeError(QuantizeError):
    """A target without constant weights, or quantized already; others of the program may have some."""


class CalibrationError(QuantizeError):
    """Calibration data that are missing, or do not fit the program's inputs."""


# --- files, texts and commands ----------------------------------------------------------------------------


class SourceFileError(AuthoringError):
    """A file that is not a program: not there, not readable, or without `program()`."""


class ConstructionError(BBError):
    """A config that cannot be written."""


class ProgramProtoError(BBError):
    """A proto that cannot be held in the light form, or a record that cannot be written."""


class SparseTensorError(BBError):
    """A sparse tensor that is malformed, of a type without arrays, or too large when it is written out."""


class DrawingError(BBError):
    """A drawing that cannot be made: no such format, or `dot` failed."""


class SourceMapError(BBError):
    """A file that is not a source map, or one of a newer version."""


class AclError(BBError):
    """A list of peers, or artifacts, that no access rules can be made of."""


class NoExamples(BBError):
    """This installation came without the examples."""


class ScenarioError(BBError):
    """A simulation that was asked for and cannot run: its nodes, data, conditions or end."""


class RoundsInVain(ScenarioError):
    """A simulation whose rounds wait for nodes that there are not, or reach nobody time after time."""


class WorkerError(BBError):
    """A worker process of a simulation has failed or is gone; the message holds what it said last."""
