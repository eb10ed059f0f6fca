"""What `bb-edge doctor` asks a broker: a round trip, and what its access rules let the node do.

The session leaves nothing behind. A login that is a peer id is that of a node: a broker that takes it for the
client id ends the session of the node that is there, and says to nobody beforehand that it does so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from bb_edge.cli.findings import FAILED, OK, SKIPPED, WARNING, Finding, guarded
from bb_edge.ir.ids import PeerId

if TYPE_CHECKING:
    from bb_edge.run_config import RunConfig
    from bb_edge.transport.company import Company

MOST_NAMED = 5
"""Other federations that a line names."""


def examine(
    config: RunConfig, peer: PeerId | None, *, as_node: bool, running: bool, presence: int = 0
) -> Iterator[Finding]:
    """Looks at the broker; under a node's login only with `as_node`.

    `running` says that the node's own process runs on this machine; `presence` are the bytes of the packet
    in which it says its presence, 0 where nobody knows.
    """
    if config.broker is None:
        yield Finding("broker", SKIPPED, "no broker is named (--broker)")
        return
    if not as_node:
        apart = guarded("broker", lambda: _untried(config))
        if apart is not None:
            yield apart
            return
    if peer is None or config.artifact is None:
        yield guarded("broker", lambda: _round_trip(config, peer, presence))
        return
    # Before the others, which come and go under this login: what is found is what was there.
    around: list[Finding] = []

    def look_around() -> None:
        around.extend(_around(config, peer, running))

    if (unseen := guarded("peers", look_around)) is not None:
        around.append(unseen)
    broker = guarded("broker", lambda: _round_trip(config, peer, presence))
    yield broker
    if broker.status == FAILED:
        return  # no other question has another answer
    yield from around
    yield guarded("access rules", lambda: _rules(config, peer))


def _untried(config: RunConfig) -> Finding | None:
    """Dials a broker that would take this client for a node, and says what is left out; None for others."""
    from bb_edge.transport.credentials import node_login
    from bb_edge.transport.probe import dial

    broker = config.broker_record()
    name = node_login(broker)
    if name is None:
        return None
    text = (
        f"{broker}: reachable in {dial(broker):.1f} ms; login, round trip and access rules were not tried:"
        f" it would log in as the node {name}, and a broker that sets client ids by user name"
        " (use_username_as_clientid) would throw the node out. Give --as-node where the node is stopped, or"
        " the broker leaves client ids alone"
    )
    return Finding("broker", WARNING, text, {"broker": str(broker), "login": name})


def _round_trip(config: RunConfig, peer: PeerId | None, presence: int) -> Finding:
    from bb_edge.transport.probe import FEDERATION, NotBack, probe
    from bb_edge.transport.too_large import BROKERS_LIMIT, SMALL_PACKETS, SMALL_WORDS

    federation = FEDERATION if config.artifact is None else config.federation
    known = peer or PeerId.from_name("bb-edge doctor")
    try:
        report = probe(config.broker_record(), known, federation, config.mqtt_version)
    except NotBack as error:
        if peer is None or config.artifact is None:
            raise
        text = f"{config.broker_record()}: it lets this node in, and {error.what}: see access rules"
        return Finding("broker", WARNING, text)
    text = (
        f"{report.broker}, MQTT {report.protocol}: connected in {report.connect_ms:.1f} ms, "
        f"round trip {report.round_trip_ms:.2f} ms"
    )
    limit = report.max_packet_bytes
    if limit is not None and limit < max(presence, SMALL_PACKETS):
        text += f", packets up to {limit} bytes"
        if presence > limit:
            text += f", and this node's presence is one of {presence}: no peer would see it; {BROKERS_LIMIT}"
            return Finding("broker", FAILED, text, asdict(report))
        text += f", and a presence may be larger, which no peer would see: {SMALL_WORDS}"
        return Finding("broker", WARNING, text, asdict(report))
    if limit is not None:
        text += f", packets up to {limit} bytes (larger envelopes go in chunks)"
    slow = report.round_trip_ms > 30 and report.broker.startswith(("mqtt://127.", "mqtt://localhost"))
    if slow:
        text += "; slow for this machine: is set_tcp_nodelay true in its configuration?"
    return Finding("broker", WARNING if slow else OK, text, asdict(report))


def _deals_with(config: RunConfig) -> tuple[set[str], set[str]]:
    """The classes that the node is of, and those that it hears."""
    from bb_edge.loading import load
    from bb_edge.targets import chosen_targets

    assert config.artifact is not None
    targets = chosen_targets(load(config.artifact), config.targets)
    own = {target.peer_class for target in targets}
    return own, {name for target in targets for name in target.hears or ()}


def _around(config: RunConfig, peer: PeerId, running: bool) -> tuple[Finding, ...]:
    """Who has the node's name at the broker, and whether peers are there that it deals with."""
    from bb_edge.transport.company import company

    _, heard = _deals_with(config)
    found = company(config.broker_record(), peer, config.federation, heard, config.mqtt_version)
    return tuple(filter(None, (_name(config, peer, found, running), _peers(config, found, heard))))


