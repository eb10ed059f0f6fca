"""Another program takes over what the old one has under way durably: once, or told by name."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from durable_machines import Machine, Net
from durable_program import ASK, REPLY, SAY
from peers import HERE, B
from snapshots import body_of, resealed
from times import S

from bb_edge import install
from bb_edge.adoption import Former
from bb_edge.components import ScalarQuantizer
from bb_edge.engine import steps
from bb_edge.engine.net.former_sites import NO_SUCH_PORT
from bb_edge.ir import types
from bb_edge.roles.adoption import Adoption
from bb_edge.wire import durable_rows
from bb_edge.wire.outbox import OutboxRecordError
from bb_edge.wire.resend import EnvelopeKey

TELL = f"""
function program.Teller(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Teller}}
  h: Trigger = wire.Send(x, to) {{{SAY}}}
"""
HEAR = f"""
function program.Hearer() -> () {{entry=1, partition=Hearer}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.Record<name="heard">(x)
  syscall.AppEmit<name="heard">(x)
"""
OLD = f"program Demo {{module=Demo}}{TELL}{HEAR}"
NEW = OLD.replace("program Demo", "program Other")  # another artifact, which says the same


class Pair:
    """A teller and a hearer; what the network is not to deliver is lost."""

    def __init__(
        self, compile_text, knows_marks: bool, text: str = OLD, deliver: bool = True, **config: int
    ) -> None:
        self.compile_text = compile_text
        machines = {"teller": "Teller", "hearer": "Hearer"}
        self.net = Net(compile_text(text), machines, knows_marks=knows_marks, **config)
        self.teller, self.hearer = self.net.machines["teller"], self.net.machines["hearer"]
        self.run(deliver=deliver)

    def run(self, for_ns: int = 3 * S, deliver: bool = True) -> None:
        self.net.run(self.net.now_ns + for_ns, deliver)

    def tell(self, *numbers: float) -> None:
        for number in numbers:
            to = (self.hearer.node.peer_id,)
            self.teller.node.invoke("Teller", {"x": np.full(1, number, np.float32), "to": to})

    def stop(self, machine: Machine) -> None:
        machine.take_snapshot(self.net.now_ns)

    def recompile(self, machine: Machine, text: str = NEW):
        """The machine goes on with another program; returns what was said of each row."""
        self.stop(machine)
        former = machine.recompiled(self.compile_text(text), self.net.now_ns)
        self.net.greet(machine)
        return {(row.name, row.what): row.why for row in former.rows}

    @property
    def heard(self) -> list[float]:
        return [float(np.ravel(v)[0]) for topic, v in self.hearer.events if topic == "heard"]

    def dropped(self) -> list[str]:
        return [s.reason for s in self.teller.said if isinstance(s, steps.OutboundDropped)]


@pytest.fixture(params=[True, False], ids=["marks", "plain"])
def pair(request, compile_text) -> Pair:
    return Pair(compile_text, request.param)


def test_reports_of_the_old_program_arrive_once_and_go_on_in_order(pair):
    pair.tell(1, 2)
    pair.run()
    pair.tell(3, 4)
    pair.run(deliver=False)
    rows = pair.recompile(pair.teller)
    assert rows["outbox", f"2 records (2 to {pair.hearer.node.peer_id})"] == ""
    pair.tell(5)
    pair.run()
    assert pair.heard == [1, 2, 3, 4, 5]
    assert pair.teller.node.pending_sends == 0 and not pair.dropped()


def test_what_was_taken_before_and_never_acknowledged_is_not_delivered_again(pair):
    pair.tell(1)
    pair.run()
    pair.tell(2)
    # The hearer takes it, and all that it says is lost.
    hearer = pair.hearer.node.peer_id
    before = len(pair.net.sent)
    pair.run(10_000_000, deliver=False)
    for peer, step in pair.net.sent[before:]:
        if step.peer == hearer:
            pair.hearer.node.deliver_inbound(step.payload, peer)
    pair.run(100_000_000, deliver=False)
    assert pair.heard == [1, 2] and pair.teller.node.pending_sends
    pair.recompile(pair.teller)
    pair.run()
    assert pair.heard == [1, 2] and not pair.teller.node.pending_sends


def test_a_receiver_that_is_recompiled_knows_what_it_has_taken(pair):
    pair.tell(1)
    pair.run(100_000_000)
    assert pair.heard == [1]
    pair.tell(2)
    before = len(pair.net.sent)
    pair.run(10_000_000, deliver=False)
    for peer, step in pair.net.sent[before:]:
        pair.hearer.node.deliver_inbound(step.payload, peer)
    pair.run(100_000_000, deliver=False)
    rows = pair.recompile(pair.hearer)
    assert rows["windows", "1 peer whose numbers are known"] == ""
    assert pair.teller.node.pending_sends
    pair.run()
    assert pair.heard == [1, 2] and not pair.teller.node.pending_sends
    pair.tell(3)
    pair.run()
    assert pair.heard == [1, 2, 3]


def test_a_crash_before_the_first_snapshot_adopts_once_more_and_delivers_nothing_twice(pair):
    pair.tell(1, 2)
    pair.run(deliver=False)
    pair.recompile(pair.teller)
    pair.run()
    pair.tell(3)
    pair.run()
    assert pair.heard == [1, 2, 3]
    assert pair.teller.disk.snapshot is None
    pair.teller.adopt(pair.net.now_ns)
    pair.net.greet(pair.teller)
    pair.run()
    assert pair.heard == [1, 2, 3]
    pair.tell(4)
    pair.run()
    assert pair.heard == [1, 2, 3, 4]


def test_what_is_for_a_peer_that_is_away_waits_on(compile_text):
    pair = Pair(compile_text, knows_marks=True)
    hearer = pair.hearer.node.peer_id
    pair.net.down["hearer"] = pair.net.now_ns + 60 * S
    pair.teller.node.peer_presence(hearer, False, epoch=pair.hearer.node.epoch)
    pair.run(S)
    pair.tell(1, 2)
    pair.run()
    pair.stop(pair.teller)
    pair.teller.recompiled(pair.compile_text(NEW), pair.net.now_ns)
    pair.run()
    assert pair.teller.node.pending_sends == 2
    pair.run(60 * S)
    assert pair.heard == [1, 2] and not pair.dropped()


def test_what_waited_for_room_comes_over_behind_the_records(compile_text):
    pair = Pair(compile_text, False, outbox_records=2)
    pair.tell(1, 2, 3, 4)
    pair.run(deliver=False)
    rows = pair.recompile(pair.teller)
    assert rows["outbox", f"4 records (4 to {pair.hearer.node.peer_id})"] == ""
    pair.run(20 * S)
    assert pair.heard == [1, 2, 3, 4]


F64 = f"{types.tensor_type(np.float64).wire_hash:x}"
_F64 = "it was sent as Tensor<F32>, this program sends Tensor<F64>"
MISFITS = {
    "another type": (NEW.replace("F32", "F64").replace("101", F64), _F64),
    "gone": (NEW.replace("site_ids=c1", "site_ids=c2"), "this program has no such port: keep its name"),
    "a request": (
        f"program Other {{module=Demo}}{HEAR}"
        + TELL.replace(f"h: Trigger = wire.Send(x, to) {{{SAY}}}", "").rstrip()
        + f"  r: WireReqId = wire.SendReqBatched(x, to, to) {{{ASK.replace('=a1', '=c1')}, deadline_ns=1}}\n"
        + "  c: Trigger, m: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1}\n",
        "a request goes there here",
    ),
}


@pytest.mark.parametrize(("text", "why"), MISFITS.values(), ids=MISFITS)
def test_what_the_new_program_does_not_send_is_told_by_name_and_not_sent(text, why, compile_text):
    pair = Pair(compile_text, False)
    pair.tell(1)
    pair.run(deliver=False)
    rows = pair.recompile(pair.teller, text)
    hearer = pair.hearer.node.peer_id
    ((what, told),) = [(what, told) for (name, what), told in rows.items() if name == "outbox" and told]
    assert what.endswith(f"to {hearer}, 1 of them") and why in told
    pair.run()
    assert pair.heard == []
    (reason,) = pair.dropped()
    assert why in reason and "of the old program" in reason
    assert pair.teller.node.counters["outbound.dropped"] == 1


HEAR_ROUNDS = HEAR.replace("F32[1]", "F32[]").replace("c1", "aa")
ROUNDS = f"""
program Demo {{module=Demo, binding.Teller.peers="peer_selector|bb.PresenceSelector|1"}}
function program.Teller() -> () {{entry=1, partition=Teller}}
  slot peers: peer_selector peer_class=Hearer
  round: I64[] = syscall.Repeat<times=1, pause_ns=1000000>()
  some: PeerIdVec = role.peer_selector.Sample<n=9, min=1>(round) {{slot=peers, control_inputs=1}}
  x: F32[] = Cast<to=1>(round)
  h: Trigger = wire.Send(x, some) {{{SAY.replace("c1", "aa")}}}
{HEAR_ROUNDS}"""


def test_a_round_is_told_though_the_old_program_had_one_of_that_number(compile_text):
    pair = Pair(compile_text, False, ROUNDS, deliver=False)
    assert pair.teller.node.pending_sends == 1
    pair.recompile(pair.teller, ROUNDS.replace("program Demo", "program Other"))
    pair.run()
    assert pair.heard == [1, 1]


CODED = f"""
program Demo {{module=Demo, binding.Teller.codec="codec|bb.ScalarQuantizer|1"}}
function program.Teller(x: F32[1], to: PeerIdVec, samples: F32[2]) -> () {{entry=1, partition=Teller}}
  slot codec: codec
  t: CommandId = role.compressor.TrainCodebook(samples) {{slot=codec}}
  code: Tensor = role.compressor.Compress(x) {{slot=codec}}
  h: Trigger = wire.Send(code, to) {{{SAY.replace("101", "0")}}}
{HEAR.replace("F32[1]", "Tensor").replace("101", "0")}"""
OTHER = CODED.replace("program Demo", "program Other")
TWICE = SAY.replace("c1", '"c1,c2"').replace("101", '"0,0"')
BOUND = ", ".join(f'binding.Teller.{s}="codec|bb.Float16Codec|{n}"' for n, s in enumerate(("one", "two"), 1))
PAIRED = f"""
program Demo {{module=Demo, {BOUND}}}
function program.Teller(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Teller}}
  slot one: codec
  slot two: codec
  a: Tensor = role.compressor.Compress(x) {{slot=one}}
  b: Tensor = role.compressor.Compress(x) {{slot=two}}
  h: Trigger = wire.Send(a, b, to) {{{TWICE}}}
