"""What is asked of an envelope before it is taken: each check of the table refuses something."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from arrays import f32

from bb_edge.engine.config import NodeConfig
from bb_edge.engine.net import admission
from bb_edge.engine.net.admission import CHECKS, kind_of
from bb_edge.engine.net.arrivals import Kind
from bb_edge.engine.net.back_pressure import BACKOFF_OP
from bb_edge.engine.steps import IngressDropped, Journal
from bb_edge.installer import install
from bb_edge.ir.address import Address, site_suffix
from bb_edge.ir.ids import PeerId
from bb_edge.node import Node
from bb_edge.wire import cbor, envelope
from bb_edge.wire.codecs import encode_value
from bb_edge.wire.envelope import NONE, RESPONSE, Envelope, Fill
from bb_edge.wire.programs import ProgramClaim

A, B = PeerId.from_name("a"), PeerId.from_name("b")
PROGRAM = """
program Demo {module=Demo, program="0123456789abcdef0123456789abcdef"}
function program.Main() -> () {entry=1, partition=Main}
  x: U64, s: PeerIdVec = wire.Recv() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=1}
  syscall.AppEmit<name="s">(s)
"""
PATIENCE = cbor.dumps({"min_backoff_ns": 1})
TO_A_SITE = Fill(site_suffix(0xA1), b"\x01", False, 1)
TO_THE_ENGINE = Fill(
    Address.empty().with_component(0, BACKOFF_OP).to_bytes(),
    encode_value(PATIENCE)[1],
    False,
    encode_value(PATIENCE)[0],
)
TO_A_COMPONENT = Fill(Address.empty().with_component(7, "Join").to_bytes(), b"", True)


def sent(fill: Fill, seq: int, kind: int = NONE) -> bytes:
    return envelope.encode(Envelope([fill], kind, wire_req_id=9 if kind else 0, epoch=5, seq=seq))


def repeated(fill: Fill, kind: int = NONE) -> Callable[[Node], list[bytes]]:
    """The same envelope twice."""
    return lambda node: [sent(fill, 1, kind)] * 2


def of_a_blocked_peer(fill: Fill) -> Callable[[Node], list[bytes]]:
    def given(node: Node) -> list[bytes]:
        node._parts.peers.back_pressure.block(A)
        return [sent(fill, 1)]

    return given


def of_a_stranger(fill: Fill) -> Callable[[Node], list[bytes]]:
    """Of a peer whose program is another than the node's."""

    def given(node: Node) -> list[bytes]:
        node.peer_presence(A, True, (), ProgramClaim(b"x" * 32).meta(), epoch=5, classes=("Main",))
        node.poll(1)
        return [sent(fill, 1)]

    return given


# Which check, by kind and place in the table; what arrives; the counter that says that it refused that.
REFUSED = {
    (Kind.ENTRY, 0): (of_a_blocked_peer(TO_A_SITE), "ingress.blocked"),
    (Kind.ENTRY, 1): (repeated(TO_A_SITE), "ingress.duplicates"),
    (Kind.ENTRY, 2): (of_a_stranger(TO_A_SITE), "ingress.other_program"),
    (Kind.ENTRY, 3): (lambda node: [sent(TO_A_SITE, seq) for seq in (1, 2, 3)], "ingress.full"),
    (Kind.CONTROL, 0): (repeated(TO_THE_ENGINE), "ingress.duplicates"),
    (Kind.CONTROL, 1): (of_a_stranger(TO_THE_ENGINE), "ingress.other_program"),
    (Kind.CONTROL, 2): (of_a_blocked_peer(TO_A_COMPONENT), "ingress.blocked"),
    (Kind.ANSWER, 0): (repeated(TO_A_SITE, RESPONSE), "ingress.duplicates"),
}


def counted(compile_text: Callable[[str], bytes], case: tuple[Kind, int]) -> int:
    """How often the check of a case refuses what arrives; all bytes are given back afterwards."""
    config = NodeConfig(ingress_entries=2, answer_entries=16)
    node = install(PeerId.from_name("me"), (), compile_text(PROGRAM), ["Main"], config, seed=1)
    node.poll(1)
    arrive, counter = REFUSED[case]
    for data in arrive(node):
        node.deliver_inbound(data, A)
    node.poll(2)
    assert node.counters["ingress.bytes"] == 0
    return node.counters.get(counter, 0)


def test_every_check_has_a_case() -> None:
    assert set(REFUSED) == {
        (kind, number) for kind, checks in CHECKS.items() for number in range(len(checks))
    }


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0].name} {case[1]}")
def test_a_check_refuses_what_no_other_check_would(case, compile_text, monkeypatch) -> None:
    assert counted(compile_text, case) == 1
    kind, number = case
    others = tuple(check for n, check in enumerate(CHECKS[kind]) if n != number)
    monkeypatch.setattr(admission, "CHECKS", {**CHECKS, kind: others})
    assert counted(compile_text, case) == 0


