"""Who reads the initializers of a model, and as what: a layer's weight, an operand, a setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bb_host.errors import place_of
from bb_host.ir.program import Array, Op, RawTensor, Subgraph, walk_ops
from bb_host.learn.exporter_names import ANONYMOUS, FOLDED, MODULE_PATH, TF_CONSTANT, VARIABLE
from bb_host.learn.gradient_rules import SHAPE_INPUTS

_LAYERS: dict[str, dict[int, str]] = {
    "Conv": {1: "weight", 2: "bias"},
    "ConvTranspose": {1: "weight", 2: "bias"},
    "DeformConv": {1: "weight", 3: "bias"},
    "Gemm": {0: "weight", 1: "weight", 2: "bias"},
    "MatMul": {0: "weight", 1: "weight"},
    "Einsum": dict.fromkeys(range(8), "weight"),
    "BatchNormalization": {1: "scale", 2: "shift"},
    "InstanceNormalization": {1: "scale", 2: "shift"},
    "GroupNormalization": {1: "scale", 2: "shift"},
    "LayerNormalization": {1: "scale", 2: "shift"},
    "RMSNormalization": {1: "scale"},
    "PRelu": {1: "slope"},
    "Gather": {0: "table"},
    "GRU": {1: "weight", 2: "recurrent weight", 3: "bias"},
    "LSTM": {1: "weight", 2: "recurrent weight", 3: "bias", 7: "peephole weight"},
    "RNN": {1: "weight", 2: "recurrent weight", 3: "bias"},
}
"""Inputs of layers that are learned, and what they are called."""

_SETTINGS: dict[str, dict[int, str]] = {
    "BatchNormalization": {3: "running mean", 4: "running variance"},
    "QuantizeLinear": {1: "scale", 2: "zero point"},
    "DequantizeLinear": {1: "scale", 2: "zero point"},
    "Resize": {1: "region", 2: "scales", 3: "sizes"},
    "Upsample": {1: "scales"},
    "Pow": {1: "exponent"},
}
"""Inputs that steer an operator or are counted, beside `SHAPE_INPUTS`."""

_PRODUCTS = frozenset(("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum"))
_ELEMENTWISE = frozenset(("Add", "Sub", "Mul", "Div", "Min", "Max", "Mean", "Sum", "Where"))
_SCALING = frozenset(("Add", "Sub", "Mul", "Div"))
_MOVES = frozenset(
    ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Expand", "Slice", "Split",
     "Concat", "Tile", "Cast")
)  # fmt: skip

_PARTS = frozenset(("Split", "Slice", "Gather"))
"""Operators that cut a weight into others, which are each a layer's own: the gates of one matrix."""


def _width(op: Op, tensors: Mapping[str, Array | RawTensor]) -> int | None:
    """How many channels a product with a weight has, or numbers in its last place; None where it is open."""
    axis = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1, "Gemm": 0 if op.integer("transB", 0) else -1}
    weight = tensors.get(op.inputs[1])
    if op.op_type not in axis or not isinstance(weight, np.ndarray) or not weight.ndim:
        return None
    groups = op.integer("group", 1) if op.op_type == "ConvTranspose" else 1
    return int(weight.shape[axis[op.op_type]]) * groups


