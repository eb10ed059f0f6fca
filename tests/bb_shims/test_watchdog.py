"""Watchdogs: the service manager's over a real socket, the hardware's over a file."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bb_shims import BoardError, HardwareWatchdog, SystemdNotifier, WatchdogError, detect


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(10)
        yield receiver


def variables(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def test_the_messages_arrive(manager: socket.socket) -> None:
    notifier = SystemdNotifier.from_environment(variables(manager, WATCHDOG_USEC="30000000"))
    assert notifier is not None
    assert notifier.timeout_ns == 30_000_000_000
    notifier.ready()
    notifier.status("round 3,\n4 peers  up")
    notifier.pet()
    notifier.stopping()
    received = [manager.recv(1024) for _ in range(4)]
    assert received == [b"READY=1", b"STATUS=round 3, 4 peers up", b"WATCHDOG=1", b"STOPPING=1"]
    notifier.close()
    notifier.close()
    with pytest.raises(WatchdogError, match="closed"):
        notifier.pet()


def test_a_long_status_is_cut_at_a_character(manager: socket.socket) -> None:
    notifier = SystemdNotifier(manager.getsockname())
    notifier.status("ü" * 1000)
    assert manager.recv(4096).decode() == "STATUS=" + "ü" * 128
    notifier.close()


def test_an_abstract_socket() -> None:
    name = f"bb-shims-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        receiver.settimeout(10)
        notifier = SystemdNotifier("@" + name)
        notifier.ready()
        assert receiver.recv(64) == b"READY=1"
        notifier.close()


def test_a_manager_that_is_gone_is_an_error(tmp_path: Path) -> None:
    notifier = SystemdNotifier(str(tmp_path / "nobody"))
    with pytest.raises(WatchdogError, match="nobody"):
        notifier.pet()
    notifier.close()


def test_another_processs_watchdog_is_not_ours(manager: socket.socket, tree, trees) -> None:
    environ = variables(manager, WATCHDOG_USEC="1000000", WATCHDOG_PID=str(os.getpid() + 1))
    board = detect(tree(trees["generic"]), environ)
    assert board.watchdog is None
    assert board.notifier is not None
    board.notifier.ready()
    assert manager.recv(64) == b"READY=1"
    board.notifier.close()


def test_a_board_in_a_watched_service_has_a_watchdog(manager: socket.socket, tree, trees) -> None:
    environ = variables(manager, WATCHDOG_USEC="2000000", WATCHDOG_PID=str(os.getpid()))
    board = detect(tree(trees["rpi"]), environ)
    assert board.watchdog is not None
    assert board.watchdog.timeout_ns == 2_000_000_000
    board.watchdog.pet()
    assert manager.recv(64) == b"WATCHDOG=1"
    board.watchdog.close()


@pytest.mark.parametrize(
    "wrong",
    [{"NOTIFY_SOCKET": "relative"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "x"}],
)
def test_variables_that_make_no_sense_are_refused(manager: socket.socket, wrong: dict[str, str]) -> None:
    with pytest.raises(WatchdogError, match=next(iter(wrong))):
        SystemdNotifier.from_environment({**variables(manager), **wrong})


def test_a_board_that_cannot_run_closes_its_socket(manager: socket.socket, tree) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BoardError):
        detect(tree({"/proc/meminfo": ""}), variables(manager))
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_hardwares_watchdog_is_petted_and_disarmed(tmp_path: Path) -> None:
    device = tmp_path / "watchdog"
    device.write_bytes(b"")
    watchdog = HardwareWatchdog(device)
    assert watchdog.timeout_ns == 0, "unknown"
    watchdog.pet()
    watchdog.pet()
    watchdog.close()
    watchdog.close()
    assert device.read_bytes() == b"\0\0V"
    with pytest.raises(WatchdogError, match="closed"):
        watchdog.pet()


def test_hardware_that_is_not_there_or_takes_no_timeout_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WatchdogError, match="cannot be opened"):
        HardwareWatchdog(tmp_path / "absent")
    device = tmp_path / "watchdog"
    device.write_bytes(b"")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WatchdogError, match="does not accept a timeout of 15 s"):
        HardwareWatchdog(device, timeout_s=15)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(WatchdogError, match="between 1 and 3600"):
        HardwareWatchdog(device, timeout_s=0)
