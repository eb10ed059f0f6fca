"""Files that are gone, emptied, cut short or another node's: named, with what is lost and what to do."""

from __future__ import annotations

from typing import ClassVar

import pytest
from stores import Opened, flip, opened, rewrite, three_generations

from bb_edge.ir.ids import PeerId
from bb_edge.state import (
    Owner,
    Recovered,
    StateDamagedError,
    StateForeignError,
    StateStore,
    StateVersionError,
    StoreLimits,
    record_framing,
    segments,
)
from bb_edge.state.inventory import unpack
from bb_edge.state.keeper import restore
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind

KITCHEN = Owner(PeerId.from_name("kitchen").to_bytes(), b"p" * 32)
HALL = Owner(PeerId.from_name("hall").to_bytes(), b"p" * 32)
NEXT_PROGRAM = KITCHEN._replace(program=b"q" * 32)


def kept(make: Opened, owner: Owner = KITCHEN) -> FakeDisk:
    """The folder of a node with two generations, unacknowledged records, and a journal since the second."""
    disk = FakeDisk()

    def owned(disk: FakeDisk, limits: object = None) -> StateStore:
        return make(disk, limits, owner)

    three_generations(owned, disk)
    store = make(disk, None, owner)
    store.open()
    store.append_outbox([(b"k3", b"o3")])
    disk.crash(CrashMode.KEEP)
    return disk


def reopened(make: Opened, disk: FakeDisk, owner: Owner | None = KITCHEN) -> Recovered:
    found = make(disk, None, owner).open()
    disk.crash(CrashMode.KEEP)
    return found


def remove(disk: FakeDisk, name: str) -> None:
    session = disk.open()
    session.unlink(name)
    session.sync_folder()
    session.close()


# --- whose it is --------------------------------------------------------------------------------------


def advice(name: str) -> str:
    """What to do about a file of another node."""
    if name.startswith("snapshot"):
        return f"give this node a folder of its own with --state, or put its own {name} back"
    return (
        f"put the node's own {name} back; or move this one out of the folder, and the start says what is lost"
        " with its own"
    )


@pytest.mark.parametrize("name", ["snapshot-2", "journal-2", "outbox-1", "outbox-2"])
def test_one_file_of_another_node_is_refused_by_name(make_store: Opened, name: str) -> None:
    disk, other = kept(make_store), kept(make_store, HALL)
    before = dict(disk.files)
    rewrite(disk, name, other.files[name])
    with pytest.raises(StateForeignError) as caught:
        reopened(make_store, disk)
    error = caught.value
    assert error.where == name
    assert error.what == (
        f"peer {PeerId.from_name('hall')} wrote it, and this is the folder of peer "
        f"{PeerId.from_name('kitchen')}"
    )
    assert error.hint == advice(name)
    disk.crash(CrashMode.KEEP)
    rewrite(disk, name, before[name])
    assert not reopened(make_store, disk).notes, "as the hint says"


@pytest.mark.parametrize(
    ("name", "written_as", "owner"),
    [
        ("journal-2", "journal-1", KITCHEN),
        ("journal-2", "journal-1", HALL),
        ("journal-2", "outbox-1", KITCHEN),
        ("outbox-2", "outbox-1", KITCHEN),
        ("outbox-7", "outbox-1", HALL),
        ("snapshot-2", "snapshot-1", KITCHEN),
        ("snapshot-7", "snapshot-2", HALL),
    ],
)
def test_a_file_under_the_name_of_another_is_no_torn_one_and_is_refused(
    make_store: Opened, name: str, written_as: str, owner: Owner
) -> None:
    disk, other = kept(make_store), kept(make_store, owner)
    rewrite(disk, name, other.files[written_as])
    with pytest.raises(StateForeignError, match=f"wrote it as {written_as}") as caught:
        reopened(make_store, disk)
    assert (caught.value.where, caught.value.hint) == (name, advice(name))
    assert ("and this is the folder of peer" in caught.value.what) == (owner is HALL)


def test_two_journals_that_were_swapped_are_refused(make_store: Opened) -> None:
    disk = kept(make_store)
    first, second = disk.files["journal-1"], disk.files["journal-2"]
    rewrite(disk, "journal-1", second)
    rewrite(disk, "journal-2", first)
    with pytest.raises(StateForeignError, match=r"journal-2: .* wrote it as journal-1"):
        reopened(make_store, disk)


