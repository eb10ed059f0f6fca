"""Which initializers of a model are learned, and why: decided once, listed for whoever asks.

ONNX files do not say what is a parameter. The rule, in this order:

1. What an operator takes as a setting is none: shapes, axes, running statistics, the scales of quantizers,
   bounds of `Clip`. Nor is anything but float32, or what nothing reads.
2. `frozen` and `train` patterns say what their author wants.
3. PyTorch's exporter marks what was a parameter, a buffer or a constant of the module; that mark decides.
4. A weight, bias, scale or table of a layer is learned, also where it is transposed, reshaped, quantized or
   otherwise computed with on its way there; so is what is added directly to the result of such a layer.
   Not so the ones and zeros of an InstanceNormalization that its exporter has named: what it has of its own
   is multiplied and added behind it. Nor a single number that is added to a layer of several channels, unless
   its name is a module's path: hard activations begin with `x + 3`.
5. Another operand of an elementwise operator is learned behind the first layer, unless its name is one that
   exporters invent (`val_72`, `onnx::Mul_31`, TensorFlow's `…/mul/y:0`, any name without a mark where 3 marks
   others), it is a single number, or it holds what no parameter does (infinities, −10⁹) and so is a mask.
   Before the first layer it normalizes the input, and is not learned. What tf2onnx has computed of variables
   (`const_fold_opt__31`) is learned where it holds several numbers: shifts of BatchNormalization come so. A
   single number that was a variable of TensorFlow, by its name, is learned as well.
6. What else is read is learned only where its name is a module's path (`encoder.pos`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from onnx import TensorProto

from bb_edge.ir.suggestions import suggestion
from bb_host.errors import ModelImportError, place_of
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
_MOVES = frozenset(
    ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Expand", "Slice", "Split",
     "Concat", "Tile", "Cast")
)  # fmt: skip

_PARTS = frozenset(("Split", "Slice", "Gather"))
"""Operators that cut a weight into others, which are each a layer's own: the gates of one matrix."""
_MASK = 1e4
"""What no parameter measures, and masks do: attention adds −10⁹, −65504 or −∞ to what is not to be seen."""
_NOT_TRAINED = {"BUFFER": "a buffer of the module", "CONSTANT_TENSOR": "a constant of the module"}


