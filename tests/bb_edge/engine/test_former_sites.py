"""Which envelopes of an old program a new one would send as well, and what is said of each part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge.engine.net.former_records import Part
from bb_edge.engine.net.former_sites import Site, many, parts_of, sites_of, values_of
from bb_edge.ir.address import Address, site_suffix
from bb_edge.ir.ids import site_id
from bb_edge.ir.tensors import encode_tensor
from bb_edge.loading import load
from bb_edge.wire.envelope import NONE, REQUEST, RESPONSE, Envelope, Fill

F32, I32 = 0x101, 0x105
A, B, C, D = (site_suffix(number) for number in (0xA1, 0xB1, 0xC1, 0xD1))


def site(*together: bytes, **fields: Any) -> Site:
    given = {"kind": NONE, "name": "report", "type_hash": F32, "trigger_only": False, "codecs": (), **fields}
    return Site(together=together, **given)


def fill(suffix: bytes, type_hash: int = F32, **fields: bool) -> Fill:
    return Fill(suffix, b"", type_hash=type_hash, **fields)


SITES = {
    A: site(A),
    B: site(B, C, name="pair"),
    C: site(B, C, name="pair", type_hash=I32),
    D: site(D, kind=REQUEST, name="ask", type_hash=0, codecs=("first", "second")),
}


def said(message: Envelope, **codecs: str) -> list[tuple[str, str]]:
    return [(part.what, part.why) for part in parts_of(message, SITES, codecs)]


def test_each_op_of_an_envelope_is_a_part_of_its_own_with_its_fills() -> None:
    fills = [fill(A), fill(B), fill(C, I32)]
    assert parts_of(Envelope(fills, NONE), SITES, {}) == [
        Part("a send 'report'", "", (fills[0],)),
        Part("a send 'pair'", "", (fills[1], fills[2])),
    ]


@pytest.mark.parametrize(
    ("sent", "taken", "why"),
    [
        ((), (), ""),
        ((1,), (1,), ""),
        ((3, 4), (-1, 4), ""),
        ((0,), (1,), ""),  # an empty vector stands for nothing
        ((1,), (), "it was sent with shape [1], this program sends []"),
        ((), (1,), "it was sent with shape [], this program sends [1]"),
        ((3, 4), (-1, 5), "it was sent with shape [3,4], this program sends [?,5]"),
        ((3, 4), None, ""),
    ],
)
def test_a_value_of_another_shape_is_another_value(
    sent: tuple[int, ...], taken: tuple[int, ...] | None, why: str
) -> None:
    """Its receiver would acknowledge it, and throw it away."""
    sites = {A: site(A, shape=taken)}
    value = Fill(A, encode_tensor(np.zeros(sent, np.float32)), type_hash=F32)
    (part,) = parts_of(Envelope([value], NONE), sites, {})
    assert part.why == why
    trigger = Fill(A, b"", trigger_only=True)
    (part,) = parts_of(
        Envelope([trigger], NONE), {A: site(A, shape=taken, trigger_only=True, type_hash=0)}, {}
    )
    assert not part.why


@pytest.mark.parametrize(
    ("was", "now", "same"),
    [
        ("x at", "x at", True),
        ("x at", "at x", False),
        ("x at", "at wet", False),
        ("x at", "wet x", False),
        ("x -", "- x", False),
        ("x at", "x wet", True),  # the slot has another name, say
        ("x at", "x -", True),
        ("x -", "wet -", True),
        ("x x", "x x", True),
        ("x x", "x at", False),
        ("- -", "x at", True),  # an older runtime did not tell
        ("x at", "- -", True),
    ],
)
def test_values_in_another_order_are_another_report(was: str, now: str, same: bool) -> None:
    """Values of no declared type, and two readings of one type, are the same to everybody else."""
    old, new = ([name.strip("-") for name in text.split()] for text in (was, now))
    sites = {
        place: site(B, C, type_hash=0, value=value, was=before)
        for place, value, before in zip((B, C), new, old, strict=True)
    }
    (part,) = parts_of(Envelope([fill(B), fill(C)], NONE), sites, {})
    assert part.why == ("" if same else "this program sends its values in another order")


def test_what_components_give_of_what_is_sent_durably_is_named(compile_text) -> None:
    text = """
program Demo {module=Demo, binding.T.data="data_source|bb.ArrayDataSource|1"}
function program.T() -> () {entry=1, partition=T}
  slot data: data_source
  x: Tensor, y: Tensor = role.data_loader.NextBatch() {slot=data}
  w: Tensor, to: PeerIdVec = wire.Recv() {wire.wire_id=3, wire.site_ids=e1}
  z: Tensor = Neg(x)
  h: Trigger = wire.Send(x, z, y, to) {wire.wire_id=1, wire.site_ids="a1,b1,c1", durable=1}
  i: Trigger = wire.Send(y, to) {wire.wire_id=2, wire.site_ids=d1}
