"""The table of docs/scale.md: what federations of three sizes take, reckoned from measured unit costs.

python -m benchmarks.scale [--page docs/scale.md]
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

KB, MB = 1e3, 1e6
DAY_S = 86_400

BEGIN, END = "<!-- sizes -->\n", "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Costs:
    """What one of each takes; docs/scale.md says how each was measured, and that prices are assumed."""

    broker_bytes: float = 8.3 * MB
    node_at_broker_bytes: float = 3.4 * KB
    peer_bytes: float = 4.1 * KB
    contribution_s: tuple[float, float] = (0.6e-3, 1.4e-3)
    """At `contribution_bytes`; between the two on a straight line."""
    contribution_bytes: tuple[float, float] = (10 * KB, 1 * MB)
    ping_bytes: float = 160
    round_bytes_per_parameter: float = 8.2
    flash_per_durable_answer: float = 2.1
    """Bytes written at the client, by the bytes of its answer."""
    board_eur: float = 60
    server_eur_a_month: float = 10
    cellular_eur_a_gb: float = 2

    def contribution(self, size: float) -> float:
        """Seconds of the server's and its broker's processors."""
        (low, high), (small, large) = self.contribution_s, self.contribution_bytes
        return low + (high - low) * (size - small) / (large - small)


@dataclass(frozen=True, slots=True)
class Tier:
    """So many parents with a broker each; all have as many children, and ask so many in a round."""

    parents: int
    children: int
    asked: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """Tiers from the server down to the devices, and what is learned."""

    title: str
    tiers: tuple[Tier, ...]
    parameters: int = 25_000
    rounds_a_day: int = 10
    keepalive_s: int = 600

    @property
    def devices(self) -> int:
        return self.tiers[-1].parents * self.tiers[-1].children

    @property
    def asked(self) -> int:
        """Devices that answer in a round."""
        return math.prod(tier.asked for tier in self.tiers)

    @property
    def requests(self) -> int:
        """Requests in a round, over all tiers."""
        return sum(math.prod(tier.asked for tier in self.tiers[: n + 1]) for n in range(len(self.tiers)))

    @property
    def publishes(self) -> int:
        """PUBLISH packets of a round over any line: a request and its answer, on two lines each.

        Between tiers there is a bridge on the way, and so a third line.
        """
        return 4 * self.asked + 6 * (self.requests - self.asked)


FLEETS = (
    Fleet("10³, flat", (Tier(1, 1_000, 10),)),
    Fleet("10⁵, gateways", (Tier(1, 100, 100), Tier(100, 1_000, 10))),
    Fleet("10⁷, two tiers of gateways", (Tier(1, 10, 10), Tier(10, 1_000, 1_000), Tier(10_000, 1_000, 10))),
)


def size(value: float) -> str:
    """Bytes with two digits and a unit."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (MB, "MB"), (KB, "kB")):
        if value >= unit:
            return f"{float(f'{value / unit:.2g}'):g} {name}"
    return f"{value:.0f} B"


def number(value: float) -> str:
    """A number with two digits."""
    return f"{float(f'{value:.2g}'):,.0f}"


def per_tier(fleet: Fleet, figure: Callable[[Tier], str]) -> str:
    """A figure for each tier, from the server down; once where all have the same."""
    found = list(dict.fromkeys(figure(tier) for tier in fleet.tiers))
    return "; ".join(found)


def known(fleet: Fleet, tier: Tier) -> int:
    """Nodes that a tier's broker knows: the parent, its children, the parent's own parent."""
    return tier.children + 1 + (tier is not fleet.tiers[0])


def idle_bytes(fleet: Fleet, costs: Costs) -> float:
    """Traffic of an idle device in a day."""
    return DAY_S / fleet.keepalive_s * costs.ping_bytes


def round_bytes(fleet: Fleet, costs: Costs) -> float:
    """Both ways, for one that is asked."""
    return fleet.parameters * costs.round_bytes_per_parameter