@dataclass(frozen=True, slots=True)
class Initializer:
    """One initializer of a model: whether it is learned, and why or why not."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    learned: bool
    why: str
    frozen: bool = False
    """Not learned because its author says so."""
    personal: bool = False
    """Learned, or a statistic that batches update, and never sent: it stays on its node."""
    untrained: bool = False
    """Sent, loaded and averaged, and not learned; or a statistic that is personal."""
    readers: tuple[str, ...] = ()
    """Of what is learned and several layers share, though nobody asked for it: the operators that read it."""

    @property
    def count(self) -> int:
        """Its entries."""
        return int(np.prod(self.shape, dtype=np.int64))


def choose(
    graph: Subgraph,
    tensors: Mapping[str, Array | RawTensor],
    kinds: Mapping[str, str],
    frozen: Collection[str],
    train: Collection[str],
    where: str,
) -> tuple[Initializer, ...]:
    """Every initializer of a graph, in its order, each learned or not.

    `tensors` holds the initializers and the weights that an exporter wrote as Constant nodes; the latter are
    listed where they are a layer's, and never learned. ModelImportError for a pattern that matches nothing,
    for one name in both `frozen` and `train`, and for a name in `train` that cannot be learned.
    """
    held = matching(frozen, graph.initializers, "freeze", where)
    forced = matching(train, graph.initializers, "train", where)
    if both := sorted(held & forced):
        raise ModelImportError(f"{both[0]!r} is frozen and trained", where, "name it in one of the two")
    uses = _Uses(graph, tensors, kinds)
    found = []
    for name, tensor in tensors.items():
        if name in graph.initializers:
            found.append(_decide(name, tensor, uses, kinds.get(name, ""), held, forced, where))
        elif isinstance(tensor, np.ndarray) and tensor.dtype == np.float32 and uses.layer(name):
            why = f"{uses.layer(name)}, but written as a Constant node"
            found.append(Initializer(name, tensor.shape, str(tensor.dtype), False, why))
    return tuple(found)


def render(initializers: Sequence[Initializer]) -> str:
    """The list as a table: what is learned, what is not, and why."""
    rows = [
        (
            _kind_of(i),
            i.name,
            f"{i.dtype}[{','.join(map(str, i.shape))}]",
            f"{i.count:,}",
            i.why,
        )
        for i in sorted(initializers, key=lambda i: not i.learned)
    ]
    learned = [i for i in initializers if i.learned]
    tensors = "1 tensor" if len(learned) == 1 else f"{len(learned)} tensors"
    total = f"{sum(i.count for i in learned):,} parameters in {tensors} are learned"
    own = [i for i in learned if i.personal]
    if own:
        total += f"; {sum(i.count for i in own):,} of them in {len(own)} are personal, and not sent"
    if given := [i for i in initializers if i.untrained and not i.personal]:
        total += f"; {sum(i.count for i in given):,} more in {len(given)} are sent, and not learned"
    if given := [i for i in initializers if i.untrained and i.personal]:
        total += f"; {sum(i.count for i in given):,} statistics in {len(given)} are personal"
    rows.insert(0, ("", "name", "type", "count", "why"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].ljust(widths[2]),
                   row[3].rjust(widths[3]), row[4]]).rstrip()
        for row in rows
    ]  # fmt: skip
    return "\n".join([*lines, total])


def _kind_of(i: Initializer) -> str:
    if i.personal:
        return "personal"
    if i.learned:
        return "learned"
    if i.untrained:
        return "sent"
    return "frozen" if i.frozen else "constant"


def layers_of(
    graph: Subgraph, tensors: Mapping[str, Array | RawTensor], kinds: Mapping[str, str]
) -> dict[str, int]:
    """The place in the graph of the operator that each initializer belongs to, the bias with its layer's."""
    uses = _Uses(graph, tensors, kinds)
    places = {id(op): index for index, op in enumerate(graph.ops)}
    owners = {name: uses.owner(name) for name in tensors}
    return {name: places[id(op)] for name, op in owners.items() if op is not None}


def unsendable(
    graph: Subgraph, tensors: Mapping[str, Array | RawTensor], kinds: Mapping[str, str]
) -> dict[str, str]:
    """Why an initializer can be no parameter at all, by name: of all those that cannot.

    Running statistics can: they are numbers of the model that no gradient changes.
    """
    uses = _Uses(graph, tensors, kinds)
    found = {}
    for name in graph.initializers:
        if element := _other_type(tensors[name]):
            found[name] = f"{element}: only float32 is sent"
        elif not uses.is_statistic(name) and (why := uses.never(name)):
            found[name] = why
    return found


def matching(patterns: Iterable[str], names: Collection[str], verb: str, where: str) -> set[str]:
    """The names that patterns match; an exact name, `*` and `?` in it or not, comes first."""
    if isinstance(patterns, str):
        patterns = (patterns,)
    matched: set[str] = set()
    for pattern in patterns:
        hits = {pattern} if pattern in names else {n for n in names if fnmatchcase(n, pattern)}
        if not hits and not (verb == "freeze" and pattern == "*"):  # all of it, also where that is nothing
            hint = suggestion(pattern, names, "initializers: ") or "it has no initializers"
            raise ModelImportError(f"no initializer {pattern!r} to {verb}", where, hint)
        matched |= hits
    return matched


def _other_type(tensor: Array | RawTensor) -> str:
    """The element type of a tensor; empty where it is float32."""
    if isinstance(tensor, np.ndarray):
        return "" if tensor.dtype == np.float32 else str(tensor.dtype)
    name: str = TensorProto.DataType.Name(tensor.elem_type)
    return name.lower()


