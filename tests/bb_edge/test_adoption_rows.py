"""What is said of each thing of an old node, word for word: components, windows, records, and the rest."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from durable_machines import Machine, Net
from durable_program import SAY
from peers import HERE, B, C
from snapshots import body_of, resealed
from times import S

from bb_edge import install
from bb_edge.adoption import Former, Row, take_over
from bb_edge.backends import NumPyBackend
from bb_edge.engine import steps
from bb_edge.engine.net.former_sites import NO_SUCH_PORT
from bb_edge.engine.plain import dump
from bb_edge.registry import Registry
from bb_edge.roles import ComponentStateError, Index
from bb_edge.roles.adoption import Adoption

# --- components -----------------------------------------------------------------------------------------


class Store(Index):
    """Holds a text; says what it takes and leaves as a test wants it."""

    TYPE_NAME: ClassVar[str] = "test.Store"
    says: ClassVar[object] = Adoption(())

    def __init__(self) -> None:
        self.held = b"fresh"
        self.came = ""

    @classmethod
    def construct(cls, env: Any) -> Store:
        return cls()

    def add(self, ctx: Any, vec: Any) -> None:
        self.held = b"added"

    def search(self, ctx: Any, query: Any, *, k: int) -> Any:
        return np.zeros(k, np.int64), np.zeros(k, np.float32)

    def serialize(self) -> bytes:
        return self.held

    def restore(self, state: bytes) -> None:
        self.held, self.came = state, "restored"

    def adopt(self, state: bytes) -> Any:
        self.held, self.came = state, "adopted"
        return self.says


class Restoring(Store):
    """Reads its state in a newer way than what its base adopts."""

    def restore(self, state: bytes) -> None:
        super().restore(state)


class Inheriting(Store):
    """Nothing of its own."""


class Plain(Index):
    """Neither adopts nor restores by itself."""

    TYPE_NAME: ClassVar[str] = "test.Plain"


def test_a_class_adopts_by_what_is_newest_of_adopt_and_restore() -> None:
    newer = Restoring()
    assert take_over(newer, b"old") == Adoption(("its state",)) and newer.came == "restored"
    for kind in (Store, Inheriting):
        store = kind()
        assert take_over(store, b"old") is Store.says and (store.came, store.held) == ("adopted", b"old")


def test_adopt_has_to_give_an_adoption(monkeypatch) -> None:
    monkeypatch.setattr(Store, "says", 7)
    with pytest.raises(ComponentStateError) as error:
        take_over(Store(), b"old")
    assert str(error.value) == (
        "test.Store.adopt gives a int, an Adoption is expected"
        " (return Adoption((what it took,), (what it left: why,)))"
    )


PROGRAM = """
program Demo {module=Demo, binding.Main.a="index|test.Store|1"}
function program.Main(v: F32[1]) -> () {entry=1, partition=self}
  slot a: index
  cmd: CommandId = role.index.Add(v) {slot=a}
