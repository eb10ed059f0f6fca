"""Who may start something on a node: peers of the class that sends it, whose program goes with the node's."""

from __future__ import annotations

import pytest
from arrays import f32
from envelopes import fill
from kinds_of_steps import of

from bb_edge.engine import steps
from bb_edge.engine.net import features
from bb_edge.engine.net.senders import CLASS_NS
from bb_edge.installer import install
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import NONE, REQUEST, Envelope
from bb_edge.wire.envelope_records import FailureCode
from bb_edge.wire.programs import ProgramClaim

A, B, C = (PeerId.from_name(name) for name in "abc")
OWN, OTHER = "1" * 64, "2" * 64
CONTRACT = "3" * 32
RECEIVED = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, wire.sender_class=Hub, wire.sole_sender=1"
SENT = "wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101, wire.request=1, dest_site_name.x=y"
PROGRAM = f"""
program Demo {{module=Demo, program="{OWN}", contract.Hub.Leaf="{CONTRACT}"}}
function program.Leaf() -> () {{entry=1, partition=Leaf}}
  x: F32[1], s: PeerIdVec, r: U64 = wire.RecvReq() {{{RECEIVED}}}
  h: Trigger = wire.SendResp(x, s, r) {{{SENT}}}
  syscall.AppEmit<name="x">(x)
"""
SAME = ProgramClaim(bytes.fromhex(OWN), frozenset(), {"Hub.Leaf": bytes.fromhex(CONTRACT)})


class Leaf:
    """A node of one class that a hub asks, and what arrives there."""

    def __init__(self, bench):
        self.bench, self.node, self.seq = bench, bench.node, 0
        self.node.presences_come()

    def is_told(self, claim=SAME, classes=("Hub",), up=True, peer=A):
        meta = {**claim.meta(), features.META: [features.FAILURES]}
        here = Address.empty().with_peer(peer).to_bytes()
        self.node.peer_presence(peer, up, (here,), meta, epoch=5, classes=classes)
        return self.bench.poll()

    def asked(self, kind=REQUEST, seq=0, peer=A):
        """Polls with an envelope to the site; what is told of it."""
        self.seq = seq or self.seq + 1
        message = Envelope([fill(0xA1, f32(7))], kind, epoch=5, seq=self.seq)
        if kind == REQUEST:
            message = Envelope(message.fills, kind, wire_req_id=9, epoch=5, seq=self.seq)
        self.node.deliver_inbound(envelope.encode(message), peer)
        return self.bench.poll()

    def counted(self, name):
        return self.node.counters.get(f"ingress.{name}", 0)


@pytest.fixture
def leaf(bench):
    return Leaf(bench(PROGRAM, ("Leaf",)))


def answers(found):
    sent = [envelope.decode(step.payload, HOST_CAPS) for step in of(steps.SendEnvelope, found)]
    return [message for message in sent if message.kind == envelope.RESPONSE]


def test_a_peer_of_the_class_that_sends_is_heard(leaf):
    leaf.is_told()
    assert of(steps.AppEvent, leaf.asked())


def test_a_peer_that_has_said_goodbye_is_known_in_its_class(leaf):
    leaf.is_told()
    leaf.is_told(up=False)
    assert of(steps.AppEvent, leaf.asked())


def test_without_presences_no_class_is_asked_for(bench):
    bare = bench(PROGRAM, ("Leaf",))
    message = Envelope([fill(0xA1, f32(7))], NONE, epoch=5, seq=1)
    bare.node.deliver_inbound(envelope.encode(message), A)
    assert of(steps.AppEvent, bare.poll())


def test_an_entry_that_comes_before_its_presence_is_taken_when_it_comes_again(leaf):
    assert not of(steps.AppEvent, leaf.asked(seq=1))
    assert (leaf.counted("class_untold"), leaf.counted("class_mismatch")) == (1, 0)
    leaf.is_told()
    assert of(steps.AppEvent, leaf.asked(seq=1)), "it was not acknowledged, so its sender repeats it"


def test_a_peer_that_is_not_of_the_class_is_refused_and_told(leaf):
    leaf.is_told(classes=("Leaf",))
    leaf.asked(seq=1)
    leaf.bench.poll(CLASS_NS)
    found = leaf.asked(seq=1)
    assert of(steps.ClassMismatch, found) == [steps.ClassMismatch(A, "it is not known as a Hub")]
    (answer,) = answers(found)
    assert FailureCode(answer.failure.code) is FailureCode.REFUSED
    assert answer.failure.detail == "it is not known as a Hub"
    leaf.asked(seq=1)
    assert (leaf.counted("class_mismatch"), leaf.counted("duplicates")) == (1, 1), "it was marked"


def test_a_request_whose_peer_is_told_of_very_late_is_answered(leaf):
    """Its presence was lost and asked for again: nobody could be told no before."""
    leaf.asked(seq=1)
    leaf.bench.poll(10 * CLASS_NS)
    found = leaf.asked(seq=1)
    assert of(steps.ClassMismatch, found) and not answers(found)
    leaf.is_told()
    assert of(steps.AppEvent, leaf.asked(seq=1))


