"""What is simulated, as plain data: every worker gets the whole, and a list of the nodes that it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import keyed_number
from bb_edge.wire.delivery import EPOCH_BITS
from bb_host.simulate.conditions import Conditions
from bb_host.simulate.rules import Rule
from bb_host.whole_numbers import with_plain_fields

if TYPE_CHECKING:  # a script that starts workers has no need of the engine
    from bb_edge.engine.config import NodeConfig

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Group:
    """All nodes of one class: `count` of them run `target` of the artifact `data`.

    `large` nodes have a server's budget of memory, the others a device's; None, the default, is a server's
    for a class of one node. Where there is a `config`, its limits are theirs. `settings` configure slots of
    these nodes, over those of the scenario.
    """

    peer_class: str
    target: str
    data: bytes
    count: int
    large: bool | None = None
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    config: NodeConfig | None = None

    def __post_init__(self) -> None:
        with_plain_fields(self, "count", "settings")

    def name(self, number: int) -> str:
        """The name of one of them: `server`, or `client-17` where there are several."""
        name = self.peer_class.lower()
        return name if self.count == 1 else f"{name}-{number}"


@dataclass(frozen=True, slots=True)
class Dealt:
    """The rows of the file `path` (.npz, arrays of one length, labels in `labels`), dealt to a slot's nodes.

    Each node's slot is configured with a file of its own rows, as `key`.
    """

    slot: str
    path: Path
    rule: Rule
    key: str = "path"
    labels: str = "y"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulation. Times are nanoseconds.

    `settings` configure slots of every node that has them. The network's latency is `latency_ns` plus up to
    `jitter_ns`. `conditions` hold for the classes that have several nodes.
    """

    groups: tuple[Group, ...]
    seed: int = 0
    latency_ns: int = 5 * MS
    jitter_ns: int = 0
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    dealt: tuple[Dealt, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)
    load: tuple[str, ...] = ()
    """Files or modules with components of the user's own."""

    def __post_init__(self) -> None:
        with_plain_fields(self, "seed", "latency_ns", "jitter_ns", "settings")

    models: tuple[tuple[str, str], ...] = ()
    """Class of one node, and slot, of each model whose parameters the outcome has."""

    def members(self) -> tuple[Member, ...]:
        """All nodes, in an order that depends on the scenario alone."""
        return tuple(
            Member(group, number)
            for group in range(len(self.groups))
            for number in range(self.groups[group].count)
        )

    def settings_of(self, group: Group) -> dict[str, dict[str, object]]:
        """The configuration of each slot of a group's nodes, as far as the scenario says it."""
        slots = dict.fromkeys((*self.settings, *group.settings))
        return {slot: {**self.settings.get(slot, {}), **group.settings.get(slot, {})} for slot in slots}

    def clients(self) -> Group | None:
        """The class whose nodes a trace may call by their numbers: `Client`, or the only one of several."""
        several = [group for group in self.groups if group.count > 1]
        named = [group for group in self.groups if group.peer_class == "Client"]
        return named[0] if named else several[0] if len(several) == 1 else None

    def changes_of(self, member: Member) -> Iterator[tuple[int, bool]]:
        """(time, up) for each change of a node, from time 0 on.

        One that is alone in its class is always up, where no trace names it.
        """
        group = self.groups[member.group]
        if group.count == 1 and not self.conditions.trace:
            return iter([(0, True)])
        numbers = (member.number,) if group is self.clients() else ()
        return self.conditions.changes(self.seed, member.number, group.name(member.number), *numbers)

    def seed_of(self, member: Member) -> int:
        """What the member's node is installed with."""
        return keyed_number(self.seed, f"node {self.groups[member.group].peer_class}", member.number)

    def epoch_of(self, member: Member) -> int:
        """The epoch that the member's node has, and others are told of before there is a node."""
        drawn = keyed_number(self.seed, f"epoch {self.groups[member.group].peer_class}", member.number)
        return drawn % (1 << EPOCH_BITS) or 1

    def peer_of(self, member: Member) -> PeerId:
        """The member's id: that of its name, as on devices."""
        return PeerId.from_name(self.groups[member.group].name(member.number))


class Member(NamedTuple):
    """One node of a scenario: the index of its group, and its number in it."""

    group: int
    number: int


def placed(members: Sequence[Member], workers: int) -> list[list[Member]]:
    """Which worker runs whom: dealt by turns, so that each has its share of every class."""
    return [list(members[worker::workers]) for worker in range(workers)]
