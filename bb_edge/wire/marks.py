"""Marks: what the two ends of a durable flow tell each other before its first envelope of a run.

    sender                                   receiver
      Ask   token, what it has heard ──────►   lets nothing in any more
      ◄────── Took   token, own token, windows: what it has on disk
      (writes down the new epoch)
      Open  the receiver's token, epoch ───►   lets this epoch in

Between its Took and the Open that names its token, a receiver takes nothing. So the Took is exact: the sender
settles what it covers, numbers the rest anew, and nothing that is still on the way under an old number, and
no old acknowledgement, means anything any more (docs/design/durable-protocol.md).

They travel to the control op `Marks` of component 0, as best-effort envelopes without a number; one that is
lost is asked for again. All of this is pure data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.wire import cbor
from bb_edge.wire.dedup import DURABLE_UNACKNOWLEDGED, DurableWindow
from bb_edge.wire.envelope import Envelope, Fill, encode

MARKS_OP: Final = "Marks"
SUFFIX: Final = Address.empty().with_component(0, MARKS_OP).to_bytes()
VERSION: Final = 1
MAX_WINDOWS: Final = 4
"""Windows in one Took: a receiver has two at most, of an older runtime's flow."""
_MOST_ITEMS: Final = 1 + 4 + 3 * MAX_WINDOWS  # the list, and what a Took with all windows has in it
_SPAN: Final = DURABLE_UNACKNOWLEDGED
_MASK: Final = (1 << _SPAN) - 1
_U64: Final = (1 << 64) - 1
_ASK, _TOOK, _OPEN = 0, 1, 2


class MarksError(BBError):
    """Bytes that are not marks; the fault is the peer's."""


class Taken(NamedTuple):
    """A receiver's window: every number up to `floor`, and `floor + 1 + i` for every bit i, is taken."""

    epoch: int
    floor: int = 0
    bits: int = 0

    @classmethod
    def of(cls, window: DurableWindow) -> Taken:
        """What a window says that holds no number back."""
        return cls(window.epoch, *window.told)

    @property
    def highest(self) -> int:
        """The highest number that is taken."""
        return self.floor + self.bits.bit_length()

    def __contains__(self, seq: object) -> bool:
        """Whether the number is taken."""
        assert isinstance(seq, int)
        return seq <= self.floor or bool(self.bits >> (seq - self.floor - 1) & 1)


class Heard(NamedTuple):
    """What a sender knows to be taken: in `epoch`, `high - i` for every bit i below 64. Epoch 0: nothing."""

    epoch: int = 0
    high: int = 0
    bits: int = 0

    @classmethod
    def of(cls, taken: Taken) -> Heard:
        """All that a window says, as far as it fits."""
        high = taken.highest
        numbers = range(max(1, high - _SPAN + 1), high + 1)
        return cls(taken.epoch, high, sum(1 << (high - seq) for seq in numbers if seq in taken))

    def with_number(self, epoch: int, seq: int) -> Heard:
        """One more number; an epoch that begins forgets those before it."""
        if epoch != self.epoch:
            return Heard(epoch, seq, 1)
        if seq > self.high:
            return Heard(epoch, seq, (self.bits << (seq - self.high) | 1) & _MASK)
        return Heard(epoch, self.high, (self.bits | 1 << (self.high - seq)) & _MASK)

    def lost(self, windows: Sequence[Taken]) -> tuple[int, ...]:
        """The numbers of this epoch, ascending, that the windows do not cover; of many the last 64.

        Empty where there is no window: a receiver that has none has begun anew, which is not a contradiction;
        and where it has one of a later epoch, which it let in after all of this.
        """
        if not windows or max(window.epoch for window in windows) > self.epoch:
            return ()
        seen = next((window for window in windows if window.epoch == self.epoch), Taken(self.epoch))
        numbers = range(self.high - self.bits.bit_length() + 1, self.high + 1)
        return tuple(seq for seq in numbers if self.bits >> (self.high - seq) & 1 and seq not in seen)

    def first_lost(self, lost: Sequence[int], windows: Sequence[Taken]) -> int:
        """The lowest number that may be lost where `lost` are: beyond 64 nobody kept which were taken."""
        seen = next((window for window in windows if window.epoch == self.epoch), Taken(self.epoch))
        return lost[0] if lost[0] > self.high - _SPAN + 1 else min(lost[0], seen.floor + 1)


NOTHING: Final = Heard()


@dataclass(frozen=True, slots=True)
class Ask:
    """A sender asks what is taken. `token` names the question; `heard` is what it believes is taken."""

    token: int
    heard: Heard = NOTHING


@dataclass(frozen=True, slots=True)
class Took:
    """A receiver says what it has on disk, and that it takes nothing more until `token` is opened.

    `echo` is the token of the question, 0 where there was none: then it wants one.
    """

    echo: int
    token: int
    windows: tuple[Taken, ...] = ()


@dataclass(frozen=True, slots=True)
class Open:
    """A sender begins an epoch; `token` is that of the Took which it has read, `asked` that of its question.

    `sender_is_old` says that the Took had more than the sender ever sent.
    """

    asked: int
    token: int
    epoch: int
    sender_is_old: bool = False


def encoded(marks: Ask | Took | Open) -> bytes:
    """The envelope that carries the marks, without a number."""
    row: list[object]
    if isinstance(marks, Ask):
        row = [VERSION, _ASK, marks.token, *marks.heard]
    elif isinstance(marks, Took):
        row = [VERSION, _TOOK, marks.echo, marks.token, *(number for w in marks.windows for number in w)]
    else:
        row = [VERSION, _OPEN, marks.asked, marks.token, marks.epoch, int(marks.sender_is_old)]
    return encode(Envelope([Fill(SUFFIX, cbor.dumps(row))]))


def decoded(payload: bytes | memoryview) -> Ask | Took | Open:
    """Reads the payload of the fill. MarksError, and nothing else, for other bytes."""
    try:
        row: Any = cbor.loads(payload, max_items=_MOST_ITEMS, max_depth=1)
    except cbor.CborError as error:
        raise MarksError(error.what, "marks") from error
    if not isinstance(row, list) or not all(type(n) is int and 0 <= n <= _U64 for n in row):
        raise MarksError("expected a list of unsigned numbers", "marks")
    version, kind, *numbers = [*row, -1, -1][: max(2, len(row))]
    if version != VERSION:
        raise MarksError(f"version {version}, this node reads {VERSION}", "marks")
    if kind == _ASK and len(numbers) == 4:
        return Ask(numbers[0], Heard(*numbers[1:]))
    if kind == _TOOK and len(numbers) % 3 == 2:
        triples = zip(*[iter(numbers[2:])] * 3, strict=True)
        return Took(numbers[0], numbers[1], tuple(Taken(*triple) for triple in triples))
    if kind == _OPEN and len(numbers) == 4:
        return Open(numbers[0], numbers[1], numbers[2], numbers[3] != 0)
    raise MarksError(f"kind {kind} with {len(numbers)} numbers", "marks")
