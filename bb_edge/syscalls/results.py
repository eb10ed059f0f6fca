"""Checks the results of components against what their ops declare.

A checker is made once per op, when it is bound. It gets each result before anybody reads it, from a method or
from a `Later`, so the error of a component that breaks its contract names this op and not the next one.

What a result may be:

* a tensor: an `np.ndarray` of the declared dtype, and where it is not empty of the rank that the artifact
  declares or the Contract fixes. A NumPy scalar (`np.float32(0.5)`) counts as the 0-D array of its dtype.
  Python numbers and lists are refused: they have no dtype. So are masked arrays: no op after this one knows
  the mask. A dtype is never converted.
* a `PeerIdVec`: a tuple of `PeerId`; a list of them counts as that tuple. `AddressVec` likewise.
* a scalar, a `Timestamp` and the like: a number; a NumPy scalar counts as the Python number.
* `Bytes`: `bytes`; a `bytearray` or `memoryview` is copied.
* a `CommandId`: nothing, or an integer.
* several outputs: a tuple, or a list, of one value each. An optional output is None where it is absent;
  optional ones at the end may be omitted. One array is never spread over several outputs.

* as large as its op asks: a selector gives `n` peers at most, an index `k` places per query.

Other sizes, and values, are not checked. A check costs about a microsecond; the results of all components are
checked, those of the shipped ones as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bb_edge.engine.errors import OpError
from bb_edge.ir import keys, types
from bb_edge.ir.address import Address
from bb_edge.ir.host_arrays import is_masked
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets import OpDef, Port, Ready
from bb_edge.ir.opsets.roles import OUTPUT_SHAPES
from bb_edge.ir.types import TypeNode, ValueType
from bb_edge.ir.values import TRIGGER, Composite
from bb_edge.wire.codecs import python_type_of

# Tuples: a union that is written in a call is made anew in each.
_SEVERAL = (tuple, list)
_ARRAYS = (np.generic, np.ndarray)

Check = Callable[[object], Any]
"""Returns the result as the engine takes it. ResultError where the op declares something else."""


class ResultError(OpError):
    """A result of a component's method that is not what its op declares."""


def checker(definition: OpDef, declared: Sequence[ValueType | None]) -> Check:
    """Returns the check of an op's results.

    `declared` are the types that the artifact gives to the node's outputs, None where it gives none. The
    errors do not name slot and method: the step that reports them does, as for all of a component's errors.
    """
    ports = definition.outputs
    if not ports:
        return _nothing
    kinds = [
        _kind(definition, port, declared[i] if i < len(declared) else None) for i, port in enumerate(ports)
    ]
    ones = [
        _one(port, kind, "" if len(ports) == 1 else f"output {port.name!r}")
        for port, kind in zip(ports, kinds, strict=True)
    ]
    if len(ones) == 1:
        return ones[0]
    least = max((i + 1 for i, port in enumerate(ports) if port.ready is not Ready.OPTIONAL), default=0)
    names = ", ".join(port.name for port in ports)

    def several(result: object) -> object:
        if not isinstance(result, _SEVERAL):
            raise ResultError(
                f"gave {described(result)}, a tuple of {len(ones)} values is expected: {names}",
                hint=f"return ({names})",
            )
        if not least <= len(result) <= len(ones):
            raise ResultError(
                f"gave {len(result)} values, {len(ones)} are expected: {names}", hint=f"return ({names})"
            )
        return tuple([check(value) for check, value in zip(ones, result)])  # noqa: B905 (some are left out)

    if len(ones) != 2:
        return several
    first, second = ones
    if all(types.is_subtype(kind.node, types.TENSOR) for kind in kinds):
        return _two_tensors(first, second, (_rank(kinds[0]), _rank(kinds[1])), several)

    def two(result: object) -> object:
        if type(result) is tuple and len(result) == 2:  # most ops of several outputs have two
            return first(result[0]), second(result[1])
        return several(result)

    return two


