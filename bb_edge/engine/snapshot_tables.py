"""The parts of a snapshot that are tables: counters, components, peers, links, queues, timers, ops' state."""

from __future__ import annotations

from typing import Any

from bb_edge.engine.net.units import Unit
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.snapshot_parts import Parts
from bb_edge.engine.timers import Due, Timer

INTERVAL, PUT_OFF = "interval.tick", "reply.put_off"
"""Actions whose arguments are no plain values."""


# --- peers and links ------------------------------------------------------------------------------------


def save_neighbours(parts: Parts) -> dict[str, Any]:
    return {**parts.cycle.peers.save(), "noticed": parts.cycle.admission.save()}


def restore_neighbours(parts: Parts, data: Any, shift: Shift) -> None:
    parts.cycle.peers.restore(data, shift)
    parts.cycle.admission.restore(data["noticed"], shift)


# --- what waits to come in ------------------------------------------------------------------------------


def save_ingress(parts: Parts) -> dict[str, Any]:
    cycle = parts.cycle
    return {**cycle.ingress.save(parts.engine.runtime.callbacks), **cycle.admission.journal.save()}


def restore_ingress(parts: Parts, data: Any, shift: Shift) -> None:
    cycle, runtime = parts.cycle, parts.engine.runtime
    cycle.ingress.restore(data, shift, runtime.callbacks, runtime.config.caps)
    cycle.admission.restore_journal(data, shift)


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
