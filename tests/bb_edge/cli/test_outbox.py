"""`bb-edge outbox` over real folders: what is listed, what is dropped, and what a node then sends."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from durable_program import greeted, program, say, tells
from envelopes import durable_message
from kinds_of_steps import of
from peers import HERE, SELF, A, B
from times import S

from bb_edge.cli import main
from bb_edge.cli.kept import open_kept, still_waiting
from bb_edge.cli.peer_names import PeerNames
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.snapshot import Identity, SnapshotError
from bb_edge.engine.steps import SendEnvelope
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.node import Node
from bb_edge.state import StateStore
from bb_edge.state.keeper import Keeper, key_bytes, restore
from bb_edge.state.record_framing import Owner
from bb_edge.state.store import StoreLimits
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.envelope import REQUEST
from bb_edge.wire.outbox import OutboxRecord
from bb_edge.wire.resend import EnvelopeKey
from bb_shims import Storage, StorageError, detect


@pytest.fixture
def world(tmp_path, compile_text):
    return World(tmp_path / "state", compile_text(program(2 * S)))


class World:
    """A node with a state folder, as `bb-edge run` has it, and the verb."""

    def __init__(self, folder: Path, data: bytes) -> None:
        self.folder, self._data = folder, data

    def make(self, snapshot: bytes | None = None, wall_s: int = 0) -> Node:
        more = {"snapshot": snapshot, "clock_offset_ns": wall_s * S}
        return install(SELF, (HERE,), self._data, ["Main"], NodeConfig.edge(), seed=3, durable=True, **more)

    @property
    def identity(self) -> Identity:
        return Identity.of(SELF, self.make().program, ["Main"])

    def store(self, storage: Storage) -> StateStore:
        """The folder's files, as those of the node."""
        owner = Owner(self.identity.peer, self.identity.program)
        return StateStore(storage, (StorageError,), None, owner)

    def ran(self, *to: Sequence[PeerId], wall_s: int = 0, killed: bool = False) -> list[int]:
        """A run of the node that tells each of these of something, which nobody acknowledges.

        Gives the numbers that went out, in order. One that is `killed` has only the snapshot of its start.
        """
        sent = []
        with detect().storage(self.folder) as storage:
            store = self.store(storage)
            node, _ = restore(store, lambda data: self.make(data, wall_s), (SnapshotError,), 0, wall_s * S)
            keeper = Keeper(node, store)
            greeted(node, A, B)
            for number, peers in enumerate(to):
                say(node, to=tuple(peers))
                for now_ns in range(10 * number + 10, 10 * number + 13):
                    found = node.poll(now_ns)
                    keeper.take(found, now_ns)
                    sent += [step.payload for step in of(SendEnvelope, found) if step.durable]
            if not killed:
                keeper.snapshot(1000)
        return [envelope.decode(payload, EDGE_CAPS).seq for payload in sent]

    def sends(self) -> list[PeerId]:
        """Whom the next run of the node sends to by itself, sorted."""
        with detect().storage(self.folder) as storage:
            store = StateStore(storage, (StorageError,))
            node, _ = restore(store, self.make, (SnapshotError,), 2000, 0)
            keeper, sent = Keeper(node, store), []
            for peer in (A, B):
                node.peer_presence(peer, True, (HERE,), epoch=1)
            for now_ns in range(2000, 2005):
                found = node.poll(now_ns)
                keeper.take(found, now_ns)
                sent += [step.peer for step in of(SendEnvelope, found) if step.durable]
            return sorted(sent)

    def starts(self) -> tuple[list[dict[str, object]], int]:
        """What the log of the next start says of dropped records, and the counter of them."""
        lines: list[dict[str, object]] = []

        def log(level: str, message: str, **more: object) -> None:
            if "dropped by bb-edge outbox" in message:
                lines.append({"level": level, **more})

        with ExitStack() as stack:
            board, limits = detect(), StoreLimits()
            made = self.make, self.identity, stack, tuple
            node, store, _ = open_kept(self.folder, limits, board, log, *made, "default", ["a"])
            told = store.counters["state.discarded"]
            assert Keeper(node, store).snapshot(3000)
        return lines, told

    def outbox(self, *words: str) -> int:
        return main(["outbox", "--state", str(self.folder), *words])