def _name(config: RunConfig, peer: PeerId, found: Company, running: bool) -> Finding | None:
    """Whether a process runs under the node's name that may not be this machine's."""
    from bb_edge.cli.peers import record_of
    from bb_edge.transport.credentials import node_login

    if found.own is None or not (found.own.up or found.broke_off):
        return None
    record = record_of(found.own, str)
    since = f" since {record['since']}" if record["since"] else ""
    shown, data = f"{config.peer} ({peer})", {"up": found.own.up, "since": record["since"]}
    if running and found.own.up:
        return Finding("name", OK, f"{shown} runs{since}, on this machine", data)
    if found.own.up:
        text = (
            f"a node runs as {shown}{since}; where it is not this machine's, each will take the other's"
            " place: stop it, or give this node a name of its own (peer)"
        )
        return Finding("name", WARNING, text, data)
    if node_login(config.broker_record()) is None:
        return None  # nobody was thrown out by this visit
    text = (
        f"the last word of {shown}{since} is that its connection broke off: it has ended without a goodbye,"
        " or runs, and --as-node has just taken its place (it is back within a minute, and says so)"
    )
    return Finding("name", WARNING, text, data)


def _peers(config: RunConfig, found: Company, heard: set[str]) -> Finding | None:
    """Whether somebody of each class is up that the node deals with."""
    if not heard:
        return None
    data = {"up": dict(found.up), "down": dict(found.down), "elsewhere": dict(found.elsewhere)}
    some = "at least " if found.many else ""
    there = ", ".join(f"{some}{count} of class {name}" for name, count in found.up.items() if count)
    absent = [name for name, count in found.up.items() if not count]
    where = f"federation {config.federation!r}"
    if not absent:
        return Finding("peers", OK, f"up in {where}: {there}", data)
    texts = [f"up in {where}: {there}"] if there else []
    for name in absent:
        others = found.elsewhere.get(name, ())
        if others:
            named = ", ".join(map(repr, others[:MOST_NAMED]))
            more = f"; there are some in {named}: is the federation's name right?"
        elif found.many:
            more = ", as far as the broker has told: ask bb-edge peers, which calls the roll"
        elif found.down[name]:
            more = f" ({found.down[name]} down)"
        else:
            more = (
                ": none has run yet, the federation has another name, or the rules keep their presences from"
                " this node"
            )
        texts.append(f"nobody of class {name} is up in {where}{more}")
    return Finding("peers", WARNING, "; ".join(texts), data)


def _rules(config: RunConfig, peer: PeerId) -> Finding:
    """Whether the broker lets the node be what it is, and nothing else."""
    from bb_edge.transport.rights import SEND, rights

    own, heard = _deals_with(config)
    found = rights(config.broker_record(), peer, config.federation, own, heard, config.mqtt_version)
    data = asdict(found)
    missing = f"missing, in mosquitto's words: {'; '.join(found.rules)}"
    if found.lacking:
        text = f"the broker does not let this node {', '.join((*found.lacking, *found.hampered))}"
        if SEND in found.lacking:  # every class may: it is not its class that is not in the rules
            text += f"; are its rules for the federation {config.federation!r} (--federation)?"
        return Finding("access rules", FAILED, f"{text}; {missing}", data)
    if not found.told:
        return Finding("access rules", SKIPPED, "MQTT 3.1.1 tells nobody what is refused", data)
    if found.hampered:
        text = (
            f"the broker does not let this node {', '.join(found.hampered)}: what of presences is lost on the"
            f" way is not found again; {missing}"
        )
        return Finding("access rules", WARNING, text, data)
    write = "bb-host acl writes rules"
    if not found.any_rules:
        text = f"the broker has none: every client may be any peer of any class ({write})"
        return Finding("access rules", WARNING, text, data)
    if found.excess:
        text = f"the broker lets this node {', '.join(found.excess)} ({write})"
        return Finding("access rules", WARNING, text, data)
    text = f"this node may be a {' and a '.join(sorted(own))}, and neither another peer nor of another class"
    if found.unheard:
        text += (
            f"; only others may call the roll of a {' or '.join(found.unheard)}: whether this node may read"
            " that (topic read bb/…/rollcall/…) was not tried"
        )
    return Finding("access rules", OK, text, data)