function program.Hearer() -> () {{entry=1, partition=Hearer}}
  x: Tensor, y: Tensor, s: PeerIdVec = wire.Recv() {{{TWICE}}}
  syscall.AppEmit<name="heard">(x)
"""


def test_a_code_comes_over_where_the_codec_reads_the_same_in_it(compile_text):
    pair = Pair(compile_text, False, CODED)
    pair.teller.node.invoke("Teller", {"samples": np.float32([0, 255])})
    pair.run()
    pair.tell(7)
    pair.run(deliver=False)
    rows = pair.recompile(pair.teller, OTHER)
    assert rows["outbox", f"1 record (1 to {pair.hearer.node.peer_id})"] == ""
    pair.run()
    assert pair.heard == [7]


def test_a_code_of_another_codec_is_told_by_the_slot_and_not_sent(compile_text):
    pair = Pair(compile_text, False, CODED)
    pair.tell(7)
    pair.run(deliver=False)
    pair.recompile(pair.teller, OTHER.replace("ScalarQuantizer", "Float16Codec"))
    pair.run()
    (reason,) = pair.dropped()
    assert "it was coded by a bb.ScalarQuantizer in slot 'codec', not by a bb.Float16Codec" in reason
    assert pair.heard == []


def test_a_code_of_a_slot_that_was_not_there_is_told(compile_text):
    pair = Pair(compile_text, False, CODED)
    pair.tell(7)
    pair.run(deliver=False)
    new = OTHER.replace("Teller.codec", "Teller.coder").replace("slot codec", "slot coder")
    rows = pair.recompile(pair.teller, new.replace("slot=codec", "slot=coder"))
    why = "it was coded by a codec in slot 'coder', not by a bb.ScalarQuantizer"
    assert why in rows.values()


def test_a_code_of_another_state_of_the_same_codec_is_told(compile_text, monkeypatch):
    pair = Pair(compile_text, False, CODED)
    pair.teller.node.invoke("Teller", {"samples": np.float32([0, 255])})
    pair.run()
    pair.tell(7)
    pair.run(deliver=False)
    monkeypatch.setattr(ScalarQuantizer, "adopt", lambda self, state: Adoption((), ("its range: no",)))
    rows = pair.recompile(pair.teller, OTHER)
    why = "the bb.ScalarQuantizer in slot 'codec' that coded it had another state"
    assert why in rows.values()


def test_two_codes_in_another_order_are_told_and_not_sent(compile_text):
    pair = Pair(compile_text, False, PAIRED)
    pair.tell(7)
    pair.run(deliver=False)
    same = PAIRED.replace("program Demo", "program Other")
    rows = pair.recompile(pair.teller, same)
    assert rows["outbox", f"1 record (1 to {pair.hearer.node.peer_id})"] == ""
    rows = pair.recompile(
        pair.teller, same.replace("Other", "Third").replace("Send(a, b, to)", "Send(b, a, to)")
    )
    assert "this program sends its values in another order" in rows.values()
    pair.run()
    assert pair.heard == []


def test_a_codec_that_cannot_say_its_state_is_another_one(compile_text, monkeypatch):
    pair = Pair(compile_text, False, CODED)
    pair.tell(7)
    pair.run(deliver=False)
    pair.stop(pair.teller)
    monkeypatch.setattr(ScalarQuantizer, "serialize", lambda self: 1 // 0)
    former = pair.teller.recompiled(compile_text(OTHER), pair.net.now_ns)
    why = "the bb.ScalarQuantizer in slot 'codec' that coded it had another state"
    assert why in [row.why for row in former.rows]


def test_large_bodies_come_over_once_for_all_their_records(compile_text):
    wide = OLD.replace("F32[1]", "F32[2000]")
    pair = Pair(compile_text, False, wide)
    hearer = pair.hearer.node.peer_id
    pair.teller.node.invoke("Teller", {"x": np.full(2000, 3, np.float32), "to": (hearer, hearer, B)})
    pair.run(deliver=False)
    pair.stop(pair.teller)
    former = pair.teller.recompiled(compile_text(wide.replace("program Demo", "program Other")), 0)
    assert sorted(type(name).__name__ for name, _ in former.outbox) == ["BodyName", "int", "int"]
    pair.net.greet(pair.teller)
    pair.run(20 * S)
    assert pair.heard == [3]


def test_what_has_expired_meanwhile_is_told(compile_text):
    text = OLD.replace("durable=1", "durable=1, deadline_ns=5000000000")
    pair = Pair(compile_text, False, text)
    pair.tell(1)
    pair.run(S, deliver=False)
    pair.stop(pair.teller)
    later = pair.net.now_ns + 10 * S
    former = pair.teller.recompiled(compile_text(text.replace("program Demo", "program Other")), later)
    (row,) = [row for row in former.rows if row.name == "outbox"]
    assert row.why == "its deadline has passed" and not former.outbox


def test_a_deadline_is_over_at_its_very_end(compile_text):
    text = OLD.replace("durable=1", "durable=1, deadline_ns=5000000000")
    pair = Pair(compile_text, False, text)
    pair.tell(1)
    pair.run(S, deliver=False)
    pair.stop(pair.teller)
    disk = pair.teller.disk
    (record,) = kept_records(disk.outbox.values())
    other = compile_text(text.replace("program Demo", "program Other"))
    for early, taken in ((1, 1), (0, 0)):
        former = Former.of(disk.snapshot, list(disk.outbox.values()), record.expires_wall_ns - early)
        install(pair.teller.node.peer_id, (HERE,), other, ["Teller"], durable=True, adopt=former)
        assert len(former.outbox) == taken


ALSO = SAY.replace("wire_id=3", "wire_id=4").replace("c1", "c3")
TWO = f"""
program Demo {{module=Demo}}
function program.Teller(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Teller}}
  h: Trigger = wire.Send(x, to) {{{SAY}, port=first, batch_group_id=1}}
  i: Trigger = wire.Send(x, to) {{{ALSO}, port=second, batch_group_id=1}}
{HEAR.rstrip()}
  y: F32[1], t: PeerIdVec = wire.Recv() {{{ALSO}}}
  syscall.AppEmit<name="also">(y)
