"""Which numbers of a peer have been taken, so that an envelope that comes twice counts once.

A sender numbers its envelopes per destination and epoch, in one of two sequences.

Some best-effort numbers never come: the window slides, and numbers below it are dropped, received or not. As
long as it has not slid over a gap, all numbers up to `prefix` are known to have been received; from then on
`prefix` stays where it is, and numbers are acknowledged one by one.

    prefix = floor                        prefix      floor
    ──────────────┬───┬─┬──               ──────┬ ─ ─ ─┬──┬───┬─┬──
    all received  │gap│x│ …               all   │  ?   │x │gap│x│ …

At most WINDOW numbers above the floor are remembered.

All durable numbers come: the window never slides over a gap at or above the sender's `base`, the lowest
number that it has no acknowledgement for. A sender keeps at most DURABLE_UNACKNOWLEDGED of them open, so the
window is that wide. A number may be *held*: it is taken, but must not be acknowledged before it is journaled;
the floor stays below it. Where a base lifts the floor above it all the same, its sender has given it up; it
counts as taken once it is journaled, because a crash delivers what the journal has. The base that a number
names is known to the disk no sooner than the number is, so a floor that it has lifted is not told either:
after a crash it would be lower, and this node's state seem older than what was heard of it.

Rule W12 of the specification.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from bb_edge.wire.bounds import forget_oldest
from bb_edge.wire.envelope_records import Ack

WINDOW = 4096
"""Best-effort numbers remembered above the floor.

A lost request is repeated after a second; it must still be recognised when some thousand later sends have
overtaken it. The bits take 512 bytes per epoch at most."""

DURABLE_UNACKNOWLEDGED = 64
"""Durable envelopes that one sender may have open to one destination: a window of 64 bits."""

MAX_OWED = 256
"""Acknowledgements owed for one window; beyond it the oldest is forgotten until a repetition asks again.