"""
    program = load(compile_text(text))
    (graph,) = [program.graphs[target.main] for target in program.targets.values()]
    named = {A: "data.NextBatch.0", C: "data.NextBatch.1"}
    assert values_of(graph.ops) == named
    assert next(op for op in graph.ops if op.op_type == "NextBatch").outputs[0] == 0, "a site like any other"
    found = sites_of(program, program.targets.values(), {A: "data.NextBatch.1", D: "gone"})
    assert {suffix: (one.value, one.was) for suffix, one in found.items()} == {
        A: (named[A], named[C]),
        B: ("", ""),
        C: (named[C], ""),
        D: (named[C], "gone"),
    }


def test_a_part_that_does_not_fit_leaves_the_others() -> None:
    assert said(Envelope([fill(C, F32), fill(B, I32), fill(A)], NONE)) == [
        ("a send 'pair'", "it was sent as Tensor<F32>, this program sends Tensor<I32>"),  # the first of them
        ("a send 'report'", ""),
    ]
    assert said(Envelope([fill(B, I32), fill(C, I32)], NONE)) == [
        ("a send 'pair'", "it was sent as Tensor<I32>, this program sends Tensor<F32>")
    ]


def test_values_that_go_together_are_sent_together() -> None:
    assert said(Envelope([fill(B)], NONE)) == [
        ("a send 'pair'", "this program sends 2 values together there")
    ]


def test_a_report_that_had_more_values_is_taken_whole_or_not_at_all() -> None:
    """Its first values alone would arrive as another report, one in the place of another."""
    old = [site_suffix(site_id("Farm", "report", "ask", index)) for index in range(3)]
    gone = site_suffix(site_id("Farm", "other", "ask", 0))
    sites = {A: site(A), **dict.fromkeys(old[:2], site(*old[:2], name="report"))}
    fills = [fill(gone), fill(A), *map(fill, old)]
    assert parts_of(Envelope(fills, NONE), sites, {}) == [
        Part("a send 'report'", "", (fills[1],)),
        Part(
            "a send 'report'",
            "it was sent with 3 values, this program sends 2 values there",
            tuple(fills[2:]),
        ),
        Part(f"a send of 1 value ({Address.from_bytes(gone)})", GONE, (fills[0],)),
    ]


GONE = (
    "this program has no such port: keep its name, or run the old program until bb-edge outbox lists nothing"
)


def test_what_goes_to_sites_that_nobody_sends_to_is_one_part_named_by_the_first_of_them() -> None:
    fills = [fill(site_suffix(5)), fill(A), fill(site_suffix(6))]
    assert parts_of(Envelope(fills, NONE), SITES, {}) == [
        Part("a send 'report'", "", (fills[1],)),
        Part("a send of 2 values (/site/5)", GONE, (fills[0], fills[2])),
    ]
    assert said(Envelope([fill(site_suffix(5))], NONE)) == [("a send of 1 value (/site/5)", GONE)]


def test_kinds_are_told_apart() -> None:
    assert said(Envelope([fill(A)], RESPONSE)) == [("a reply 'report'", "a send goes there here")]
    assert said(Envelope([fill(D)], NONE)) == [("a send 'ask'", "a request goes there here")]
    assert said(Envelope([fill(D)], REQUEST)) == [("a request 'ask'", "")]
    assert said(Envelope([], REQUEST)) == [("a request", "")]
    assert parts_of(Envelope([], RESPONSE), {}, {}) == [Part("a reply", "", ())]
    assert said(Envelope([fill(A)], 9))[0][0] == "an envelope 'report'"


def test_types_are_named_and_a_trigger_is_none() -> None:
    ways = {
        (0x999, False): "it was sent as type 0x999, this program sends Tensor<F32>",
        (0, True): "it was sent as a trigger, this program sends Tensor<F32>",
    }
    for (type_hash, trigger), why in ways.items():
        assert said(Envelope([fill(A, type_hash, trigger_only=trigger)], NONE)) == [("a send 'report'", why)]
    triggers = {A: site(A, type_hash=0, trigger_only=True)}
    assert parts_of(Envelope([fill(A)], NONE), triggers, {})[0].why == (
        "it was sent as Tensor<F32>, this program sends a trigger"
    )
    assert parts_of(Envelope([fill(A, 0, trigger_only=True)], NONE), triggers, {})[0].why == ""
    # Of a site that takes any type nothing is compared.
    assert parts_of(Envelope([fill(A, 0x999)], NONE), {A: site(A, type_hash=0)}, {})[0].why == ""


def test_the_first_codec_that_reads_otherwise_is_the_reason() -> None:
    ask = Envelope([fill(D)], REQUEST)
    assert said(ask, other="no") == [("a request 'ask'", "")]
    assert said(ask, second="it was coded by a Two") == [("a request 'ask'", "it was coded by a Two")]
    assert said(ask, second="Two", first="One") == [("a request 'ask'", "One")]


def test_one_is_no_plural() -> None:
    assert (many(1, "record"), many(0, "record"), many(2, "record")) == ("1 record", "0 records", "2 records")


PAIR = 'wire.wire_id=1, wire.site_ids="a1,b1", port=pair'
SENDS = """
program Demo {module=Demo, binding.T.one="codec|bb.Float16Codec|1", binding.T.two="codec|bb.Float16Codec|2"}
function program.T(x: F32[1], y: F32[1], to: PeerIdVec, go: Trigger) -> () {entry=1, partition=T}
  slot one: codec
  slot two: codec
  a: Tensor = role.compressor.Compress(x) {slot=one}
  b: Tensor = role.compressor.Compress(y) {slot=two}
  both: Composite = wire.Bundle(a, x, b)
  some: PeerIdVec = gate.PeerHealthGateTx(to)
  h: Trigger = wire.Send(both, b, some) {PAIR, wire.type_hashes="0,101"}
  i: Trigger = wire.Send(x, some) {wire.wire_id=2, wire.site_ids=c1}
  j: Trigger = wire.Send(go, some) {wire.wire_id=3, wire.site_ids=d1, wire_transport=trigger_only, port=go}