"""


@pytest.fixture
def store() -> Registry:
    found = Registry()
    found.register(Store)
    return found


def adopted(bench, registry: Registry | None, body: dict[str, Any], text: str = PROGRAM) -> list[Row]:
    former = Former.of(resealed(body))
    bench(text.replace("program Demo", "program Other"), registry=registry, adopt=former)
    return former.rows


def test_what_a_component_says_is_a_row_each(bench, store, monkeypatch) -> None:
    left = ("tensor w: it was 3x2: other", "a gradient")
    monkeypatch.setattr(Store, "says", Adoption(("two tensors", "its count"), left))
    body = body_of(bench(PROGRAM, registry=store).node.snapshot(0))
    assert adopted(bench, store, body) == [
        Row("a", "test.Store", "two tensors; its count"),
        Row("a", "test.Store", "tensor w", "it was 3x2: other"),
        Row("a", "test.Store", "a gradient", "it does not fit"),
    ]


def test_a_component_that_refuses_is_named_with_its_type_and_begins_anew(bench, store, monkeypatch) -> None:
    monkeypatch.setattr(Store, "says", None)
    body = body_of(bench(PROGRAM, registry=store).node.snapshot(0))
    former = Former.of(resealed(body))
    b = bench(PROGRAM.replace("program Demo", "program Other"), registry=store, adopt=former)
    (row,) = former.rows
    assert row[:3] == ("a", "test.Store", "its state") and "gives a NoneType" in row.why
    assert b.node.component("a").held == b"fresh"


def test_a_state_without_a_slot_and_one_of_another_type_keep_their_types(bench, store) -> None:
    body = body_of(bench(PROGRAM, registry=store).node.snapshot(0))
    other = PROGRAM.replace("test.Store", "test.Other").replace("binding.Main.a", "binding.Main.b")
    other = other.replace("slot a", "slot b").replace("slot=a", "slot=b")
    store.register(type("Other", (Store,), {"TYPE_NAME": "test.Other"}))
    assert adopted(bench, store, body, other) == [
        Row("a", "test.Store", "its state", "there is no slot of that name here"),
        Row("b", "test.Other", "nothing", "the slot is new: it begins as constructed"),
    ]
    same_slot = PROGRAM.replace("test.Store", "test.Other")
    assert adopted(bench, store, body, same_slot) == [
        Row("a", "test.Store", "its state", "the slot has a test.Other here")
    ]


def test_a_component_that_kept_nothing_leaves_nothing_wherever_its_slot_went(bench, store) -> None:
    store.register(Bare)
    old = PROGRAM.replace("test.Store", "test.Bare")
    body = body_of(bench(old, registry=store).node.snapshot(0))
    fresh = Row("a", "test.Store", "nothing", "the slot is new: it begins as constructed")
    assert fresh not in adopted(bench, store, body), "another type, of the same slot"
    elsewhere = PROGRAM.replace("binding.Main.a", "binding.Main.b")
    elsewhere = elsewhere.replace("slot a", "slot b").replace("slot=a", "slot=b")
    assert adopted(bench, store, body, elsewhere) == [fresh._replace(name="b")]


class Bare(Index):
    """Holds nothing."""

    TYPE_NAME: ClassVar[str] = "test.Bare"
    stateless: ClassVar[bool | None] = True
    add, search = Store.add, Store.search

    @classmethod
    def construct(cls, env: Any) -> Bare:
        return cls()


class Forgetful(Index):
    """Holds something that it does not write down."""

    TYPE_NAME: ClassVar[str] = "test.Forgetful"
    stateless: ClassVar[bool | None] = False
    add, search = Store.add, Store.search

    @classmethod
    def construct(cls, env: Any) -> Forgetful:
        return cls()


class KeptBackend(NumPyBackend):
    """A backend that writes something down."""

    TYPE_NAME: ClassVar[str] = "test.KeptBackend"

    def serialize(self) -> bytes:
        return b"kept"

    def restore(self, state: bytes) -> None:
        raise AssertionError("others are built upon it")


def test_a_component_that_forgets_and_a_backend_are_told(bench, store) -> None:
    store.register(Forgetful)
    store.register(KeptBackend)
    bound = 'binding.Main.a="index|test.Forgetful|1", binding.Main.engine="backend|test.KeptBackend|2"'
    text = PROGRAM.replace('binding.Main.a="index|test.Store|1"', bound)
    text = text.replace("  slot a: index\n", "  slot a: index\n  slot engine: backend\n")
    body = body_of(bench(text, registry=store).node.snapshot(0))
    assert sorted(adopted(bench, store, body, text)) == [
        Row("a", "test.Forgetful", "what it holds", "its class has no serialize()"),
        Row("engine", "test.KeptBackend", "its state", "others are built upon it: it begins anew"),
    ]


# --- what belongs to the old program ----------------------------------------------------------------------

OLD = "they belong to the old program"


def test_executions_requests_inputs_and_rings_are_counted_by_name(bench) -> None:
    text = """
program Demo {module=Demo}
function program.Main(x: F32, y: F32) -> () {entry=1, partition=self}
  syscall.Record<name="heat">(x)
  syscall.Record<name="cold">(y)
"""
    b = bench(text)
    assert adopted(bench, None, body_of(b.node.snapshot(0)), text) == []
    b.node.invoke("Main", {"x": np.float32(1).reshape(())})
    b.settle(until_ns=0)
    body = body_of(b.node.snapshot(0))
    body["core"]["counters"]["rounds.ended"] = 3
    body["executions"][2] = [0, 0]
    body["requests"][1] = [0]
    body["ingress"]["raw"], body["ingress"]["entries"] = [0, 0], [0]
    body["ingress"]["completions"] = [0, 0]
    assert adopted(bench, None, body, text) == [
        Row("rounds", "", "rounds that have ended, 3 of them", "rounds count from 1 again"),
        Row("executions", "", "executions under way, 2 of them", OLD),
        Row("requests", "", "requests without all answers, 1 of them", OLD),
        Row("inputs", "", "inputs that waited, 5 of them", OLD),
        Row("rings", "", "rings of Record (heat), 1 of them", OLD),
    ]


def test_one_round_is_a_round_and_a_counter_that_is_missing_none(bench) -> None:
    text = "program Demo {module=Demo}\nfunction program.Main(x: F32) -> () {entry=1, partition=self}\n"
    body = body_of(bench(text).node.snapshot(0))
    body["core"]["counters"].pop("rounds.ended", None)
    assert adopted(bench, None, body, text) == []
    body["core"]["counters"]["rounds.ended"] = 1
    (row,) = adopted(bench, None, body, text)
    assert row.what == "rounds that have ended, 1 of them"


@pytest.mark.parametrize(("count", "more"), [(8, ""), (10, " and 2 more")])
def test_states_of_ops_are_named_eight_of_them_at_most(bench, count: int, more: str) -> None:
    names = [f"n{number}" for number in range(count)]
    inputs = ", ".join(f"i{name}: F32" for name in names)
    ops = "".join(f'  t{n}: Trigger = syscall.Hold.Stash<slot="{n}">(i{n})\n' for n in names)
    empty = "program Demo {module=Demo}\nfunction program.Main(x: F32) -> () {entry=1, partition=self}\n"
    text = empty.replace("x: F32", inputs) + ops
    b = bench(text)
    for name in names:
        b.node.invoke("Main", {f"i{name}": np.float32(1).reshape(())})
    b.settle(until_ns=0)
    shown = ", ".join(f"hold '{name}' of Main" for name in names[:8])
    assert adopted(bench, None, body_of(b.node.snapshot(0)), empty) == [
        Row("ops", "", f"states of ops ({shown}{more}), {count} of them", OLD)
    ]


def test_an_op_without_a_name_is_an_op(bench) -> None:
    text = "program Demo {module=Demo}\nfunction program.Main(x: F32) -> () {entry=1, partition=self}\n"
    body = body_of(bench(text).node.snapshot(0))
    body["ops"] = [["Main", dump(7), 1], ["Main", dump((7, "last")), 1], ["Main", dump("repeat"), 1]]
    (row,) = adopted(bench, None, body, text)
    assert row.what == "states of ops (an op of Main, 'last' of Main, repeat of Main), 3 of them"


# --- windows and records ------------------------------------------------------------------------------------

REPORTS = f"""
program Demo {{module=Demo}}
function program.Teller(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Teller}}
  h: Trigger = wire.Send(x, to) {{{SAY}, port=report}}
