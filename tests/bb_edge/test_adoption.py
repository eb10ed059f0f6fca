"""What a node of another program leaves: which bootstraps count as done, and what is listed as left."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32
from snapshots import body_of, resealed
from times import S

from bb_edge.adoption import Former, Row
from bb_edge.engine import steps
from bb_edge.engine.snapshot import SnapshotDamagedError, SnapshotVersionError
from bb_edge.registry import Registry
from bb_edge.roles import Index


class Shelf(Index):
    """Holds sums of vectors, and writes down what is done to it; its bootstrap fails as often as told."""

    TYPE_NAME: ClassVar[str] = "test.Shelf"
    log: ClassVar[list[str]] = []
    fails: ClassVar[int] = 0
    refuses: ClassVar[bool] = False

    def __init__(self) -> None:
        self.total = 0.0

    @classmethod
    def construct(cls, env: Any) -> Shelf:
        return cls()

    def add(self, ctx: Any, vec: Any) -> None:
        self.log.append("add")
        if type(self).fails > 0:
            type(self).fails -= 1
            raise ValueError("not yet")
        self.total += float(vec[0])

    def search(self, ctx: Any, query: Any, *, k: int) -> Any:
        return np.full(k, int(self.total), np.int64), np.zeros(k, np.float32)

    def serialize(self) -> bytes:
        return np.float64(self.total).tobytes()

    def restore(self, state: bytes) -> None:
        if self.refuses:
            raise ValueError("of another kind")
        self.total = float(np.frombuffer(state)[0])


class Warm(Shelf):
    """The same, with a bootstrap of its own."""

    TYPE_NAME: ClassVar[str] = "test.Warm"

    def bootstrap(self, ctx: Any) -> None:
        self.log.append("bootstrap")


class Cold(Index):
    """Holds nothing that a restart would lose, and has a bootstrap of its own."""

    TYPE_NAME: ClassVar[str] = "test.Cold"
    stateless: ClassVar[bool | None] = True
    add, search, bootstrap = Shelf.add, Shelf.search, Warm.bootstrap
    log = Shelf.log

    @classmethod
    def construct(cls, env: Any) -> Cold:
        return cls()


@pytest.fixture
def registry():
    Shelf.log.clear()
    Shelf.fails, Shelf.refuses = 0, False
    found = Registry()
    found.register(Shelf)
    found.register(Warm)
    found.register(Cold)
    return found


OLD = """
program Demo {module=Demo, binding.Main.a="index|test.Shelf|1", binding.Main.w="index|test.Warm|2"}
function program.Main(q: F32, v: F32[1], keep: F32) -> () {entry=1, partition=self}
  slot a: index
  slot w: index
  ids: I64, d: F32 = role.index.Search<k=1>(q) {slot=a}
  syscall.AppEmit<name="ids">(ids)
  ids2: I64, d2: F32 = role.index.Search<k=1>(q) {slot=w}
  cmd: CommandId = role.index.Add(v) {slot=a}
  p: Trigger = syscall.Pulse()
  syscall.AppNotify<name="started">(p)
  s: Trigger = syscall.Hold.Stash<slot="last">(keep)
function program.Main__bootstrap(corpus: F32[1]) -> () {module_phase=bootstrap}
  slot a: index
  cmd: CommandId = role.index.Add(corpus) {slot=a}