def listed(capsys) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["records"]
    return found


def test_a_node_that_stops_says_what_waits_for_whom(world):
    with detect().storage(world.folder) as storage:
        store = world.store(storage)
        node, _ = restore(store, world.make, (SnapshotError,), 0, 0)
        keeper, names = Keeper(node, store), PeerNames(lambda _: {}, ("a", "b"))
        greeted(node, A, B)
        said = [still_waiting(node, names)]
        for number, peers in enumerate(((A,), (A, B))):
            say(node, to=peers)
            for now_ns in range(10 * number + 10, 10 * number + 13):
                keeper.take(node.poll(now_ns), now_ns)
            said.append(still_waiting(node, names))
    of_both = f"a ({A}) (2), b ({B}) (1): they leave when this node runs again"
    assert said == [
        "",
        f"; 1 durable envelope waits on disk for a ({A}): it leaves when this node runs again",
        f"; 3 durable envelopes wait on disk for {of_both}",
    ]


def test_what_nobody_acknowledged_is_listed(world, capsys):
    world.ran((A, B), (A,))
    assert world.outbox() == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["id", "what", "bytes", "written", "expires", "peer"]
    assert len(out) == 5 and out[-1].startswith("3 records, ")
    assert world.outbox("--json") == 0
    found = listed(capsys)
    assert sorted(str(row["peer"]) for row in found) == sorted(map(str, (A, A, B)))
    assert {row["what"] for row in found} == {"send"}
    assert all(row["expires"] is None and int(str(row["bytes"])) > 20 for row in found)
    assert world.outbox("--peer", "b", "--json") == 0
    assert [row["peer"] for row in listed(capsys)] == [str(B)]
    assert world.sends() == sorted((A, A, B)), "looking changes nothing"


def test_an_empty_outbox_and_a_folder_of_a_node_that_never_ran(world, capsys):
    world.ran()
    assert world.outbox() == 0
    assert capsys.readouterr().out == "0 records, 0 bytes\n"
    assert main(["outbox", "--state", str(world.folder / "not")]) == 1
    assert "no such folder" in capsys.readouterr().err
    assert main(["outbox", "--state", str(world.folder.parent)]) == 1
    said = capsys.readouterr()
    assert "it holds no state of a node" in said.err and not said.out, "a wrong path is not an empty outbox"


def test_records_whose_file_is_gone_are_named(world, capsys):
    world.ran((A,), (B,))
    world.outbox("--json")
    ids = sorted(int(str(row["id"])) for row in listed(capsys))
    for file in world.folder.glob("outbox-*"):
        file.write_bytes(b"")
    assert world.outbox() == 0
    said = capsys.readouterr()
    assert f"records {ids[0]}, {ids[1]} are lost: the snapshot names them" in said.err
    assert said.out == "0 records, 0 bytes\n"


def test_a_record_that_is_named_goes_at_once(world, capsys):
    world.ran((A,), (B,))
    world.outbox("--peer", "a", "--json")
    (only,) = listed(capsys)
    assert world.outbox("--id", str(only["id"]), "--drop") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("dropped 1 records")
    assert world.sends() == [B]
    assert world.outbox("--id", str(only["id"]), "--drop") == 1
    assert "no record" in capsys.readouterr().err


def test_what_a_peer_would_get_goes_when_it_is_said_twice(world, capsys):
    world.ran((A, B), (A,))
    assert world.outbox("--peer", "a", "--drop") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("would drop 2 records")
    assert world.outbox("--peer", "a", "--drop", "--yes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dropped"] and {row["peer"] for row in told["records"]} == {str(A)}
    assert world.sends() == [B]


