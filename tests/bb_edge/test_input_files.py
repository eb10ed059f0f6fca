"""Files that users name: only regular ones are opened, without waiting, and to their bound."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bb_edge import load, open_model
from bb_edge.config_file import load_config
from bb_edge.input_files import FileRefused, open_regular, read_regular, refuse_special
from bb_edge.observe.trace import Trace
from bb_edge.run_config import ConfigFileError
from bb_edge.transport.broker import Broker


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A FIFO that nobody writes to: whoever opens it for reading waits for ever."""
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    return path


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(FileRefused, match="larger than 4 bytes"):
        read_regular(path, 4)
    with open_regular(path) as file:
        assert file.read() == b"12345"


def test_a_small_file_takes_little_memory_whatever_may_be_read(tmp_path: Path) -> None:
    """A board refuses at once to make room for more than it has, and 2 GiB of an artifact may be read."""
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    code = (
        "import resource, sys; from bb_edge.input_files import read_regular;"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "print(len(read_regular(sys.argv[1], 2 << 30)))"
    )
    found = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert (found.stdout, found.returncode) == ("5\n", 0), found.stderr


def test_a_file_that_grows_is_read_to_its_end() -> None:
    assert read_regular("/proc/self/stat", 1 << 16).startswith(f"{os.getpid()} ".encode())  # its size is 0


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 5)
    refuse_special(tmp_path / "none")  # left to whoever opens it


def test_what_is_no_regular_file_is_refused_without_waiting(fifo: Path, tmp_path: Path) -> None:
    for path, kind in ((fifo, "FIFO"), (Path("/dev/zero"), "device"), (tmp_path, "folder")):
        with pytest.raises(FileRefused, match=kind) as caught:
            read_regular(path, 1 << 40)
        assert caught.value.where == str(path)
        assert caught.value.hint


def test_a_name_with_a_nul_is_no_name(tmp_path: Path) -> None:
    for take in (lambda p: read_regular(p, 1), refuse_special):
        with pytest.raises(FileRefused, match=r"null (byte|character)"):
            take("a\0b")


def test_a_larger_file_than_its_size_says_is_refused() -> None:
    with pytest.raises(FileRefused, match="larger than 3 bytes"):
        read_regular("/proc/self/stat", 3)  # its size is 0


def test_every_door_refuses_a_fifo(fifo: Path) -> None:
    with pytest.raises(ConfigFileError, match="FIFO"):
        load_config(fifo)
    for open_it in (load, open_model, lambda p: Trace(p, "n", lambda: 0)):
        with pytest.raises(FileRefused, match="FIFO"):
            open_it(fifo)
    for key in ("ca_file", "cert_file"):
        broker = Broker.from_url("mqtts://127.0.0.1", **{key: str(fifo)})
        with pytest.raises(FileRefused, match="FIFO"):
            broker.tls_context()


def test_a_password_file_is_a_small_regular_file(fifo: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    for secret, words in ((str(fifo), "FIFO"), ("/dev/zero", "device"), ("large", "larger than")):
        config = tmp_path / "c.json"
        config.write_text(f'{{"broker": {{"url": "mqtt://h", "password_file": "{secret}"}}}}')
        with pytest.raises(ConfigFileError, match=words) as caught:
            load_config(config)
        assert "broker.password_file" in str(caught.value)