"""


@pytest.mark.parametrize("size", [1, 2000])
def test_of_several_sends_in_one_envelope_those_that_fit_are_taken(pair, size):
    text = TWO.replace("F32[1]", f"F32[{size}]")
    two = Pair(pair.compile_text, pair.net.knows_marks, text)
    hearer = two.hearer.node.peer_id
    two.teller.node.invoke("Teller", {"x": np.full(size, 5, np.float32), "to": (hearer,)})
    two.run(deliver=False)
    assert len(kept_records(two.teller.disk.outbox.values())) == 1
    teller, _, rest = text.partition("\nfunction program.Hearer")
    new = teller.replace("site_ids=c3", "site_ids=c4").replace("program Demo", "program Other")
    rows = two.recompile(two.teller, f"{new}\nfunction program.Hearer{rest}")
    assert rows == {
        ("peers", "1 peer of which it has heard"): "",
        ("outbox", f"1 record (1 to {hearer})"): "",
        ("outbox", f"a send of 1 value (/site/195) to {hearer}, 1 of them"): NO_SUCH_PORT,
    }
    two.run(20 * S)
    assert two.heard == [5] and [topic for topic, _ in two.hearer.events] == ["heard"]
    assert not two.teller.node.pending_sends


def test_a_receiver_that_is_put_back_while_the_sender_is_recompiled_is_told(compile_text):
    pair = Pair(compile_text, knows_marks=True)
    pair.tell(1)
    pair.run()
    pair.stop(pair.hearer)
    image = copy.deepcopy(pair.hearer.disk)
    pair.tell(2)
    pair.run()
    assert pair.heard == [1, 2]
    pair.stop(pair.teller)
    pair.hearer.disk = image
    pair.hearer.start(pair.net.now_ns)
    pair.recompile(pair.teller)
    pair.run()
    told = [step for step in pair.hearer.said if isinstance(step, steps.StateRolledBack)]
    assert [(step.peer, step.own, step.numbers) for step in told] == [(pair.teller.node.peer_id, True, (2,))]


def test_records_keep_their_numbers_and_those_without_stay_without(compile_text):
    pair = Pair(compile_text, knows_marks=True)
    pair.tell(1)
    pair.run()
    pair.tell(2)
    pair.run(S, deliver=False)
    hearer = pair.hearer.node.peer_id
    pair.stop(pair.teller)
    pair.teller.start(pair.net.now_ns)  # in this run nobody has told it marks
    pair.tell(3)
    pair.run(S, deliver=False)
    pair.stop(pair.teller)
    former = pair.teller.recompiled(compile_text(NEW), pair.net.now_ns)
    numbered, fresh = (record.key for record in kept_records(row for _, row in former.outbox))
    assert (numbered.peer, numbered.seq) == (hearer, 2) and numbered.epoch
    assert fresh == EnvelopeKey(hearer, 0, 0)


def test_what_waited_without_being_durable_is_no_record(compile_text):
    pair = Pair(compile_text, False, outbox_records=2)
    pair.tell(1, 2, 3, 4)
    pair.run(deliver=False)
    pair.stop(pair.teller)
    body = body_of(pair.teller.disk.snapshot)
    waiting = body["outbound"]["waiting"]
    assert [row[5] for row in waiting] == [True, True]
    waiting[0][5] = False  # as best-effort replies wait there
    pair.teller.disk.snapshot = resealed(body)
    former = pair.teller.recompiled(compile_text(NEW), pair.net.now_ns)
    assert len(kept_records(row for _, row in former.outbox)) == 3
    pair.net.greet(pair.teller)
    pair.run(20 * S)
    assert pair.heard == [1, 2, 4]


def test_a_record_that_its_row_has_as_well_comes_over_once(compile_text):
    pair = Pair(compile_text, knows_marks=True)
    pair.tell(1)
    pair.teller.disk.full = True  # the snapshot alone has it
    pair.run(S, deliver=False)
    pair.teller.disk.full = False
    pair.stop(pair.teller)
    snapshot = pair.teller.disk.snapshot
    pair.run(2 * S, deliver=False)  # its row is on disk now
    pair.teller.disk.snapshot = snapshot
    assert body_of(snapshot)["outbound"]["unwritten"] and pair.teller.disk.outbox
    former = pair.teller.recompiled(compile_text(NEW), pair.net.now_ns)
    assert len(kept_records(row for _, row in former.outbox)) == 1
    pair.net.greet(pair.teller)
    pair.run()
    assert pair.heard == [1]


def test_rows_that_are_no_rows_are_refused(compile_text):
    pair = Pair(compile_text, False)
    pair.stop(pair.teller)
    with pytest.raises(OutboxRecordError):
        Former.of(pair.teller.disk.snapshot, [b"\xff"])


def kept_records(rows):
    """The records among the rows of an outbox, by their ids."""
    found = durable_rows.read(list(rows), {}).records
    return [found[number] for number in sorted(found)]


def test_a_request_is_told_and_its_answers_find_nobody(compile_text):
    each = "deadline_ns=60000000000, wire.answer_mode=each, port=ask"
    asks = f"""
