"""A device that reports durably to a hub which is away for a while: real processes, each stopped and killed.

Every report that the device has counted as told reaches the hub's program, whoever slept meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled_programs import compiled_once

from federated_digits.processes import Child, Line

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def _compile() -> dict[str, bytes]:
    from bb_edge.components import PresenceSelector
    from bb_host import MS, Compiler, Graph, Module, PeerSelectorSlot
    from bb_host.build import build_edge

    class Reports(Module):
        """A device that tells hubs it knows, there or not, the number of each of its rounds."""

        name, home = "Reports", "Device"
        hubs = PeerSelectorSlot("hubs", peer_class="Hub", at="Device")

        def body(self, g: Graph) -> None:
            with g.rounds(pause_ns=20 * MS) as start:
                hubs = self.hubs.sample(g, n=1, min=1, after=start)
                told = g.net_out("report", hubs, start.round, durable=True)
                g.app_emit("told", start.round, after=hubs)
                g.app_emit("report", told)

    compiler = Compiler().bind_peer_selector("hubs", PresenceSelector, {"known": True})
    return {artifact.target: artifact.data for artifact in build_edge(Reports(), compiler).artifacts}


class Reporting:
    """A hub, a device, and what they have said."""

    def __init__(self, federation: Any, folder: Path) -> None:
        self.f = federation
        self._artifacts = {}
        for target, data in compiled_once("reports", _compile).items():
            self._artifacts[target] = folder / f"Reports.{target}.edge.onnx"
            self._artifacts[target].write_bytes(data)

    def run(self, target: str, state: Path | None = None) -> Child:
        name = target.lower()
        kept = self.f.state(name) if state is None else ("--state", str(state))
        found: Child = self.f.run(name, self._artifacts[target], target, *kept)
        return found

    def said(self, event: str) -> Counter[int]:
        """How often each number came with events of that name."""
        lines = (e.record for e in self.f.heard if isinstance(e, Line) and e.record.get("event") == event)
        return Counter(int(record["value"]) for record in lines)

    def until(self, event: str, is_it: Callable[[int], bool], what: str) -> int:
        """The next number of such an event that is wanted."""

        def wanted(e: Any) -> bool:
            return isinstance(e, Line) and e.record.get("event") == event and is_it(int(e.record["value"]))

        found: int = int(self.f.wait(wanted, what).record["value"])
        return found

    def more(self, event: str, count: int = 5) -> int:
        """Returns once as many further numbers were said."""
        last = max(self.said(event), default=0)
        return self.until(event, lambda number: number >= last + count, f"{count} more of {event}")

    def all_of(self, last: int) -> None:
        """Returns once the hub has had every report up to that one."""
        missing = set(range(1, last + 1)) - set(self.said("report"))

        def had(number: int) -> bool:
            missing.discard(number)
            return not missing

        if missing:
            self.until("report", had, f"all reports up to {last}")


@pytest.fixture
def reporting(mosquitto_broker, federation, tmp_path):
    return Reporting(federation(mosquitto_broker), tmp_path)


def outbox(folder: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "bb_edge.cli", "outbox", "--state", folder, "--json"]
    found: list[dict[str, object]] = json.loads(subprocess.check_output(command))["records"]
    return found


def test_what_is_told_while_the_hub_is_away_reaches_it_once_also_where_the_device_sleeps(reporting):
    r = reporting
    hub, device = r.run("Hub"), r.run("Device")
    r.more("report")
    assert r.f.end(hub)[0] == 0
    away = r.more("told", 20)
    assert r.f.end(device)[0] == 0  # it sleeps with what nobody has acknowledged
    kept = outbox(r.f.state("device")[1])
    stopped = r.f.says(device, "has stopped", since=0)
    assert f"; {len(kept)} durable envelopes wait on disk for hub (Qm" in stopped, (
        "nobody looks for them there"
    )
    assert len(kept) >= 15 and {row["what"] for row in kept} == {"send"}
    device = r.run("Device")  # wakes, and the hub is not there yet
    told = r.more("told", 20)
    assert told > away
    hub = r.run("Hub")
    r.all_of(told)
    last = r.more("told")
    r.all_of(last)
    assert r.f.end(device)[0] == 0
    r.f.end(hub)
    assert {count for number, count in r.said("report").items() if number <= last} == {1}


def test_nothing_told_is_lost_where_either_is_killed(reporting):
    r = reporting
    hub, device = r.run("Hub"), r.run("Device")
    r.more("report")
    hub.signal(signal.SIGKILL)
    assert r.f.ended(hub) == -signal.SIGKILL
    r.more("told", 20)
    device.signal(signal.SIGKILL)
    assert r.f.ended(device) == -signal.SIGKILL
    device = r.run("Device")
    told = r.more("told", 10)
    hub = r.run("Hub")
    r.all_of(told)
    hub.signal(signal.SIGKILL)
    assert r.f.ended(hub) == -signal.SIGKILL
    told = r.more("told", 10)
    hub = r.run("Hub")
    r.all_of(told)
    assert r.f.end(device)[0] == r.f.end(hub)[0] == 0


def put_back(folder: str, copy: Path) -> None:
    """The folder is again as it was when it was copied."""
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def test_a_hub_whose_folder_is_put_back_is_named_and_has_every_report_before_or_after(reporting, tmp_path):
    r = reporting
    hub, device = r.run("Hub"), r.run("Device")
    r.more("report")
    assert r.f.end(hub)[0] == 0
    shutil.copytree(r.f.state("hub")[1], tmp_path / "copy")
    hub = r.run("Hub")
    r.more("report", 100)  # beyond a window: the device has heard that the first of them were taken
    assert r.f.end(hub)[0] == 0
    told = r.more("told")
    put_back(r.f.state("hub")[1], tmp_path / "copy")
    since = len(r.f.heard)
    hub = r.run("Hub")
    said = r.f.says(device, "StateRolledBack", since)
    assert "peer=hub" in said and "own=False" in said
    lost = said.partition("numbers=[")[2].partition("]")[0].split(",")
    assert len(lost) >= 10, "those that the hub has taken and does not know of any more are named"
    assert "own=True" in r.f.says(hub, "StateRolledBack", since)
    r.all_of(told)
    last = r.more("told")
    r.all_of(last)
    assert r.f.end(device)[0] == r.f.end(hub)[0] == 0


def test_a_device_whose_folder_is_put_back_is_named_and_goes_on(reporting, tmp_path):
    r = reporting
    hub, device = r.run("Hub"), r.run("Device")
    r.more("report")
    assert r.f.end(device)[0] == 0
    shutil.copytree(r.f.state("device")[1], tmp_path / "copy")
    device = r.run("Device")
    last = r.more("report", 20)
    assert r.f.end(device)[0] == 0
    put_back(r.f.state("device")[1], tmp_path / "copy")
    since = len(r.f.heard)
    device = r.run("Device")
    assert "own=True" in r.f.says(device, "StateRolledBack", since)
    said = r.f.says(hub, "StateRolledBack", since)
    assert "peer=device" in said and "own=False" in said
    told = r.until("told", lambda number: number > last + 5, "it reports what it never did")
    r.all_of(told)
    assert r.f.end(device)[0] == r.f.end(hub)[0] == 0


def test_a_device_whose_disk_is_full_tells_of_nothing_that_is_lost(reporting):
    r = reporting
    hub, device = r.run("Hub"), r.run("Device")
    r.more("report")
    _, hard = resource.prlimit(device.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(device.pid, resource.RLIMIT_FSIZE, (0, hard))
    assert "File too large" in r.f.says(device, "StorageFailed")
    told = r.more("told", 20)
    resource.prlimit(device.pid, resource.RLIMIT_FSIZE, (hard, hard))
    r.all_of(told)
    assert_one_failure_and_one_recovery(r, device)
    assert r.f.end(hub)[0] == r.f.end(device)[0] == 0
    assert set(r.said("report").values()) == {1}


@pytest.mark.parametrize("who", ["Hub", "Device"])
def test_a_node_whose_folder_is_removed_says_so_at_once_and_acknowledges_nothing_more(reporting, who):
    r = reporting
    nodes = {name: r.run(name) for name in ("Hub", "Device")}
    r.more("report")
    folder = r.f.state(who.lower())[1]
    shutil.rmtree(folder)
    said = r.f.says(nodes[who], "StorageFailed")
    assert "somebody has removed the file" in said or "No such file" in said
    r.more("told", 20)
    since = len(r.f.heard)
    assert r.f.end(nodes["Device"])[0] == (who == "Device")
    waiting = outbox(r.f.state("device")[1]) if who == "Hub" else []
    assert r.f.end(nodes["Hub"])[0] == (who == "Hub")
    r.f.says(nodes[who], f"the state folder {folder} is gone", since)
    untold = len(set(r.said("told")) - set(r.said("report")))
    if who == "Hub":
        assert len(waiting) >= untold >= 15, "nobody has acknowledged them"
        return
    lost = r.f.says(nodes[who], "durable envelopes are not on the disk", since)
    assert "peer=hub" in lost
    count = int(re.search("([0-9]+) durable envelopes", lost)[1])
    assert count >= 15 and 0 <= count - untold <= 1, "the last one may not have been told yet"


def test_a_device_whose_outbox_file_is_removed_names_at_its_end_what_is_lost(reporting):
    r = reporting
    hub, device = r.run("Hub"), r.run("Device")
    r.more("report")
    assert r.f.end(hub)[0] == 0
    r.more("told", 60)
    folder = Path(r.f.state("device")[1])
    kept = {path: path.stat().st_size for path in folder.glob("outbox-*")}
    largest = max(kept, key=kept.__getitem__)
    before = len(outbox(str(folder)))
    largest.unlink()
    r.more("told", 5)
    since = len(r.f.heard)
    assert r.f.end(device)[0] == 1
    r.f.says(device, f"{largest.name} is gone, and this node has not removed it", since)
    lost = r.f.says(device, "durable envelopes are not on the disk, and are lost", since)
    assert "peer=hub" in lost
    count = int(re.search("([0-9]+) durable envelopes", lost)[1])
    told, left = set(r.said("told")) - set(r.said("report")), len(outbox(str(folder)))
    assert 0 < count <= before and 0 <= count + left - len(told) <= 1


def assert_one_failure_and_one_recovery(r, node):
    """However many records waited for the disk: one line for each kind, and one at the end."""
    recovered = r.f.says(node, "StorageRecovered")
    assert int(recovered.partition("failures=")[2].split()[0]) > 2
    lines = [e.text for e in r.f.heard if isinstance(e, Line) and e.child is node]
    refused = [re.search("what=([a-z]+)", line)[1] for line in lines if "StorageFailed" in line]
    assert refused and len(refused) == len({*refused}), refused
    assert sum("StorageRecovered" in line for line in lines) == 1


@pytest.fixture
def small_partition(tmp_path):
    """A file system of 4 MiB in memory, where the user of the tests may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("nobody but root may mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


def test_a_small_partition_that_is_full_is_one_failure_and_once_it_is_freed_one_recovery(
    reporting, small_partition
):
    r = reporting
    hub = r.run("Hub")
    device = r.run("Device", small_partition / "device")
    r.more("report")
    ballast = small_partition / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert "No space left" in r.f.says(device, "StorageFailed")
    told = r.more("told", 20)
    ballast.unlink()
    r.all_of(told)
    assert_one_failure_and_one_recovery(r, device)
    assert r.f.end(hub)[0] == r.f.end(device)[0] == 0
    assert set(r.said("report").values()) == {1}