def test_one_that_its_sender_does_not_keep_is_dropped_where_there_is_no_place(compile_text) -> None:
    config = NodeConfig(ingress_entries=2, answer_entries=16)
    node = install(PeerId.from_name("me"), (), compile_text(PROGRAM), ["Main"], config, seed=1)
    node.poll(1)
    for seq in (1, 2, 3):
        node.deliver_inbound(sent(TO_A_SITE, seq), A)
    assert IngressDropped(A, "full") in node.poll(2)
    assert "ingress.put_off" not in node.counters


def test_an_envelope_for_sites_and_components_starts_an_execution() -> None:
    def kind(*fills: Fill, correlation: int = NONE) -> Kind:
        data = envelope.encode(Envelope(list(fills), correlation))
        return kind_of(envelope.decode(data, NodeConfig().caps))

    assert kind(TO_A_SITE) is kind(TO_A_COMPONENT, TO_A_SITE) is kind() is Kind.ENTRY
    assert kind(TO_THE_ENGINE, TO_A_COMPONENT) is Kind.CONTROL
    assert kind(TO_A_COMPONENT, correlation=RESPONSE) is Kind.ANSWER
    broken = Fill(site_suffix(1)[:-1], b"", True)
    assert kind(broken) is Kind.ENTRY, "it was meant for a site"


def test_a_source_other_than_the_topics_is_refused(compile_text) -> None:
    node = install(PeerId.from_name("me"), (), compile_text(PROGRAM), ["Main"], seed=1)
    other = PeerId.from_name("b").to_bytes()
    node.deliver_inbound(envelope.encode(Envelope([TO_A_SITE], src_peer=other)), A)
    assert node.poll(1) == [IngressDropped(A, "spoofed")]
    assert node.counters["ingress.spoofed"] == 1 and node.counters["ingress.bytes"] == 0


@pytest.mark.parametrize("durable", [False, True])
def test_a_node_that_keeps_nothing_takes_durable_envelopes_as_any_other(compile_text, durable) -> None:
    node = install(PeerId.from_name("me"), (), compile_text(PROGRAM), ["Main"], seed=1, durable=durable)
    node.deliver_inbound(envelope.encode(Envelope([TO_A_SITE], epoch=5, seq=1, base=1)), A)
    asked = [step for step in node.poll(1) if isinstance(step, Journal)]
    assert len(asked) == durable
    assert node.counters.get("executions.ended", 0) == (not durable)
    node.persisted(asked[0].token if asked else 1)
    node.poll(2)
    assert node.counters["executions.ended"] == 1


GATED = """program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  x0: F32, s0: PeerIdVec = wire.Recv() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  x: F32, s: PeerIdVec = gate.DedupGateRx(x0, s0)
  y: F32, t: PeerIdVec = gate.PeerHealthGateRx(x, s)
  z: F32, u: PeerIdVec = gate.BackoffGateRx(y, t)
  go: Trigger = syscall.OnTrigger(z)
  slept: Trigger = syscall.Sleep<duration_ns=1000000000>(go)
  syscall.AppEmit<name="z">(z)
  syscall.AppEmit<name="u">(u)
"""
BETWEEN = '  syscall.AppEmit<name="between">(y)\n'


@pytest.mark.parametrize("seen", ["unseen", "traced", "observed", "read between"])
@pytest.mark.parametrize("trouble", ["", "peer_health_rx", "backoff_rx"])
def test_gates_drop_what_waited_while_its_peer_went_down_or_was_blocked(bench, seen, trouble):
    """An execution that sleeps keeps the second envelope waiting. As one op or as three, they do the same."""
    config = NodeConfig(max_executions=1, trace=seen == "traced")
    b = bench(GATED + (BETWEEN if seen == "read between" else ""), config=config)
    ran = []
    if seen == "observed":

        def observed(op):
            run = op.run
            return lambda ctx, *values: ran.append(op.spec.op_type) or run(ctx, *values)

        b.node.observe_ops(observed)
    type_hash, payload = encode_value(f32(3))
    for peer in (B, A):
        fill = Fill(site_suffix(0xA1), payload, False, type_hash)
        b.node.deliver_inbound(envelope.encode(Envelope([fill], epoch=3, seq=1)), peer)
        b.poll()
    if trouble == "backoff_rx":
        b.node._parts.peers.back_pressure.block(A)
    elif trouble:
        for _ in range(20):
            b.node.peer_failed(A)
    assert b.events("u") == [(B,)]
    b.settle()
    assert b.events("u") == [(B,)] + [(A,)] * (not trouble)
    assert [z.tolist() for z in b.events("z")] == [[3]] * len(b.events("u"))
    dropped = {name: n for name, n in b.node.counters.items() if name.startswith("gates.")}
    assert dropped == ({f"gates.{trouble}.dropped": 1} if trouble else {})
    if seen == "read between":
        assert len(b.events("between")) == len(b.events("u")) + (trouble == "backoff_rx")
    if seen == "observed":
        gates = [op_type for op_type in ran if "Gate" in op_type]
        assert gates[:3] == ["DedupGateRx", "PeerHealthGateRx", "BackoffGateRx"]
