"""The small worlds that are gone through."""

from __future__ import annotations

from .worlds import Flow, Plan

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
)
