"""Checks whether the methods of a component class can be called as the runtime calls them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["CLASS_HOOKS", "HOOKS", "near_misses", "not_taking", "own_methods", "unfit"]

Fault = tuple[str, str]
"""The fault, and the remedy."""

CLASS_HOOKS: Mapping[str, tuple[str, ...]] = {
    "construct": ("env",),
    "port_types": ("config", "tensors"),
    "wrong_settings": ("config", "complete"),
    "unread_settings": ("config",),
    "doubtful_settings": ("config",),
    "atomic_opset": (),
}
"""Methods that are called on the class, with the names of their arguments."""

HOOKS: Mapping[str, tuple[str, ...]] = {
    "serialize": (),
    "restore": ("state",),
    "bootstrap": ("ctx",),
    "execution_ended": ("exec_id",),
    "started": ("ctx",),
    "stopping": ("ctx",),
    "adjust_gradient": ("gradient",),
    "named_parameters": (),
}
"""Methods other than those of ops that are called on the component, where its class has them."""

_LIKE = 0.85
"""From this likeness on, a name counts as another one misspelt; 1 means the same letters.

One wrong letter in six is 0.83, one in seven 0.86: shorter names are too often other words."""


def own_methods(kind: type) -> list[str]:
    """Returns the public methods of the author's own classes."""
    return [
        name
        for base in kind.__mro__
        if not base.__module__.startswith("bb_edge.roles")
        for name, value in vars(base).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, (classmethod, staticmethod)))
    ]


def unfit(kind: type) -> Iterator[Fault]:
    """Yields hooks that cannot be called as the runtime calls them."""
    for name, arguments in CLASS_HOOKS.items():
        if not hasattr(kind, name):
            continue
        raw = inspect.getattr_static(kind, name)
        if inspect.isfunction(raw):
            yield f"{name} is called on the class", f"write @classmethod above `def {name}`"
        else:
            yield from not_taking(kind, name, arguments)
    for name, arguments in HOOKS.items():
        if hasattr(kind, name):
            yield from not_taking(kind, name, arguments)


def not_taking(
    kind: type, name: str, positional: Sequence[str], named: Iterable[str] = ()
) -> Iterator[Fault]:
    """Yields a fault where a method cannot be called with these arguments, or a call gives no answer."""
    method: object = getattr(kind, name, None)
    if method is None:
        return  # nothing by that name, or not offered; what has to be there is looked for elsewhere
    if not callable(method):
        raw = inspect.getattr_static(kind, name, None)
        kind_of = "a property" if isinstance(raw, property) else f"{raw!r:.40}"
        yield f"{name} is {kind_of}, expected a method", f"write {_as_defined(name, positional, named)}"
        return
    raw = inspect.getattr_static(kind, name)
    function = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
    if not inspect.isfunction(function):
        return
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield f"{name} is `async`, and nothing awaits it", "write `def`; ctx.offload(work) answers later"
    elif inspect.isgeneratorfunction(function):
        yield f"{name} yields: a call only makes a generator", "return all of it at once"
    signature = inspect.signature(method)
    if raw is function:
        parameters = list(signature.parameters.values())
        if not parameters or parameters[0].kind is parameters[0].KEYWORD_ONLY:
            yield f"{name}{signature} takes no self", f"define it as {_as_defined(name, positional, named)}"
            return
        if parameters[0].kind is not parameters[0].VAR_POSITIONAL:
            signature = signature.replace(parameters=parameters[1:])
    try:
        signature.bind(*positional, **dict.fromkeys(named))
    except TypeError as error:
        call = ", ".join((*positional, *(f"{n}=…" for n in named)))
        what = f"{name}{inspect.signature(function)} cannot be called as {name}({call}): {error}"
        yield what, f"define it as {_as_defined(name, positional, named, raw)}"
        return
    names = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    taken = names[: len(positional)]
    if taken != list(positional) and sorted(taken) == sorted(positional):
        what = f"{name}{inspect.signature(function)} takes its arguments in another order than it gets them"
        yield what, f"define it as {_as_defined(name, positional, named, raw)}"


def _as_defined(name: str, positional: Iterable[str], named: Iterable[str], raw: object = None) -> str:
    first = () if isinstance(raw, staticmethod) else ("cls",) if isinstance(raw, classmethod) else ("self",)
    keywords = tuple(named)
    return f"def {name}({', '.join((*first, *positional, *(('*', *keywords) if keywords else ())))})"


def near_misses(kind: type, promised: Mapping[str, Sequence[str]]) -> Iterator[Fault]:
    """Yields methods of the author's whose names nearly are a Contract's that the class does not define.

    Only names that are very near count, of methods that could be called in its place: others are helpers.
    """
    authors = [base for base in kind.__mro__ if not base.__module__.startswith("bb_edge.")]
    taken = {name for base in authors for name in vars(base)}
    left = {
        name: arguments for name, arguments in promised.items() if name not in taken and hasattr(kind, name)
    }
    for base in authors:
        for name, value in vars(base).items():
            if name.startswith("_") or not inspect.isfunction(value) or name in promised:
                continue
            plain = name.replace("_", "")
            for wanted, arguments in left.items():
                like = difflib.SequenceMatcher(None, plain, wanted.replace("_", ""))
                if (
                    like.quick_ratio() < _LIKE
                    or like.ratio() < _LIKE
                    or any(not_taking(kind, name, arguments))
                ):
                    continue
                what = f"{name}{inspect.signature(value)} is never called, and its name is nearly {wanted!r}"
                yield what, f"did you mean {wanted!r}? Else begin its name with an underscore"
