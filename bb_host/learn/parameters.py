"""Which initializers of a model are learned, and why: decided once, listed for whoever asks.

ONNX files do not say what is a parameter. The rule, in this order:

1. What an operator takes as a setting is none: shapes, axes, running statistics, the scales of quantizers,
   bounds of `Clip`. Nor is anything but float32, or what nothing reads.
2. `frozen` and `train` patterns say what their author wants.
3. PyTorch's exporter marks what was a parameter, a buffer or a constant of the module; that mark decides.
4. A weight, bias, scale or table of a layer is learned, also where it is transposed, reshaped, quantized or
   otherwise computed with on its way there; so is what is added directly to the result of such a layer. Not
   so the ones and zeros of an InstanceNormalization that its exporter has named: what is multiplied and added
   behind it is its scale and shift (so GroupNorm comes), whatever the name. Nor a single number that is added
   to a layer of several channels, unless its name is a module's path: hard activations begin with `x + 3`.
5. Another operand of an elementwise operator is learned behind the first layer, unless its name is one that
   exporters invent (`val_72`, `onnx::Mul_31`, TensorFlow's `…/mul/y:0`, any name without a mark where 3 marks
   others), it is a single number, or it holds what no parameter does (infinities, −10⁹) and so is a mask.
   Before the first layer it normalizes the input, and is not learned. What tf2onnx has computed of variables
   (`const_fold_opt__31`) is learned where it holds several numbers: shifts of BatchNormalization come so. A
   single number that was a variable of TensorFlow, by its name, is learned as well.
6. What else is read is learned only where its name is a module's path (`encoder.pos`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
from onnx import TensorProto

from bb_edge.ir import types
from bb_edge.ir.suggestions import suggestion
from bb_host.errors import ModelImportError
from bb_host.ir.program import Array, RawTensor, Subgraph
from bb_host.learn.exporter_names import ANONYMOUS, VARIABLE
from bb_host.learn.initializer_uses import Uses

_MASK = 1e4
"""What no parameter measures, and masks do: attention adds −10⁹, −65504 or −∞ to what is not to be seen."""
_SMALL = 1e-4
"""Below it a single number keeps others from 0: epsilons are 1e-5 and less."""
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
    doubtful: bool = False
    """Not learned because of its name or its reader, though as many numbers may have been a parameter."""
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
    named: bool = False,
) -> tuple[Initializer, ...]:
    """Every initializer of a graph, in its order, each learned or not.

    `named` says that the exporter gives names of the module to what the module holds, and to nothing else.
    `tensors` holds the initializers and the weights that an exporter wrote as Constant nodes; the latter are
    listed where they are a layer's, and never learned. ModelImportError for a pattern that matches nothing,
    for one name in both `frozen` and `train`, and for a name in `train` that cannot be learned.
    """
    held = matching(frozen, graph.initializers, "freeze", where)
    forced = matching(train, graph.initializers, "train", where)
    if both := sorted(held & forced):
        raise ModelImportError(f"{both[0]!r} is frozen and trained", where, "name it in one of the two")
    uses = Uses(graph, tensors, kinds)
    found = []
    for name, tensor in tensors.items():
        if name in graph.initializers:
            found.append(_decide(name, tensor, uses, kinds.get(name, ""), held, forced, where))
            if named and _is_lost_scalar(found[-1], tensor, uses):
                found[-1] = replace(found[-1], doubtful=True)
        elif isinstance(tensor, np.ndarray) and tensor.dtype == np.float32 and uses.layer(name):
            why = f"{uses.layer(name)}, but written as a Constant node"
            found.append(Initializer(name, tensor.shape, str(tensor.dtype), False, why))
    return tuple(found)


def _is_lost_scalar(listed: Initializer, tensor: Array | RawTensor, uses: Uses) -> bool:
    """Whether a single number that is not learned has a name of the module, and scales or shifts.

    A temperature or a gate is one. What is added to keep a denominator from 0 is too small for that.
    """
    if listed.learned or listed.frozen or listed.count != 1 or ANONYMOUS.fullmatch(listed.name):
        return False
    if not isinstance(tensor, np.ndarray) or tensor.dtype != np.float32 or uses.never(listed.name):
        return False
    size = abs(float(tensor.reshape(-1)[0]))
    return (size == 0 or _SMALL <= size < _MASK) and uses.scales(listed.name) is not None


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
    uses = Uses(graph, tensors, kinds)
    places = {id(op): index for index, op in enumerate(graph.ops)}
    owners = {name: uses.owner(name) for name in tensors}
    return {name: places[id(op)] for name, op in owners.items() if op is not None}


def unsendable(
    graph: Subgraph, tensors: Mapping[str, Array | RawTensor], kinds: Mapping[str, str]
) -> dict[str, str]:
    """Why an initializer cannot be a parameter at all, by name: of all those that cannot.

    Running statistics can: they are numbers of the model that no gradient changes.
    """
    uses = Uses(graph, tensors, kinds)
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


def refuse_quantized(initializers: Sequence[Initializer], where: str) -> None:
    """Raises ModelImportError for element types that no value here has: int4, float8 and their like."""
    packed = [i for i in initializers if _is_packed(i.dtype)]
    if packed:
        more = f" and {len(packed) - 1} more" if len(packed) > 1 else ""
        raise ModelImportError(
            f"its weights are {packed[0].dtype} ({packed[0].name}{more}): models are trained in float32",
            where,
            "take the model as it was before its weights were quantized",
        )


def _is_packed(dtype: str) -> bool:
    elem = getattr(TensorProto, dtype.upper(), None)  # NumPy's own names are none of these, or of known types
    return isinstance(elem, int) and types.tensor_of_elem(elem) is None


def _decide(
    name: str,
    tensor: Array | RawTensor,
    uses: Uses,
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
    learned, why, doubtful = uses.operand(name, shape)
    if doubtful and isinstance(tensor, np.ndarray) and tensor.any() and (np.abs(tensor) < _MASK).all():
        return Initializer(name, shape, element, False, why, doubtful=True)
    if learned and isinstance(tensor, np.ndarray) and not (np.abs(tensor) < _MASK).all():
        return is_(False, f"{why}, a mask: it holds {tensor.flat[np.argmax(~(np.abs(tensor) < _MASK))]:g}")
    return is_(learned, why)