def test_a_header_that_is_not_whole_is_a_torn_one_whatever_it_names(make_store: Opened) -> None:
    disk = kept(make_store)
    rewrite(disk, "journal-2", disk.files["journal-1"][:40])
    assert any("journal-2 is torn" in note for note in reopened(make_store, disk).notes)


def test_a_file_of_another_program_is_refused(make_store: Opened) -> None:
    disk = kept(make_store, NEXT_PROGRAM)
    with pytest.raises(
        StateForeignError, match=r"snapshot-2: it is of another artifact.*state (71){8}…, this is (70){8}…"
    ) as caught:
        reopened(make_store, disk)
    assert caught.value.hint == (
        "run the artifact and targets that wrote it (bb-edge inspect shows an artifact's state), or take over"
        " what it holds: --adopt (docs/how-to/upgrade.md). With the folder moved aside what it learned, and"
        " has not sent, is lost"
    )


def test_a_file_that_names_nobody_is_refused(make_store: Opened) -> None:
    disk, other = kept(make_store), kept(make_store, record_framing.NOBODY)
    rewrite(disk, "journal-2", other.files["journal-2"])
    with pytest.raises(StateForeignError, match="journal-2: nobody wrote it"):
        reopened(make_store, disk)


def test_without_an_owner_the_files_have_to_agree_with_each_other(make_store: Opened) -> None:
    disk, other = kept(make_store), kept(make_store, HALL)
    assert reopened(make_store, disk, None).snapshot == b"second"
    rewrite(disk, "outbox-2", other.files["outbox-2"])
    with pytest.raises(StateForeignError, match="outbox-2"):
        reopened(make_store, disk, None)


def test_what_is_written_without_knowing_the_owner_carries_the_owners_name(make_store: Opened) -> None:
    disk = kept(make_store)
    store = opened(make_store, disk)
    store.write_snapshot(b"third")
    disk.crash(CrashMode.KEEP)
    assert reopened(make_store, disk).snapshot == b"third"


# --- what is not there --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        (
            "journal-2",
            "journal-2 is missing: snapshot-2 names it; what peers sent and this node acknowledged",
        ),
        ("outbox-1", "outbox-1 is missing: snapshot-2 names it, with "),
        ("outbox-2", "outbox-2 is missing: snapshot-2 names it; what it held is lost"),
    ],
)
def test_a_missing_file_is_named_with_what_is_lost(make_store: Opened, name: str, lost: str) -> None:
    disk = kept(make_store)
    remove(disk, name)
    found = reopened(make_store, disk)
    assert [text[: len(lost)] for text in found.losses] == [lost]
    assert "look at the disk" in found.losses[0]
    assert found.notes == found.losses


def test_an_emptied_file_that_held_something_is_named(make_store: Opened) -> None:
    disk = kept(make_store)
    rewrite(disk, "outbox-1", b"")
    (loss,) = reopened(make_store, disk).losses
    assert loss.startswith("outbox-1 is empty: 0 of its bytes can be read, and snapshot-2 says that it had ")


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        (
            "journal-2",
            "what peers sent and this node acknowledged is lost with it, and they do not send it again",
        ),
        ("outbox-2", "what it held is lost, and goes to no peer that has not acknowledged it"),
    ],
)
def test_an_emptied_file_of_the_present_generation_may_be_the_powers_doing_and_is_told(
    make_store: Opened, name: str, lost: str
) -> None:
    disk = kept(make_store)
    rewrite(disk, name, b"")
    found = reopened(make_store, disk)
    assert found.losses == ()
    (note,) = found.notes
    assert note == (
        f"{name} is empty, and no other file says that it held a record: a power cut before its first one was"
        f" on the medium leaves it so, and loses nothing. If somebody emptied it, {lost}"
    )


def test_a_node_whose_journal_is_gone_goes_on_with_another(make_store: Opened) -> None:
    disk = kept(make_store)
    remove(disk, "journal-2")
    store = make_store(disk, None, KITCHEN)
    assert store.open().losses
    store.append_journal([b"j4"])
    disk.crash(CrashMode.LOSE)
    found = reopened(make_store, disk)
    assert (found.journal, found.notes) == ((b"j4",), ())


def test_a_file_cut_at_a_record_is_named(make_store: Opened) -> None:
    disk = kept(make_store)
    whole = disk.files["outbox-1"]
    start = record_framing.header_bytes(KITCHEN)
    rewrite(disk, "outbox-1", whole[:start])
    (loss,) = reopened(make_store, disk).losses
    assert loss.startswith(f"outbox-1 is cut short: {start} of its bytes can be read")
    assert f"had {len(whole)};" in loss


