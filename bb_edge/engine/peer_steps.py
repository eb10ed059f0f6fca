"""The steps that tell of other peers and of requests to them; hosts find them in `bb_edge.engine.steps`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bb_edge.engine.step import EngineStep
from bb_edge.ir.ids import PeerId

MOST_SPANS: Final = 50
"""So many spans of records stand in the text of a line; a step has all of them."""


@dataclass(frozen=True, slots=True)
class PeerUp(EngineStep):
    peer: PeerId
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerDown(EngineStep):
    """A peer is not up any more.

    `reason` is `presence` (it said goodbye, or its will did), `removed` (an operator cleared its presence),
    `unanswered`, or `displaced`: a peer of a class that the program asks for needed its place (`max_peers`).
    """

    peer: PeerId
    reason: str = "presence"


@dataclass(frozen=True, slots=True)
class PeerFailing(EngineStep):
    """A peer has left five of its last sixteen requests (`failing_threshold`) without an answer that counts.

    It is not selected any more, and tried once per back-off. With `failing` False, it has answered again.
    """

    peer: PeerId
    failing: bool = True


@dataclass(frozen=True, slots=True)
class PeerRestarts(EngineStep):
    """A peer comes up in another epoch again and again, `times` since it last had a rest of 10 min.

    A start behind a goodbye, as of a device that sleeps between reports, is not counted.
    `reason` says whether it must be two machines of one name. Told seldom: after 10 s, doubling to 10 min.
    """

    peer: PeerId
    times: int
    reason: str


@dataclass(frozen=True, slots=True)
class StateRolledBack(EngineStep):
    """A node goes on from a state that is older than what it did before: a backup, an image, a copy.

    `own` tells whose state that is: this node's, or the peer's. None: one of the two was put back more than
    once, and nobody can tell which. `numbers` are those of the durable envelopes that were acknowledged and
    are not known there any more, of many the last 64, in `epoch` of their flow: the old one is the receiver
    then. Of what was acknowledged from `first` on, up to the first of these, nobody knows what is there; with
    `first` 1 that epoch began after the state that is there, and others may have begun and ended between.
    Without numbers it is the sender: what it sent since that state is not known to it, and may come twice.
    Where that is this node, or may be, `records` names those of its outbox that it had not heard to be taken,
    by their ids: they go out once more, and each of them may come twice. So may what it does again; nothing
    names that before it is done.
    """

    peer: PeerId
    own: bool | None
    epoch: int
    numbers: tuple[int, ...] = ()
    first: int = 0
    records: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """What that means, for a log."""
        again = f": records {_spans(self.records)} of the outbox" if self.records else ""
        if self.own is None:
            return (
                f"one of the two states was put back twice; what this node sends may have come before{again}"
            )
        whose = "this node's state" if self.own else "its state"
        if self.numbers:
            known, last = len(self.numbers), self.numbers[-1]
            many = f"{known}" if self.first == self.numbers[0] else f"{known} to {last - self.first + 1}"
            span = f"numbers {self.first} to {last}"
            older = " and maybe all of the epochs before" if self.first == 1 else ""
            return f"{whose} lacks {many} durable envelopes that were acknowledged, of the {span}{older}"
        text = f"{whose} lacks durable envelopes that were sent from it; what it sends may have come before"
        return text + again


def _spans(numbers: Sequence[int]) -> str:
    """Numbers in ascending order, as "3 to 7, 9"."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    told = [f"{first}" if first == last else f"{first} to {last}" for first, last in spans[:MOST_SPANS]]
    more = sum(last - first + 1 for first, last in spans[MOST_SPANS:])
    return ", ".join(told) + (f" and {more} more" if more else "")


@dataclass(frozen=True, slots=True)
class PeerBeganAnew(EngineStep):
    """A peer that has acknowledged durable envelopes, number `up_to` as the last, knows of none: its state
    folder is a new one, or the file that knew of them is gone.
    """

    peer: PeerId
    up_to: int = 0


