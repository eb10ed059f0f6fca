"""What reads the files of programs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bb_edge import install, load
from bb_edge.backends.stored_plan import decode as decode_plan
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.onnx_reader import read_model

from . import mutations, programs
from .campaign import Subject

KIB, MIB = 1 << 10, 1 << 20
SMALL = 64 * KIB
PEER = programs.peer("somebody")


def seeds_of_programs() -> list[bytes]:
    """Without their digests, behind which no mutation would get."""
    return [programs.unsealed(data) for data in (*programs.artifacts().values(), programs.net())]


def sealed() -> Subject:
    """Artifacts as they are shipped: none that differs is taken."""
    seeds = [data for target, data in programs.artifacts().items() if target]
    change = (mutations.protobuf, mutations.blind, _same)
    return Subject("sealed artifacts", seeds, change, loaded, lambda n: 96 * n + 16 * MIB)


def _same(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
    return data


def loaded(data: bytes) -> object:
    """What an operator does with a file: `load`, then `install` of all targets."""
    program = load(data)
    config = NodeConfig(max_executions=1, max_children=1, ingress_entries=16)
    return install(PEER, (), program, list(program.targets), config, seed=1)


def artifacts() -> Subject:
    seeds = seeds_of_programs()
    change = (mutations.protobuf, mutations.protobuf, mutations.blind)
    return Subject("artifacts", [*seeds[1:], *seeds[-1:] * 4], change, loaded, lambda n: 96 * n + 16 * MIB)


def portable() -> Subject:
    seeds = seeds_of_programs()[:1]
    change = (mutations.protobuf, mutations.protobuf, mutations.blind)
    return Subject("portable artifacts", seeds, change, loaded, lambda n: 96 * n + 16 * MIB)


def models() -> Subject:
    """The reader of models that needs no protobuf."""
    seeds = seeds_of_programs()
    change = (mutations.protobuf, mutations.blind)
    return Subject("model reader", seeds, change, read_model, lambda n: 256 * n + 2 * MIB)


def plans() -> Subject:
    """Memory plans, half of them with a checksum that is right."""
    from bb_edge.backends.stored_plan import _checksum
    from bb_edge.ir import keys

    model = read_model(programs.net())
    texts = [p.value for f in model.functions for p in f.metadata_props if p.key == keys.MEMORY_PLAN_KEY]
    assert texts, "a program with a memory plan"

    def sealed(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
        text = mutations.blind(data, seeds, rng).decode("latin-1")
        parts = text.split("|", 3)
        if len(parts) == 4:
            parts[2] = _checksum(parts[1], parts[3])
        return "|".join(parts).encode("latin-1")

    def digits(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
        parts = data.decode("latin-1").split("|", 3)
        body = list(parts[3])
        body[int(rng.random() * len(body))] = rng.choice("0123456789,:;|x[]- ")
        return "|".join([*parts[:2], _checksum(parts[1], "".join(body)), "".join(body)]).encode("latin-1")

    return Subject(
        "memory plans",
        [t.encode() for t in texts],
        (mutations.blind, sealed, digits),
        lambda d: decode_plan(d.decode("latin-1")),
        lambda n: 256 * n + SMALL,
    )
