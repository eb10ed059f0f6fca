"""The parts of a snapshot that are tables: counters, components, peers, links, queues, timers, ops' state."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.net.durable import Writing
from bb_edge.engine.net.outgoing import Unit
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.snapshot_parts import Parts, dump_unit, load_unit
from bb_edge.engine.timers import Due, Timer
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.roles import forgets
from bb_edge.roles.component import Component
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import ComponentStateError
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.envelope import RttReport
from bb_edge.wire.outbox import OutboxRecord

INTERVAL, PUT_OFF = "interval.tick", "reply.put_off"
"""Actions whose arguments are no plain values."""


# --- counters, randomness, events -----------------------------------------------------------------------


def save_core(parts: Parts) -> dict[str, Any]:
    engine = parts.engine
    generators = [dump(ctx.generator_state) for ctx in parts.contexts]
    return {
        "counters": dict(engine.runtime.counters),
        "depth_peak": engine.depth_peak,
        "next_command": engine.next_command,
        "rng": _random_state(engine.runtime.rng),
        "ids": _random_state(engine.runtime.ids) if engine.runtime.ids_go_on else None,
        "generators": generators,
        "bus": [engine.runtime.bus.dropped, list(engine.runtime.bus.events)],
        "rings": parts.states.save_rings(),
    }


def restore_core(parts: Parts, data: Any, shift: Shift) -> None:
    engine = parts.engine
    engine.runtime.counters = {str(name): int(value) for name, value in data["counters"].items()}
    engine.depth_peak = data["depth_peak"]
    engine.next_command = data["next_command"]
    _set_random_state(engine.runtime.rng, data["rng"])
    # Those of a real node come from fresh entropy at each start, and are in no snapshot.
    if engine.runtime.ids_go_on and data.get("ids") is not None:
        _set_random_state(engine.runtime.ids, data["ids"])
    for ctx, state in zip(parts.contexts, data["generators"], strict=True):
        ctx.generator_state = load(state)
    engine.runtime.bus.dropped = data["bus"][0]
    engine.runtime.bus.events.extend(data["bus"][1])
    parts.states.restore_rings(data["rings"])


def _random_state(generator: Random) -> list[Any]:
    version, words, gauss = generator.getstate()
    return [version, struct.pack(f">{len(words)}I", *words), gauss]


def _set_random_state(generator: Random, data: Any) -> None:
    version, words, gauss = data
    generator.setstate((version, struct.unpack(f">{len(words) // 4}I", words), gauss))


def save_components(parts: Parts) -> list[Any]:
    return [[c.TYPE_NAME, _serialized(parts, c)] for c in parts.engine.components]


def _serialized(parts: Parts, component: Component) -> bytes:
    """ComponentStateError, with the slot, for whatever `serialize` raises, and where it gives no bytes: then
    there is no snapshot.
    """
    try:
        state: object = component.serialize()
    # The border to users' components: the node goes on, and tries again later.
    except BaseException as error:
        raise _state_error(parts, component, "serialize", contained(error)) from error
    if isinstance(state, bytes | bytearray | memoryview):
        return bytes(state)
    raise ComponentStateError(
        f"{component.TYPE_NAME}.serialize gives a {type(state).__name__}, bytes are expected",
        f"slot {_slot_of(parts, component)!r}",
        "return pack_state(self, version, {…}), or b'' where there is nothing to keep",
    )


def _slot_of(parts: Parts, component: Component) -> str:
    engine = parts.engine
    return next(s for (_, s), i in engine.components.slots.items() if engine.components[i] is component)


def _state_error(parts: Parts, component: Component, method: str, error: Exception) -> ComponentStateError:
    """What one of the two methods raised, with the slot, the type, and the line of the component."""
    from bb_edge.ir.fault_lines import fault_line  # only errors need it

    if isinstance(error, BBError):
        said = (
            error.what
            if isinstance(error, ComponentStateError) or not error.where
            else f"{error.where}: {error.what}"
        )
    else:
        said = steps.failure_text(error)
    line = fault_line(error)
    what = f"{component.TYPE_NAME}.{method}: {said}" + (f", at {line}" if line and line not in said else "")
    hint = error.hint if isinstance(error, BBError) and error.hint else "mend the component"
    return ComponentStateError(what, f"slot {_slot_of(parts, component)!r}", hint)


def restore_components(parts: Parts, data: Any, shift: Shift) -> None:
    for component, (name, state) in zip(parts.engine.components, data, strict=True):
        if name != component.TYPE_NAME:
            raise ValueError(f"the state of a {name} for a {component.TYPE_NAME}")
        forgotten = not state and forgets(type(component))
        try:
            component.restore(state)
        except BaseException as error:
            if state:
                raise _state_error(parts, component, "restore", contained(error)) from error
            contained(error)
            # Nothing was written: by a class that kept no state then. It starts anew, as it was constructed.
            forgotten = True
        if forgotten:
            parts.engine.runtime.emit(steps.StateForgotten(_slot_of(parts, component), name))


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