@dataclass(frozen=True, slots=True)
class PeersUnheard(EngineStep):
    """Peers were waited for in vain of which nothing ever came but a presence, `peers` of them.

    Such peers are greeted from now on, and not selected before they have acknowledged it; `hint` says what to
    look at. With `greeted` False, `peers` of them are left, and presences are believed again.
    """

    peers: int
    greeted: bool = True
    hint: str = ""


@dataclass(frozen=True, slots=True)
class PeerRefused(EngineStep):
    """There was no place for a peer, nor for others since the last such step: `refused` presences in all.

    `hint` names the capacity to raise. Told at once, then after 10 s, doubling to 10 min.
    """

    peer: PeerId
    refused: int
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class PeerBlocked(EngineStep):
    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class PeerResolveFailed(EngineStep):
    """A send names a peer that the address book does not know: no envelope was made for it."""

    peer: PeerId
    target: str
    execution: int
    op: str


@dataclass(frozen=True, slots=True)
class ProgramMismatch(EngineStep):
    """A peer runs a program that does not go with this node's: it is not selected, and starts nothing here.

    Once per peer and program; `program` is the beginning of its digest.
    """

    peer: PeerId
    reason: str
    program: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class ProgramAccepted(EngineStep):
    """A peer runs another program, and is taken: the program of one of both lists the other's.

    Once per peer and program; `program` is the beginning of its digest. With `listed_here` False the peer's
    program alone lists this one: nobody here has said that it may take part.
    """

    peer: PeerId
    program: str
    listed_here: bool


@dataclass(frozen=True, slots=True)
class ClassMismatch(EngineStep):
    """An entry came of a peer that is not known in the class that the wire edge names."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class AskedByTurns(EngineStep):
    """Two peers of a class ask this node by turns. It should have one: it aggregates, and nobody asks it.

    Both are up. Once per peer: a third one is told of with one of the others. `remedy` says what to look at.
    """

    peer: PeerId
    other: PeerId
    peer_class: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RequestClosed(EngineStep):
    """A request is settled: how many were asked (after the gates) and how many answers count.

    `missing` has the others that the program asked for, each with the reason (`bb_edge.ir.missing`). Where
    nobody was asked, `remedy` says why, and what to do.
    """

    target: str
    execution: int
    port: str
    asked: int
    answered: int
    reason: str
    missing: tuple[tuple[PeerId, str], ...] = ()
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class RequestFailed(EngineStep):
    """A peer has no reply to a request, so nobody waits; `code` names the `FailureCode`, `detail` says it."""

    peer: PeerId
    code: str
    detail: str
    port: str = ""


@dataclass(frozen=True, slots=True)
class NobodyHeard(EngineStep):
    """This node has nothing to reply to `peer`, because nobody answered what it asked in turn.

    `why` says whether anybody was asked, `remedy` what to look at.
    """

    peer: PeerId
    target: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class AnswerRefused(EngineStep):
    """A peer that asked this node says that the answer does not count, and why.

    `port` names its request. `times` is how many answers it has refused since it said so last.
    """

    peer: PeerId
    reason: str
    port: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class LayoutUndeclared(EngineStep):
    """Nothing tells the shape of contributions: that of the first one in each sum decides for all others.

    Once per op and process, with the first such contribution: whose it is, its shape, and what to do.
    """

    peer: PeerId | None
    target: str
    slot: str
    shape: tuple[int, ...]
    remedy: str


@dataclass(frozen=True, slots=True)
class ContributionsDominate(EngineStep):
    """Contributions count far more than the others of their aggregate, which they decide by themselves.

    `times` is how many times the usual the largest one is, `peers` whose they are, as far as they say so.
    """

    target: str
    why: str
    contributions: int
    times: float
    peers: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class ContributionsClipped(EngineStep):
    """Contributions to an aggregate were longer than its bound, unlike most others: they count, shortened.

    `times` is how many times the bound the longest was, `peers` whose they are, as far as they say so.
    """

    target: str
    why: str
    contributions: int
    times: float
    peers: tuple[PeerId, ...] = ()