"""
NEW = OLD.replace('"ids"', '"found"')
CORPUS = {"Main": {"corpus": f32(7)}}


def rows(former):
    return {(row.name, row.what): row.why for row in former.rows}


@pytest.fixture
def old(bench, registry):
    b = bench(OLD, registry=registry)
    b.node.keep_bootstrapping(CORPUS)
    b.settle(until_ns=0)
    b.node.invoke("Main", {"v": f32(10)})
    b.settle(until_ns=0)
    assert Shelf.log == ["bootstrap", "add", "add"]
    Shelf.log.clear()
    return b


def started(bench, registry, old, text=NEW):
    former = Former.of(old.node.snapshot(0))
    b = bench(text, registry=registry, adopt=former)
    b.node.keep_bootstrapping(CORPUS)
    b.settle(until_ns=0)
    return b, former


def found(b):
    b.node.invoke("Main", {"q": f32(0).reshape(())})
    b.settle(until_ns=b.now_ns)
    return b.events("found")[-1].tolist()


def test_bootstraps_that_were_done_are_not_run_again(bench, registry, old):
    b, former = started(bench, registry, old)
    assert Shelf.log == []
    assert [s.status.value for s in b.node.bootstraps] == ["done", "done"]
    assert len(b.events("started")) == 1  # what waits for bootstraps begins all the same
    assert found(b) == [17]
    done = "done: it is not run again"
    assert former.rows[-2:] == [Row(f"bootstrap of {name}", "", done) for name in ("w", "Main")]
    assert b.node.origin == (former.identity.module, former.identity.program, 0, 0)


def test_a_bootstrap_alone_of_a_target_and_one_alone_of_a_slot(bench, registry):
    slot = OLD.partition("function program.Main__bootstrap")[0]
    target = OLD.replace('binding.Main.w="index|test.Warm|2"', 'binding.Main.w="index|test.Shelf|2"')
    for text, name in ((slot, "w"), (target, "Main")):
        before = bench(text, registry=registry)
        before.node.keep_bootstrapping(CORPUS if name == "Main" else {})
        before.settle(until_ns=0)
        Shelf.log.clear()
        former = Former.of(before.node.snapshot(0))
        b = bench(text.replace('"ids"', '"found"'), registry=registry, adopt=former)
        b.node.keep_bootstrapping(CORPUS if name == "Main" else {})
        b.settle(until_ns=0)
        assert Shelf.log == [] and len(b.events("started")) == 1
        assert former.rows[-1] == Row(f"bootstrap of {name}", "", "done: it is not run again")


def test_a_bootstrap_that_the_old_program_had_not_runs(bench, registry):
    before = bench(OLD.partition("function program.Main__bootstrap")[0], registry=registry)
    before.node.keep_bootstrapping({})
    before.settle(until_ns=0)
    Shelf.log.clear()
    b, former = started(bench, registry, before)
    assert Shelf.log == ["add"], "that of the target; the slot's was done"
    assert [row.name for row in former.rows if row.name.startswith("bootstrap")] == ["bootstrap of w"]
    assert len(b.events("started")) == 1


def test_one_whose_component_saves_nothing_runs_again(bench, registry):
    text = OLD.partition("function program.Main__bootstrap")[0].replace("test.Warm", "test.Cold")
    before = bench(text, registry=registry)
    before.node.keep_bootstrapping({})
    before.settle(until_ns=0)
    Shelf.log.clear()
    former = Former.of(before.node.snapshot(0))
    b = bench(text.replace('"ids"', '"found"'), registry=registry, adopt=former)
    b.node.keep_bootstrapping({})
    b.settle(until_ns=0)
    assert Shelf.log == ["bootstrap"]
    assert former.rows[-1] == Row("bootstrap of w", "", "done", "it runs again: its component saves no state")


def test_slots_that_did_not_come_over_are_named_in_their_order(bench, registry):
    text = OLD.replace("Main.w", "Main.b").replace("slot w", "slot b").replace("=w}", "=b}")
    text = text.replace("Main.a", "Main.z").replace("slot a", "slot z").replace("=a}", "=z}")
    text = f"{text.rstrip()}\n  more: CommandId = role.index.Add(corpus) {{slot=b}}\n"
    text = text.replace("{module_phase=bootstrap}\n", "{module_phase=bootstrap}\n  slot b: index\n")
    before = bench(text, registry=registry)
    before.node.keep_bootstrapping(CORPUS)
    before.settle(until_ns=0)
    Shelf.refuses = True
    _, former = started(bench, registry, before, text.replace('"ids"', '"found"'))
    why = "it runs again: z, b did not come over whole"
    assert Row("bootstrap of Main", "", "done", why) in former.rows


def test_one_whose_component_begins_anew_runs_again(bench, registry, old):
    Shelf.refuses = True
    b, former = started(bench, registry, old)
    assert Shelf.log == ["bootstrap", "add"]
    assert found(b) == [7]
    assert rows(former)["bootstrap of Main", "done"] == "it runs again: a did not come over whole"
    assert "ValueError: of another kind" in rows(former)["a", "its state"]


def test_what_a_failed_bootstrap_constructs_anew_has_the_old_state_again(bench, registry, old):
    text = NEW.replace('w="index|test.Warm|2"', 'w="index|test.Shelf|2"')
    declared = "{module_phase=bootstrap}\n"
    text = text.replace(declared, f"{declared}  slot w: index\n")
    both = text.rstrip() + "\n  more: CommandId = role.index.Add(corpus) {slot=w}\n"
    Shelf.fails = 1
    b, former = started(bench, registry, old, both)
    assert rows(former)["bootstrap of Main", "done"] == "it runs again: w did not come over whole"
    assert rows(former)["w", "its state"] == "the slot has a test.Shelf here"
    assert b.of(steps.BootstrapComplete)[-1].failed
    b.poll(S)
    b.settle(until_ns=b.now_ns)
    assert not b.of(steps.BootstrapComplete)[-1].failed
    assert found(b) == [24]  # 17 of the old node, and 7 of the bootstrap, once


def test_slots_and_ops_that_are_gone_are_listed(bench, registry, old):
    old.node.invoke("Main", {"keep": f32(1).reshape(())})
    old.settle(until_ns=0)
    text = """
program Demo {module=Demo, binding.Main.b="index|test.Shelf|1"}
function program.Main(q: F32) -> () {entry=1, partition=self}
  slot b: index
  ids: I64, d: F32 = role.index.Search<k=1>(q) {slot=b}
  syscall.AppEmit<name="found">(ids)
"""
    former = Former.of(old.node.snapshot(0))
    bench(text, registry=registry, adopt=former)
    listed = rows(former)
    assert listed["a", "its state"] == listed["w", "its state"] == "there is no slot of that name here"
    assert listed["b", "nothing"] == "the slot is new: it begins as constructed"
    assert listed["ops", "states of ops (hold 'last' of Main), 1 of them"] == "they belong to the old program"


@pytest.mark.parametrize("part", ["components", "outbound", "slots", "bootstraps", "ops"])
def test_damaged_parts_are_refused(part, bench, registry, old):
    body = body_of(old.node.snapshot(0))
    body[part] = 7
    with pytest.raises(SnapshotDamagedError) as error:
        bench(NEW, registry=registry, adopt=Former.of(resealed(body)))
    assert str(error.value).startswith("snapshot: its parts cannot be read: '")


def test_another_version_is_refused(old):
    data = bytearray(old.node.snapshot(0))
    data[9] += 1
    with pytest.raises(SnapshotVersionError):
        Former.of(bytes(data))
