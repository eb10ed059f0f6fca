"""Checks whether a component class is complete: a name, a role, and the methods of its Contract."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping

from bb_edge.ir import keys, types
from bb_edge.ir.opsets import Effect, OpDef, Opset, opset
from bb_edge.ir.opsets.records import OpRowError
from bb_edge.ir.suggestions import suggestion
from bb_edge.roles.backend import Backend
from bb_edge.roles.component import Component
from bb_edge.roles.contracts import (
    Aggregator,
    Codec,
    DataSource,
    Index,
    Model,
    PeerSelector,
    ProtocolComponent,
    method_name,
)
from bb_edge.roles.errors import ContractError
from bb_edge.roles.method_check import CLASS_HOOKS, HOOKS, near_misses, not_taking, own_methods, unfit
from bb_edge.roles.settings import REQUIRED, Setting

__all__ = ["check_class"]

CONTRACTS: Mapping[str, type[Component]] = {
    c.ROLE: c for c in (Backend, Model, Index, Aggregator, Codec, DataSource, PeerSelector, ProtocolComponent)
}
_DERIVED = frozenset((keys.ROLE_BACKEND, keys.ROLE_PROTOCOL))
"""Roles that the runtime knows by their class, and not by the methods alone."""


def check_class(kind: type[Component]) -> None:
    """Raises ContractError where a class cannot serve as a component.

    The error names what is missing, and names of the class that are near to it.
    """
    where = f"{kind.__module__}.{kind.__qualname__}"
    for what, hint in _faults(kind):
        raise ContractError(what, where, hint)


def _faults(kind: type[Component]) -> Iterator[tuple[str, str]]:
    yield from _name(kind)
    if kind.ROLE not in keys.ROLES:
        near = _near(kind.ROLE, keys.ROLES) if isinstance(kind.ROLE, str) else ""
        what = f"ROLE {kind.ROLE!r} is not a role" if kind.ROLE else "the class has no ROLE"
        yield (
            what,
            f"{near}derive it from a Contract (Aggregator, Codec, …), or give one of {', '.join(keys.ROLES)}",
        )
    contract = CONTRACTS[kind.ROLE]
    if kind.ROLE in _DERIVED and not issubclass(kind, contract):
        yield (
            f"a component of role {kind.ROLE} must be a subclass of {contract.__name__}",
            "derive it from that",
        )
    others = [c for role, c in CONTRACTS.items() if role != kind.ROLE and role != keys.ROLE_PROTOCOL]
    for other in others:
        if issubclass(kind, other):
            yield (
                f"the class derives from two Contracts, {contract.__name__} and {other.__name__}",
                "write a class for each; only ProtocolComponent goes with another one",
            )
    yield from _missing(kind, contract)
    yield from unfit(kind)
    yield from _uncallable(kind, contract)
    yield from _state(kind)
    if issubclass(kind, ProtocolComponent):
        yield from _own_ops(kind)
    yield from near_misses(kind, {**_promised(contract), **HOOKS, **CLASS_HOOKS})
    yield from _flags(kind)
    yield from _storage_types(kind)
    yield from _settings(kind)


def _name(kind: type[Component]) -> Iterator[tuple[str, str]]:
    name: object = kind.TYPE_NAME
    name_it = f'name it: TYPE_NAME = "package.{kind.__name__}"'
    if not isinstance(name, str) or not name:
        yield "the class has no TYPE_NAME", name_it
    elif "|" in name:
        yield f"TYPE_NAME {name!r} holds a |, which separates bindings", "leave it out"
    elif name.startswith("bb.") and not kind.__module__.startswith("bb_edge."):
        yield f"TYPE_NAME {name!r} begins with bb., as only built-in ones do", name_it
    elif not _TYPE_NAME.fullmatch(name):
        yield f"TYPE_NAME {name!r} is not of the form package.Name", name_it


_TYPE_NAME = re.compile(r"[\w-]+(\.[\w-]+)+")


def _missing(kind: type[Component], contract: type[Component]) -> Iterator[tuple[str, str]]:
    wanted = {
        *getattr(contract, "__abstractmethods__", ()),
        *getattr(kind, "__abstractmethods__", ()),
    }
    missing = [
        name
        for name in sorted(wanted)
        if not hasattr(kind, name) or getattr(getattr(kind, name), "__isabstractmethod__", False)
    ]
    if getattr(kind.construct, "__func__", None) is Component.__dict__["construct"].__func__:
        missing.append("construct")
    if not missing:
        return
    lacking = ", ".join(_signature(kind, contract, name) for name in missing)
    hints = [
        f"it has {name!r}: {near}"
        for name in own_methods(kind)
        if not hasattr(contract, name)
        and name not in missing
        and (near := suggestion(name, missing)).endswith("?")
    ]
    yield f"the class lacks {lacking}", " ".join(hints) or "define what is missing"


def _signature(kind: type[Component], contract: type[Component], name: str) -> str:
    if name == "construct":
        return "construct(cls, env)"
    method = getattr(contract, name, None) or getattr(kind, name)
    names = [p.name for p in inspect.signature(method).parameters.values()]
    return f"{name}({', '.join(names)})"


def _uncallable(kind: type[Component], contract: type[Component]) -> Iterator[tuple[str, str]]:
    """Yields methods of the Contract that cannot take the arguments that the runtime passes."""
    for name, positional in _promised(contract).items():
        given = inspect.signature(getattr(contract, name)).parameters.values()
        yield from not_taking(kind, name, positional, [p.name for p in given if p.kind is p.KEYWORD_ONLY])


def _promised(contract: type[Component]) -> dict[str, list[str]]:
    """Returns the methods of a Contract, with the names of the arguments that each gets by position."""
    if contract is Backend:  # looks at its own, where a class is made
        return {}
    return {
        name: [
            p.name for p in inspect.signature(own).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
        ][1:]
        for name, own in vars(contract).items()
        if not name.startswith("_") and inspect.isfunction(own)
    }


def _state(kind: type[Component]) -> Iterator[tuple[str, str]]:
    """Yields a fault where a class has only one of `serialize` and `restore`."""
    writes = kind.serialize is not Component.serialize
    reads = kind.restore is not Component.restore
    if writes != reads:
        there, lacks = ("serialize", "restore(self, state)") if writes else ("restore", "serialize(self)")
        name = lacks.partition("(")[0]
        near = _near(name, (own for own in own_methods(kind) if own != there))
        yield f"the class has {there} and no {name}", f"{near}define {lacks} too"
    elif writes:
        yield from _half_of_state(kind)


def _half_of_state(kind: type[Component]) -> Iterator[tuple[str, str]]:
    """Yields a fault where one of the two is newer than the other, and goes without that of its base.

    One that calls its base's adds to what that does. Whether it does is seen by the names that its code uses.
    """
    serialize, restore = (
        next(n for n, base in enumerate(kind.__mro__) if name in vars(base))
        for name in ("serialize", "restore")
    )
    if serialize == restore:
        return
    there, lacks = ("serialize", "restore") if serialize < restore else ("restore", "serialize")
    newer, older = kind.__mro__[min(serialize, restore)], kind.__mro__[max(serialize, restore)]
    code = getattr(inspect.unwrap(vars(newer)[there]), "__code__", None)
    if code is None or there in code.co_names:
        return
    base = older.__name__
    what = f"{newer.__name__} has a {there} of its own, and {lacks} is that of {base}, about its own bytes"
    calls = "super().serialize()" if there == "serialize" else "super().restore(state)"
    yield what, f"define {lacks} too, or call {calls}"


def _flags(kind: type[Component]) -> Iterator[tuple[str, str]]:
    for name in ("shared", "concurrent", "restartable", "stateless"):
        value = getattr(kind, name)
        if not isinstance(value, bool) and (name != "stateless" or value is not None):
            yield f"{name} is {value!r:.40}", f"write {name} = True or {name} = False"
    needs: object = kind.NEEDS
    if not isinstance(needs, tuple | list):
        yield f"NEEDS is {needs!r:.40}", 'write NEEDS = ("forward",)'
    readers: object = kind.GRAPH_OPS
    if not isinstance(readers, Mapping) or not all(isinstance(v, tuple | list) for v in readers.values()):
        yield f"GRAPH_OPS is {readers!r:.40}", 'write GRAPH_OPS = {"train": ("Backward",)}'


def _storage_types(kind: type[Component]) -> Iterator[tuple[str, str]]:
    """Yields entries of `STORAGE_TYPES` that name unknown ports or types."""
    declared: object = getattr(kind, "STORAGE_TYPES", None)
    if declared is None:
        return
    if not isinstance(declared, Mapping):
        yield (
            f"STORAGE_TYPES is a {type(declared).__name__}, expected a mapping",
            'write STORAGE_TYPES = {"Compress.code": "Tensor<U8>"}',
        )
        return
    ports = ports_of(kind)
    for port, name in declared.items():
        if port not in ports:
            yield f"STORAGE_TYPES: no port {port!r}", suggestion(port, ports, "its ports: ")
        if not isinstance(name, str) or types.by_id(name) is None:
            known = [node.id for node in types.REGISTRY]
            yield f"STORAGE_TYPES: no type {name!r}", suggestion(name, known, "register it, or take one of ")


def ports_of(kind: type[Component]) -> list[str]:
    """Returns `<Op>.<port>` of all ops that a class may offer."""
    rows: list[OpDef] = []
    for domain, role in keys.ROLE_OF_DOMAIN.items():
        if role == kind.ROLE and (table := opset(domain)) is not None:
            rows += table.ops.values()
    if issubclass(kind, ProtocolComponent):
        rows += kind.atomic_opset().ops.values()
    return [f"{op.name}.{port.name}" for op in rows for port in (*op.inputs, *op.outputs)]


def _own_ops(kind: type[ProtocolComponent]) -> Iterator[tuple[str, str]]:
    """Yields faults of the ops that a protocol brings, and of their methods."""
    try:
        table: object = kind.atomic_opset()
    except OpRowError as error:
        yield f"atomic_opset() fails: {error.what}", error.hint
        return
    except Exception as error:  # noqa: BLE001 (the author's code)
        yield f"atomic_opset() fails: {type(error).__name__}: {error}", "mend it: it returns Table(…).opset()"
        return
    if not isinstance(table, Opset):
        yield f"atomic_opset() returns {table!r:.60}", "let it return OpTable(…).opset()"
        return
    if not table.domain or any(
        table.domain == own or table.domain.startswith(f"{own}.")
        for own in (keys.ONNX_DOMAIN_ALIAS, keys.PREFIX)
    ):
        yield f"its ops are of {table.domain!r}, a domain of the catalog", "write OpTable(cls.TYPE_NAME)"
    ops = list(table.ops.values())
    for op in ops:
        yield from _row(op)
    for op in ops:
        name = method_name(op.name)
        if not callable(getattr(kind, name, None)):
            near = _near(name, own_methods(kind))
            yield f"its op {op.name} has no method", f"{near}define {name}(self, ctx, …)"
        if op.remote:
            yield from not_taking(kind, name, ("ctx", "sender", "payload"), ())
        else:
            inputs = ("ctx", *(port.name for port in op.inputs))
            yield from not_taking(kind, name, inputs, [attr.name for attr in op.attrs])


def _row(op: OpDef) -> Iterator[tuple[str, str]]:
    """Yields faults of a row of a protocol's own table: programs could not be compiled with it."""
    if not op.name.isidentifier():
        yield f"its op {op.name!r} needs a name of letters and digits", 'name it like "ReadRow"'
    if method_name(op.name) in _TAKEN:
        yield (
            f"its op {op.name} would be {method_name(op.name)!r}, which means something else",
            "rename the op",
        )
    effect: object = op.effect
    if not isinstance(effect, Effect):
        yield f"its op {op.name} has effect={effect!r}", f"write Effect.{str(effect).upper()}"
    for port in (*op.inputs, *op.outputs):
        if not port.name.isidentifier():
            yield f"its op {op.name} has a port without a name: {port.name!r}", 'write "name:Type"'
        elif not port.type:
            yield f"port {port.name!r} of its op {op.name} has no type", f'write "{port.name}:Tensor<F32>"'
        elif not (port.is_variable and port.type.isupper()) and types.by_id(port.type) is None:
            near = suggestion(port.type, [node.id for node in types.REGISTRY], "register it, or take one of ")
            yield f"port {port.name!r} of its op {op.name}: no type {port.type!r}", near


_TAKEN = frozenset(
    (*HOOKS, *CLASS_HOOKS, "name", "type_name", "config", "at", "op", "opset", "build", "where")
)
"""What the class calls its hooks, and a program a slot's own: `slot.name` is not an op."""


def _settings(kind: type[Component]) -> Iterator[tuple[str, str]]:
    for base in kind.__mro__:
        own = base.__dict__.get("CONFIG")
        if own is None:
            continue
        good = isinstance(own, Mapping) and all(
            isinstance(key, str) and isinstance(setting, Setting) for key, setting in own.items()
        )
        if not good:
            yield (
                "CONFIG is not a mapping of names to settings",
                'write CONFIG = {"mu": Setting.number(0.01)}',
            )
            return
        for key, setting in own.items():
            wrong = "" if setting.default is None else setting.wrong(setting.default)
            if wrong and setting.default is not REQUIRED:
                yield f"CONFIG: the default of {key!r} {wrong}", "give another default"


def _near(name: str, known: Iterable[str]) -> str:
    hint = suggestion(name, known)
    return f"{hint} " if hint.endswith("?") else ""
