"""The programs that are simulated: compiled once by the real compiler, shared by all nodes of all worlds."""

from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bb_edge import load
from bb_edge.engine.program.program import Program
from bb_edge.registry import default_registry

AIDS = str(Path(__file__).resolve().parents[2] / "aids")
if AIDS not in sys.path:
    sys.path.append(AIDS)

from compiled_programs import compiled_once  # noqa: E402

from simulated.flaky import Flaky  # noqa: E402

if Flaky.TYPE_NAME not in default_registry().type_names():
    default_registry().register(Flaky)

Programs = dict[str, Program]

OWN, LISTED, LISTS, UNLISTED, OTHER = "own", "listed", "lists", "unlisted", "other"
EDITIONS = (OWN, LISTED, LISTS, UNLISTED, OTHER)
"""Versions of one program: `OWN` lists `LISTED`, `LISTS` lists `OWN`, nobody lists `UNLISTED`, and in `OTHER`
other things travel."""
TALKING = frozenset({frozenset((OWN, LISTED)), frozenset((OWN, LISTS))})
"""Pairs of them that talk."""


def _compiled(kind: str, *options: int | bool | str | None) -> Programs:
    """The programs of `authored.<kind>(*options)`."""

    def make() -> dict[str, bytes]:
        from simulated import authored

        made: dict[str, bytes] = getattr(authored, kind)(*options)
        return made

    name = "-".join(["simulated", kind, *map(str, options)])
    return {target: load(data) for target, data in compiled_once(name, make).items()}


@functools.cache
def federation(
    clients: int, rounds: int, reports: int, durable: bool, enough: int | None, every_ms: int
) -> Programs:
    return _compiled("federation", clients, rounds, reports, durable, enough, every_ms)


@functools.cache
def gossip(told: int, reports: int, durable: bool) -> Programs:
    return _compiled("gossip", told, reports, durable)


@functools.cache
def nested(relays: int, leaves: int, rounds: int, durable: bool, inner_s: int) -> Programs:
    return _compiled("nested", relays, leaves, rounds, durable, inner_s)


@functools.cache
def editions(kind: str, *options: int | bool | None) -> Programs:
    """By edition, the program of `authored.<kind>(*options)` with all its targets."""
    return _compiled("editions", kind, *options)


@functools.cache
def contribution(number: int) -> NDArray[np.float32]:
    """What a client contributes, before it is multiplied by the round.

    A power of two, so that a sum tells who is in it; then numbers that have no short binary form.
    """
    return np.array([[2.0**number, 0.1 * (number + 1), 1 / (number + 3)]], np.float32)


@functools.cache
def shard_path(number: int) -> str:
    """The data file of a client."""
    folder = Path(tempfile.mkdtemp(prefix="bb-simulated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    np.savez(folder / "shard.npz", x=contribution(number), y=np.zeros(1, np.int64))
    return str(folder / "shard.npz")