Four acks of MAX_ALSO numbers carry them all."""

MAX_ALSO = 64
"""Single numbers in one ack, as many as `EnvelopeCaps.ack_numbers` accepts."""


class Verdict(enum.Enum):
    """What an inbound envelope is, before its number is taken."""

    NEW = "not seen before"
    DUPLICATE = "taken before; acknowledged again"
    BELOW_WINDOW = "too old to tell; dropped"
    BEYOND_WINDOW = "durable, and further ahead than a sender may be; refused"
    CLOSED = "durable, and of an epoch that no marks have opened in this run; refused"
    ACK_ONLY = "carries acknowledgements and nothing else"
    NO_ROOM = "from a peer for which no link, or no window, is free; refused"


_NOTHING_OWED: dict[int, None] = {}
"""One for all windows that owe nothing, as nearly all do; it is never written to."""


class _Window:
    """What both windows share: the floor, the numbers taken above it, the acknowledgements owed."""

    __slots__ = ("bits", "epoch", "floor", "owed")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.floor = 0
        self.bits = 0  # bit i: floor + 1 + i was taken
        self.owed = _NOTHING_OWED  # in the order in which they came

    def owe(self, seq: int) -> int:
        """Owes an acknowledgement of the number. Returns how many older ones are forgotten for it: 0 or 1."""
        owed = self.owed
        if not owed:
            self.owed = {seq: None}
            return 0
        full = len(owed) >= MAX_OWED and seq not in owed
        if full:
            forget_oldest(owed, MAX_OWED)
        owed[seq] = None
        return int(full)

    def _collect(self, up_to: int) -> tuple[int, tuple[int, ...]]:
        """Returns (up_to, single numbers) that settle what is owed; numbers that do not fit stay owed."""
        also = [seq for seq in self.owed if seq > up_to]
        if len(also) <= MAX_ALSO:
            self.owed = _NOTHING_OWED
        else:
            self.owed = dict.fromkeys(also[MAX_ALSO:])
            also = also[:MAX_ALSO]
        also.sort()
        return up_to, tuple(also)

    def _rows(self) -> list[Any]:
        bits = self.bits.to_bytes((self.bits.bit_length() + 7) // 8, "little")
        return [self.epoch, self.floor, bits, list(self.owed)]

    def _restore(self, data: Sequence[Any]) -> None:
        self.epoch, self.floor, bits, owed, _ = data
        self.bits = int.from_bytes(bits, "little")
        self.owed = dict.fromkeys(owed[-MAX_OWED:]) if owed else _NOTHING_OWED


class BestEffortWindow(_Window):
    """The numbers taken in one best-effort epoch of one peer."""

    __slots__ = ("prefix",)

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.prefix = 0

    def verdict(self, seq: int) -> Verdict:
        """Judges a number, and changes nothing."""
        place = seq - self.floor - 1
        if place >= 0:
            return Verdict.DUPLICATE if self.bits >> place & 1 else Verdict.NEW
        return Verdict.DUPLICATE if seq <= self.prefix else Verdict.BELOW_WINDOW

    def mark(self, seq: int) -> None:
        """Takes a number; does nothing where it is taken, or below the window."""
        if seq == self.floor + 1 and not self.bits and self.prefix == self.floor:
            self.floor = self.prefix = seq
            return
        place = seq - self.floor - 1
        if place < 0:
            return
        if place >= WINDOW:
            # Bit 0 is a gap while prefix = floor (else the floor would be higher), so prefix stays below.
            shift = place - WINDOW + 1
            self.bits >>= shift
            self.floor += shift
            place = WINDOW - 1
        self.bits |= 1 << place
        if self.prefix == self.floor:
            ones = _trailing_ones(self.bits)
            self.bits >>= ones
            self.floor = self.prefix = self.floor + ones

    def collect(self) -> tuple[int, tuple[int, ...]]:
        """Returns (up_to, also) of the ack that is owed, which is then no longer owed."""
        return self._collect(self.prefix)

    def snapshot(self) -> list[Any]:
        """Returns plain values for CBOR."""
        return [*self._rows(), self.prefix]

    @classmethod
    def restored(cls, data: Sequence[Any]) -> BestEffortWindow:
        """Returns the window that `snapshot` wrote."""
        window = cls(data[0])
        window._restore(data)
        window.prefix = data[4]
        return window


class _Firm:
    """What the disk knows of a window whose floor was lifted by a base that is not there yet.

    `bits` are of the numbers above `floor` that were taken below that base, at most
    DURABLE_UNACKNOWLEDGED above `floor`.
    """

    __slots__ = ("base", "bits", "floor")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.bits = 0
        self.base = 0  # the highest that has lifted the floor

    def __contains__(self, seq: int) -> bool:
        return seq <= self.floor or bool(self.bits >> (seq - self.floor - 1) & 1)


class DurableWindow(_Window):
    """The numbers taken in one durable epoch of one peer."""

    __slots__ = ("firm", "held")

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.held: dict[int, int] = {}  # taken, being journaled: the base that came with each
        self.firm: _Firm | None = None

    def verdict(self, seq: int, base: int) -> Verdict:
        """Judges a number of a sender whose lowest unacknowledged number is `base`, and changes nothing."""
        floor = max(self.floor, base - 1)
        if seq <= self.floor:
            return Verdict.DUPLICATE
        if seq > floor + DURABLE_UNACKNOWLEDGED:
            return Verdict.BEYOND_WINDOW
        return Verdict.DUPLICATE if self.bits >> (seq - self.floor - 1) & 1 else Verdict.NEW

    def mark(self, seq: int, base: int, hold: bool = False) -> None:
        """Takes a number; does nothing where it is taken, or not within the window."""
        if self.verdict(seq, base) is not Verdict.NEW:
            return
        if base - 1 > self.floor:
            for number in self.held:
                if self.floor < number < base:  # its sender has given it up, and it is not on disk yet
                    self.bits &= ~(1 << (number - self.floor - 1))
            if hold:
                self.firm = self.firm or _Firm(self.floor)
                self.firm.base = base
            self._lift(base - 1 - self.floor)
        self.bits |= 1 << (seq - self.floor - 1)
        if hold:
            self.held[seq] = base
        self._advance()

    def release(self, seq: int) -> bool:
        """Lets a held number be acknowledged: it is journaled. Returns False where it was not held."""
        base = self.held.pop(seq, None)
        if base is None:
            return False
        firm = self.firm
        if firm is not None and base >= firm.base:
            self.firm = firm = None
        elif firm is not None and base - 1 > firm.floor:
            firm.bits >>= base - 1 - firm.floor
            firm.floor = base - 1
        if firm is not None and firm.floor < seq <= self.floor:
            firm.bits |= 1 << (seq - firm.floor - 1)
        self._advance()
        return True

    def withdraw(self, seq: int) -> bool:
        """Takes a held number back, so that it may come again: it could not be journaled.

        Returns False where it was not held.
        """
        if self.held.pop(seq, None) is None:
            return False
        if seq > self.floor:
            self.bits &= ~(1 << (seq - self.floor - 1))
        return True

    def owe(self, seq: int) -> int:
        """Owes an acknowledgement as the base does, except of what the disk does not know yet."""
        firm = self.firm
        unknown = seq in self.held or (firm is not None and seq <= self.floor and seq not in firm)
        return 0 if unknown else super().owe(seq)

    def collect(self) -> tuple[int, tuple[int, ...]]:
        """Returns (up_to, also) of the ack that is owed, which is then no longer owed."""
        return self._collect(self.floor if self.firm is None else self.firm.floor)

    @property
    def told(self) -> tuple[int, int]:
        """Floor and bits as the disk has them; numbers that are held count where no base is missing there."""
        firm, bits = self.firm, self.bits
        if firm is None:
            return self.floor, bits
        for seq in self.held:
            if seq > self.floor:
                bits &= ~(1 << (seq - self.floor - 1))
        # What is left came with a base that is on disk, so it is not far above the floor there.
        return firm.floor, firm.bits | (bits << (self.floor - firm.floor) if bits else 0)

    def _advance(self) -> None:
        ones = _trailing_ones(self.bits)
        for seq in self.held:
            if seq > self.floor:
                ones = min(ones, seq - self.floor - 1)
        self._lift(ones)

    def _lift(self, count: int) -> None:
        """Lifts the floor; nothing at or below the new one is held."""
        bits, firm = self.bits, self.firm
        if firm is not None and bits:
            taken = bits if count >= bits.bit_length() else bits & ((1 << count) - 1)
            firm.bits |= taken << (self.floor - firm.floor) if taken else 0
        self.bits = bits >> count
        self.floor += count

    def snapshot(self) -> list[Any]:
        """Returns plain values for CBOR."""
        return [*self._rows(), sorted(self.held)]

    @classmethod
    def restored(cls, data: Sequence[Any]) -> DurableWindow:
        """Returns the window that `snapshot` wrote."""
        window = cls(data[0])
        window._restore(data)
        window.held = dict.fromkeys(data[4], 0)
        return window


class Received:
    """What of one peer has been taken that is not durable, in the epochs that were heard last.

    As a rule that is one epoch, so there is no table of them.
    """

    __slots__ = ("_latest", "_older")

    def __init__(self) -> None:
        self._latest: BestEffortWindow | None = None
        self._older: tuple[BestEffortWindow, ...] = ()  # the one heard least recently first

    def __bool__(self) -> bool:
        return self._latest is not None

    @property
    def windows(self) -> tuple[BestEffortWindow, ...]:
        """All windows, the one heard last at the end."""
        return () if self._latest is None else (*self._older, self._latest)

    def verdict(self, epoch: int, seq: int) -> Verdict:
        """Judges a number above 0, and changes nothing."""
        window = self._latest
        if window is None or window.epoch != epoch:
            window = next((older for older in self._older if older.epoch == epoch), None)
        return Verdict.NEW if window is None else window.verdict(seq)

    def mark(self, epoch: int, seq: int, epochs: int, wants_ack: bool) -> int | None:
        """Takes a number that is NEW, and owes its ack where `wants_ack`; of a DUPLICATE, owes it again.

        The window of a new epoch takes the place of the one heard least recently, where there are `epochs`.
        Returns None where no ack is wanted, else how many older ones are forgotten for this one: 0 or 1.
        """
        window = self._latest
        if window is None or window.epoch != epoch:
            window = self._turn_to(epoch, epochs)
        window.mark(seq)
        return window.owe(seq) if wants_ack else None

    def _turn_to(self, epoch: int, epochs: int) -> BestEffortWindow:
        """Makes the window of an epoch the one that was heard last."""
        windows = self.windows
        found = next((window for window in windows if window.epoch == epoch), None)
        if found is None:
            found, self._older = BestEffortWindow(epoch), windows[max(0, len(windows) - epochs + 1) :]
        else:
            self._older = tuple(window for window in windows if window is not found)
        self._latest = found
        return found

    def collect(self) -> tuple[tuple[Ack, ...], bool]:
        """Returns the acks that are owed, one per window, and whether numbers that do not fit stay owed."""
        window = self._latest
        if window is None:
            return (), False
        if not self._older:  # as a rule
            if not window.owed:
                return (), False
            return (Ack(window.epoch, *window.collect()),), bool(window.owed)
        windows = self.windows
        acks = tuple([Ack(window.epoch, *window.collect()) for window in windows if window.owed])
        return acks, any([window.owed for window in windows])

    def owes(self) -> bool:
        """Returns whether the peer waits for an acknowledgement."""
        return any(window.owed for window in self.windows)

    def inspect(self) -> dict[str, Any]:
        """Returns what is owed as plain data, for people and tests."""
        return {"owes": sorted(window.epoch for window in self.windows if window.owed)}

    def snapshot(self) -> list[Any]:
        """Returns plain values for CBOR."""
        return [window.snapshot() for window in self.windows]

    @classmethod
    def restored(cls, rows: Sequence[Any]) -> Received:
        """Returns what `snapshot` wrote."""
        received = cls()
        if rows:
            *older, received._latest = [BestEffortWindow.restored(row) for row in rows]
            received._older = tuple(older)
        return received


def first_verdict(seq: int, base: int) -> Verdict:
    """Judges a durable number of an epoch that was never heard of."""
    return Verdict.BEYOND_WINDOW if seq - base >= DURABLE_UNACKNOWLEDGED else Verdict.NEW


def _trailing_ones(bits: int) -> int:
    return (~bits & (bits + 1)).bit_length() - 1
