"""What a node takes over from one of the same peer that ran another program (docs/design/durability.md).

Components are matched by slot and type; what fits of a component's state the component decides
(`Component.adopt`). Which numbers of peers were taken, and which were given, comes over whole; a record of
the outbox where the new program sends the same to the same site. Executions, ops and rounds belong to the old
program. Whatever is not taken is listed.

Rule D15 of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bb_edge.engine import steps
from bb_edge.engine.engine import Parts
from bb_edge.engine.errors import failure_text
from bb_edge.engine.net.former_records import FormerRecords, Left, Part
from bb_edge.engine.net.former_sites import Site, many, parts_of, sites_of
from bb_edge.engine.plain import Shift, load
from bb_edge.engine.program.program import Program, Target
from bb_edge.engine.runtime import Origin
from bb_edge.engine.snapshot import Identity, SnapshotDamagedError, SnapshotVersionError, look_into
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.roles import Backend, Codec, Component, forgets
from bb_edge.roles.adoption import Adoption
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import ComponentStateError
from bb_edge.wire.durable_rows import OutboxName
from bb_edge.wire.envelope import Envelope
from bb_edge.wire.outbox import OutboxRecordError

_SHOWN = 8  # names in one row
_MISFITS = (LookupError, TypeError, ValueError, AttributeError, BBError)


class Row(NamedTuple):
    """One thing of the old node: a slot and its type, or a part of the node; taken if `why` is empty."""

    name: str
    type_name: str
    what: str
    why: str = ""


class Former:
    """A node of another program, as its last snapshot has it; for one `install`, which fills `rows`."""

    def __init__(
        self, identity: Identity, body: Mapping[str, Any], outbox: Iterable[bytes] = (), wall_ns: int = 0
    ) -> None:
        """`outbox` are the rows of its outbox on disk, `wall_ns` is the time now.

        Raises SnapshotDamagedError for a body in which components or links cannot be read,
        SnapshotVersionError for one that does not name its slots, OutboxRecordError for rows that are not
        records.
        """
        self.identity = identity
        self.rows: list[Row] = []
        self.drops_outbox = False
        """Whether what nobody has acknowledged is left, though it fits."""
        self.generation = 0
        """That of the snapshot in its folder; 0 where it is not known."""
        self._body = body
        self._wall_ns = wall_ns
        self._whole: set[str] = set()  # slots of which nothing was left
        self._kept: dict[str, bytes] = {}  # states that a failed bootstrap may make necessary again
        self._codecs: dict[str, str] = {}  # slots whose codes the new codec reads otherwise, and why
        if "slots" not in body:
            raise SnapshotVersionError(
                "an older version wrote it, which does not tell whose state is of which slot",
                "snapshot",
                "run the old program with this folder once: it writes a new snapshot when it ends",
            )
        try:
            self._states = _states(body)
            self._records = FormerRecords.of(body, outbox, wall_ns)
        except OutboxRecordError:
            raise
        except _MISFITS as error:
            raise SnapshotDamagedError(f"its parts cannot be read: {error}", "snapshot") from error

    @classmethod
    def of(cls, snapshot: bytes, outbox: Iterable[bytes] = (), wall_ns: int = 0) -> Former:
        """Reads a snapshot. SnapshotDamagedError, SnapshotVersionError, OutboxRecordError."""
        return cls(*look_into(snapshot), outbox, wall_ns)

    @property
    def peer(self) -> PeerId:
        """Whose state it is."""
        return PeerId.from_bytes(self.identity.peer)

    @property
    def rounds(self) -> int:
        """Rounds that it has ended."""
        return int(self._body["core"]["counters"].get("rounds.ended", 0))

    @property
    def unprocessed(self) -> int:
        """Durable envelopes that the snapshot holds as acknowledged and that have started nothing yet."""
        ingress = self._body["ingress"]
        return len(ingress["accepted"]) + len(ingress["replaying"])

    @property
    def outbox(self) -> list[tuple[OutboxName, bytes]]:
        """The rows that have to be in the outbox of the node that `install` made of it, before it is given
        its outbox (`Node.adopt_outbox`): those of the records that it takes.
        """
        return list(self._records.rows)

    # --- components ---------------------------------------------------------------------------------------

    def hand_over(
        self, components: dict[str, Component], construct: Callable[[str], Component]
    ) -> Callable[[str], Component]:
        """Gives components, fresh and by slot, the old states; one that refuses is constructed anew.

        Returns `construct` for later: what it makes has the old state again, where a bootstrap needs that.
        """
        for slot, (type_name, state) in self._states.items():
            component = components.get(slot)
            if component is None:
                if state:
                    self._left(slot, type_name, "its state", "there is no slot of that name here")
            elif type_name != component.TYPE_NAME:
                if state:
                    self._left(slot, type_name, "its state", f"the slot has a {component.TYPE_NAME} here")
            elif not state:
                if forgets(type(component)):
                    self._left(slot, type_name, "what it holds", "its class has no serialize()")
                else:
                    self._whole.add(slot)
            elif isinstance(component, Backend):
                self._left(slot, type_name, "its state", "others are built upon it: it begins anew")
            else:
                self._take(slot, component, state, components, construct)
        self._compare_codecs(components)
        for slot, component in components.items():
            if slot not in self._states and type(component).serialize is not Component.serialize:
                self._left(slot, component.TYPE_NAME, "nothing", "the slot is new: it begins as constructed")

        def again(slot: str) -> Component:
            component = construct(slot)
            if slot in self._kept:
                take_over(component, self._kept[slot])
            return component

        return again

    def _take(
        self,
        slot: str,
        component: Component,
        state: bytes,
        components: dict[str, Component],
        construct: Callable[[str], Component],
    ) -> None:
        try:
            adoption = take_over(component, state)
        # The border to users' components: one that refuses begins anew, and that is said.
        except BaseException as error:  # noqa: BLE001
            failure = contained(error)
            components[slot] = construct(slot)
            self._left(slot, component.TYPE_NAME, "its state", failure_text(failure))
            return
        self._kept[slot] = state
        if not adoption.left:
            self._whole.add(slot)
        if adoption.taken:
            self.rows.append(Row(slot, component.TYPE_NAME, "; ".join(adoption.taken)))
        for text in adoption.left:
            what, _, why = text.partition(": ")
            self._left(slot, component.TYPE_NAME, what, why or "it does not fit")

    def _compare_codecs(self, components: Mapping[str, Component]) -> None:
        """A codec of another type, or of another state, reads other values in what the old one coded."""
        for slot, component in components.items():
            old, state = self._states.get(slot, ("", b""))
            if isinstance(component, Codec):
                if old != component.TYPE_NAME:
                    self._codecs[slot] = f"it was coded by a {old or 'codec'} in slot {slot!r}, not by a"
                    self._codecs[slot] += f" {component.TYPE_NAME}"
                elif _state_of(component) != state:
                    self._codecs[slot] = f"the {old} in slot {slot!r} that coded it had another state"

    def _left(self, name: str, type_name: str, what: str, why: str) -> None:
        self.rows.append(Row(name, type_name, what, why))

    # --- the rest of the node -----------------------------------------------------------------------------

    def finish(self, parts: Parts, program: Program, targets: Iterable[Target]) -> None:
        """Notes in a node that it has adopted, counts bootstraps as done, hands over windows and records, and
        lists what was left. What the node sends is told by its `targets`.

        SnapshotDamagedError where the old tables cannot be read; the node is useless then.
        """
        parts.runtime.origin = Origin(
            self.identity.module, self.identity.program, self.generation, self.rounds
        )
        try:
            self._bootstraps(parts)
            self._hand_over_records(parts, sites_of(program, targets, dict(self._body.get("sends", ()))))
            self._list_others(parts)
        except _MISFITS as error:
            raise SnapshotDamagedError(f"its parts cannot be read: {error}", "snapshot") from error
        self._body, self._states = {}, {}

    def _bootstraps(self, parts: Parts) -> None:
        """One that was done counts as done where nothing of what it touches has begun anew."""
        done = {(t, s) for t, s, status, *_ in self._body["bootstraps"] if status == "done"}
        done_slots = {slot for _, slot in done if slot}
        names = list(dict.fromkeys(slot for _, slot in parts.scheduler.components.slots))
        slot_of = {number: slot for (_, slot), number in parts.scheduler.components.slots.items()}
        needed: set[str] = set()
        for bootstrap in parts.bootstraps.order:
            touched = {slot_of[number] for number in bootstrap.touch_set}
            was_done = bootstrap.slot in done_slots if bootstrap.slot else (bootstrap.target, "") in done
            anew = sorted(touched - self._whole, key=names.index)
            if was_done and not anew:
                parts.bootstraps.restore([[bootstrap.target, bootstrap.slot, "done", False, ["d"]]])
            if bootstrap.done:
                self.rows.append(Row(f"bootstrap of {bootstrap.name}", "", "done: it is not run again"))
                if not bootstrap.slot:
                    parts.sources.start_at_first_poll(bootstrap.target)
                continue
            needed |= touched
            if was_done:
                of = f"{', '.join(anew)} did not come over whole" if anew else "its component saves no state"
                self._left(f"bootstrap of {bootstrap.name}", "", "done", f"it runs again: {of}")
        self._kept = {slot: state for slot, state in self._kept.items() if slot in needed}

    def _hand_over_records(self, parts: Parts, sites: Mapping[bytes, Site]) -> None:
        """Windows and numbers as they are; of the records those that the new program would send as well."""
        records, durable = self._records, parts.outgoing.durable

        of_all = "this node keeps nothing on disk" if durable.quiet else ""
        if self.drops_outbox:
            of_all = of_all or "--adopt-without-outbox: it is not sent again, and may have arrived"

        def judge(message: Envelope) -> list[Part]:
            parts = parts_of(message, sites, self._codecs)
            return [part._replace(why=of_all) for part in parts] if of_all else parts

        left = records.take(judge, self._wall_ns)
        parts.links.sources.restore(records.windows)
        parts.peers.recall(records.met)
        if known := len(parts.peers.presences):
            self.rows.append(Row("peers", "", f"{many(known, 'peer')} of which it has heard"))
        if not durable.quiet:
            durable.records.restore({"flows": records.flows, "unwritten": ()}, Shift(0))
        if records.windows:
            self.rows.append(
                Row("windows", "", f"{many(len(records.windows), 'peer')} whose numbers are known")
            )
        if records.taken:
            to = ", ".join(f"{n} to {peer}" for peer, n in records.taken.items())
            self.rows.append(Row("outbox", "", f"{many(sum(records.taken.values()), 'record')} ({to})"))
        counted: dict[Left, int] = {}
        for one in left:
            counted[one] = counted.get(one, 0) + 1
        for one, count in counted.items():
            self._left("outbox", "", f"{one.what} to {one.peer}, {count} of them", one.why)
            parts.runtime.count("outbound.dropped", count)
            reason = f"{one.what} of the old program, {count} of them: {one.why}"
            parts.runtime.emit(steps.OutboundDropped(one.peer, reason))

    def _list_others(self, parts: Parts) -> None:
        body, old = self._body, "they belong to the old program"
        fresh = parts.states.save()
        ops = [_op_name(target, key) for target, key, row in body["ops"] if [target, key, row] not in fresh]
        waiting = sum(len(body["ingress"][name]) for name in ("raw", "entries", "completions"))
        rings = [str(name) for name, values in body["core"]["rings"] if values]
        for name, count, what, why in (
            (
                "rounds",
                self.rounds,
                "rounds that have ended",
                "rounds count from 1 again",
            ),
            ("executions", len(body["executions"][2]), "executions under way", old),
            ("requests", len(body["requests"][1]), "requests without all answers", old),
            ("inputs", waiting, "inputs that waited", old),
            ("ops", len(ops), f"states of ops ({_shown(ops)})", old),
            ("rings", len(rings), f"rings of Record ({_shown(rings)})", old),
        ):
            if count:
                self._left(name, "", f"{what}, {count} of them", why)


def take_over(component: Component, state: bytes) -> Adoption:
    """Has a fresh component adopt a state; see `Component.adopt`. Raises what the component raises."""
    newest = next(kind for kind in type(component).__mro__ if {"adopt", "restore"} & vars(kind).keys())
    if "adopt" not in vars(newest):  # its restore is newer than what its bases adopt
        return Component.adopt(component, state)
    given: object = component.adopt(state)
    if not isinstance(given, Adoption):
        raise ComponentStateError(
            f"{component.TYPE_NAME}.adopt gives a {type(given).__name__}, an Adoption is expected",
            hint="return Adoption((what it took,), (what it left: why,))",
        )
    return given


def _state_of(component: Component) -> bytes | None:
    try:
        return component.serialize()
    # The border to users' components: one that cannot say what it holds is not known to be the same.
    except Exception:  # noqa: BLE001
        return None


def _states(body: Mapping[str, Any]) -> dict[str, tuple[str, bytes]]:
    """Type and state by slot."""
    found = {}
    for _, slot, index in body["slots"]:
        type_name, state = body["components"][index]
        found[str(slot)] = str(type_name), bytes(state)
    return found


def _op_name(target: str, key: Any) -> str:
    """`hold 'x' of Server` for an op's key; the kind alone where the rest are numbers of the old program."""
    loaded = load(key)
    words: Iterator[object] = iter(loaded if isinstance(loaded, tuple) else (loaded,))
    named = [word if n == 0 else repr(word) for n, word in enumerate(words) if isinstance(word, str)]
    return f"{' '.join(named) or 'an op'} of {target}"


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(dict.fromkeys(names[:_SHOWN])) + more
