"""Parameters out of a state folder, and out of a node that runs: what is written, and what is refused."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack

import numpy as np
import pytest
from snapshots import body_of, resealed

from bb_edge.cli import main
from bb_edge.cli.export import ExportError, choose, look
from bb_edge.cli.render import Output
from bb_edge.cli.saved_models import SaveModelError, open_saved
from bb_edge.components import GraphModel
from bb_edge.components.parameter_file import METADATA, ParameterFileError, pack, unpack
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.loading import load
from bb_edge.state import StateError, StateStore
from bb_shims import AtomicStorage, StorageError, StorageFullError, detect
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind, PowerCut

pytest.importorskip("onnx", reason="compiling needs the host extra")

import onnx

from bb_host import Compiler, ModelSlot, Module
from bb_host.cli import main as host_main
from bb_host.learn import mlp, trainable

ARRAYS = {"a.w": np.arange(6, dtype=np.float32).reshape(2, 3), "file": np.float32([7]), "s": np.array(2.5)}


# --- the file -------------------------------------------------------------------------------------


def test_a_file_holds_what_was_packed_in_its_order():
    data = pack(ARRAYS, {"slot": "model", "rounds": 3})
    found = unpack(data)
    assert list(found.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].dtype == array.dtype
    assert (found.meta["slot"], found.meta["rounds"]) == ("model", 3)
    assert pack(ARRAYS, {"slot": "model", "rounds": 3}) == data


def test_numpy_reads_it_and_what_numpy_writes_is_read(tmp_path):
    (tmp_path / "p.npz").write_bytes(pack(ARRAYS, {}))
    with np.load(tmp_path / "p.npz") as found:
        assert set(found.files) == {*ARRAYS, METADATA}
        np.testing.assert_array_equal(found["a.w"], ARRAYS["a.w"])
    np.savez(tmp_path / "own.npz", w=ARRAYS["a.w"])
    found = unpack((tmp_path / "own.npz").read_bytes())
    assert list(found.arrays) == ["w"] and found.meta == {}


def test_every_damaged_file_is_refused():
    data = pack(ARRAYS, {})
    for wrong in (b"", b"no zip", data[:50], data[:-30], b"\x93NUMPY\x01\x00", np.arange(3).tobytes()):
        with pytest.raises(ParameterFileError):
            unpack(wrong)
    for place in range(0, len(data), 97):  # never anything else than the arrays, or that error
        damaged = bytearray(data)
        damaged[place] ^= 0x5A
        try:
            assert unpack(bytes(damaged)).arrays
        except ParameterFileError:
            continue


def test_a_file_whose_arrays_were_changed_says_so(tmp_path):
    meta = str(unpack(pack(ARRAYS, {})).meta["layout_hash"])
    entry = np.array(json.dumps({"layout_hash": meta}))
    np.savez(tmp_path / "p.npz", **{METADATA: entry, "a.w": np.zeros(3, np.float32)})
    with pytest.raises(ParameterFileError, match="not those that were exported"):
        unpack((tmp_path / "p.npz").read_bytes())


def test_a_single_array_and_an_empty_file_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(ParameterFileError, match="without a name"):
        unpack((tmp_path / "a.npy").read_bytes())
    with pytest.raises(ParameterFileError, match="no arrays"):
        unpack(pack({}, {}))


# --- a state folder -------------------------------------------------------------------------------


class Two(Module):
    """Two models; an invoke of `x` runs both."""

    name = "Two"
    first, second = ModelSlot("first"), ModelSlot("second")

    def body(self, g):
        x = g.input("x", "F32", (None, 4))
        g.output("y", self.second.forward(g, self.first.forward(g, x)))
        delta = g.input("delta", "F32", (None,))
        self.first.apply_delta(g, delta)


def compile_two():
    from bb_host.build import build_edge

    compiler = (
        Compiler()
        .bind_model("first", GraphModel, trainable(mlp([4, 3], 1)))
        .bind_model("second", GraphModel, trainable(mlp([3, 2], 2)))
    )
    (artifact,) = build_edge(Two(), compiler).artifacts
    return artifact.data


@pytest.fixture(scope="module")
def artifact():
    return compile_two()


@pytest.fixture
def node(artifact):
    return install(PeerId.from_name("kitchen"), (), load(artifact), ["Two"], NodeConfig.edge(), seed=1)


def invoke(node, **inputs):
    node.invoke("Two", inputs)
    now = 0
    while (due := node.next_deadline_ns()) is not None and due <= now:
        node.poll(now)
        now += 1


def write_state(folder, node, times=1):
    write_snapshots(folder, map(node.snapshot, range(times)))


def write_snapshots(folder, snapshots):
    board = detect()
    storage = board.storage(folder)
    store = StateStore(storage, (StorageError,))
    store.open()
    for data in snapshots:
        store.write_snapshot(data)
        store.drop([])
    storage.close()


@pytest.fixture
def state(node, tmp_path):
    invoke(node, delta=np.ones(15, np.float32))
    write_state(tmp_path / "state", node)
    return tmp_path / "state"


def test_the_artifact_is_not_needed_and_names_are_those_of_the_file(state, tmp_path, capsys, node):
    out = tmp_path / "first.npz"
    assert main(["export", "--state", str(state), "--slot", "first", "-o", str(out)]) == 0
    assert "15 parameters in 2 tensors" in capsys.readouterr().out
    found = unpack(out.read_bytes())
    assert {name: array.shape for name, array in found.arrays.items()} == {"w1": (4, 3), "b1": (3,)}
    np.testing.assert_array_equal(found.arrays["b1"], np.ones(3, np.float32))  # zeros, and the delta
    assert found.meta["slot"] == "first" and found.meta["module"] == "Two"
    assert found.meta["layout_hash"] == node.component("first").layout_hash
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_without_a_file_the_models_are_listed(state, capsys):
    assert main(["export", "--state", str(state)]) == 0
    out = capsys.readouterr().out
    assert "slot first (bb.GraphModel), 15 parameters in 2 tensors" in out
    assert "w1  4x3" in out and "slot second" in out
    assert main(["export", "--state", str(state), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [m["slot"] for m in found["models"]] == ["first", "second"]
    assert found["models"][0]["tensors"] == {"w1": [4, 3], "b1": [3]}
    assert found["others"] == ["backend"]


def test_reading_takes_no_lock_and_changes_nothing(state, tmp_path):
    before = {p.name: p.read_bytes() for p in state.iterdir()}
    storage = detect().storage(state)  # a node that runs
    try:
        assert look(state).generation == 1
    finally:
        storage.close()
    assert {p.name: p.read_bytes() for p in state.iterdir()} == before


def test_a_damaged_snapshot_falls_back_and_says_so(node, tmp_path, capsys):
    folder = tmp_path / "state"
    write_state(folder, node, times=2)
    newest = folder / "snapshot-2"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    newest.write_bytes(bytes(data))
    assert main(["export", "--state", str(folder), "--slot", "first", "-o", str(tmp_path / "p.npz")]) == 0
    assert "snapshot-2 cannot be used" in capsys.readouterr().err
    assert unpack((tmp_path / "p.npz").read_bytes()).meta["generation"] == 1


def test_links_and_files_that_are_too_long_are_no_state(state, tmp_path):
    """A link to /dev/zero took all memory; a file of a terabyte of nothing, too."""
    newest = max(state.glob("snapshot-*"))
    for wrong in ("a link", "a pipe", "too long"):
        (state / "snapshot-9").unlink(missing_ok=True)
        if wrong == "a link":
            (state / "snapshot-9").symlink_to("/dev/zero")
            assert look(state).generation == 1, "a link is not a file of a node"
        elif wrong == "a pipe":
            os.mkfifo(state / "snapshot-9")
            assert look(state).generation == 1
        else:
            with (state / "snapshot-9").open("wb") as file:
                file.truncate(1 << 40)
            found = look(state)
            assert found.generation == 1
            assert any("larger than 2147483647 bytes" in note for note in found.notes), found.notes
    (state / "snapshot-9").unlink()
    moved = tmp_path / "elsewhere"
    newest.rename(moved)
    newest.symlink_to(moved)
    with pytest.raises((ExportError, StateError)):
        look(state)


def test_what_is_not_there_is_refused_by_name(state, tmp_path, capsys):
    def refused(*words):
        assert main(["export", "--state", *map(str, words)]) == 1
        return capsys.readouterr().err

    assert "no such folder" in refused(tmp_path / "sate", "-o", tmp_path / "p.npz")
    assert not (tmp_path / "sate").exists()
    assert "2 models" in (said := refused(state, "-o", tmp_path / "p.npz"))
    assert "--slot first or --slot second" in said
    assert "did you mean 'first'?" in refused(state, "--slot", "frist", "-o", tmp_path / "p.npz")
    assert "slot 'backend' holds no model" in refused(state, "--slot", "backend")
    assert "no target 'Server'" in refused(state, "--target", "Server")
    (tmp_path / "empty").mkdir()
    assert "holds no snapshot" in refused(tmp_path / "empty")
    assert not (tmp_path / "p.npz").exists()


def test_a_snapshot_of_an_older_runtime_says_what_to_do(state, node):
    body = body_of(node.snapshot(0))
    del body["slots"]
    write_snapshots(state, [resealed(body)])
    with pytest.raises(ExportError, match="written by an older runtime") as caught:
        look(state)
    assert "run the node once" in caught.value.hint


def test_one_model_needs_no_slot(state):
    found = look(state)
    only = found._replace(models=found.models[:1])
    assert choose(only, None, None, "x").slot == "first"
    assert choose(found, "second", "Two", "x").slot == "second"


# --- while a node runs ----------------------------------------------------------------------------


class FullDisk:
    """A storage that is full for a while, and remembers what it holds."""

    def __init__(self):
        self.files, self.full = {}, False

    def write_atomic(self, name, data):
        if self.full:
            raise StorageFullError(name, "write", "no space left", "free some space")
        self.files[name] = data

    def list(self):
        return sorted(self.files)

    def close(self):
        pass


class FakeBoard:
    def __init__(self):
        self.disk = FullDisk()

    def storage(self, folder):
        return self.disk


@pytest.fixture
def saving(node, tmp_path):
    board = FakeBoard()
    with ExitStack() as stack:

        def make(every=1):
            output = Output(False, "error")
            return board.disk, open_saved(tmp_path / "m", every, None, node, board, output, stack)

        yield make


def test_each_round_that_changed_a_model_is_saved(saving, node):
    disk, saved = saving()
    saved.beat(0)
    assert disk.files == {}  # nothing has run yet
    invoke(node, delta=np.ones(15, np.float32))
    saved.beat(1)
    assert set(disk.files) == {"first.npz", "second.npz"}
    np.testing.assert_array_equal(unpack(disk.files["first.npz"]).arrays["b1"], np.ones(3))
    written = saved.written
    invoke(node, x=np.zeros((1, 4), np.float32))  # runs the models, changes none
    saved.beat(2)
    saved.finish()
    assert saved.written == written
    invoke(node, delta=np.ones(15, np.float32))
    saved.beat(3)
    assert saved.written == written + 1  # the one that changed
    np.testing.assert_array_equal(unpack(disk.files["first.npz"]).arrays["b1"], 2 * np.ones(3))


def test_a_saved_model_can_be_read_by_others(node, tmp_path):
    with ExitStack() as stack:
        saved = open_saved(tmp_path / "m", 1, None, node, detect(), Output(False, "error"), stack)
        invoke(node, delta=np.ones(15, np.float32))
        saved.beat(1)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "m").glob("*.npz")} == {0o644}


def test_every_n_rounds_and_at_the_end(saving, node):
    disk, saved = saving(every=3)
    for _ in range(2):
        invoke(node, delta=np.ones(15, np.float32))
        saved.beat(0)
    assert disk.files == {}
    saved.finish()
    np.testing.assert_array_equal(unpack(disk.files["first.npz"]).arrays["b1"], 2 * np.ones(3))


def test_a_model_that_does_not_count_its_updates_is_saved_all_the_same(saving, node):
    disk, saved = saving()
    invoke(node, delta=np.ones(15, np.float32))
    saved.beat(1)
    model = node.component("first")
    second = 1_000_000_000
    for now in (2 * second, 2 * second + 1, 4 * second):
        invoke(node, delta=np.ones(15, np.float32))
        model.updates = 1  # as a subclass with a step of its own leaves it
        saved.beat(now)
        if now == 2 * second + 1:  # not looked at twice a second
            np.testing.assert_array_equal(unpack(disk.files["first.npz"]).arrays["b1"], 2 * np.ones(3))
    np.testing.assert_array_equal(unpack(disk.files["first.npz"]).arrays["b1"], 4 * np.ones(3))
    model.apply_delta(None, np.ones(15, np.float32))
    model.updates = 1
    saved.finish()
    np.testing.assert_array_equal(unpack(disk.files["first.npz"]).arrays["b1"], 5 * np.ones(3))


def test_a_full_disk_stops_nothing_and_the_next_round_tries_again(saving, node, capsys):
    disk, saved = saving(every=2)
    disk.full = True
    for _ in range(2):
        invoke(node, delta=np.ones(15, np.float32))
        saved.beat(0)
    said = capsys.readouterr().err
    assert "'first' was not saved: write first.npz: no space left: free some space; the next round" in said
    assert "outbox" not in said
    disk.full = False
    invoke(node, delta=np.ones(15, np.float32))
    saved.beat(1)
    np.testing.assert_array_equal(unpack(disk.files["first.npz"]).arrays["b1"], 3 * np.ones(3))


def test_what_cannot_be_saved_at_the_end_is_named(saving, node):
    disk, saved = saving(every=2)
    invoke(node, delta=np.ones(15, np.float32))
    disk.full = True
    assert saved.finish() == ["first", "second"]
    disk.full = False
    assert saved.finish() == []


class CutBoard:
    """Its storage is over a disk whose power goes."""

    def __init__(self):
        self.medium = FakeDisk()

    def storage(self, folder):
        return AtomicStorage(self.medium.open())


@pytest.mark.parametrize("kind", [FaultKind.CUT_BEFORE, FaultKind.CUT_INSIDE, FaultKind.CUT_AFTER])
def test_a_power_cut_at_any_system_call_leaves_each_saved_model_old_or_new(node, tmp_path, kind):
    modes = [(mode, 0) for mode in CrashMode if mode is not CrashMode.SEEDED]
    modes += [(CrashMode.SEEDED, seed) for seed in range(6)]
    rounds = 0

    def save(saved):
        nonlocal rounds
        rounds += 1
        invoke(node, delta=np.ones(15, np.float32))
        saved.beat(0)

    for mode, seed in modes:
        at, cut = 0, True
        while cut:
            at += 1
            board, cut = CutBoard(), False
            with ExitStack() as stack:
                saved = open_saved(tmp_path / "m", 1, None, node, board, Output(False, "error"), stack)
                save(saved)
                board.medium.inject(Fault(kind, at))
                try:
                    save(saved)
                except PowerCut:
                    cut = True
            board.medium.crash(mode, seed)
            AtomicStorage(board.medium.open()).close()  # as the next start does
            assert set(board.medium.files) == {"first.npz", "second.npz"}
            saved = unpack(board.medium.files["first.npz"]).arrays["b1"][0]
            assert saved in ((rounds - 1, rounds) if cut else (rounds,))
            unpack(board.medium.files["second.npz"])
        assert at == 6, "five calls for the model that changed, and a save to its end"


def test_the_state_folder_is_not_the_folder_of_models(node, tmp_path):
    with ExitStack() as stack, pytest.raises(SaveModelError, match="it is the state folder"):
        open_saved(tmp_path, 1, tmp_path, node, FakeBoard(), Output(False, "error"), stack)


def test_a_node_without_a_model_is_refused(tmp_path, capsys):
    from bb_host.build import build_edge

    class Plain(Module):
        name = "Plain"

        def body(self, g):
            g.app_emit("tick", g.interval(period_ns=1_000_000_000))
            g.app_notify("started", g.pulse())

    (artifact,) = build_edge(Plain()).artifacts
    (tmp_path / "p.onnx").write_bytes(artifact.data)
    command = [
        "run",
        str(tmp_path / "p.onnx"),
        "--target",
        "Plain",
        "--peer",
        "a",
        "--broker",
        "mqtt://localhost",
    ]
    assert main([*command, "--save-model", str(tmp_path / "m")]) == 3
    err = capsys.readouterr().err
    assert "no model with named parameters" in err and "leave the flag out" in err
    assert not (tmp_path / "m").exists()
    assert main([*command, "--every", "2"]) == 2
    assert "--every: no folder is named for the models (name one: --save-model)" in capsys.readouterr().err
    assert main([*command, "--save-model", str(tmp_path / "m"), "--every", "0"]) == 2
    assert "every 0 rounds" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["p.onnx"]


# --- personal parameters ----------------------------------------------------------------------------------


class Learns(Module):
    name = "Learns"
    model = ModelSlot("model")

    def body(self, g):
        loss = self.model.train(g, g.input("x", "F32", (2, 4)), g.input("y", "F32", (2, 2)))
        self.model.step(g, after=loss)
        self.model.apply_delta(g, g.input("delta", "F32", (None,)))


@pytest.fixture
def learner():
    from bb_host.build import build_edge

    model = trainable(mlp([4, 3, 2]), personal=["*2"])
    (artifact,) = build_edge(Learns(), Compiler().bind_model("model", GraphModel, model)).artifacts
    return install(PeerId.from_name("kitchen"), (), load(artifact.data), ["Learns"], seed=1)


def learn(node, **inputs):
    node.invoke("Learns", inputs)
    node.poll(0)


def test_personal_parameters_that_a_node_never_trained_are_named(learner, tmp_path, capsys):
    """A server's copy of them is what was compiled: who reads the file does not see that."""
    net, out = tmp_path / "net.onnx", tmp_path / "p.npz"
    onnx.save(mlp([4, 3, 2]), net)
    learn(learner, delta=np.ones(15, np.float32))  # what others have learned
    write_state(tmp_path / "state", learner)
    arguments = ["export", "--state", str(tmp_path / "state")]
    assert main([*arguments, "-o", str(out)]) == 0
    assert "warning: slot 'model': 'w2', 'b2'" in capsys.readouterr().err
    assert unpack(out.read_bytes()).meta["personal_untrained"] == ["w2", "b2"]
    assert main(arguments) == 0
    listed = capsys.readouterr().out
    assert "w2  3x2  personal, never trained here" in listed and "w1  4x3\n" in listed
    assert host_main(["export", "--params", str(out), str(net), "-o", str(tmp_path / "t.onnx")]) == 0
    assert "'w2', 'b2': personal parameters that its node has never trained" in capsys.readouterr().err
    with ExitStack() as stack:
        saved = open_saved(tmp_path / "m", 1, None, learner, detect(), Output(False, "error"), stack)
        saved.finish()
    saved_meta = unpack((tmp_path / "m" / "model.npz").read_bytes()).meta
    assert saved_meta["personal_untrained"] == ["w2", "b2"]

    learn(learner, x=np.ones((2, 4), np.float32), y=np.eye(2, dtype=np.float32))
    write_state(tmp_path / "trained", learner)
    assert main(["export", "--state", str(tmp_path / "trained"), "-o", str(out)]) == 0
    assert capsys.readouterr().err == "" and "personal_untrained" not in unpack(out.read_bytes()).meta


