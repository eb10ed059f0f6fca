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


def examine(config: RunConfig, peer: PeerId | None, *, as_node: bool) -> Iterator[Finding]:
    """Looks at the broker; under a node's login only with `as_node`."""
    if config.broker is None:
        yield Finding("broker", SKIPPED, "no broker is named (--broker)")
        return
    if not as_node:
        apart = guarded("broker", lambda: _untried(config))
        if apart is not None:
            yield apart
            return
    yield guarded("broker", lambda: _round_trip(config, peer))
    if peer is not None and config.artifact is not None:
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


def _round_trip(config: RunConfig, peer: PeerId | None) -> Finding:
    from bb_edge.transport.probe import FEDERATION, probe

    federation = FEDERATION if config.artifact is None else config.federation
    known = peer or PeerId.from_name("bb-edge doctor")
    report = probe(config.broker_record(), known, federation, config.mqtt_version)
    text = (
        f"{report.broker}, MQTT {report.protocol}: connected in {report.connect_ms:.1f} ms, "
        f"round trip {report.round_trip_ms:.2f} ms"
    )
    if report.max_packet_bytes is not None:
        text += f", packets up to {report.max_packet_bytes} bytes (larger envelopes go in chunks)"
    slow = report.round_trip_ms > 30 and report.broker.startswith(("mqtt://127.", "mqtt://localhost"))
    if slow:
        text += "; slow for this machine: is set_tcp_nodelay true in its configuration?"
    return Finding("broker", WARNING if slow else OK, text, asdict(report))


def _rules(config: RunConfig, peer: PeerId) -> Finding:
    """Whether the broker lets the node be what it is, and nothing else."""
    from bb_edge.loading import load
    from bb_edge.targets import chosen_targets
    from bb_edge.transport.rights import rights

    assert config.artifact is not None
    targets = chosen_targets(load(config.artifact), config.targets)
    own = {target.peer_class for target in targets}
    heard = {name for target in targets for name in target.hears or ()}
    found = rights(config.broker_record(), peer, config.federation, own, heard, config.mqtt_version)
    data = asdict(found)
    if found.lacking:
        text = f"the broker does not let this node {', '.join(found.lacking)}"
        if "send envelopes" in found.lacking:  # every class may: it is not its class that is not in the rules
            text += f"; are its rules for the federation {config.federation!r} (--federation)?"
        return Finding("access rules", FAILED, text, data)
    if not found.told:
        return Finding("access rules", SKIPPED, "MQTT 3.1.1 tells nobody what is refused", data)
    write = "bb-host acl writes rules"
    if not found.any_rules:
        text = f"the broker has none: every client may be any peer of any class ({write})"
        return Finding("access rules", WARNING, text, data)
    if found.excess:
        text = f"the broker lets this node {', '.join(found.excess)} ({write})"
        return Finding("access rules", WARNING, text, data)
    text = f"this node may be a {' and a '.join(sorted(own))}, and neither another peer nor of another class"
    if found.unseen:
        whom = " or ".join(f"a {name}" for name in found.unseen)
        text += (
            f"; no presence of {whom} came: with one up, try again to see whether the rules let it be read"
        )
    return Finding("access rules", OK, text, data)
