"""The parts of a snapshot that are tables: counters, components, peers, links, queues, timers, ops' state."""

from __future__ import annotations

from typing import Any

from bb_edge.engine.net.units import Unit
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.snapshot_parts import Parts
from bb_edge.engine.timers import Due, Timer
from bb_edge.ir.ids import PeerId

INTERVAL, PUT_OFF = "interval.tick", "reply.put_off"
"""Actions whose arguments are no plain values."""


# --- peers and links ------------------------------------------------------------------------------------


def save_neighbours(parts: Parts) -> dict[str, Any]:
    return {**parts.cycle.peers.save(), "noticed": parts.cycle.admission.save()}


def restore_neighbours(parts: Parts, data: Any, shift: Shift) -> None:
    parts.cycle.peers.restore(data, shift)
    parts.cycle.admission.restore(data["noticed"], shift)


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
    cycle.admission.restore_journal(data, shift)


# --- what waits to go out -------------------------------------------------------------------------------


def save_outbound(parts: Parts) -> dict[str, Any]:
    return parts.cycle.outgoing.save()


def restore_outbound(parts: Parts, data: Any, shift: Shift) -> None:
    parts.cycle.outgoing.restore(data, shift)


# --- control plane --------------------------------------------------------------------------------------


def save_control(parts: Parts) -> list[Any]:
    control = parts.cycle.control
    rows = []
    for number, call in control.calls.items():
        own = getattr(call.done, "__self__", None) is call.outlet.component
        method = call.done.__name__ if own else ""
        rows.append([number, call.peer.to_bytes(), call.outlet.name, call.op, method, call.timer])
    return rows


def restore_control(parts: Parts, data: Any, shift: Shift) -> None:
    """Calls whose callback is a method of the component go on; of others nobody hears any more."""
    for number, peer, slot, op, method, timer in data:
        parts.cycle.control.revive(number, PeerId.from_bytes(peer), slot, op, method, timer)


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
        plain = [args[0].save()] if args and isinstance(args[0], Unit) else dump(args)
        rows.append([timer.token, timer.when_ns, name, plain])
    return [engine.runtime.timers.next_token, rows]


def restore_timers(parts: Parts, data: Any, shift: Shift) -> None:
    engine = parts.engine
    next_token, rows = data
    timers = []
    for token, when_ns, name, plain in rows:
        if name == PUT_OFF:
            args: tuple[Any, ...] = (Unit.restored(plain[0], shift),)
        else:
            args = load(plain)
        if name == INTERVAL:
            args = (*args[:2], args[2] + shift.delta_ns)
        timers.append(Timer(token, when_ns + shift.delta_ns, Due(engine.runtime.callbacks.get(name), args)))
    engine.runtime.timers.restore(timers, next_token)