def test_a_number_that_was_given_is_not_given_again_though_its_record_is_dropped(world, capsys):
    assert world.ran((A,), (A,), (B,), killed=True) == [1, 2, 1]
    world.outbox("--peer", "a", "--json")
    first, second = listed(capsys)
    assert world.outbox("--id", str(second["id"]), "--drop") == 0, "no other row has its number"
    assert world.ran((A,)) == [3], "A may have taken the second"
    assert world.outbox("--id", str(first["id"]), "--drop") == 0
    assert world.ran((A,)) == [4], "and once a snapshot has the numbers, no row need"


def test_what_is_dropped_stays_dropped_from_whichever_snapshot_the_node_comes_back(world):
    world.ran((A,))
    world.ran((B,))
    assert world.outbox("--peer", "a", "--drop", "--yes") == 0
    last = max(world.folder.glob("snapshot-*"), key=lambda path: int(path.name.partition("-")[2]))
    last.write_bytes(last.read_bytes()[:-1])
    assert world.sends() == [B]


def test_what_a_snapshot_alone_has_is_listed_and_stays_dropped(world, capsys):
    """The disk has taken no row of the outbox, and then a snapshot."""
    with detect().storage(world.folder) as storage:
        store = world.store(storage)
        node, _ = restore(store, world.make, (SnapshotError,), 0, 0)
        greeted(node, A, B)
        say(node, to=(A, B))
        node.poll(10)
        assert Keeper(node, store).snapshot(11)
    assert world.outbox("--json") == 0
    told = listed(capsys)
    assert {row["peer"] for row in told} == {str(A), str(B)} and all(row["bytes"] for row in told)
    (of_a,) = [str(row["id"]) for row in told if row["peer"] == str(A)]
    assert world.outbox("--id", of_a, "--drop") == 0
    capsys.readouterr()
    assert world.outbox("--json") == 0
    assert [row["peer"] for row in listed(capsys)] == [str(B)]
    assert world.sends() == [B]


def test_what_was_dropped_is_told_by_the_node_at_its_next_start_and_no_more(world):
    world.ran((A, B), (A,))
    assert world.starts() == ([], 0)
    assert world.outbox("--peer", "a", "--drop", "--yes") == 0
    assert world.outbox("--peer", "b", "--drop", "--yes") == 0
    told, count = world.starts()
    assert count == 3
    assert {(line["level"], line["peer"], len(line["records"])) for line in told} == {
        ("warning", f"a ({A})", 2),
        ("warning", str(B), 1),
    }
    assert world.starts() == ([], 0)


def test_what_was_dropped_before_the_first_snapshot_is_told(world):
    with detect().storage(world.folder) as storage:
        store = world.store(storage)
        store.open()
        record = OutboxRecord(EnvelopeKey(A, 7, 1), envelope.encode(envelope.Envelope()))
        store.append_outbox([(key_bytes(record.key), record.to_bytes())])
    assert world.outbox("--id", f"{A}:7:1", "--drop") == 0
    told, count = world.starts()
    assert (count, [line["records"] for line in told]) == (1, [[f"{A}:7:1"]])


def test_old_records_go_by_their_age(world, capsys):
    world.ran((A,), wall_s=1_000_000)
    world.ran((B,), wall_s=2_000_000)
    assert world.outbox("--json") == 0
    assert {row["peer"]: row["written"] for row in listed(capsys)} == {
        str(A): "1970-01-12T13:46:40Z",
        str(B): "1970-01-24T03:33:20Z",
    }
    days = (int(time.time()) - 1_500_000) // 86_400
    assert world.outbox("--older", f"{days}d", "--drop") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("would drop 1 records")
    assert world.outbox("--older", f"{days}d", "--drop", "--yes") == 0
    assert world.sends() == [B]