def test_a_file_damaged_where_it_was_whole_before_is_one_loss(make_store: Opened) -> None:
    disk = kept(make_store)
    flip(disk, "outbox-1", record_framing.header_bytes(KITCHEN) + record_framing.OVERHEAD_BYTES)
    found = reopened(make_store, disk)
    assert found.notes == found.losses
    assert found.losses[0].startswith("outbox-1 is damaged: ")


def test_a_journal_that_the_next_one_knows_longer_is_named_where_it_is_needed(make_store: Opened) -> None:
    disk = kept(make_store)
    flip(disk, "snapshot-2", 90)
    rewrite(disk, "journal-1", disk.files["journal-1"][: record_framing.header_bytes(KITCHEN)])
    found = reopened(make_store, disk)
    assert (found.snapshot, found.journal) == (b"first", (b"j2", b"j3"))
    assert found.losses[0].startswith("journal-1 is cut short: ") and "journal-2 says" in found.losses[0]
    remove(disk, "journal-1")
    (loss,) = reopened(make_store, disk).losses
    assert loss.startswith("journal-1 is missing: ")


def test_files_that_are_kept_in_reserve_are_missed(make_store: Opened) -> None:
    disk = kept(make_store)
    for name in ("snapshot-1", "journal-1"):
        remove(disk, name)
    found = reopened(make_store, disk)
    assert found.losses == ()
    assert found.notes == tuple(
        f"{name} is missing: nothing is lost as long as snapshot-2 can be read"
        for name in ("snapshot-1", "journal-1")
    )


def test_a_missing_snapshot_is_known_by_what_it_let_go(make_store: Opened) -> None:
    disk = kept(make_store)
    remove(disk, "snapshot-2")
    found = reopened(make_store, disk)
    assert (found.snapshot, found.journal, found.losses) == (b"first", (b"j1", b"j2", b"j3"), ())
    (note,) = found.notes
    assert note == (
        "snapshot-2 is missing: the node comes back from snapshot-1 and the journals"
        ", and asks anew what it had asked in that file alone"
    )


def test_the_first_snapshot_is_missed_too(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"o")])
    store.write_snapshot(b"first")
    store.drop([b"k"])
    disk.crash(CrashMode.KEEP)
    remove(disk, "snapshot-1")
    assert reopened(make_store, disk, None).notes == (
        (
            "snapshot-1 is missing: the node comes back from the journals"
            ", and asks anew what it had asked in that file alone"
        ),
    )


def test_an_emptied_snapshot_is_named(make_store: Opened) -> None:
    disk = kept(make_store)
    rewrite(disk, "snapshot-2", b"")
    found = reopened(make_store, disk)
    assert found.snapshot == b"first"
    assert found.notes == ("snapshot-2 cannot be used: it is empty",)


def test_an_outbox_alone_that_was_written_anew_is_no_new_node(
    make_store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "COMPACTED_FROM_BYTES", 10)
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"x" * 500), (b"l", b"p")])
    for data in (b"s", b"t"):
        store.write_snapshot(data)
        store.drop([b"k"])
    disk.crash(CrashMode.KEEP)
    for name in [name for name in disk.files if not name.startswith("outbox")]:
        remove(disk, name)
    with pytest.raises(StateDamagedError, match="the snapshots are missing") as caught:
        reopened(make_store, disk, None)
    waiting = [name for name in sorted(disk.files) if name.startswith("outbox")]
    assert caught.value.hint.startswith(" and ".join(waiting) + " may hold envelopes that nobody has yet")


