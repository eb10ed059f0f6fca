"""What learning refuses: graphs without a gradient, models that are no plain inference graph."""

from __future__ import annotations

from bb_edge.ir.errors import CompileError
from bb_host.ir.program import Op


def place_of(op: Op) -> str:
    """Names an op for a reader: the author's line, its name, else what it writes."""
    label = (
        f"{op.op_type} {op.name!r}" if op.name else f"{op.op_type} → {', '.join(filter(None, op.outputs))}"
    )
    return f"{op.source}, {label}" if op.source else label


class LearnError(CompileError):
    """A model that cannot be made trainable."""


class NotDifferentiableError(LearnError):
    """No gradient for this op, or not in this form; `node` is the op's place, `op_type` its operator.

    Where several operators have no rule, `operators` names each once, and the rest is about the first.
    """

    def __init__(
        self,
        op: Op,
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