function program.Hearer() -> () {{entry=1, partition=Hearer}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.AppEmit<name="heard">(x)
"""


@pytest.fixture
def teller(compile_text) -> Machine:
    """A node that has told B twice and C once, and nobody has heard it."""
    net = Net(compile_text(REPORTS), {"teller": "Teller", "hearer": "Hearer"}, knows_marks=False)
    net.run(3 * S)
    machine = net.machines["teller"]
    for to in ((B,), (B, C)):
        machine.node.invoke("Teller", {"x": np.ones(1, np.float32), "to": to})
    net.run(net.now_ns + S, False)
    machine.take_snapshot(net.now_ns)
    return machine


def recompiled(teller: Machine, compile_text, text: str) -> list[Row]:
    former = teller.recompiled(compile_text(text.replace("program Demo", "program Other")), 5 * S)
    return [row for row in former.rows if row.name in ("outbox", "windows")]


def test_records_that_are_taken_are_told_by_peer(teller, compile_text) -> None:
    rows = recompiled(teller, compile_text, REPORTS)
    assert rows == [Row("outbox", "", f"3 records (2 to {B}, 1 to {C})")]


def test_windows_are_told_by_their_number(compile_text) -> None:
    net = Net(compile_text(REPORTS), {"teller": "Teller", "hearer": "Hearer"}, knows_marks=False)
    net.run(3 * S)
    teller, hearer = net.machines["teller"], net.machines["hearer"]
    teller.node.invoke("Teller", {"x": np.ones(1, np.float32), "to": (hearer.node.peer_id,)})
    net.run(net.now_ns + 3 * S)
    hearer.take_snapshot(net.now_ns)
    assert recompiled(hearer, compile_text, REPORTS) == [Row("windows", "", "1 peer whose numbers are known")]


def test_records_that_are_left_are_told_and_counted_by_peer(teller, compile_text) -> None:
    rows = recompiled(teller, compile_text, REPORTS.replace("site_ids=c1", "site_ids=c2"))
    why = NO_SUCH_PORT
    name = "a send of 1 value (/site/193)"
    assert rows == [
        Row("outbox", "", f"{name} to {B}, 2 of them", why),
        Row("outbox", "", f"{name} to {C}, 1 of them", why),
    ]
    dropped = [s for s in teller.node.poll(6 * S) if isinstance(s, steps.OutboundDropped)]
    assert dropped == [
        steps.OutboundDropped(B, f"{name} of the old program, 2 of them: {why}"),
        steps.OutboundDropped(C, f"{name} of the old program, 1 of them: {why}"),
    ]
    assert teller.node.counters["outbound.dropped"] == 3


def test_an_outbox_that_is_left_on_purpose_says_so(teller, compile_text) -> None:
    disk = teller.disk
    former = Former.of(disk.snapshot, list(disk.outbox.values()), 5 * S)
    former.drops_outbox = True
    other = compile_text(REPORTS.replace("program Demo", "program Other"))
    node = install(teller.node.peer_id, (HERE,), other, ["Teller"], durable=True, adopt=former)
    why = "--adopt-without-outbox: it is not sent again, and may have arrived"
    assert [row for row in former.rows if row.name == "outbox"] == [
        Row("outbox", "", f"a send 'report' to {B}, 2 of them", why),
        Row("outbox", "", f"a send 'report' to {C}, 1 of them", why),
    ]
    assert not former.outbox and node.pending_sends == 0