def _two_tensors(first: Check, second: Check, ranks: tuple[int, int], several: Check) -> Check:
    """Returns a check of two tensors, which calls that of each where their dtypes are not the last ones."""
    one_rank, other_rank = ranks
    one_dtype: object = None
    other_dtype: object = None
    array = np.ndarray

    def two(result: object) -> object:
        nonlocal one_dtype, other_dtype
        if type(result) is not tuple or len(result) != 2:
            return several(result)
        one, other = result
        if (
            type(one) is array
            and type(other) is array
            and one.dtype is one_dtype
            and other.dtype is other_dtype
            and (one_rank < 0 or one.ndim == one_rank)
            and (other_rank < 0 or other.ndim == other_rank)
        ):
            return result
        one, other = first(one), second(other)
        if one is not None and other is not None:  # one that is optional may be left out
            one_dtype, other_dtype = one.dtype, other.dtype
        return one, other

    return two


def _rank(kind: ValueType) -> int:
    """Returns how many dimensions a tensor has to have, -1 where that is not declared."""
    return -1 if kind.shape is None else len(kind.shape)


def sized(check: Check, definition: OpDef, keywords: Mapping[str, object]) -> Check:
    """Returns a check that also holds a result to the number that its op asks for, `n` peers or `k` places.

    `keywords` are the op's attributes. Other ops keep their check.
    """
    most = keywords.get("n")
    if definition.domain == keys.ROLE_PEER_SELECTOR_DOMAIN and isinstance(most, int):

        def peers(result: object) -> Any:
            found = check(result)
            if len(found) > most:
                raise ResultError(
                    f"gave {len(found)} peers, the op asks for {most} at most",
                    hint=f"return the first {most}",
                )
            return found

        return peers
    places = keywords.get("k")
    if definition.domain == keys.ROLE_INDEX_DOMAIN and isinstance(places, int):

        def nearest(result: object) -> Any:
            found = check(result)
            ids, distances = (found[0].shape, found[1].shape)
            if ids != distances or ids[-1:] != (places,):
                raise ResultError(
                    f"gave ids {list(ids)}, distances {list(distances)}; the op asks for {places} per query",
                    hint=f"return [{places}] or [queries, {places}]: what nothing fills is -1 and inf",
                )
            return found

        return nearest
    return check


def described(value: object) -> str:
    """Returns what a value is, in a few words, and never the values of an array."""
    if isinstance(value, np.ndarray) and is_masked(value):
        return f"a masked array of {value.dtype}{list(value.shape)}"
    if isinstance(value, np.ndarray):
        known = types.elem_of_dtype(value.dtype)
        node = None if known is None else types.tensor_of_elem(known)
        return f"{'an array of ' + str(value.dtype) if node is None else node}{list(value.shape)}"
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        inner = ", ".join(dict.fromkeys(type(item).__name__ for item in value))
        return f"a {type(value).__name__} of {len(value)}" + (f" ({inner})" if inner else "")
    text = repr(value) if isinstance(value, int | float | str | np.generic) else ""
    return f"{type(value).__name__} {text[:40]}".rstrip()


def _nothing(result: object) -> None:
    if result is not None:
        raise ResultError(f"gave {described(result)}, the op has no outputs", hint="return nothing")


def _kind(definition: OpDef, port: Port, declared: ValueType | None) -> ValueType:
    """Returns what is known of an output: its row in the catalog, narrowed by what the artifact declares."""
    node = (None if port.is_variable else types.by_id(port.type)) or types.ANY
    fixed = (
        OUTPUT_SHAPES.get((definition.name, port.name)) if definition.domain in keys.ROLE_DOMAINS else None
    )
    if declared is not None and types.is_subtype(declared.node, node):
        return declared if declared.shape is not None else ValueType(declared.node, fixed)
    return ValueType(node, fixed)


