"""Finds when each value of a graph can be there, which the collapse of ONNX ops must not delay.

Each value has its set of *arrivals*: the function inputs and the results of ops other than ONNX ones that
must have come before it can be computed. Two values with equal arrivals are there at the same time. Sets
are kept as bit masks.

1. A function input, and each output of an op that is not of ONNX, is an arrival of its own. Outputs of a role
   op or a gate come together and are one arrival; those of a Recv are not (one fill may fail to decode).
2. An ONNX op's result has the arrivals of its inputs, the values that its subgraphs capture among them.
3. What a role op, a gate or a plain passing syscall puts out has their inputs' arrivals too: it fires only
   when all of them are there. Ops that fire on any of their inputs, keep state beyond the execution (gates
   across executions too), or answer from outside pass none on.
4. Constants have none. Source ops (no inputs) are arrivals.
5. A value that goes from one backend to another is an arrival for the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bb_edge.ir import keys
from bb_edge.ir.opsets import lookup
from bb_edge.ir.types import TENSOR, ValueType, compatible
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import DRAWS, ONNX_DOMAINS, fires_on_one, is_constant, reads
from bb_host.passes.analysis.host_gates import ACROSS

_PASSING = frozenset(
    ("Gate", "PassThrough", "Tee", "GateDispatch", "GateManyDispatch", "OnTrigger", "DeadlineCheck")
)
_TOGETHER = frozenset((*keys.ROLE_DOMAINS, keys.GATE_DOMAIN, keys.COMPOSITE_DOMAIN))


@dataclass(slots=True)
class Arrivals:
    """Masks per value, and per tensor op (by index) what it waits for.

    `waits` are the arrivals that may come much later: from the wire, from timers.
    """

    of_value: dict[str, int] = field(default_factory=dict)
    of_op: dict[int, int] = field(default_factory=dict)
    waits: int = 0
    _backend: dict[str, str] = field(default_factory=dict)  # of a tensor op's results
    _handed: dict[str, int] = field(default_factory=dict)  # arrivals by rule 5
    _count: int = 0

    def new(self) -> int:
        """The mask of a further arrival."""
        self._count += 1
        return 1 << (self._count - 1)

    def together(self, names: Iterable[str], backend: str | None = None) -> int:
        """The arrivals of an op that reads these values, on a backend if it is a tensor op."""
        mask = 0
        for name in names:
            mask |= self.of_value.get(name, 0)
            if backend is not None and self._backend.get(name, backend) != backend:
                if name not in self._handed:
                    self._handed[name] = self.new()
                mask |= self._handed[name]
        return mask

    def write(self, names: Iterable[str], mask: int, backend: str) -> None:
        """The results of a tensor op."""
        for name in filter(None, names):
            self.of_value[name] = mask
            self._backend[name] = backend


def is_tensor_op(op: Op, types: dict[str, ValueType]) -> bool:
    """Whether a backend can run the op: an ONNX op over tensors that always gives the same result.

    Ops with control inputs, on values that are known not to be tensors (peer lists), random ones, and those
    whose subgraphs hold other ops are not.
    """
    if op.domain not in ONNX_DOMAINS or op.op_type in DRAWS or op.facts.control:
        return False
    for name in (*op.inputs, *op.outputs):
        known = types.get(name)
        if known is not None and not compatible(known.node, TENSOR):
            return False
    return all(is_tensor_op(inner, graph.types) for _, graph in op.subgraphs() for inner in graph.ops)


def backend_slot(op: Op) -> str:
    """The slot of the backend that an ONNX op asks for, "" for its target's own."""
    return op.slot


def arrivals(function: Function) -> Arrivals:
    """Walks a function once; its ops are in topological order."""
    found = Arrivals()
    for name in function.inputs:
        found.of_value[name] = found.new()
    for index, op in enumerate(function.ops):
        if is_constant(op):
            continue
        if is_tensor_op(op, function.types):
            slot = backend_slot(op)
            found.of_op[index] = found.together(reads(op), slot)
            found.write(op.outputs, found.of_op[index], slot)
        else:
            _take(found, op, found.together(reads(op)))
    return found


def _take(found: Arrivals, op: Op, before: int) -> None:
    definition = lookup(op.domain, op.op_type)
    together = op.domain in _TOGETHER
    passes = together or op.op_type in _PASSING
    if definition is None or fires_on_one(definition):
        passes = False
    across = ACROSS in op.attrs and op.op_type == "Gate"  # its value may come in another execution
    passes = passes and not across
    late = (
        across
        or op.domain == keys.WIRE_DOMAIN
        or (definition is not None and definition.may_suspend and not together)
    )
    mask = 0
    for name in filter(None, op.outputs):
        if not mask or not together:
            mask = found.new()
            found.waits |= mask if late else 0
        found.of_value[name] = mask | (before if passes else 0)
