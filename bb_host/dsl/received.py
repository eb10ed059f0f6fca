"""Values as their receivers see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, overload

from bb_host.author_lines import authoring_error
from bb_host.dsl.output import Output
from bb_host.errors import AnswerModeError, UnknownAttributeError, ValueTypeError


@dataclass(slots=True, eq=False, repr=False)
class Received(Output):
    """A value as its receiver sees it; `sender` is the peer that sent it (a PeerIdVec of one)."""

    sender: Output = field(init=False)


class Parts(tuple[Output, ...]):
    """Several values of one payload, in the order of sending. `about` is what messages call them."""

    about: str = ""

    def __iter__(self) -> Iterator[Output]:
        if self.about:  # where they are unpacked into too few or too many names, Python does not say whose
            self[0].graph.unpacking(self.about)
        return super().__iter__()

    def _no_value(self, *_: object) -> NoReturn:
        """ValueTypeError for computing with a list that was sent: one of its values is meant."""
        raise authoring_error(
            ValueTypeError, f"{self.about or 'a list was sent'}: a list arrives as a tuple", self._remedy()
        )

    def _remedy(self) -> str:
        if len(self) == 1:
            return "take its one value, [0], or send x, not [x]"
        return "give each value a name, in the order of sending: a, b = …"

    def __add__(self, other: object) -> tuple[Any, ...]:
        return super().__add__(other) if isinstance(other, tuple) else self._no_value()

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _no_value
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _no_value
    __pow__ = __rpow__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _no_value
    __neg__ = __pos__ = __abs__ = __invert__ = __float__ = __int__ = _no_value
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _no_value
    __hash__ = tuple.__hash__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise authoring_error(
                UnknownAttributeError,
                f"{self.about or 'a list was sent'}: a list arrives as a tuple, which has no {name!r}",
                self._remedy(),
            )


class Answers(Parts):
    """Several values that arrive together; `sender` is who sent them."""

    sender: Output


@overload
def one_or_many(
    values: Sequence[Output], sender: Output, single: bool, about: str = ""
) -> Received | Answers: ...
@overload
def one_or_many(
    values: Sequence[Output], sender: None, single: bool, about: str = ""
) -> Output | tuple[Output, ...]: ...
def one_or_many(
    values: Sequence[Output], sender: Output | None, single: bool, about: str = ""
) -> Received | Answers | Output | tuple[Output, ...]:
    """The one value, where the author sent one; the tuple, where a list was sent."""
    if not single:
        found = Parts(values) if sender is None else Answers(values)
        found.about = about
        if isinstance(found, Answers) and sender is not None:
            found.sender = sender
        return found
    if sender is None:
        return values[0]
    value = values[0]
    assert isinstance(value, Received)
    value.sender = sender
    return value


def unreplied_error(what: str, port: str) -> AnswerModeError:
    """For reading what only a reply makes."""
    return authoring_error(
        AnswerModeError, f"request {port!r}: .{what} is read before .reply(…) says what an answer is"
    )


def counted(count: int) -> str:
    """`1 value`, `2 values`, for messages."""
    return "1 value" if count == 1 else f"{count} values"