def _decide(
    name: str,
    tensor: Array | RawTensor,
    uses: _Uses,
    kind: str,
    held: set[str],
    forced: set[str],
    where: str,
) -> Initializer:
    shape = tensor.shape
    other = _other_type(tensor)
    element = other or "float32"

    def is_(learned: bool, why: str, frozen: bool = False) -> Initializer:
        readers = uses.readers(name) if learned and name not in forced else ()
        if len(readers) < 2:
            return Initializer(name, shape, element, learned, why, frozen)
        return Initializer(
            name, shape, element, learned, f"{why}, and {len(readers) - 1} more", frozen, readers=readers
        )

    never = f"{other}: only float32 is learned" if other else uses.never(name)
    if name in forced and never:
        raise ModelImportError(
            f"{name!r} cannot be trained: {never}", where, "take it out of what is to be trained"
        )
    if name in held:
        return is_(False, "frozen by its author", frozen=True)
    if never:
        return is_(False, never)
    if name in forced:
        return is_(True, "trained because its author says so")
    if kind in _NOT_TRAINED:
        return is_(False, f"{_NOT_TRAINED[kind]}, its exporter says")
    layer = uses.layer(name)
    if not kind and isinstance(tensor, np.ndarray) and uses.is_filler(name, tensor):
        return is_(False, f"{layer}, all {tensor.flat[0]:g}, which its exporter has put there")
    if kind == "PARAMETER":
        return is_(True, layer or "a parameter of the module, its exporter says")
    if not shape and not VARIABLE.fullmatch(name):
        return is_(False, "a single number")
    if layer:
        return is_(True, layer)
    learned, why = uses.operand(name, shape)
    if learned and isinstance(tensor, np.ndarray) and not (np.abs(tensor) < _MASK).all():
        return is_(False, f"{why}, a mask: it holds {tensor.flat[np.argmax(~(np.abs(tensor) < _MASK))]:g}")
    return is_(learned, why)


def _width(op: Op, tensors: Mapping[str, Array | RawTensor]) -> int | None:
    """How many channels a product with a weight has, or numbers in its last place; None where it is open."""
    axis = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1, "Gemm": 0 if op.integer("transB", 0) else -1}
    weight = tensors.get(op.inputs[1])
    if op.op_type not in axis or not isinstance(weight, np.ndarray) or not weight.ndim:
        return None
    groups = op.integer("group", 1) if op.op_type == "ConvTranspose" else 1
    return int(weight.shape[axis[op.op_type]]) * groups


class _Uses:
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
            if position in SHAPE_INPUTS.get(op.op_type, ()):
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

    def operand(self, name: str, shape: tuple[int, ...]) -> tuple[bool, str]:
        """(learned, why) of what is no layer's own: an elementwise operand, or another input."""
        for op, value in self._ends(name):
            if op.op_type not in _ELEMENTWISE:
                continue
            what = f"operand of {place_of(op)}"
            single = int(np.prod(shape)) == 1
            folded = FOLDED.fullmatch(name) is not None and not single
            invented = ANONYMOUS.fullmatch(name) and not folded
            if invented or TF_CONSTANT.fullmatch(name) or self._unmarked(name):
                return False, f"{what}, a constant that its exporter has named"
            if single and not MODULE_PATH.fullmatch(name) and not VARIABLE.fullmatch(name):
                return False, f"{what}, a single number"
            if self._layers and not any(v in self._behind for v in (*op.outputs, value)):
                return False, f"{what}, before the first layer: it normalizes the input"
            return True, what
        op = self._readers[name][0][0]
        if MODULE_PATH.fullmatch(name):
            return True, f"named as a module's parameter, read by {place_of(op)}"
        return False, f"read by {place_of(op)}, which has no weight there"

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
        # A factor on the way of another's weight is no weight.
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
