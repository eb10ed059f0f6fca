"""Files that somebody removes or cuts under a node that runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bb_edge.state import StateReadError, StateStore
from bb_edge.state.inventory import ADVICE, LOST
from bb_edge.state.record_framing import JOURNAL, OUTBOX
from bb_shims import StorageError, open_folder


def running(folder: Path) -> StateStore:
    """Two segments with a record that is needed, one with none, and a journal."""
    store = StateStore(open_folder(folder), (StorageError,))
    store.open()
    store.append_outbox([(b"k0", b"o0"), (b"k1", b"o1")])
    store.write_snapshot(b"first")
    store.append_outbox([(b"k2", b"o2")])
    store.write_snapshot(b"second")
    store.drop([b"k2"])
    store.append_outbox([(b"k3", b"o3")])
    store.append_journal([b"j"])
    assert not [*store.removed()]
    return store


def test_a_file_that_goes_under_a_node_is_named_with_its_records(tmp_path: Path) -> None:
    store = running(tmp_path)
    for name in ("outbox-0", "outbox-1", "outbox-2", "journal-2"):
        (tmp_path / name).unlink()
    gone = "is gone, and this node has not removed it:"
    assert [(text.partition(" (")[0], keys) for text, keys in store.removed()] == [
        (f"journal-2 {gone} {LOST[JOURNAL]}", []),
        (f"outbox-0 {gone} {LOST[OUTBOX]}", [b"k0", b"k1"]),
        (f"outbox-2 {gone} {LOST[OUTBOX]}", [b"k3"]),
    ]
    assert all(text.endswith(f"({ADVICE})") for text, _ in store.removed())


def test_a_file_that_is_cut_under_a_node_is_named_and_not_each_of_its_records(tmp_path: Path) -> None:
    store = running(tmp_path)
    for name in ("outbox-0", "journal-2"):
        length = (tmp_path / name).stat().st_size
        os.truncate(tmp_path / name, length - 1)
    (journal, _), (outbox, keys) = store.removed()
    assert journal.startswith("journal-2 has ")
    assert outbox.startswith(f"outbox-0 has {length_of('outbox-0', tmp_path)} bytes, and this node wrote ")
    assert keys == []


def test_a_journal_without_a_record_may_go_and_a_disk_that_cannot_be_asked_says_so(tmp_path: Path) -> None:
    store = running(tmp_path)
    store.write_snapshot(b"third")
    (tmp_path / "journal-3").unlink()
    assert not [*store.removed()]
    storage = open_folder(tmp_path / "other")
    closed = StateStore(storage, (StorageError,))
    closed.open()
    closed.append_journal([b"j"])
    storage.close()
    with pytest.raises(StateReadError, match="the storage is closed"):
        next(closed.removed())


def length_of(name: str, folder: Path) -> int:
    return (folder / name).stat().st_size