""".replace("PAIR", PAIR)


def test_the_sites_of_a_program(compile_text) -> None:
    program = load(compile_text(SENDS))
    found = sites_of(program, program.targets.values())
    codecs = {suffix: set(one.codecs) for suffix, one in found.items()}
    assert codecs == {A: {"one", "two"}, B: {"two"}, C: set(), D: set()}
    assert all(len(one.codecs) == len(codecs[suffix]) for suffix, one in found.items())
    names = {one.name for suffix, one in found.items() if suffix == C}
    assert {suffix: one.value for suffix, one in found.items()} == {A: "", B: "two.Compress.0", C: "", D: ""}
    assert {suffix: one._replace(codecs=(), value="") for suffix, one in found.items()} == {
        A: site(A, B, name="pair", type_hash=0),
        B: site(A, B, name="pair"),
        C: site(C, name=names.pop(), type_hash=0),  # the op's own name
        D: site(D, name="go", type_hash=0, trigger_only=True),
    }


def test_values_behind_gates_and_of_nobody(compile_text) -> None:
    text = """
program Demo {module=Demo, binding.T.one="codec|bb.Float16Codec|1"}
function program.T() -> () {entry=1, partition=T}
  slot one: codec
  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {wire.wire_id=1, wire.site_ids=e1}
  a: Tensor = role.compressor.Compress(x) {slot=one}
  b: Tensor, t: PeerIdVec = gate.DedupGateRx(a, s)
  c: Tensor, u: PeerIdVec = gate.PeerHealthGateRx(b, t)
  twice: Composite = wire.Bundle(c, c)
  k: Trigger = wire.SendResp(twice, s, r) {wire.wire_id=2, wire.request=1, wire.site_ids=a1}
"""
    program = load(compile_text(text))
    found = sites_of(program, program.targets.values())
    assert list(found) == [A]  # what it receives is not sent
    assert (found[A].kind, found[A].codecs) == (RESPONSE, ("one",))


@pytest.mark.parametrize("targets", [0, 1])
def test_only_sites_of_the_given_targets_count(compile_text, targets: int) -> None:
    program = load(compile_text(SENDS))
    assert bool(sites_of(program, list(program.targets.values())[:targets])) is bool(targets)


def test_a_send_without_a_port_has_its_own_name_and_values_without_a_type_take_any(compile_text) -> None:
    text = """
program Demo {module=Demo}
function program.T(x: F32[1], to: PeerIdVec) -> () {entry=1, partition=T}
  h: Trigger = wire.Send(x, to) {STAMPS}
""".replace(
        "STAMPS", 'wire.wire_id=1, wire.site_ids="a1,b1,c1", wire.type_hashes="101,105", shapes="*;[?,2]"'
    )
    program = load(compile_text(text))
    found = sites_of(program, program.targets.values())
    (op,) = [op for graph in program.graphs.values() for op in graph.ops if op.op_type == "Send"]
    assert {one.name for one in found.values()} == {op.name} and op.name
    assert [found[suffix].type_hash for suffix in (A, B, C)] == [F32, I32, 0]
    assert [found[suffix].shape for suffix in (A, B, C)] == [None, (-1, 2), None]
    assert [found[suffix].codecs for suffix in (A, B, C)] == [(), (), ()], "the third is not an input"
