"""What the type solver works on: the types of one function, narrowed step by step."""

from __future__ import annotations

from collections.abc import Mapping

from bb_edge.ir import types
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.errors import TypeConstraintFailed
from bb_host.ir.program import Array, Function, Op
from bb_host.ir.text.printer import print_type

Dim = int | str | None
Shape = tuple[Dim, ...] | None

ANY = types.ANY
TENSOR = types.TENSOR


class Terms:
    """The types of a function's values so far. `put` narrows; nothing ever widens.

    `functions` are the program's, solved as far as they are; `replies` maps a reply's wire id to its
    SendResp; `constants` are the tensors of Constant ops, for the shapes that depend on them. `records` has
    one record of each type, and `own` those of constants, by identity, for all functions of the program.
    """

    def __init__(
        self,
        function: Function,
        functions: Mapping[tuple[str, str], Function],
        replies: Mapping[str, Op],
        records: dict[tuple[int, Shape], ValueType],
        own: dict[int, ValueType],
    ) -> None:
        self.function = function
        self.functions = functions
        self.replies = replies
        self.records = records
        self.own = own
        self.types: dict[str, ValueType] = dict(function.types)
        self.constants: dict[str, Array] = {}
        self.forwards: dict[object, ValueType | None] = {}  # what Forward ops yield, by slot and classes
        self.touched: list[str] = []  # names whose types were narrowed since the solver looked

    def get(self, name: str) -> ValueType | None:
        return self.types.get(name)

    def told_apart(self, name: str) -> object:
        """What is the same for all values of one type, whatever records say it."""
        known = self.types.get(name) if name else None
        if known is None or name in self.constants:
            return id(known) if name else ""
        return id(self.records.setdefault((id(known.node), known.shape), known))

    def hold(self, name: str, value: Array) -> None:
        """Notes the value of a constant, and gives its type a record that no other value has."""
        self.constants[name] = value
        own = self.types[name] = ValueType(*self.types[name])
        self.own[id(own)] = own

    def put(self, name: str, found: ValueType | None, op: Op) -> None:
        """Narrows a value's type. TypeConstraintFailed where it cannot be both."""
        if not name or found is None:
            return
        known = self.types.get(name)
        if known is None:
            self.types[name] = ValueType(*found) if id(found) in self.own else found
            self.touched.append(name)
            return
        if known is found:
            return
        node = known.node
        if node is not found.node:
            if types.is_subtype(found.node, node):
                node = found.node
            elif not types.is_subtype(node, found.node):
                raise TypeConstraintFailed(_clash(name, known, found), op=op)
        shape = known.shape
        if found.shape is not None and found.shape != shape:
            shape = found.shape if shape is None else self._merged(name, known, found, op)
        if node is not known.node or shape is not known.shape:
            self.types[name] = ValueType(node, shape)
            self.touched.append(name)

    def _merged(self, name: str, known: ValueType, found: ValueType, op: Op) -> Shape:
        a, b = known.shape, found.shape
        assert a is not None and b is not None
        if len(a) != len(b):
            raise TypeConstraintFailed(_clash(name, known, found), op=op)
        dims: list[Dim] = []
        for x, y in zip(a, b, strict=True):
            if isinstance(x, int) and isinstance(y, int) and x != y:
                raise TypeConstraintFailed(_clash(name, known, found), op=op)
            dims.append(x if isinstance(x, int) else y if isinstance(y, int) else x if x is not None else y)
        merged = tuple(dims)
        return a if merged == a else merged

    def element(self, name: str, node: TypeNode, op: Op) -> None:
        """Narrows the node of a value and leaves its shape."""
        known = self.types.get(name)
        if known is None:
            self.put(name, ValueType(node), op)
        elif known.node is not node:
            is_tensor = types.is_subtype(node, TENSOR)
            self.put(name, ValueType(node, known.shape if is_tensor else None), op)

    def is_open(self, name: str) -> bool:
        """Whether a value's type is not known, or abstract."""
        known = self.types.get(name)
        return known is None or known.node.abstract


def conflict(op: Op, text: str, hint: str = "") -> TypeConstraintFailed:
    return TypeConstraintFailed(text, hint=hint, op=op)


def described(terms: Terms, names: tuple[str, ...]) -> str:
    """`a: F32[2], b: I64`, for messages."""
    found = ((n, terms.get(n)) for n in names if n)
    return ", ".join(f"{n}: {'unknown' if known is None else print_type(known)}" for n, known in found)


def _clash(name: str, known: ValueType, found: ValueType) -> str:
    return f"{name!r} is {print_type(known)}, and this needs or yields {print_type(found)}"
