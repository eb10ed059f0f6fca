"""The small worlds: those that come to an end, and those in which messages stay for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Flow(NamedTuple):
    """What one node sends to another, in order."""

    src: int
    dst: int
    contents: tuple[bytes, ...]


@dataclass(frozen=True)
class Plan:
    """What a world has, and how often what may happen."""

    name: str
    flows: tuple[Flow, ...]
    nodes: int = 2
    crashes: tuple[int, ...] = (0, 0)
    restores: tuple[int, ...] = (0, 0)
    snapshots: tuple[int, ...] = (0, 0)
    drops: int = 0
    plain: tuple[int, ...] = ()
    """Nodes whose presence says that they do not know marks."""
    learns: tuple[int, ...] = ()
    """Those of them that know marks from their next start on."""
    forger: int | None = None
    """A node that says to all others what it likes, under its own name."""
    faults: int | None = None
    """Messages that go astray, come again or are forged. None: all may, often, in any order."""
    repeats: int = 0
    """How often a question or a record is published again, besides in the end."""
    failures: int = 0
    """Writes to a journal that fail."""
    settled: int = 0
    """How many contents of each flow are delivered before the search begins."""
    written: bool = True
    """Whether every node has a snapshot of that."""
    kept: tuple[int, ...] = ()
    """Nodes that go back to the empty disk of the very beginning; others to any moment of the search."""
    falling: bool = False
    """Whether random numbers get lower and lower."""

    def restores_of(self, place: int) -> int:
        """How often the state of a node may be put back."""
        return self.restores[place] if place < len(self.restores) else 0


ONE, TWO = (b"a",), (b"a", b"b")

PLANS = (
    Plan("crashes of both", (Flow(0, 1, TWO),), crashes=(1, 1), snapshots=(1, 0)),
    Plan("a sender is restored", (Flow(0, 1, TWO),), restores=(1, 0), snapshots=(1, 0)),
    Plan("a receiver is restored", (Flow(0, 1, TWO),), restores=(0, 1), snapshots=(1, 1)),
    Plan("both are restored", (Flow(0, 1, ONE),), crashes=(1, 0), restores=(1, 1)),
    Plan("a receiver crashes twice", (Flow(0, 1, ONE),), crashes=(1, 2), snapshots=(1, 1)),
    Plan("both lose what they knew", (Flow(0, 1, ONE),), crashes=(1, 1), restores=(0, 1), snapshots=(1, 0)),
    Plan("a record expires", (Flow(0, 1, TWO),), crashes=(0, 1), restores=(0, 1), drops=1),
    Plan("two senders", (Flow(0, 2, ONE), Flow(1, 2, ONE)), nodes=3, crashes=(1, 0, 1), restores=(0, 0, 1)),
    Plan("two receivers", (Flow(0, 1, ONE), Flow(0, 2, ONE)), nodes=3, crashes=(1, 1), restores=(1,)),
    Plan(
        "two and two",
        (Flow(0, 2, ONE), Flow(0, 3, ONE), Flow(1, 2, ONE), Flow(1, 3, ONE)),
        nodes=4,
        crashes=(1, 0, 1, 0),
    ),
    Plan("both ways", (Flow(0, 1, ONE), Flow(1, 0, ONE)), crashes=(1, 0), restores=(0, 1)),
    Plan("a forger", (Flow(0, 1, ONE),), nodes=3, crashes=(1, 1, 0), forger=2),
    Plan("an older receiver", (Flow(0, 1, TWO),), crashes=(1, 1), snapshots=(1, 0), plain=(1,)),
    Plan("an older sender", (Flow(0, 1, TWO),), crashes=(1, 1), snapshots=(1, 0), plain=(0,)),
    Plan("a receiver learns marks", (Flow(0, 1, TWO),), crashes=(1, 1), drops=1, plain=(1,), learns=(1,)),
)

THREE = (b"a", b"b", b"c")
A, AB, ABC = (Flow(0, 1, ONE),), (Flow(0, 1, TWO),), (Flow(0, 1, THREE),)
SMALL = (
    Plan("later epochs are lower", AB, restores=(1, 1), faults=0, settled=1, kept=(0,), falling=True),
    Plan("nothing fails", ABC, faults=0),
    Plan("one fault of the network", AB, faults=1),
    Plan("two faults of the network", A, faults=2),
    Plan("a repetition and a fault", A, repeats=1, faults=1),
    Plan("a sender crashes, and a fault", A, crashes=(1, 0), faults=1),
    Plan("a receiver crashes, and a fault", A, crashes=(0, 1), faults=1),
    Plan("a sender crashes that repeats", AB, crashes=(1, 0), repeats=1, faults=0, settled=1),
    Plan("both crash", AB, crashes=(1, 1), faults=0, settled=1),
    Plan("a sender is restored", AB, restores=(1, 0), faults=0),
    Plan("a receiver is restored", AB, restores=(0, 1), faults=0),
    Plan("both are restored", AB, restores=(1, 1), faults=1, settled=1),
    Plan(
        "a sender is emptied, then a receiver restored", AB, restores=(1, 1), faults=0, settled=1, kept=(0,)
    ),
    Plan("a sender crashes and is restored", A, crashes=(1, 0), restores=(1, 0), faults=0),
    Plan("a sender is restored, snapshots", A, restores=(1, 0), snapshots=(1, 0), faults=0),
    Plan("a receiver crashes, snapshots", A, crashes=(0, 1), snapshots=(0, 1), faults=0),
    Plan("a record expires", A, crashes=(1, 0), drops=1, faults=0),
    Plan("a journal fails, and a fault", AB, failures=1, faults=1),
    Plan("a journal fails, a receiver crashes", A, crashes=(0, 1), failures=1, faults=0),
    Plan(
        "a record expires, a journal fails, a receiver crashes", A, 2, (0, 1), drops=1, failures=1, faults=0
    ),
    Plan("an older receiver", A, crashes=(1, 1), snapshots=(1, 0), plain=(1,), faults=0),
    Plan("an older sender", A, crashes=(1, 1), snapshots=(1, 0), plain=(0,), faults=0),
    Plan("both ways, and a fault", (Flow(0, 1, TWO), Flow(1, 0, TWO)), faults=1, settled=1),
    Plan("two senders", (Flow(0, 2, TWO), Flow(1, 2, TWO)), nodes=3, faults=1, settled=1),
    Plan("two receivers, and a fault", (Flow(0, 1, TWO), Flow(0, 2, TWO)), nodes=3, faults=1, settled=1),
    Plan("a forger", AB, nodes=3, crashes=(1, 0), forger=2, faults=1, settled=1),
)
"""Gone through to their end."""
LARGE = (
    Plan("both ways, a crash", (Flow(0, 1, TWO), Flow(1, 0, TWO)), crashes=(1, 0), faults=0, settled=1),
    Plan(
        "two receivers, a crash",
        (Flow(0, 1, TWO), Flow(0, 2, TWO)),
        nodes=3,
        crashes=(1,),
        faults=0,
        settled=1,
    ),
    Plan("two new senders", (Flow(0, 2, ONE), Flow(1, 2, ONE)), nodes=3, faults=0),
    Plan("two new receivers", (Flow(0, 1, ONE), Flow(0, 2, ONE)), nodes=3, faults=0),
    Plan("both are restored from any state", AB, restores=(1, 1), faults=0, falling=True),
    Plan("two records, a receiver is restored, and a fault", AB, restores=(0, 1), faults=1),
    Plan("two records, a sender is restored, and a fault", AB, restores=(1, 0), faults=1),
    Plan("both crash, and a fault", A, crashes=(1, 1), faults=1),
    Plan("two records, a sender crashes, and a fault", AB, crashes=(1, 0), faults=1),
    Plan("two records, a receiver crashes, and a fault", AB, crashes=(0, 1), faults=1),
    Plan(
        "a sender crashes twice, then a receiver is emptied",
        *(AB, 2, (2, 0), (0, 1)),
        faults=0,
        settled=1,
        written=False,
        kept=(1,),
    ),
    Plan(
        "two records, one expires, a journal fails, a receiver crashes",
        AB,
        2,
        (0, 1),
        drops=1,
        failures=1,
        faults=0,
    ),
    Plan(
        "a receiver learns marks", AB, crashes=(0, 1), drops=1, repeats=1, plain=(1,), learns=(1,), faults=0
    ),
    Plan(
        "a sender learns marks, a journal fails",
        ABC,
        2,
        (1, 1),
        drops=1,
        failures=1,
        plain=(0,),
        learns=(0,),
        faults=0,
        settled=1,
    ),
    Plan("a snapshot, a crash, a restored receiver", AB, 2, (1, 0), (0, 1), (1, 0), faults=0),
)
"""By hand."""
