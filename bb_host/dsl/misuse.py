"""Misspelt names and arguments: typed errors at the author's line where Python would raise its own."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from bb_edge.ir.suggestions import suggestion
from bb_host.author_lines import authoring_error
from bb_host.errors import CallError, UnknownAttributeError

_C = TypeVar("_C", bound=type)
_P = ParamSpec("_P")
_R = TypeVar("_R")

_COUNTED = re.compile(r"\d+(?= positional| to \d| were| was)")
"""Numbers of arguments in Python's message, which counts `self`."""


class Suggests:
    """Objects whose missing attributes are UnknownAttributeErrors, which propose the name that was meant."""

    __slots__ = ()

    if not TYPE_CHECKING:  # mypy finds unknown attributes by itself

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_attribute(self, name)

    def _spoken(self) -> str:
        """What messages call the object."""
        name = type(self).__name__
        return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"

    def _elsewhere(self, name: str) -> str:
        """The hint for a name that another thing has; empty where none does."""
        return ""


def unknown_attribute(thing: Suggests, name: str) -> AttributeError:
    """The error for an attribute that a thing lacks; Python's own for names that begin with `_`.

    An attribute that the class does have is a property that failed: its own error is raised again.
    """
    kind = type(thing)
    if any(name in vars(cls) for cls in kind.__mro__):
        object.__getattribute__(thing, name)
    if name.startswith("_"):
        return AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=thing)
    known = [known for known in dir(thing) if not known.startswith("_")]
    hint = thing._elsewhere(name) or suggestion(name, known, "it has ")
    return authoring_error(UnknownAttributeError, f"{thing._spoken()} has no {name!r}", hint)


def typed_calls(cls: _C) -> _C:
    """Class decorator: arguments that a public method, or the constructor, does not take are CallErrors.

    What a base declares as abstract is called by this package alone, and stays as it is.
    """
    for name, member in list(vars(cls).items()):
        ours = any(getattr(vars(base).get(name), "__isabstractmethod__", False) for base in cls.__mro__)
        if isinstance(member, FunctionType) and (name == "__init__" or not name.startswith("_")) and not ours:
            spoken = "" if name == "__init__" else f"{getattr(cls, '_SPOKEN', cls.__qualname__)}.{name}"
            setattr(cls, name, typed_call(member, spoken))
    return cls


def typed_call(function: Callable[_P, _R], name: str = "") -> Callable[_P, _R]:
    """`function`, whose wrong arguments are CallErrors. `name` is what messages call it."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if not fails_to_start(error):
                raise
            called = type(args[0]).__name__ if function.__name__ == "__init__" else function.__qualname__
            raise misused(function, name or called, kwargs, error) from None

    return call


def fails_to_start(error: TypeError) -> bool:
    """Whether a call failed by its arguments: no frame of what was called is in the traceback.

    For the frame that made the call, and caught the error itself.
    """
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def last_line(error: BaseException) -> tuple[str, int]:
    """File and line of the frame that raised an error."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return ("", 0) if frame is None else (frame.tb_frame.f_code.co_filename, frame.tb_lineno)


def misused(function: Callable[..., Any], spoken: str, kwargs: dict[str, Any], error: TypeError) -> CallError:
    """The CallError for arguments that a function does not take. `spoken` is what messages call it."""
    parameters = list(inspect.signature(function).parameters.values())
    what = str(error).rpartition("() ")[2] or str(error)
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
        what = _COUNTED.sub(lambda found: str(int(found[0]) - 1), what)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for given in kwargs:
        if given not in names:
            hint = suggestion(given, names, "it takes ") or "it takes none"
            return authoring_error(CallError, f"{spoken} has no argument {given!r}", hint)
    return authoring_error(CallError, f"{spoken}: {what}", f"write {_call_text(spoken, parameters)}")


def _call_text(name: str, parameters: Sequence[inspect.Parameter]) -> str:
    """`softmax(x, axis=…, after=…)`."""
    shown = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            shown.append(f"*{p.name}")
        elif p.kind is p.VAR_KEYWORD:
            shown.append("…")
        else:
            shown.append(p.name if p.default is p.empty and p.kind is not p.KEYWORD_ONLY else f"{p.name}=…")
    return f"{name.rpartition('.')[2]}({', '.join(shown)})"