def per_device_a_day(fleet: Fleet, costs: Costs) -> float:
    """Traffic of the average device in a day: idle, and in its share of the rounds."""
    share = fleet.rounds_a_day * fleet.asked / fleet.devices
    return idle_bytes(fleet, costs) + share * round_bytes(fleet, costs)


def busy(fleet: Fleet, tier: Tier, costs: Costs) -> str:
    """What a parent of the tier computes in a round, for what it is answered."""
    return f"{float(f'{tier.asked * costs.contribution(4 * fleet.parameters) * 1e3:.2g}'):g} ms"


def flash_a_day(fleet: Fleet, costs: Costs) -> float:
    """What the average client writes in a day where its answers are durable."""
    share = fleet.rounds_a_day * fleet.asked / fleet.devices
    return share * costs.flash_per_durable_answer * 4 * fleet.parameters


def rows(costs: Costs) -> dict[str, Callable[[Fleet], str]]:
    """By what is reckoned: how."""

    def boards(fleet: Fleet) -> int:
        return sum(tier.parents for tier in fleet.tiers[1:])

    def traffic(fleet: Fleet) -> float:
        return fleet.devices * per_device_a_day(fleet, costs)

    return {
        "devices": lambda f: f"{f.devices:,}",
        "who is asked in a round, from the server down": lambda f: "; ".join(
            f"{t.asked:,} of {t.children:,}" for t in f.tiers
        ),
        "topics with a retained presence, and inboxes": lambda f: f"{f.devices + boards(f) + 1:,} each",
        "a parent's broker, RAM": lambda f: per_tier(
            f, lambda t: size(costs.broker_bytes + known(f, t) * costs.node_at_broker_bytes)
        ),
        "a parent's table of peers, RAM": lambda f: per_tier(
            f, lambda t: size(t.children * costs.peer_bytes)
        ),
        "PUBLISH packets of a round, all lines": lambda f: number(f.publishes),
        "a round at a parent, processor": lambda f: per_tier(f, lambda t: busy(f, t, costs)),
        "a parent's line in a round": lambda f: per_tier(f, lambda t: size(t.asked * round_bytes(f, costs))),
        "an idle device's traffic a day": lambda f: size(idle_bytes(f, costs)),
        "traffic of all devices a day, rounds included": lambda f: size(traffic(f)),
        "flash of a client a day, answers durable": lambda f: size(flash_a_day(f, costs)),
        "machines": lambda f: "one server" + (f", {boards(f):,} boards" if boards(f) else ""),
        "their price, euros": lambda f: (
            f"{number(costs.server_eur_a_month)} a month"
            + (f", {number(boards(f) * costs.board_eur)} once" if boards(f) else "")
        ),
        "cellular traffic a month, euros, if all devices use it": lambda f: number(
            30 * traffic(f) / 1e9 * costs.cellular_eur_a_gb
        ),
    }


def table(costs: Costs = Costs(), fleets: Sequence[Fleet] = FLEETS) -> str:
    """The rows as a table in Markdown."""
    lines = ["| | " + " | ".join(fleet.title for fleet in fleets) + " |", "|---" * (len(fleets) + 1) + "|"]
    for what, figure in rows(costs).items():
        lines.append(f"| {what} | " + " | ".join(figure(fleet) for fleet in fleets) + " |")
    return "\n".join(lines) + "\n"


def on_page(text: str, costs: Costs = Costs()) -> str:
    """The page with the table between its marks; ValueError where it has no such place, or several."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    places = len(pattern.findall(text))
    if places != 1:
        raise ValueError(f"{places} places for the table, one is expected: {BEGIN.strip()} … {END}")
    return pattern.sub(lambda _: BEGIN + table(costs) + END, text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    parser.add_argument("--page", type=Path, help="writes the table there, instead of printing it")
    page = parser.parse_args().page
    if page is None:
        print(table(), end="")
    else:
        page.write_text(on_page(page.read_text()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