def test_records_of_older_versions_say_no_time(world, capsys):
    world.ran()
    record = OutboxRecord(EnvelopeKey(A, 7, 1), envelope.encode(envelope.Envelope()))
    with detect().storage(world.folder) as storage:
        store = StateStore(storage, (StorageError,))
        store.open()
        store.append_outbox([(key_bytes(record.key), record.to_bytes())])
    assert world.outbox("--older", "1s", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["records"] == [] and "do not say when" in told.err
    assert world.outbox("--id", f"{A}:7:1", "--drop") == 0
    assert world.outbox() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 records, 0 bytes"


def test_a_node_that_runs_keeps_its_outbox(world, capsys):
    world.ran((A,))
    with detect().storage(world.folder):
        assert world.outbox("--peer", "a", "--drop", "--yes") == 1
        assert "a node runs in it" in capsys.readouterr().err
        assert world.outbox() == 0
        assert "a node runs in" in capsys.readouterr().err
    assert world.sends() == [A]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--drop",), "--id, --peer or --older"),
        (("--yes",), "without --drop"),
        (("--id", ""), "empty text"),
        (("--older", "soon"), "not an age"),
        (("--older", "5"), "not an age"),
    ],
)
def test_wrong_words_are_usage(world, capsys, words, said):
    world.ran((A,))
    with pytest.raises(SystemExit) as caught:
        world.outbox(*words)
    assert caught.value.code == 2 and said in capsys.readouterr().err


def test_a_peer_of_whom_there_is_nothing_is_refused(world, capsys):
    world.ran((A,))
    assert world.outbox("--peer", "nobody") == 1
    assert "nothing is for nobody" in capsys.readouterr().err


def test_what_would_be_sent_anew_is_not_dropped_before_the_node_was_stopped_in_order(world, capsys):
    world.ran(())
    with detect().storage(world.folder) as storage:
        store = StateStore(storage, (StorageError,))
        node, _ = restore(store, world.make, (SnapshotError,), 2000, 0)
        keeper = Keeper(node, store)
        greeted(node, A, now_ns=2000)
        node.deliver_inbound(durable_message(0xA1, 1, kind=REQUEST, wire_req_id=71), A)
        for now_ns in range(2001, 2005):
            keeper.take(node.poll(now_ns), now_ns)
    assert world.outbox("--json") == 0
    assert [row["what"] for row in listed(capsys)] == ["reply"]
    assert world.outbox("--peer", "a", "--drop", "--yes") == 1
    assert "1 inputs in its journal run again" in capsys.readouterr().err
    assert world.sends() == [A]
    world.ran()  # stopped in order this time
    assert world.outbox("--peer", "a", "--drop", "--yes") == 0
    assert world.sends() == []


def test_rows_that_are_none_are_told(world, capsys):
    world.ran((A,))
    with detect().storage(world.folder) as storage:
        store = StateStore(storage, (StorageError,))
        store.open()
        store.append_outbox([(b"k", b"no row")])
    assert world.outbox() == 1
    assert "its outbox cannot be read" in capsys.readouterr().err


def test_what_rounds_that_run_again_would_send_anew_is_not_dropped(tmp_path, compile_text, capsys):
    world = World(tmp_path / "state", compile_text(tells(3, 1, 1)))
    with detect().storage(world.folder) as storage:
        store = world.store(storage)
        node, _ = restore(store, world.make, (SnapshotError,), 0, 0)
        keeper = Keeper(node, store)
        node.peer_presence(A, True, (HERE,), epoch=1, classes=("Main",))
        for now_ns in range(1, 400_000_000, 10_000_000):
            keeper.take(node.poll(now_ns), now_ns)
    world.outbox("--json")
    newest = str(listed(capsys)[-1]["id"])
    assert world.outbox("--id", newest, "--drop") == 1
    assert "rounds since its last snapshot run again" in capsys.readouterr().err
    world.ran()  # stopped in order this time
    assert world.outbox("--id", newest, "--drop") == 0
