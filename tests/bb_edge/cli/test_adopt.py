"""State of another program: what is taken, what is listed, and what is refused; files, no broker."""

from __future__ import annotations

import json
import time
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from averaging import compiled, write_flowers
from components import forgotten_components
from snapshots import body_of, resealed

from bb_edge.adoption import Former
from bb_edge.cli import main
from bb_edge.cli.adopt import former_at
from bb_edge.components import GraphModel, ScalarQuantizer
from bb_edge.config_file import load_config
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.snapshot import Identity
from bb_edge.extend import Adoption, Setting, StateReader, pack_state, register
from bb_edge.installer import install
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.loading import load
from bb_edge.state import StateStore
from bb_edge.state.keeper import Keeper
from bb_edge.state.record_framing import Owner
from bb_shims import StorageError, detect

SERVER = PeerId.from_name("server")
MS = 1_000_000


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    return write_flowers(tmp_path_factory.mktemp("data") / "flowers.npz", 0)


@pytest.fixture
def world(tmp_path, flowers):
    return World(tmp_path, flowers)


class World:
    """Artifacts and state folders of one server."""

    def __init__(self, folder, flowers):
        self.folder, self.flowers = folder, flowers

    def artifact(self, version, **options):
        path = self.folder / f"{version}.onnx"
        path.write_bytes(compiled(**options)["Server"])
        return path

    def node(self, version, *, adopt=None, snapshot=None, durable=False, **options):
        program = load(self.artifact(version, durable=durable, **options).read_bytes())
        return install(
            SERVER,
            (),
            program,
            ["Server"],
            NodeConfig.edge(),
            components={"test": {"path": str(self.flowers)}},
            clock_offset_ns=time.time_ns(),
            seed=1,
            durable=durable,
            adopt=adopt,
            snapshot=snapshot,
        )

    def keep(self, node, name="old", journal=(), polls=0):
        """Writes a node into a state folder as its keeper does, after as many polls."""
        storage = detect().storage(self.folder / name)
        owner = Owner(node.peer_id.to_bytes(), Identity.of(node.peer_id, node.program, node.targets).program)
        store = StateStore(storage, (StorageError,), owner=owner)
        store.open()
        keeper = Keeper(node, store)
        for now_ns in range(0, polls * 100 * MS, 100 * MS):
            keeper.take(node.poll(now_ns), now_ns)
        keeper.snapshot(polls * 100 * MS)
        store.append_journal(journal)
        storage.close()

    def run(self, version, *more, peer="server", old="old", new="new"):
        return main(
            [
                *("run", str(self.folder / f"{version}.onnx"), "--target", "Server", "--peer", peer),
                *("--broker", "mqtt://127.0.0.1:1", "--set", f"test.path={self.flowers}"),
                *("--state", str(self.folder / new), "--adopt", str(self.folder / old), *more),
            ]
        )


def trained(node, momentum=False):
    """Moves the parameters of a node by 1, 2, 3, …; with momentum by a step, whose velocity stays."""
    model = node.component("model")
    change = np.arange(1, model.parameters.size + 1, dtype=np.float32)
    model.step(None, -change) if momentum else model.apply_delta(None, change)
    return model.named_parameters()


def rows(former):
    return {(row.name, row.what): row.why for row in former.rows}


# --- components -----------------------------------------------------------------------------------------


def test_parameters_and_momentum_come_over_bit_by_bit(world):
    old = world.node("old", momentum=0.5)
    learned = trained(old, momentum=True)
    new = world.node("new", adopt=Former.of(old.snapshot(0)), momentum=0.9, learning_rate=0.01)
    found = new.component("model").named_parameters()
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in learned.items()
    }
    # The velocity of the old step goes on, under the new rate.
    size = new.component("model").parameters.size
    new.component("model").step(None, np.zeros(size, np.float32))
    expected = np.concatenate([a.ravel() for a in learned.values()]) + np.float32(0.01) * (
        np.float32(0.9) * np.arange(1, size + 1, dtype=np.float32)
    )
    np.testing.assert_allclose(new.component("model").parameters, expected, rtol=1e-6)


