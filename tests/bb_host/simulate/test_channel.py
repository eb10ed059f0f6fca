"""What goes from one process of a simulation to another, and how often long bytes are in it."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from bb_host.simulate import channel
from bb_host.simulate.channel import ASIDE, Channel


def pair():
    one, other = multiprocessing.Pipe()
    return Channel(one), Channel(other), one


def test_values_come_as_they_were_with_long_bytes_once():
    ours, theirs, _ = pair()
    body, short = bytes(range(256)) * 1024, b"x" * (ASIDE - 1)
    sent = {"a": [body, (body, short)], "b": bytearray(body), "c": [None, 1.5, "text"], "d": b""}
    sender = threading.Thread(target=ours.send, args=(sent,))
    sender.start()
    came = theirs.recv()
    sender.join()
    assert came == sent and came["a"][0] is came["a"][1][0]


def test_long_bytes_are_in_no_pickle(monkeypatch):
    ours, theirs, connection = pair()
    sizes: list[int] = []
    send = connection.send_bytes
    monkeypatch.setattr(
        ours,
        "_connection",
        type("Counting", (), {"send_bytes": lambda self, data: (sizes.append(len(data)), send(data))})(),
    )
    bodies = [bytes([number]) * (ASIDE + number) for number in range(3)]
    sender = threading.Thread(target=ours.send, args=([*bodies, *bodies],))
    sender.start()
    assert theirs.recv() == [*bodies, *bodies]
    sender.join()
    assert sizes[0] < 200 and sizes[1:] == list(map(len, bodies))


def test_the_other_end_gone_is_said_as_pipes_say_it():
    ours, theirs, _ = pair()
    theirs.close()
    with pytest.raises(BrokenPipeError):
        ours.send(b"x" * (4 * channel.ASIDE))
    ours, theirs, _ = pair()
    theirs.close()
    with pytest.raises(EOFError):
        ours.recv()