def test_a_newest_snapshot_that_was_removed_is_said_though_its_journal_is_there(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    for data in (b"first", b"second"):
        store.write_snapshot(data)
        store.append_journal([data + b"'s"])
    disk.crash(CrashMode.KEEP)
    remove(disk, "snapshot-2")
    found = reopened(make_store, disk, None)
    assert (found.snapshot, found.journal) == (b"first", (b"first's", b"second's"))
    said = (
        "snapshot-2 is missing: the node comes back from snapshot-1 and the journals"
        ", and asks anew what it had asked in that file alone"
    )
    assert found.notes == (said,)


def test_before_the_first_snapshot_segments_name_each_other(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_journal([b"j"])
    store.append_outbox([(b"k", b"o")])
    disk.inject(Fault(FaultKind.FULL, 1, "rename"))
    with pytest.raises(Exception, match="No space"):
        store.write_snapshot(b"s")  # journal-1 and outbox-1 are begun
    disk.crash(CrashMode.KEEP)
    assert not reopened(make_store, disk, None).notes
    remove(disk, "outbox-0")
    (loss,) = reopened(make_store, disk, None).losses
    assert loss.startswith("outbox-0 is missing: outbox-1 names it")


def test_a_segment_that_replaced_others_knows_its_own_length(
    make_store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "COMPACTED_FROM_BYTES", 10)
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(b"k", b"x" * 500), (b"l", b"p"), (b"m", b"q")])
    for data in (b"s", b"t"):
        store.write_snapshot(data)
        store.drop([b"k"])
    disk.crash(CrashMode.KEEP)
    (name,) = [name for name in disk.files if name.startswith("outbox")]
    whole = disk.files[name]
    assert not reopened(make_store, disk, None).notes
    rewrite(disk, name, whole[: -record_framing.OVERHEAD_BYTES - 5])
    (loss,) = reopened(make_store, disk, None).losses
    assert loss.startswith(f"{name} is cut short: ") and f"{name} says that it had {len(whole)};" in loss


def test_losses_are_counted_and_handed_to_whoever_starts_the_node(make_store: Opened) -> None:
    class Node:
        counters: ClassVar[dict[str, int]] = {}

        def adopt_outbox(self, records: object, now_ns: int, wall_ns: int) -> None:
            pass

        def replay(self, records: object) -> None:
            pass

    disk = kept(make_store)
    remove(disk, "outbox-1")
    store = make_store(disk, None, KITCHEN)
    _, restored = restore(store, lambda snapshot: Node(), StateDamagedError, 0, 0)  # type: ignore[type-var]
    assert len(restored.losses) == store.counters["state.losses"] == 1


def test_a_list_of_files_that_is_none_is_a_typed_error() -> None:
    with pytest.raises(StateDamagedError, match="snapshot-1: not a list of files"):
        unpack(b"x", "snapshot-1")


# --- folders of the version before --------------------------------------------------------------------

# Written by the release whose files named no owner, with the calls of `three_generations` and one more.
OLD = {
    "journal-1": "00000019000000003d5d022f62627374617465010200000000000000010000000000000000000000"
    "0200000001162c50e26a31",
    "journal-2": "000000190000000040711bf262627374617465010200000000000000020000000000000000000000"
    "0200000001becd1bc56a320000000200000002cb8c950a6a33",
    "outbox-0": "00000019000000001c68c3c562627374617465010300000000000000000000000000000000000000"
    "0700000001bc915c5b0100026b306f30000000070000000244db01190100026b316f31",
    "outbox-1": "00000019000000003773348e62627374617465010300000000000000010000000000000000000000"
    "0d00000001d18ece0802000000000000000100026b3000000007000000024431a2950100026b326f"
    "32",
    "outbox-2": "00000019000000004a5f2d5362627374617465010300000000000000020000000000000000000000"
    "0d000000010baf592c02000000000000000200026b310000000700000002456a2ac40100026b336f"
    "33",
    "snapshot-1": "0000001900000000232f59cc62627374617465010100000000000000010000000000000000000000"
    "0500000001f884d87d6669727374",
    "snapshot-2": "00000019000000005e03401162627374617465010100000000000000020000000000000000000000"
    "0600000001f42c4b887365636f6e64",
}


def old_folder() -> FakeDisk:
    disk = FakeDisk()
    for name, data in OLD.items():
        rewrite(disk, name, bytes.fromhex(data))
    return disk


def test_an_old_folder_is_read(make_store: Opened) -> None:
    disk = old_folder()
    assert reopened(make_store, disk) == Recovered(b"second", (b"j2", b"j3"), (b"o2", b"o3"), 2, ())
    assert {name: data.hex() for name, data in disk.files.items()} == OLD, "reading writes nothing"
    flip(disk, "snapshot-2", 45)
    found = reopened(make_store, disk)
    assert (found.snapshot, found.outbox) == (b"first", (b"o1", b"o2", b"o3"))
    assert (found.journal, found.losses) == ((b"j1", b"j2", b"j3"), ())


def test_an_old_folder_is_written_on_and_becomes_a_new_one(make_store: Opened) -> None:
    disk = old_folder()
    for turn in range(4):
        store = make_store(disk, None, KITCHEN)
        found = store.open()
        assert (found.outbox[:2], found.notes) == ((b"o2", b"o3"), ())
        assert found.snapshot == (b"s%d" % (turn - 1) if turn else b"second")
        store.append_journal([b"j%d" % turn])
        store.append_outbox([(b"n%d" % turn, b"new")])
        store.write_snapshot(b"s%d" % turn)
        store.drop([])
        disk.crash(CrashMode.KEEP)
    with pytest.raises(StateForeignError):
        reopened(make_store, disk, HALL)
    remove(disk, "outbox-1")
    assert (
        reopened(make_store, disk).losses[0].startswith("outbox-1 is missing: snapshot-6 names it, with 81")
    )


