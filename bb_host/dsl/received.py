"""Values as their receivers see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from bb_host.author_lines import authoring_error
from bb_host.dsl.output import Output
from bb_host.errors import AnswerModeError


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
