"""At a broker without rules: presences of ten thousand peers that are not there, and of the server itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from abused.digits import HONEST, Digits
from abused.flood import memory_of
from abused.forger import forger

from bb_edge.ir.ids import PeerId
from bb_host import S
from bb_host.build import compile_edge
from federated_digits.federation import program
from tests.aids.peers import numbered

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto"),
]
FAKES, ROUNDS = 10_000, 8
SERVER = PeerId.from_name("server")
GROWTH = 8 << 20
"""Bytes that the server may grow by between its third round and its last."""
LOG_BYTES = 60_000
"""Of the server's log: a line of at most 10 peers each round, and samples of what comes and goes."""


def test_a_federation_goes_on_among_forged_presences(tmp_path: Path, patience: float) -> None:
    """The server asks everybody who says that he is there; the fakes cost it the deadline of a round."""
    options = {"rounds": ROUNDS, "clients": 2 * FAKES, "at_least": HONEST}
    compile_edge(*program("softmax", 3, **options, deadline_ns=round(1.5 * patience * S)), tmp_path)
    digits = Digits(tmp_path)
    try:
        for number in range(HONEST):
            digits.honest(number)
        digits.connected()
        with forger(digits.broker.port) as mallory:
            mallory.says("Client", 7, *(numbered(number + 1) for number in range(FAKES)))
            mallory.says("Server", 7, SERVER, PeerId.from_name("mallory"))
            digits.serve()
            digits.listen(lambda: len(digits.heard.accuracy) >= 2)
            mallory.says("Server", 9, SERVER, up=False)
            mallory.says("Server", 10, SERVER)
            digits.listen(lambda: len(digits.heard.accuracy) >= 3)
            before = memory_of(digits.children["server"].pid, "VmHWM")
            found = digits.done()
        assert len(found.accuracy) == ROUNDS and found.accuracy[-1] > 0.9
        assert found.missing[0] and not found.missing[-1], "the honest ones all count at the end"
        assert found.summary["peak_rss_bytes"] - before < GROWTH
        assert sum(len(line) for line in found.log) < LOG_BYTES, "the log does not grow with the fakes"
        for name in digits.children:
            assert len(found.said(name, "")) < 200, name
    finally:
        digits.close()


def test_a_sample_finds_honest_clients_among_forged_presences(tmp_path: Path, patience: float) -> None:
    """Three are asked at a time, of whom one in three thousand is there: once nine did not, the others are
    greeted, and rounds are whole from then on.
    """
    options = {"rounds": ROUNDS, "clients": 3, "at_least": 3}
    compile_edge(*program("softmax", 3, **options, deadline_ns=round(0.5 * patience * S)), tmp_path)
    digits = Digits(tmp_path)
    try:
        with forger(digits.broker.port) as mallory:
            mallory.says("Client", 7, *(numbered(number + 1) for number in range(FAKES)))
        for number in range(HONEST):
            digits.honest(number)
        digits.connected()
        digits.serve()
        found = digits.done()
        assert len(found.accuracy) >= ROUNDS, "those that reached nobody are told, too"
        assert not any(found.missing[-ROUNDS + 1 :]) and sum(map(bool, found.missing)) <= 6
        said = found.said("server", "PeersUnheard")
        assert len(said) == 1 and "are access rules in force" in said[0]
        assert sum(len(line) for line in found.log) < LOG_BYTES
    finally:
        digits.close()