class Uses:
    """Who reads an initializer in the end: through moves, and through what is computed of weights alone."""

    def __init__(
        self, graph: Subgraph, tensors: Mapping[str, Array | RawTensor], kinds: Mapping[str, str]
    ) -> None:
        self._readers: dict[str, list[tuple[Op, int]]] = defaultdict(list)
        self._producer = {v: op for op in graph.ops for v in op.outputs if v}
        fed = {v for v in graph.inputs if v not in tensors}  # values that depend on the model's inputs
        for op in graph.ops:
            for position, value in enumerate(op.inputs):
                if value:
                    self._readers[value].append((op, position))
            steers = SHAPE_INPUTS.get(op.op_type, frozenset()) if op.op_type in _MOVES else frozenset()
            read = (v for position, v in enumerate(op.inputs) if position not in steers)
            if any(v in fed for v in read) or any(op.subgraphs()):
                fed.update(v for v in op.outputs if v)
        self._fed = fed
        self._kinds = kinds if "PARAMETER" in kinds.values() else {}
        self._captured = {
            v for op in graph.ops for _, g in op.subgraphs() for o in walk_ops(g.ops) for v in o.inputs
        }
        self._weights: dict[str, bool] = {}
        self._layers: dict[str, str] = {}
        self._results: set[str] = set()  # of products with a learned weight, as they come and moved
        behind: set[str] = set()  # values behind the first layer
        for name in tensors:
            if text := self._layer_of(name):
                self._layers[name] = text
        for op in graph.ops:
            weights = any(v in self._layers or v in behind for v in op.inputs)
            if weights or any(kinds.get(v) == "PARAMETER" for v in op.inputs):
                behind.update(v for v in op.outputs if v)
            if (op.op_type in _PRODUCTS and any(self._weight(v) for v in op.inputs)) or (
                op.op_type in _MOVES and op.inputs and op.inputs[0] in self._results
            ):
                self._results.update(op.outputs)
        self._behind = behind
        for name, tensor in tensors.items():
            shape = tensor.shape if isinstance(tensor, np.ndarray) else ()
            if name in self._layers or not shape or (op_ := self._biased(name)) is None:
                continue
            if int(np.prod(shape)) == 1 and not MODULE_PATH.fullmatch(name) and _width(op_, tensors) != 1:
                continue
            self._layers[name] = f"bias of {place_of(op_)}"
        self._name_scales(graph.ops, tensors)

    def _name_scales(self, ops: Sequence[Op], tensors: Mapping[str, Array | RawTensor]) -> None:
        """What is multiplied with, and added to, what a normalization without a scale of its own yields."""
        bare: dict[str, Op] = {}  # the normalization, by its result and what is made of it
        for op in ops:
            if op.op_type == "InstanceNormalization":
                fillers = [(v, held) for v in op.inputs[1:] if isinstance(held := tensors.get(v), np.ndarray)]
                if len(fillers) == 2 and all(self.is_filler(v, held) for v, held in fillers):
                    bare[op.outputs[0]] = op
                continue
            norm = next((bare[v] for v in op.inputs if v in bare), None)
            if norm is None:
                continue
            own = [v for v in op.inputs if isinstance(held := tensors.get(v), np.ndarray) and held.size > 1]
            if op.op_type in _MOVES:
                bare[op.outputs[0]] = norm
            elif op.op_type in ("Mul", "Add") and own:
                role = "scale" if op.op_type == "Mul" else "shift"
                self._layers.setdefault(own[0], f"{role} of {place_of(norm)}, behind it")
                if role == "scale":
                    bare[op.outputs[0]] = norm

    def layer(self, name: str) -> str:
        """What of which layer an initializer is: "weight of Conv 'c1'"; empty where it is of none."""
        return self._layers.get(name, "")

    def is_filler(self, name: str, tensor: Array) -> bool:
        """Whether it is the 1 or 0 that exporters give normalisations that have no scale and no shift."""
        by = {op.op_type for op, _ in self._readers.get(name, ())}
        return (
            by == {"InstanceNormalization"}
            and ANONYMOUS.fullmatch(name) is not None
            and tensor.size > 0
            and bool(np.isin(tensor.flat[0], (0, 1)) and (tensor == tensor.flat[0]).all())
        )

    def owner(self, name: str) -> Op | None:
        """The operator that an initializer belongs to: its layer, the product that it is added to, or the
        first that computes with it."""
        for op, position, _ in self._through(name):
            if position in _LAYERS.get(op.op_type, {}) and self._fed.intersection(op.outputs):
                return op
        return self._biased(name) or next((op for op, _ in self._ends(name)), None)

    def readers(self, name: str) -> tuple[str, ...]:
        """The operators on the model's own values that read an initializer, or what is made of it alone."""
        return tuple(self._reading(name, name).values())

    def _reading(self, name: str, value: str) -> dict[str, str]:
        """Who reads a value that is made of an initializer alone, by layer; of parts of it, those of one."""
        variable = VARIABLE.fullmatch(name) is not None
        places: dict[str, str] = {}
        readers = [(op, p) for op, p in self._readers.get(value, ()) if not self._steers(name, op, p)]
        own = [op for op, _ in readers if self._fed.intersection(op.outputs)]
        for op in own:  # the steps of one loop are one reader, and so is a layer of TensorFlow, by its path
            layer = op.name.rpartition("/")[0].replace("/while/", "/") if variable else ""
            places.setdefault(layer or place_of(op), place_of(op))
        parts: list[dict[str, str]] = []
        for op, _ in readers:  # of weights alone; a loop's first step, on a state of zeros, is not
            if op in own or place_of(op) in places.values():
                continue
            found = [self._reading(name, v) for v in op.outputs if v]
            if op.op_type in _PARTS:
                parts.extend(found)
            else:
                places.update(item for one in found for item in one.items())
        most: dict[str, str] = max(parts, key=len) if parts else {}
        return {**most, **places}

    def never(self, name: str) -> str:
        """Why an initializer cannot be learned at all; empty where it can."""
        if name in self._captured:
            return "read inside a branch or loop"
        if not self._readers.get(name):
            return "nothing reads it"
        for op, position in self._readers[name]:
            if setting := _SETTINGS.get(op.op_type, {}).get(position):
                return f"{setting} of {place_of(op)}"
            if (
                position in SHAPE_INPUTS.get(op.op_type, ()) and op.op_type != "CastLike"
            ):  # which reads a dtype
                return f"a setting of {place_of(op)}"
        return ""

    def is_statistic(self, name: str) -> bool:
        """Whether normalizations alone read it, as a running mean or variance."""
        readers = self._readers.get(name, [])
        return (
            name not in self._captured
            and all(op.op_type == "BatchNormalization" and at in (3, 4) for op, at in readers)
            and bool(readers)
        )

    def operand(self, name: str, shape: tuple[int, ...]) -> tuple[bool, str, bool]:
        """(learned, why, whether that is doubtful) of what is not a layer's own: an elementwise operand, or
        another input. Only what is not learned is doubtful: it may be a parameter that lost its name.
        """
        single = int(np.prod(shape)) == 1
        for op, value in self._ends(name):
            if op.op_type not in _ELEMENTWISE:
                continue
            what = f"operand of {place_of(op)}"
            behind = any(v in self._behind for v in (*op.outputs, value))
            folded = FOLDED.fullmatch(name) is not None and not single
            invented = ANONYMOUS.fullmatch(name) and not folded
            if invented or TF_CONSTANT.fullmatch(name) or self._unmarked(name):
                return False, f"{what}, a constant that its exporter has named", behind and not single
            if single and not MODULE_PATH.fullmatch(name) and not VARIABLE.fullmatch(name):
                return False, f"{what}, a single number", False
            if self._layers and not behind:
                # As a mean has it, one number per feature or channel; centres and embeddings have more dims.
                strange = sum(size > 1 for size in shape) > 1
                return False, f"{what}, before the first layer: it normalizes the input", strange
            return True, what, False
        op = self._readers[name][0][0]
        if MODULE_PATH.fullmatch(name):
            return True, f"named as a module's parameter, read by {place_of(op)}", False
        return False, f"read by {place_of(op)}, which has no weight there", bool(self._layers) and not single

    def scales(self, name: str) -> Op | None:
        """The operator that scales or shifts by a number, or something made of it, behind the first layer."""
        for op, _, _ in self._through(name):
            if (
                op.op_type in _SCALING
                and self._fed.intersection(op.outputs)
                and op.outputs[0] in self._behind
            ):
                return op
        return None

    def _unmarked(self, name: str) -> bool:
        """Whether an exporter that marks parameters has computed it, and called it after its operator."""
        return bool(self._kinds) and name not in self._kinds and not MODULE_PATH.fullmatch(name)

    def _weight(self, value: str) -> bool:
        """Whether a value is a layer's parameter, or computed of such without the model's input."""
        known = self._weights.get(value)
        if known is None:
            op = self._producer.get(value)
            known = value in self._layers
            if not known and op is not None and value not in self._fed:
                known = any(self._weight(v) for v in op.inputs)
            self._weights[value] = known
        return known

    def _layer_of(self, name: str) -> str:
        for op, position, computed in self._through(name):
            role = _LAYERS.get(op.op_type, {}).get(position)
            if role is None or position in SHAPE_INPUTS.get(op.op_type, ()):
                continue
            if op.op_type in ("MatMul", "Gemm", "Einsum") and not any(v in self._fed for v in op.inputs):
                continue  # of weights alone: what comes out is looked at further on
            return f"{role} of {place_of(op)}" + (f", through {computed}" if computed else "")
        return ""

    def _through(self, name: str) -> Iterable[tuple[Op, int, str]]:
        """(op, position, what was passed on the way) of all that reads it, or what is made of it alone."""
        pending, seen = [(name, "")], {name}
        while pending:
            value, passed = pending.pop(0)
            for op, position in self._readers.get(value, ()):
                yield op, position, passed
                if self._steers(name, op, position):
                    continue
                for output in op.outputs:
                    if output and output not in self._fed and output not in seen:
                        seen.add(output)
                        moved = passed or ("" if op.op_type in _MOVES else op.op_type)
                        pending.append((output, moved))

    def _steers(self, name: str, op: Op, position: int) -> bool:
        """Whether what an op makes of an initializer is no more that initializer, but only steered by it."""
        if position in SHAPE_INPUTS.get(op.op_type, ()) or position in _SETTINGS.get(op.op_type, {}):
            return True
        if op.op_type in ("Shape", "Size"):
            return True
        # A factor on the way of another's weight is not a weight.
        return op.op_type in _ELEMENTWISE and ANONYMOUS.fullmatch(name) is not None

    def _ends(self, name: str) -> Iterable[tuple[Op, str]]:
        """Ops that compute with the initializer or with it moved, and the value as they read it."""
        pending, seen = [name], {name}
        while pending:
            value = pending.pop(0)
            for op, _ in self._readers.get(value, ()):
                yield op, value
                if op.op_type in _MOVES:
                    for output in op.outputs:
                        if output and output not in seen:
                            seen.add(output)
                            pending.append(output)

    def _biased(self, name: str) -> Op | None:
        """The product to whose result an initializer is added directly."""
        for op, value in self._ends(name):
            if op.op_type != "Add":
                continue
            for other in op.inputs:
                if other != value and other in self._results:
                    return self._product(other)
        return None

    def _product(self, value: str) -> Op:
        op = self._producer[value]
        while op.op_type in _MOVES:
            op = self._producer[op.inputs[0]]
        return op