def _one(port: Port, kind: ValueType, where: str) -> Check:
    """Returns the check of a single output."""
    node = kind.node
    optional = port.ready is Ready.OPTIONAL

    def wrong(value: object, hint: str) -> ResultError:
        return ResultError(f"gave {described(value)}, expected {kind}", where, hint)

    if node == types.COMMAND_ID:

        def command(value: object) -> object:
            if value is None or type(value) is int:
                return value
            raise wrong(value, "return nothing: the engine numbers commands")

        return command
    if types.is_subtype(node, types.TENSOR):
        return _tensor(kind, optional, wrong)
    take = taker(node)

    def other(value: object) -> object:
        if value is None and optional:
            return None
        taken = None if value is None else take(value)
        if taken is None:
            raise wrong(value, _HINTS.get(node.id, f"return a value of {node}"))
        return taken

    return other


def _tensor(kind: ValueType, optional: bool, wrong: Callable[[object, str], ResultError]) -> Check:
    elem, rank = kind.node.elem_type, _rank(kind)
    expected = None if elem is None else types.dtype_of_elem(elem)
    name, array = expected or "float32", np.ndarray

    def tensor(value: object) -> object:
        if type(value) is array and value.dtype is expected and (rank < 0 or value.ndim == rank):
            return value  # as nearly all of them are
        if type(value) is not array:
            if value is None and optional:
                return None
            if is_masked(value):
                raise wrong(value, "say which values its masked places have: return value.filled(0)")
            if not isinstance(value, _ARRAYS):
                raise wrong(value, f"return an array: np.asarray(value, np.{name})")
            value = np.asarray(value)  # subclasses as well: kernels know none of them
        dtype = value.dtype
        if dtype is not expected and (
            types.elem_of_dtype(dtype) is None if expected is None else dtype != expected
        ):
            raise wrong(value, f"return array.astype('{name}')")
        if rank >= 0 and value.ndim != rank and value.size:
            raise wrong(value, f"return an array of {rank} dimensions: reshape it")
        return value

    return tensor


def taker(node: TypeNode) -> Callable[[Any], object]:
    """Returns a function for values of a type other than tensors.

    It returns a value as slots hold it, and None where the value is of another kind.
    """
    if node in (types.PEER_ID_VEC, types.ADDRESS_VEC):
        item = PeerId if node == types.PEER_ID_VEC else Address

        def vector(value: object) -> object:
            fits = isinstance(value, _SEVERAL) and all(isinstance(v, item) for v in value)
            return tuple(value) if fits else None  # type: ignore[arg-type]

        return vector
    if node == types.BYTES:
        return lambda value: bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None
    if node == types.TRIGGER:
        return lambda value: value if value is TRIGGER else None
    if types.is_subtype(node, types.SCALAR):
        return lambda value: _number(value, (int, float))
    if node in _INTEGERS:
        return lambda value: _number(value, (int,))
    kinds: dict[TypeNode, type] = {
        types.PEER_ID: PeerId,
        types.MULTIADDRESS: Address,
        types.COMPOSITE: Composite,
    }
    kind = kinds.get(node)
    if kind is not None:
        return lambda value: value if isinstance(value, kind) else None
    own = python_type_of(node)  # a user's type has one if its codec was registered with one
    return lambda value: value if own is None or isinstance(value, own) else None


def _number(value: object, kinds: tuple[type, ...]) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, kinds) and not isinstance(value, bool) else None


_INTEGERS = (
    types.WIRE_REQ_ID,
    types.REQUEST_ID,
    types.TIMESTAMP,
    types.EVENT_KIND,
    types.CORRELATION_TOKEN,
)
_HINTS = {
    types.PEER_ID_VEC.id: "return a tuple of PeerId",
    types.ADDRESS_VEC.id: "return a tuple of Address",
    types.TRIGGER.id: "return bb_edge.roles.TRIGGER",
    types.BYTES.id: "return bytes",
    types.SCALAR.id: "return a number",
}