def test_an_old_file_under_the_name_of_another_is_refused(make_store: Opened) -> None:
    disk = old_folder()
    whole = bytes.fromhex(OLD["journal-2"])
    for data in (whole, whole[:37]):  # its header alone
        rewrite(disk, "journal-9", data)
        with pytest.raises(StateForeignError, match="journal-9: it was written as journal-2"):
            reopened(make_store, disk)
        disk.crash(CrashMode.KEEP)
    rewrite(disk, "journal-9", record_framing.header(record_framing.JOURNAL, 2, version=4))
    with pytest.raises(StateVersionError) as caught:
        reopened(make_store, disk)
    assert caught.value.where == "journal-9"


def test_the_beginning_of_a_file_says_whose_it_is(make_store: Opened) -> None:
    data = kept(make_store, HALL).files["journal-2"]
    assert record_framing.owner_at(data[:1024], record_framing.JOURNAL, 2) == HALL
    for other in (data[:40], b"", bytes.fromhex(OLD["journal-2"])):
        assert record_framing.owner_at(other, record_framing.JOURNAL, 2) is None
    newer = record_framing.header(record_framing.JOURNAL, 2, version=4)
    with pytest.raises(StateVersionError) as caught:
        record_framing.owner_at(newer, record_framing.JOURNAL, 2)
    assert caught.value.where == "journal"


def test_an_old_file_copied_into_a_folder_that_names_its_owner_is_refused(make_store: Opened) -> None:
    for name in ("journal-2", "outbox-1", "outbox-2"):
        disk = kept(make_store)
        rewrite(disk, name, bytes.fromhex(OLD[name]))
        with pytest.raises(
            StateForeignError, match=f"{name}: it names no owner, and the files beside it do"
        ) as caught:
            reopened(make_store, disk)
        assert caught.value.hint == advice(name)


def test_what_a_header_says() -> None:
    whole = record_framing.header(record_framing.JOURNAL, 1, owner=KITCHEN)
    assert record_framing.parse(
        whole, record_framing.JOURNAL, 1, "journal-1"
    ).header == record_framing.Header(2, 0, KITCHEN, None)
    linked = record_framing.header(
        record_framing.JOURNAL, 1, 7, before=record_framing.Link(0, 99), owner=KITCHEN
    )
    found = record_framing.parse(linked, record_framing.JOURNAL, 1, "journal-1").header
    assert found == record_framing.Header(2, 7, KITCHEN, record_framing.Link(0, 99))


# --- longer than it can be ----------------------------------------------------------------------------

SMALL = StoreLimits(1024, 1024, 1024)


@pytest.mark.parametrize("name", ["journal-2", "outbox-2"])
def test_a_file_that_has_grown_is_refused_by_its_length(make_store: Opened, name: str) -> None:
    disk = kept(make_store)
    rewrite(disk, name, disk.files[name] + bytes(2 << 20))
    with pytest.raises(StateDamagedError, match="with its limits this node writes") as caught:
        make_store(disk, SMALL, KITCHEN).open()
    assert caught.value.where == name


def test_a_snapshot_that_has_grown_is_not_read_and_the_one_before_serves(make_store: Opened) -> None:
    disk = kept(make_store)
    rewrite(disk, "snapshot-2", disk.files["snapshot-2"] + bytes(2 << 20))
    found = make_store(disk, SMALL, KITCHEN).open()
    assert found.snapshot == b"first"
    assert any("snapshot-2 cannot be used: it has" in note for note in found.notes)


def test_zeros_after_the_last_record_are_torn_and_hide_no_whole_record(make_store: Opened) -> None:
    disk = kept(make_store)
    whole = disk.files["journal-2"]
    rewrite(disk, "journal-2", whole + bytes(100_000))
    assert any("journal-2 is torn: 100000 bytes" in note for note in reopened(make_store, disk).notes)
    broken = bytearray(whole)
    broken[-16] ^= 1  # in the record before the last one
    rewrite(disk, "journal-2", bytes(broken) + bytes(100_000))
    assert any("journal-2 is damaged" in note for note in reopened(make_store, disk).notes)
