"""What machines that write each other go through, decided by the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bb_edge.engine.program.program import Program
from simulated import notebook
from simulated.network import MS, Weather
from simulated.plan import Plan, S, Seat

FORGER = "forger"


@dataclass(frozen=True, slots=True)
class LettersPlan(Plan):
    """A world of letters; the numbers are averages per machine, unless they say chance."""

    letters: int = 20
    """Letters, each to one or more of the others."""
    burst: int = 1
    """So many at a moment, at most."""
    questions: int = 0
    deadline_ns: int = 2 * S
    """Of the questions."""
    put_back: float = 1.0
    """Times that a disk is put back to an image of it."""
    together: float = 0.0
    """Times, in this world, that all disks are put back at one moment, each to an image of its own."""
    lost: float = 0.2
    asleep: float = 1.0
    full: float = 0.0
    """Times that a disk has no room for a while."""
    strange: float = 0.0
    """Chance, at a start, that another machine's folder is tried first."""
    dropped: float = 0.0
    """Chance, at a start, that an operator drops some of what is in the outbox."""
    forged: int = 0
    """What somebody says under a name of his own, in this world."""
    older: int = 0
    """How many machines know no marks, as those of an older version; a start may bring the present one."""
    small: bool = False
    """Whether outboxes have room for a few records only."""
    snapshot_ns: int = 500 * MS

    def program_of(self, seat: Seat) -> Program:
        return notebook.program(self.deadline_ns)

    @property
    def seats(self) -> list[Seat]:
        return [Seat(f"node-{n}", "Post") for n in range(self.nodes)]


def plan_of_letters(seed: int, short: bool = False) -> LettersPlan:
    """The plan of a seed; short ones cost some 50 ms."""
    rng = random.Random(f"letters {seed}")
    older = rng.choice((0, 0, 0, 0, 1, 2))
    # Of a peer that knows no marks nothing is noticed, so in such worlds no disk goes back.
    back = 0.0 if older else 1.0
    return LettersPlan(
        "letters",
        nodes=rng.choice((2, 3, 3)),
        weather=Weather(drop=rng.choice((0.02, 0.1, 0.2))),
        letters=rng.choice((5, 20, 40) if short else (100, 200)),
        burst=rng.choice((1, 3) if short else (4, 16)),
        questions=rng.choice((0, 5) if short else (0, 20)),
        deadline_ns=rng.choice((2, 60)) * S,
        calm_ns=rng.choice((4, 8)) * S,
        crashes=rng.choice((0.0, 0.5, 2.0)),
        disk_errors=rng.choice((0.0, 0.7)),
        put_back=back * rng.choice((0.0, 1.0, 2.0)),
        together=back * rng.choice((0.0, 0.0, 1.0)),
        lost=back * rng.choice((0.0, 0.0, 0.5)),
        asleep=rng.choice((0.0, 1.0)),
        full=rng.choice((0.0, 0.0, 1.0)),
        strange=rng.choice((0.0, 0.2)),
        dropped=rng.choice((0.0, 0.0, 0.5)),
        forged=rng.choice((0, 30)),
        older=older,
        small=rng.random() < 0.15,
        snapshot_ns=rng.choice((500 * MS, 500 * MS, 3 * S)),
        mute=0.0,
        broken=0.0,
    )