def test_a_one_way_entry_of_another_class_stays_unacknowledged(leaf):
    leaf.is_told(classes=("Leaf",))
    leaf.asked(NONE, seq=1)
    leaf.bench.poll(CLASS_NS)
    leaf.asked(NONE, seq=1)
    leaf.asked(NONE, seq=1)
    assert leaf.counted("class_mismatch") == 2


# --- programs ----------------------------------------------------------------------------------------


def other(**changed):
    return ProgramClaim(bytes.fromhex(OTHER), **{"contracts": SAME.contracts, **changed})


def test_another_program_is_named_once_and_neither_asked_nor_heard(leaf):
    (mismatch,) = of(steps.ProgramMismatch, leaf.is_told(other()))
    assert (mismatch.peer, mismatch.program) == (A, OTHER[:16])
    assert not of(steps.ProgramMismatch, leaf.is_told(other()))
    assert leaf.node.peers_up("Hub") == ()
    assert leaf.node.peers_up_now == ({"Hub": 0}, 0, 1), "it is there, and of no use"
    found = leaf.asked()
    assert not of(steps.AppEvent, found)
    assert leaf.counted("other_program") == 1
    (answer,) = answers(found)
    assert "another program" in answer.failure.detail and OTHER[:16] in answer.failure.detail


def test_a_program_that_lists_this_one_is_taken_and_named_once(leaf):
    taken = of(steps.ProgramAccepted, leaf.is_told(other(accepts=frozenset([SAME.program]))))
    assert taken == [steps.ProgramAccepted(A, OTHER[:16], False)], "nobody here lists it"
    assert leaf.node.peers_up("Hub") == (A,)
    assert of(steps.AppEvent, leaf.asked())
    assert not of(steps.ProgramAccepted, leaf.is_told(other(accepts=frozenset([SAME.program]))))
    assert of(steps.ProgramMismatch, leaf.is_told(other()))
    assert of(steps.ProgramAccepted, leaf.is_told(other(accepts=frozenset([SAME.program]))))


def test_another_contract_is_never_taken(leaf):
    lists = frozenset([SAME.program])
    (mismatch,) = of(
        steps.ProgramMismatch, leaf.is_told(other(accepts=lists, contracts={"Hub.Leaf": b"x" * 16}))
    )
    assert "travel" in mismatch.reason and "the same program on both" in mismatch.remedy
    assert leaf.node.peers_up("Hub") == ()


def test_a_peer_that_was_updated_is_taken(leaf):
    leaf.is_told(other())
    leaf.is_told(SAME)
    assert leaf.node.peers_up("Hub") == (A,)
    assert leaf.node.peers_up_now == ({"Hub": 1}, 1, 0)
    assert of(steps.AppEvent, leaf.asked())


def test_a_peer_that_names_no_program_is_taken(leaf):
    leaf.is_told(ProgramClaim())
    assert of(steps.AppEvent, leaf.asked())


def test_strangers_are_known_after_a_restart(leaf, compile_text):
    leaf.is_told(other())
    snapshot = leaf.node.snapshot(leaf.bench.now_ns)
    again = install(leaf.node.peer_id, (), compile_text(PROGRAM), ["Leaf"], snapshot=snapshot)
    assert again.peers_up("Hub") == ()
    assert not of(steps.ProgramMismatch, again.poll(1)), "it was told of before"


def test_the_node_says_its_own_program(leaf):
    assert ProgramClaim.from_meta(leaf.node.presence_meta) == SAME


def by_turns(leaf, *peers):
    """Who was told of that asks by turns, as (peer, the other one)."""
    found = [step for peer in peers for step in leaf.asked(peer=peer)]
    told = of(steps.AskedByTurns, found)
    assert len(of(steps.AppEvent, found)) == len(peers), "they are answered all the same"
    assert {step.peer_class for step in told} <= {"Hub"}
    return [(step.peer, step.other) for step in told]


def test_two_peers_of_a_class_that_ask_by_turns_are_named_once(leaf):
    """A second server that a broker without access rules lets in was served without a word."""
    for peer in (A, B, C):
        leaf.is_told(peer=peer)
    assert by_turns(leaf, A, B, A, B, A) == [(A, B)]
    assert by_turns(leaf, B, A, B, A, B) == [], "once"
    assert by_turns(leaf, C, A, C, B, C) == [(B, C)], "and a third one"
    assert by_turns(leaf, *(A, B, C) * 9) == []
    assert leaf.node.counters["peers.asking_by_turns"] == 2


def test_one_that_takes_over_from_another_is_nothing_to_tell(leaf):
    leaf.is_told(peer=A)
    leaf.is_told(peer=B)
    assert by_turns(leaf, A, A, B, B, A, A, B, B) == [], "each has taken over once"
    for _ in range(9):
        leaf.is_told(peer=B, up=False)
        assert by_turns(leaf, A, A) == []
        leaf.is_told(peer=B)
        leaf.is_told(peer=A, up=False)
        assert by_turns(leaf, B, B) == [], "the other one has gone"
        leaf.is_told(peer=A)


def test_classes_of_which_several_may_ask_are_not_named(bench):
    """Relays that share their leaves, sensors of one hub, and programs of before the stamp."""
    leaf = Leaf(bench(PROGRAM.replace(", wire.sole_sender=1", ""), ("Leaf",)))
    leaf.is_told(peer=A)
    leaf.is_told(peer=B)
    assert by_turns(leaf, *(A, B) * 9) == []