def test_other_shapes_are_listed_and_the_rest_is_taken(world):
    old = world.node("old", hidden=5)
    learned = trained(old)
    former = Former.of(old.snapshot(0))
    new = world.node("new", adopt=former, hidden=7)
    fresh = world.node("new", hidden=7).component("model").named_parameters()
    found = new.component("model").named_parameters()
    np.testing.assert_array_equal(found["b2"], learned["b2"])
    for name in ("w1", "b1", "w2"):
        np.testing.assert_array_equal(found[name], fresh[name])
    listed = rows(former)
    assert listed["model", "1 tensor with 3 numbers"] == ""
    assert listed["model", "tensor w1"] == "it was 4x5, here it is 4x7"
    assert listed["model", "tensor b1"] == "it was 5, here it is 7"


def test_momentum_that_the_new_program_lacks_is_listed(world):
    old = world.node("old", momentum=0.5)
    trained(old, momentum=True)
    former = Former.of(old.snapshot(0))
    world.node("new", adopt=former)
    assert rows(former)["model", "momentum"] == "this program has none"


def test_a_slot_of_another_type_is_listed(world):
    old = world.node("old", codec=ScalarQuantizer)
    former = Former.of(old.snapshot(0))
    world.node("new", adopt=former)
    assert rows(former)["codec", "its state"] == "the slot has a bb.Float16Codec here"


def test_a_configured_range_is_the_new_programs_and_a_trained_one_comes_over(world):
    old = world.node("old", codec=ScalarQuantizer)
    for sample, low in ((None, -1.0), ([-3.0, 4.0], -3.0)):
        if sample is not None:
            old.component("codec").train_codebook(None, np.float32(sample))
        new = world.node("new", adopt=Former.of(old.snapshot(0)), codec=ScalarQuantizer, learning_rate=0.3)
        code = new.component("codec").compress(None, np.float32([-100]))
        assert new.component("codec").decompress(None, code)[0] == pytest.approx(low)


class ByRound:
    """What an aggregator sees where sums are told by the round."""

    cohort, exec_id, now_ns = -1, 0, 0


def test_the_aggregate_comes_over_and_open_sums_do_not(world):
    old = world.node("old")
    agg, one, first, second = old.component("agg"), np.float32(1), np.int64(1), np.int64(2)
    agg.contribute(ByRound, np.float32([1, 3]), one, None, first)
    agg.aggregate(ByRound, None, first)
    agg.contribute(ByRound, np.float32([5, 5]), one, None, second)
    former = Former.of(old.snapshot(0))
    agg = world.node("new", adopt=former, outputs=1).component("agg")
    np.testing.assert_array_equal(agg.current_tensor(ByRound), [1, 3])
    assert rows(former)["agg", "open sums, 1 of them"] == "of executions or rounds of the old program"
    for number in (first, second):  # over in the old program, or open there: here they are other rounds
        agg.contribute(ByRound, np.float32([7, 7]), one, None, number)
        np.testing.assert_array_equal(agg.aggregate(ByRound, None, number)[0], [7, 7])


def test_a_snapshot_says_what_was_adopted_and_the_node_goes_on_from_it(world):
    old = world.node("old")
    learned = trained(old)
    new = world.node("new", adopt=Former.of(old.snapshot(0)), rounds=7)
    again = world.node("new", snapshot=new.snapshot(0), rounds=7)
    program = Identity.of(SERVER, old.program, ["Server"]).program
    assert again.origin == new.origin == ("Averaging", program, 0, 0)
    assert world.node("new").origin is None
    np.testing.assert_array_equal(again.component("model").named_parameters()["w1"], learned["w1"])


# --- components of one's own ----------------------------------------------------------------------------


