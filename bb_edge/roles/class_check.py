"""Whether a component class is whole: it has a name, a role, and the methods of its Contract."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
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
from bb_edge.roles.settings import REQUIRED, Setting

__all__ = ["check_class"]

_CONTRACTS: Mapping[str, type[Component]] = {
    c.ROLE: c for c in (Backend, Model, Index, Aggregator, Codec, DataSource, PeerSelector, ProtocolComponent)
}
_DERIVED = frozenset((keys.ROLE_BACKEND, keys.ROLE_PROTOCOL))
"""Roles that the runtime knows by their class, and not by the methods alone."""


def check_class(kind: type[Component]) -> None:
    """ContractError where a class cannot serve as a component: what is missing, and what resembles it."""
    where = f"{kind.__module__}.{kind.__qualname__}"
    for what, hint in _faults(kind):
        raise ContractError(what, where, hint)


def _faults(kind: type[Component]) -> Iterator[tuple[str, str]]:
    if not isinstance(kind.TYPE_NAME, str) or not kind.TYPE_NAME:
        yield "the class has no TYPE_NAME", f'name it: TYPE_NAME = "package.{kind.__name__}"'
    elif "|" in kind.TYPE_NAME:
        yield f"TYPE_NAME {kind.TYPE_NAME!r} holds a |, which separates bindings", "leave it out"
    if kind.ROLE not in keys.ROLES:
        near = _near(kind.ROLE, keys.ROLES) if isinstance(kind.ROLE, str) else ""
        what = f"ROLE {kind.ROLE!r} is no role" if kind.ROLE else "the class has no ROLE"
        yield (
            what,
            f"{near}derive it from a Contract (Aggregator, Codec, …), or give one of {', '.join(keys.ROLES)}",
        )
    contract = _CONTRACTS[kind.ROLE]
    if kind.ROLE in _DERIVED and not issubclass(kind, contract):
        yield f"a component of role {kind.ROLE} is a subclass of {contract.__name__}", "derive it from that"
    yield from _missing(kind, contract)
    for name in ("construct", "atomic_opset"):
        if isinstance(inspect.getattr_static(kind, name, None), type(lambda: 0)):
            yield f"{name} is called on the class", f"write @classmethod above `def {name}`"
    yield from _uncallable(kind, contract)
    if issubclass(kind, ProtocolComponent):
        yield from _own_ops(kind)
    yield from _settings(kind)


def _missing(kind: type[Component], contract: type[Component]) -> Iterator[tuple[str, str]]:
    wanted = {
        *getattr(contract, "__abstractmethods__", ()),
        *getattr(kind, "__abstractmethods__", ()),
    }
    missing = [
        name
        for name in sorted(wanted)
        if not callable(method := getattr(kind, name, None)) or getattr(method, "__isabstractmethod__", False)
    ]
    if getattr(kind.construct, "__func__", None) is Component.__dict__["construct"].__func__:
        missing.append("construct")
    if not missing:
        return
    said = ", ".join(_signature(kind, contract, name) for name in missing)
    hints = [
        f"it has {name!r}: {near}"
        for name in _own_methods(kind)
        if not hasattr(contract, name) and (near := suggestion(name, missing)).endswith("?")
    ]
    yield f"the class lacks {said}", " ".join(hints) or "define what is missing"


def _signature(kind: type[Component], contract: type[Component], name: str) -> str:
    if name == "construct":
        return "construct(cls, env)"
    method = getattr(contract, name, None) or getattr(kind, name)
    names = [p.name for p in inspect.signature(method).parameters.values()]
    return f"{name}({', '.join(names)})"


def _own_methods(kind: type[Component]) -> list[str]:
    """Public methods of the author's own classes."""
    return [
        name
        for base in kind.__mro__
        if not base.__module__.startswith("bb_edge.roles")
        for name, value in vars(base).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, (classmethod, staticmethod)))
    ]


def _uncallable(kind: type[Component], contract: type[Component]) -> Iterator[tuple[str, str]]:
    """Methods of the Contract that cannot take what they are called with."""
    for name, promised in vars(contract).items():
        if name.startswith("_") or not inspect.isfunction(promised) or contract is Backend:
            continue
        given = list(inspect.signature(promised).parameters.values())
        positional = [p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
        named = [p.name for p in given if p.kind is p.KEYWORD_ONLY]
        yield from _not_taking(kind, name, positional[1:], named)


def _not_taking(
    kind: type[Component], name: str, positional: Sequence[str], named: Iterable[str]
) -> Iterator[tuple[str, str]]:
    method = inspect.getattr_static(kind, name, None)
    if not inspect.isfunction(method):
        return
    signature = inspect.signature(method)
    try:
        signature.bind(None, *positional, **dict.fromkeys(named))
    except TypeError as error:
        call = ", ".join((*positional, *(f"{n}=…" for n in named)))
        what = f"{name}{signature} cannot be called as {name}({call}): {error}"
        yield (
            what,
            f"define it as def {name}({', '.join(('self', *positional, *(('*', *named) if named else ())))})",
        )


def _own_ops(kind: type[ProtocolComponent]) -> Iterator[tuple[str, str]]:
    """The ops that a protocol brings, and their methods."""
    try:
        table = kind.atomic_opset()
        ops = list(table.ops.values())
    except (BBError, ValueError, KeyError, TypeError, AttributeError, NameError) as error:
        yield f"atomic_opset() fails: {type(error).__name__}: {error}", "mend it: it returns Table(…).opset()"
        return
    for op in ops:
        name = method_name(op.name)
        if not callable(getattr(kind, name, None)):
            near = _near(name, _own_methods(kind))
            yield f"its op {op.name} has no method", f"{near}define {name}(self, ctx, …)"
        if op.remote:
            yield from _not_taking(kind, name, ("ctx", "sender", "payload"), ())
        else:
            inputs = ("ctx", *(port.name for port in op.inputs))
            yield from _not_taking(kind, name, inputs, [attr.name for attr in op.attrs])


def _settings(kind: type[Component]) -> Iterator[tuple[str, str]]:
    for base in kind.__mro__:
        own = base.__dict__.get("CONFIG")
        if own is None:
            continue
        good = isinstance(own, Mapping) and all(
            isinstance(key, str) and isinstance(setting, Setting) for key, setting in own.items()
        )
        if not good:
            yield "CONFIG is a mapping of names to settings", 'write CONFIG = {"mu": Setting.number(0.01)}'
            return
        for key, setting in own.items():
            wrong = "" if setting.default is None else setting.wrong(setting.default)
            if wrong and setting.default is not REQUIRED:
                yield f"CONFIG: the default of {key!r} {wrong}", "give another default"


def _near(name: str, known: Iterable[str]) -> str:
    hint = suggestion(name, known)
    return f"{hint} " if hint.endswith("?") else ""
