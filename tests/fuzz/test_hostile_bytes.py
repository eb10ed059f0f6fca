"""Whatever bytes come from outside: typed errors only, bounded time and memory. By hand: `./dev fuzz`."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from hostile import campaign, mutations, programs, subjects
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir.errors import BBError
from bb_edge.wire import cbor, envelope
from bb_edge.wire.caps import EDGE_CAPS

CORPUS = Path(__file__).parent / "corpus"
SCALE = float(os.environ.get("BB_FUZZ_SCALE", "1"))
COUNTS = {"artifacts": 512, "portable": 256, "disk": 512, "nodes": 4096, "models": 2048, "tflite": 640}
ALL = [(kind, n) for kind, several in subjects.KINDS.items() for n in range(len(several))]


@pytest.mark.parametrize(("kind", "number"), ALL)
def test_typed_errors_and_nothing_else(kind: str, number: int) -> None:
    try:
        subject = subjects.KINDS[kind][number]()
    except campaign.Absent as reason:
        pytest.skip(str(reason))
    try:
        result = campaign.run(subject, int(SCALE * COUNTS.get(kind, 6000)))
        assert not result.crashes, [(c.what, c.data[:200]) for c in result.crashes[:3]]
        assert result.taken, "some mutations pass: they reach what lies behind the first check"
        for path in sorted((CORPUS / subject.name).glob("*")):
            campaign.one(subject, path.read_bytes(), result)
            assert not result.crashes, (path.name, result.crashes[0].what)
    finally:
        subject.close()


def test_a_failure_is_found() -> None:
    """The campaign sees what raises something else, what takes long, and what takes memory."""

    def read(data: bytes) -> object:
        if data[:1] == b"m":
            return bytes(1 << 20)
        raise {b"k": KeyError, b"b": BBError}.get(data[:1], BBError)("x")

    def same(data: bytes, seeds: object, rng: Random) -> bytes:
        return data

    for seed, found in ((b"k", True), (b"b", False), (b"m", True)):
        subject = campaign.Subject("itself", [seed], (same,), read, lambda n: 1 << 16)
        assert bool(campaign.run(subject, 10).crashes) is found, seed


def test_the_same_seed_makes_the_same_inputs() -> None:
    def inputs() -> list[bytes]:
        subject, rng = subjects.envelopes(), Random(4)
        return [subject.make(rng) for _ in range(50)]

    assert inputs() == inputs()


def test_a_deadline_at_the_end_of_time_stays_within_64_bits() -> None:
    """A request that may be answered for ever: its durable answer and the node can still be written down."""
    asked = next(data for _, to, data in programs.traffic() if to != "server")
    hostile = subjects.Hostile("Client", True)
    hostile.left = 1 << 10
    before = hostile.node.counters["outbound.persisting"]
    hostile.read(asked + b"\x20" + mutations.varint(2**64 - 1))
    hostile.poll()
    hostile.poll()
    hostile.check()
    assert hostile.node.counters["outbound.persisting"] == before + 1


@given(st.binary(max_size=300))
def test_any_bytes_as_an_envelope(data: bytes) -> None:
    try:
        found = envelope.decode(data, EDGE_CAPS)
    except BBError:
        return
    assert envelope.decode(envelope.encode(found), EDGE_CAPS) == found


@given(st.binary(max_size=300))
def test_any_bytes_as_cbor(data: bytes) -> None:
    try:
        found = cbor.loads(data)
    except BBError:
        return
    assert cbor.dumps(cbor.loads(cbor.dumps(found))) == cbor.dumps(found)


@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_mutations_give_bytes(data: bytes, rng: Random) -> None:
    for mutate in (mutations.blind, mutations.protobuf):
        assert isinstance(mutate(data, (data, b"other"), rng), bytes)
