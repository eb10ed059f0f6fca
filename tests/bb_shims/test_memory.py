from __future__ import annotations

import pytest

from bb_shims import BoardError, LinuxMemory, MemoryInfoError, detect

MIB = 1 << 20
TOTAL, AVAILABLE = 3884080 * 1024, 2500000 * 1024
GROUP = "/sys/fs/cgroup/system.slice/bb-edge@a.service"


def test_without_cgroups_the_machine_is_the_limit(tree, trees) -> None:
    info = LinuxMemory(tree(trees["generic"])).info()
    assert (info.source, info.limit_bytes, info.available_bytes) == ("meminfo", TOTAL, AVAILABLE)
    assert (info.rss_bytes, info.peak_rss_bytes) == (52000 * 1024, 61000 * 1024)


def test_the_services_own_limit(tree, trees) -> None:
    files = {
        **trees["generic"],
        f"{GROUP}/memory.max": f"{256 * MIB}\n",
        f"{GROUP}/memory.high": "max\n",
        f"{GROUP}/memory.current": f"{100 * MIB}\n",
        f"{GROUP}/memory.stat": f"anon {70 * MIB}\ninactive_file {20 * MIB}\nactive_file {10 * MIB}\n",
    }
    info = LinuxMemory(tree(files)).info()
    assert (info.source, info.limit_bytes, info.available_bytes) == ("cgroup2", 256 * MIB, 176 * MIB)


def test_a_parents_limit_counts_too(tree, trees) -> None:
    files = {
        **trees["generic"],
        f"{GROUP}/memory.max": f"{512 * MIB}\n",
        f"{GROUP}/memory.current": f"{100 * MIB}\n",
        "/sys/fs/cgroup/system.slice/memory.max": f"{300 * MIB}\n",
        "/sys/fs/cgroup/system.slice/memory.current": f"{290 * MIB}\n",
    }
    info = LinuxMemory(tree(files)).info()
    assert (info.limit_bytes, info.available_bytes) == (300 * MIB, 10 * MIB)


def test_throttling_is_a_limit(tree, trees) -> None:
    files = {**trees["generic"], f"{GROUP}/memory.max": "max\n", f"{GROUP}/memory.high": f"{200 * MIB}\n"}
    info = LinuxMemory(tree(files)).info()
    assert (info.source, info.limit_bytes) == ("cgroup2", 200 * MIB)


def test_in_a_container_the_mount_is_the_own_group(tree, trees) -> None:
    files = {**trees["generic"], "/sys/fs/cgroup/memory.max": f"{64 * MIB}\n"}
    files["/proc/self/cgroup"] = "0::/../../outside\n"
    assert LinuxMemory(tree(files)).info().limit_bytes == 64 * MIB
    files["/proc/self/cgroup"] = "0::/docker/0123456789abcdef\n"
    assert LinuxMemory(tree(files)).info().limit_bytes == 64 * MIB


def test_more_used_than_allowed_is_nothing_available(tree, trees) -> None:
    files = {
        **trees["generic"],
        f"{GROUP}/memory.max": f"{10 * MIB}\n",
        f"{GROUP}/memory.current": f"{11 * MIB}\n",
    }
    assert LinuxMemory(tree(files)).info().available_bytes == 0


def test_a_limit_above_the_machine_is_none(tree, trees) -> None:
    files = {**trees["generic"], f"{GROUP}/memory.max": f"{1 << 45}\n", f"{GROUP}/memory.current": "0\n"}
    info = LinuxMemory(tree(files)).info()
    assert (info.source, info.limit_bytes, info.available_bytes) == ("meminfo", TOTAL, AVAILABLE)


def test_the_first_version_of_cgroups(tree, trees) -> None:
    group = "/sys/fs/cgroup/memory/nodes/a"
    files = {
        **trees["generic"],
        "/proc/self/cgroup": "8:pids:/\n4:cpu,memory:/nodes/a\n0::/\n",
        f"{group}/memory.limit_in_bytes": f"{128 * MIB}\n",
        f"{group}/memory.usage_in_bytes": f"{64 * MIB}\n",
        f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {4 * MIB}\n",
        "/sys/fs/cgroup/memory/nodes/memory.limit_in_bytes": "9223372036854771712\n",
    }
    info = LinuxMemory(tree(files)).info()
    assert (info.source, info.limit_bytes, info.available_bytes) == ("cgroup1", 128 * MIB, 68 * MIB)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/proc/meminfo", "MemTotal: 100 kB\n"),
        ("/proc/meminfo", "garbage"),
        ("/proc/self/status", "Name: x\n"),
    ],
)
def test_accounts_that_say_nothing_are_an_error_here_and_at_detection(
    tree, trees, name: str, text: str
) -> None:
    root = tree({**trees["generic"], name: text})
    with pytest.raises(MemoryInfoError, match=name):
        LinuxMemory(root).info()
    with pytest.raises(BoardError, match="cannot run a node"):
        detect(root, environ={})


def test_a_missing_peak_is_taken_from_the_process(tree, trees) -> None:
    info = LinuxMemory(tree({**trees["generic"], "/proc/self/status": "VmRSS:\t 1000 kB\n"})).info()
    assert info.rss_bytes == 1000 * 1024
    assert info.peak_rss_bytes > info.rss_bytes, "this very process has more"


def test_the_real_process_grows_by_what_it_takes() -> None:
    memory = LinuxMemory()
    before = memory.info().rss_bytes
    block = bytearray(b"\1") * (128 * MIB)
    after = memory.info()
    # Not all of it: what earlier tests held may go meanwhile, and its place be taken.
    assert after.rss_bytes - before > 64 * MIB
    assert after.peak_rss_bytes >= after.rss_bytes
    assert len(block) == 128 * MIB