class Counting(GraphModel):
    """A model with a state of its own around that of its base."""

    TYPE_NAME: ClassVar[str] = "test.Counting"
    CONFIG: ClassVar[dict] = {"most": Setting.integer(100)}
    count = 0

    def serialize(self):
        return pack_state(self, 1, {"count": self.count, "base": super().serialize()})

    def restore(self, state):
        reader = StateReader(self, 1, state)
        self.count = reader.integer("count")
        if self.count > 10:
            raise reader.error("more than ten")


class Choosy(Counting):
    """One that says itself what it takes."""

    TYPE_NAME: ClassVar[str] = "test.Choosy"

    def adopt(self, state):
        self.count = StateReader(self, 1, state).integer("count") + 1000
        return Adoption(("the count",), ("the rest: it is not wanted",))


class Wrong(Counting):
    """One whose `adopt` says nothing."""

    TYPE_NAME: ClassVar[str] = "test.Wrong"

    def adopt(self, state):
        self.count = 77


@pytest.fixture
def own_components():
    with forgotten_components():
        for kind in (Counting, Choosy, Wrong):
            register(kind)
        yield


@pytest.mark.parametrize(
    ("kind", "count", "found", "what", "why"),
    [
        (Counting, 3, 3, "its state", ""),
        (Counting, 11, 0, "its state", "more than ten"),
        (Choosy, 3, 1003, "the rest", "it is not wanted"),
        (Wrong, 3, 0, "its state", "an Adoption is expected"),
    ],
)
def test_own_components_decide_what_they_take(kind, count, found, what, why, world, own_components):
    old = world.node("old", model=kind)
    old.component("model").count = count
    former = Former.of(old.snapshot(0))
    new = world.node("new", model=kind, adopt=former, outputs=1)
    assert new.component("model").count == found
    assert why in rows(former)["model", what]


# --- the command ----------------------------------------------------------------------------------------