program Demo {{module=Demo}}
function program.Teller(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Teller}}
  r: WireReqId = wire.SendReqBatched(x, to, to) {{{ASK}, {each}}}
  c: Trigger, m: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  syscall.AppEmit<name="answer">(y)
function program.Hearer() -> () {{entry=1, partition=Hearer}}
  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{ASK}}}
  syscall.AppEmit<name="heard">(x)
  k: Trigger = wire.SendResp(x, s, r) {{{REPLY}}}
"""
    pair = Pair(compile_text, False, asks)
    pair.tell(1)
    pair.run(deliver=False)
    pair.hearer.node.peer_presence(pair.teller.node.peer_id, False)
    new = asks.replace("program Demo", "program Other")
    rows = pair.recompile(pair.teller, new)
    what = f"a request 'ask' to {pair.hearer.node.peer_id}, 1 of them"
    assert rows["outbox", what].startswith("nobody waits for the answers")
    pair.run()
    assert pair.heard == [] and not pair.teller.events
    # The other way round: what the hearer still has to answer comes over.
    pair.tell(2)
    before = len(pair.net.sent)
    pair.run(S, deliver=False)
    for peer, step in pair.net.sent[before:]:
        if step.peer == pair.hearer.node.peer_id:
            pair.hearer.node.deliver_inbound(step.payload, peer)
    pair.run(S, deliver=False)
    assert pair.heard == [2]
    rows = pair.recompile(pair.hearer, new)
    assert rows["outbox", f"1 record (1 to {pair.teller.node.peer_id})"] == ""
    pair.run(20 * S)
    assert pair.heard == [2] and [float(v[0]) for _, v in pair.teller.events] == [2]


def test_a_node_that_keeps_nothing_takes_no_record(compile_text):
    pair = Pair(compile_text, False)
    pair.tell(1)
    pair.run(deliver=False)
    pair.stop(pair.teller)
    disk = pair.teller.disk
    former = Former.of(disk.snapshot, list(disk.outbox.values()))
    quiet = NEW.replace(", durable=1", "")
    install(pair.teller.node.peer_id, (HERE,), compile_text(quiet), ["Teller"], adopt=former)
    (row,) = [row for row in former.rows if row.name == "outbox"]
    assert row.why == "this node keeps nothing on disk" and not former.outbox