# --- models that have diverged ----------------------------------------------------------------------------


def diverge(node):
    component = node.component("first")
    component.parameters.base[3] = np.nan  # what a rate that is too high makes of it


def test_a_model_that_has_diverged_is_not_written_unasked(node, tmp_path, capsys):
    diverge(node)
    write_state(tmp_path / "state", node)
    out = tmp_path / "p.npz"
    arguments = ["export", "--state", str(tmp_path / "state")]
    assert main([*arguments, "--slot", "first", "-o", str(out)]) == 1
    told = capsys.readouterr().err
    assert "slot 'first' holds inf or nan in 'w1'" in told and "--allow-nan" in told
    assert not out.exists()
    assert main(arguments) == 0
    assert "w1  4x3  holds inf or nan" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    assert [m["not_finite"] for m in json.loads(capsys.readouterr().out)["models"]] == [["w1"], []]
    assert main([*arguments, "--slot", "first", "-o", str(out), "--allow-nan"]) == 0
    assert "warning: slot 'first' holds inf or nan" in capsys.readouterr().err
    assert np.isnan(unpack(out.read_bytes()).arrays["w1"]).sum() == 1
    assert main([*arguments, "--slot", "second", "-o", str(out)]) == 0


def test_a_saved_model_is_not_replaced_by_one_that_has_diverged(saving, node, capsys):
    disk, saved = saving()
    invoke(node, delta=np.ones(15, np.float32))
    saved.beat(0)
    before = disk.files["first.npz"]
    diverge(node)
    invoke(node, delta=np.ones(15, np.float32))
    saved.beat(1)
    said = capsys.readouterr().err
    assert "slot 'first' was not saved: it holds inf or nan in 'w1'; first.npz stays as it was. Start" in said
    assert saved.finish() == ["first"]
    assert disk.files["first.npz"] == before


def test_a_model_that_was_never_saved_is_not_said_to_be_there(saving, node, capsys):
    disk, saved = saving()
    diverge(node)
    invoke(node, delta=np.ones(15, np.float32))
    saved.beat(0)
    said = capsys.readouterr().err
    assert "there is no first.npz from before. Start anew" in said and "stays as it was" not in said
    assert set(disk.files) == {"second.npz"}