def test_check_lists_it_and_changes_nothing(world, capsys):
    old = world.node("old")
    trained(old)
    world.keep(old)
    before = {path.name: path.read_bytes() for path in (world.folder / "old").iterdir()}
    new = world.artifact("new", hidden=7)
    words = ["check", str(new), "--set", f"test.path={world.flowers}", "--adopt", str(world.folder / "old")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "not adopted  model  tensor w1: it was 4x5, here it is 4x7" in out
    assert "adopted      model  1 tensor with 3 numbers" in out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["adopts"]
    assert (found["module"], found["targets"]) == ("Averaging", ["Server"])
    assert {"name": "model", "type_name": "bb.GraphModel", "what": "tensor b1"}.items() <= found["rows"][
        2
    ].items()
    assert {path.name: path.read_bytes() for path in (world.folder / "old").iterdir()} == before


def configuration(world):
    """Of a server that adopts `old` into `new`."""
    return {
        "artifact": "new.onnx",
        "targets": ["Server"],
        "peer": "server",
        "broker": "mqtt://127.0.0.1:1",
        "state": "new",
        "adopt": "old",
        "components": {"test": {"path": str(world.flowers)}},
    }


def test_check_of_a_configuration_lists_it_too(world, capsys):
    world.keep(world.node("old"))
    world.artifact("new", outputs=1)
    config = configuration(world)
    path = world.folder / "server.json"
    path.write_text(json.dumps(config))
    assert main(["check", "--config", str(path)]) == 0
    assert "adopted      model  4 tensors with 43 numbers" in capsys.readouterr().out
    assert not (world.folder / "new").exists()
    path.write_text(json.dumps({**config, "state": "old"}))
    assert main(["check", "--config", str(path)]) == 1
    assert "adopted into itself" in capsys.readouterr().out


def test_check_says_what_would_not_be_adopted_and_why(world, capsys):
    world.keep(world.node("old"))
    world.artifact("new", hidden=7)
    path = world.folder / "server.json"
    path.write_text(json.dumps(configuration(world)))
    why = "not adopted: slot model, type bb.GraphModel, what tensor w1, why it was 4x5, here it is 4x7"
    assert main(["check", "--config", str(path)]) == 0
    assert f"bb-edge: warning: {why}\n" in capsys.readouterr().err
    assert main(["check", "--config", str(path), "--json"]) == 0
    assert why in json.loads(capsys.readouterr().out)["warnings"]


def test_a_folder_that_has_moved_on_since_it_was_adopted_is_told_by_name(world, capsys):
    old = world.node("old")
    world.keep(old)
    world.artifact("new", outputs=1)
    path = world.folder / "server.json"
    config = configuration(world)
    path.write_text(json.dumps(config))
    check = ["check", "--config", str(path)]
    former = former_at(world.folder / "old", load_config(path), 0, lambda *_, **__: None)
    world.keep(world.node("new", outputs=1, adopt=former), "new")
    assert main(check) == 0
    assert "moved on" not in capsys.readouterr().err
    world.keep(old)  # the old program runs again, and stops
    assert main(check) == 0
    err = capsys.readouterr().err
    assert "moved on since it was adopted: it is at generation 2 after 0 rounds" in err
    assert "Nor does this node send what waits in its outbox" in err
    assert "what was adopted is generation 1" in err and "name an empty folder with --state" in err


def test_a_folder_of_another_program_is_refused_with_the_digests_that_inspect_shows(world, capsys):
    world.keep(world.node("old"))
    artifacts = [world.folder / "old.onnx", world.artifact("new", outputs=1)]
    words = ["--target", "Server", "--peer", "server", "--broker", "mqtt://127.0.0.1:1"]
    assert main(["run", str(artifacts[1]), *words, "--state", str(world.folder / "old")]) == 3
    refused = capsys.readouterr().err
    for artifact in artifacts:
        assert main(["inspect", str(artifact)]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  state ")]
        assert line.split()[1] in refused


def test_the_state_of_another_peer_is_refused_by_name(world, capsys):
    world.keep(world.node("old"))
    world.artifact("new", outputs=1)
    assert world.run("new", peer="kitchen") == 3
    err = capsys.readouterr().err
    assert f"it is the folder of peer {SERVER}, this is kitchen" in err
    assert not (world.folder / "new").exists(), "nothing is left of a start that was refused"
    (world.folder / "new").mkdir()
    assert world.run("new", peer="kitchen") == 3
    assert (world.folder / "new").exists(), "it was there before"


@pytest.mark.parametrize(
    ("old", "said"), [("nowhere", "there is no such folder"), ("empty", "it holds no snapshot")]
)
def test_a_folder_without_state_is_refused(old, said, world, capsys):
    world.artifact("new")
    (world.folder / "empty").mkdir()
    assert world.run("new", old=old) == 3
    assert {"nowhere": "there is no such folder", "empty": "it holds no snapshot"}[
        old
    ] in capsys.readouterr().err


def test_a_folder_in_which_a_node_runs_may_be_free_later(world, capsys):
    world.keep(world.node("old"))
    world.artifact("new", outputs=1)
    storage = detect().storage(world.folder / "old")
    try:
        assert world.run("new") == 1
    finally:
        storage.close()
    assert "a node runs in it" in capsys.readouterr().err


def test_own_state_that_was_not_adopted_is_refused(world, capsys):
    world.keep(world.node("old"))
    world.keep(world.node("new", outputs=1), "new")
    assert world.run("new") == 3
    assert "holds a snapshot already, and it was not made by adopting another" in capsys.readouterr().err


def test_own_state_that_another_program_was_adopted_into_is_refused(world, capsys):
    first, other = world.node("old"), world.node("other", rounds=9)
    world.keep(other, "other")
    world.keep(world.node("new", outputs=1, adopt=Former.of(first.snapshot(0))), "new")
    assert world.run("new", old="other") == 3
    assert "has adopted another program's state" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["slots", "bootstraps"])
def test_parts_that_cannot_be_read_are_refused_by_the_folder(part, world, capsys):
    node = world.node("old")
    body = body_of(node.snapshot(0))
    body[part] = 7
    world.artifact("new", outputs=1)
    storage = detect().storage(world.folder / "old")
    store = StateStore(storage, (StorageError,))
    store.open()
    store.write_snapshot(resealed(body))
    storage.close()
    assert world.run("new") == 3
    assert f"--adopt {world.folder / 'old'}: it cannot be read" in capsys.readouterr().err


def test_what_the_journal_holds_is_refused(world, capsys):
    world.keep(world.node("old"), journal=[b"an envelope"])
    world.artifact("new", outputs=1)
    assert world.run("new") == 3
    err = capsys.readouterr().err
    assert "its journal holds 1 envelopes" in err and "run the old program with this folder once more" in err


def durable_server(world):
    """One that has asked two clients durably, and that nobody has answered."""
    node = world.node("old", durable=True)
    for name in ("one", "two"):
        peer = PeerId.from_name(name)
        addresses = (Address.empty().with_peer(peer).to_bytes(),)
        node.peer_presence(peer, True, addresses, epoch=5, classes=("Client",), session=1, seq=1)
    world.keep(node, polls=8)
    return node


def test_what_cannot_come_over_of_an_outbox_is_listed_by_name(world, capsys):
    durable_server(world)
    new = world.artifact("new", durable=True, outputs=1)
    words = ["check", str(new), "--set", f"test.path={world.flowers}", "--adopt", str(world.folder / "old")]
    assert main(words) == 0
    out = capsys.readouterr().out
    one = PeerId.from_name("one")
    assert f"outbox      a request 'global' to {one}, 1 of them: nobody waits for the answers" in out
    assert "executions under way, 1 of them" in out
    assert main([*words, "--adopt-without-outbox", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["adopts"]["rows"]
    assert not any("it is not sent again" in row["why"] for row in found), "it would not fit anyway"


@pytest.mark.parametrize(
    ("durable", "rounds", "told"), [(True, 5, True), (True, 1, False), (False, 5, False)]
)
def test_rounds_between_snapshots_save_none_where_requests_are_durable(world, capsys, durable, rounds, told):
    config = {
        "artifact": str(world.artifact("new", durable=durable)),
        "targets": ["Server"],
        "peer": "server",
        "state": str(world.folder / "new"),
        "snapshot_rounds": rounds,
        "broker": {"url": "mqtt://127.0.0.1:1"},
        "components": {"test": {"path": str(world.flowers)}},
    }
    (world.folder / "node.json").write_text(json.dumps(config))
    main(["check", "--config", str(world.folder / "node.json")])
    said = capsys.readouterr()
    assert ("saves no snapshots here: a durable request leaves behind one" in said.err) is told, said


def test_the_state_of_another_federation_is_not_adopted(world, capsys):
    world.keep(world.node("old"))
    (world.folder / "old" / "federation").write_text("farm\n")
    world.artifact("new")
    assert world.run("new", "--federation", "office") == 3
    said = capsys.readouterr().err
    assert "federation 'farm'" in said and "'office'" in said and "bb-edge export" in said
    assert not (world.folder / "new" / "federation").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--state", "old"], "adopted into itself"),
        ([], "state is adopted into no folder"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_usage(flags, said, world, capsys, monkeypatch):
    monkeypatch.chdir(world.folder)
    artifact = world.artifact("new")
    words = ["run", str(artifact), "--target", "Server", "--peer", "server", "--broker", "mqtt://127.0.0.1:1"]
    assert main([*words, "--adopt", "old", *flags]) == 2
    assert said in capsys.readouterr().err


def test_check_is_told_the_federation_that_the_node_is_to_join(world, capsys):
    world.keep(world.node("old"))
    (world.folder / "old" / "federation").write_text("farm\n")
    words = ["check", str(world.artifact("new")), "--set", f"test.path={world.flowers}"]
    words += ["--adopt", str(world.folder / "old")]
    assert main(words) == 1
    assert "'farm'" in (said := capsys.readouterr().out) and "--federation" in said
    assert main([*words, "--federation", "farm"]) == 0
