"""The parts of a snapshot that are tables: counters, components, peers, links, queues, timers, ops' state."""

from __future__ import annotations

from typing import Any

from bb_edge.engine.net.durable import Writing
from bb_edge.engine.net.outgoing import Unit
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.snapshot_parts import Parts, dump_unit, load_unit
from bb_edge.engine.timers import Due, Timer
from bb_edge.ir.ids import PeerId
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.envelope import RttReport
from bb_edge.wire.outbox import OutboxRecord

INTERVAL, PUT_OFF = "interval.tick", "reply.put_off"
"""Actions whose arguments are no plain values."""


# --- peers and links ------------------------------------------------------------------------------------


def save_neighbours(parts: Parts) -> dict[str, Any]:
    tables = parts.engine.neighbours
    now_ns = parts.engine.runtime.now_ns
    return {
        "peers": tables.table.snapshot(),
        "health": tables.health.snapshot(),
        "backoff": tables.backoff.snapshot(now_ns),
        "addresses": tables.address_book.snapshot(),
        "blocked": sorted(peer.to_bytes() for peer in tables.blocked),
        "limits": [[peer.to_bytes(), limits.meta()] for peer, limits in tables.limits.items()],
        "imposed": [[peer.to_bytes(), until] for peer, until in tables.imposed.items()],
        "noticed": parts.cycle.admission.save(),
        "rtt": [
            [
                key[0].to_bytes(),
                report.next_hop_site_id,
                report.chain_id,
                report.hop_index,
                report.srtt_ns,
                report.rttvar_ns,
                report.sample_count,
            ]
            for key, report in tables.rtt_reports.items()
        ],
    }


def restore_neighbours(parts: Parts, data: Any, shift: Shift) -> None:
    tables = parts.engine.neighbours
    tables.table.restore(data["peers"])
    tables.health.restore(data["health"])
    tables.backoff.restore(data["backoff"], parts.engine.runtime.now_ns)
    tables.address_book.restore(data["addresses"])
    tables.blocked.update(PeerId.from_bytes(peer) for peer in data["blocked"])
    for peer, meta in data["limits"]:
        limits = PeerLimits.from_meta(meta)
        if limits is not None:
            tables.limits[PeerId.from_bytes(peer)] = limits
    tables.imposed.update((PeerId.from_bytes(peer), shift.time(until)) for peer, until in data["imposed"])
    parts.cycle.admission.restore(data["noticed"], shift)
    for peer, site, chain, hop, *times in data["rtt"]:
        tables.rtt_reports[PeerId.from_bytes(peer), chain, hop, site] = RttReport(site, chain, hop, *times)


def save_links(parts: Parts) -> dict[str, Any]:
    return parts.cycle.links.snapshot(parts.engine.runtime.now_ns)


def restore_links(parts: Parts, data: Any, shift: Shift) -> None:
    links = parts.cycle.links
    links.durable_epoch = data["epochs"][1]  # numbers of the outbox run on; the best-effort epoch is new
    links.restore(data, parts.engine.runtime.now_ns)


# --- what waits to come in ------------------------------------------------------------------------------


def save_ingress(parts: Parts) -> dict[str, Any]:
    cycle = parts.cycle
    return {**cycle.ingress.save(parts.engine.runtime.callbacks), **cycle.admission.journal.save()}


def restore_ingress(parts: Parts, data: Any, shift: Shift) -> None:
    cycle, runtime = parts.cycle, parts.engine.runtime
    cycle.ingress.restore(data, shift, runtime.callbacks, runtime.config.caps)
    cycle.admission.journal.restore(data, shift, parts.engine.ledger)


# --- what waits to go out -------------------------------------------------------------------------------


def save_outbound(parts: Parts) -> dict[str, Any]:
    outbound = parts.cycle.outbound
    durable = outbound.durable
    found: dict[str, Any] = {"units": [dump_unit(unit) for unit in outbound.units]}
    if durable is not None:
        found["waiting"] = [dump_unit(unit) for unit in durable.waiting]
        found["writing"] = [
            [token, w.record.to_bytes(), w.is_request, w.retry_ns] for token, w in durable.writing.items()
        ]
        found["next_token"] = durable.next_token
    return found


def restore_outbound(parts: Parts, data: Any, shift: Shift) -> None:
    outbound = parts.cycle.outbound
    outbound.units.extend(load_unit(row, shift) for row in data["units"])
    durable = outbound.durable
    if durable is None or "writing" not in data:  # written down by a node that kept nothing
        return
    durable.waiting.extend(load_unit(row, shift) for row in data["waiting"])
    for token, record, is_request, retry_ns in data["writing"]:
        durable.write_again(token, Writing(OutboxRecord.from_bytes(record), is_request, retry_ns))
    durable.next_token = data["next_token"]


# --- control plane --------------------------------------------------------------------------------------


def save_control(parts: Parts) -> list[Any]:
    control = parts.engine.control
    rows = []
    for number, call in control.calls.items():
        own = getattr(call.done, "__self__", None) is call.outlet.component
        method = call.done.__name__ if own else ""
        rows.append([number, call.peer.to_bytes(), call.outlet.name, call.op, method, call.timer])
    return rows


def restore_control(parts: Parts, data: Any, shift: Shift) -> None:
    """Calls whose callback is a method of the component go on; of others nobody hears any more."""
    for number, peer, slot, op, method, timer in data:
        parts.engine.control.revive(number, PeerId.from_bytes(peer), slot, op, method, timer)


# --- timers ---------------------------------------------------------------------------------------------


def save_timers(parts: Parts) -> list[Any]:
    """Those whose callback has a name. The others are components' own callables, gone with the process."""
    engine = parts.engine
    rows = []
    for timer in engine.runtime.timers.running():
        name = engine.runtime.callbacks.name_of(timer.due.callback)
        if name is None:
            continue
        args = timer.due.args
        plain = [dump_unit(args[0])] if args and isinstance(args[0], Unit) else dump(args)
        rows.append([timer.token, timer.when_ns, name, plain])
    return [engine.runtime.timers.next_token, rows]


def restore_timers(parts: Parts, data: Any, shift: Shift) -> None:
    engine = parts.engine
    next_token, rows = data
    timers = []
    for token, when_ns, name, plain in rows:
        if name == PUT_OFF:
            args: tuple[Any, ...] = (load_unit(plain[0], shift),)
        else:
            args = load(plain)
        if name == INTERVAL:
            args = (*args[:2], args[2] + shift.delta_ns)
        timers.append(Timer(token, when_ns + shift.delta_ns, Due(engine.runtime.callbacks.get(name), args)))
    engine.runtime.timers.restore(timers, next_token)
