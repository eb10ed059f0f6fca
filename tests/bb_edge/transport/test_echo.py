"""What is sent to a node and does not come is told by name: by hand, and at mosquittos that filter it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bb_edge.engine.steps import SendEnvelope
from bb_edge.ir.ids import PeerId
from bb_edge.transport import echo
from bb_edge.transport.chunks import Reassembly
from bb_edge.transport.echo import Echo, in_one_chunk, to_itself
from bb_edge.transport.membership import Acts, Membership
from bb_edge.transport.mqtt import MqttOptions
from bb_edge.transport.topics import Kind, Topics

KITCHEN, HALL = PeerId.from_name("kitchen"), PeerId.from_name("hall")
RULES = """
pattern write bb/home/+/from/%u
pattern write bb/home/+/chunk/%u
pattern readwrite bb/home/presence/+/%u
"""
READS = {Kind.ENVELOPE: "pattern read bb/home/%u/from/+", Kind.CHUNK: "pattern read bb/home/%u/chunk/+"}


class _ByHand:
    """An echo whose messages go nowhere."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        self.lines: list[tuple[str, str]] = []
        self.topics = Topics("home", KITCHEN)
        self.echo = Echo(
            self.topics,
            KITCHEN,
            "federation 'home' at mqtt://b",
            lambda topic, payload: self.sent.append((topic, payload)),
            lambda level, message, **_more: self.lines.append((level, message)),
        )

    def comes(self, topic: bytes, payload: bytes) -> bool:
        return self.echo.takes(self.topics.read(topic), payload)

    def asks(self, at: float) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """What it sends itself where it has connected at a time, and nothing has come."""
        self.echo.connected(at, chunks=True)
        self.echo.tick(at + 4.0)
        assert not self.sent
        self.echo.tick(at + 5.0)
        inbox, chunk = self.sent
        return inbox, chunk


@pytest.fixture
def by_hand() -> _ByHand:
    return _ByHand()


def test_what_comes_back_is_the_nodes_own_and_says_nothing(by_hand: _ByHand) -> None:
    inbox, chunk = by_hand.asks(0.0)
    assert inbox == (f"bb/home/{KITCHEN}/from/{KITCHEN}".encode(), to_itself(KITCHEN))
    assert by_hand.comes(*inbox) and by_hand.comes(*chunk)
    by_hand.echo.tick(1e9)
    assert not by_hand.lines and len(by_hand.sent) == 2
    assert by_hand.comes(*inbox), "a broker may hand it on twice"


def test_what_others_send_shows_the_way_and_is_not_kept_from_the_node(by_hand: _ByHand) -> None:
    by_hand.echo.connected(0.0, chunks=True)
    for level in ("from", "chunk"):
        assert not by_hand.comes(f"bb/home/{KITCHEN}/{level}/{HALL}".encode(), to_itself(HALL))
    by_hand.echo.tick(1e9)
    assert not by_hand.lines and not by_hand.sent, "who hears others asks nobody"


def test_who_gets_nothing_in_chunks_is_not_asked_for_them(by_hand: _ByHand) -> None:
    by_hand.echo.connected(0.0, chunks=False)
    by_hand.echo.tick(5.0)
    assert [topic.split(b"/")[3] for topic, _ in by_hand.sent] == [b"from"]


def test_what_does_not_come_is_told_sent_again_and_told_when_it_comes(by_hand: _ByHand) -> None:
    inbox, chunk = by_hand.asks(100.0)
    by_hand.comes(*chunk)
    by_hand.echo.tick(114.0)
    assert not by_hand.lines
    by_hand.echo.tick(115.0)
    by_hand.echo.tick(134.0)  # the next one has twice as long
    [(level, line)] = by_hand.lines
    assert level == "error"
    assert line.startswith("envelopes to this node do not come, federation 'home' at mqtt://b")
    assert f"read bb/home/{KITCHEN}/from/+ (mosquitto: {READS[Kind.ENVELOPE]})" in line
    assert by_hand.sent == [inbox, chunk, inbox]
    by_hand.echo.tick(135.0)
    assert (len(by_hand.lines), by_hand.echo.deaf) == (2, 1)
    assert by_hand.comes(*inbox)
    assert by_hand.lines[-1] == ("info", "envelopes to this node come now, federation 'home' at mqtt://b")
    assert by_hand.echo.deaf == 0


def test_a_way_that_the_broker_refuses_is_not_told_of(by_hand: _ByHand) -> None:
    inbox, chunk = by_hand.asks(0.0)
    by_hand.echo.refused(inbox[0])
    by_hand.comes(*chunk)
    by_hand.echo.tick(1e9)
    [(level, line)] = by_hand.lines
    assert (level, by_hand.echo.deaf) == ("info", 0)
    assert line.startswith("whether envelopes to this node come was not tried")


def test_nothing_is_waited_for_without_a_connection(by_hand: _ByHand) -> None:
    by_hand.asks(0.0)
    by_hand.echo.lost()
    by_hand.echo.tick(1e9)
    assert not by_hand.lines and len(by_hand.sent) == 2


def test_the_chunk_is_a_whole_envelope_from_the_node_to_itself() -> None:
    """A node of another life, or the doctor's, joins it to an envelope in which there is nothing."""
    whole = Reassembly(4, 1 << 20, 1 << 20, 10**9).add(KITCHEN, in_one_chunk(to_itself(KITCHEN)), 0)
    assert whole == to_itself(KITCHEN)


@pytest.mark.broker
def test_a_node_that_may_not_send_to_itself_is_not_called_deaf(
    start_broker, tmp_path, loop, doors, monkeypatch
) -> None:
    """Rules that are written by hand may name each pair: a refusal tells nothing of what it may read."""
    monkeypatch.setattr(echo, "QUIET_S", 0.0)
    (tmp_path / "rules").write_text("pattern readwrite bb/home/presence/+/%u\n")
    (tmp_path / "rules").chmod(0o644)
    broker = start_broker("mosquitto", config=[f"acl_file {tmp_path / 'rules'}"])
    node = doors("kitchen")
    transport = loop.join(node, f"mqtt://{node.peer_id}@{broker.host}:{broker.port}", federation="home")
    loop.until(lambda: any("was not tried" in line for line in loop.logs))
    assert transport.deaf == 0 and not any("do not come" in line for line in loop.logs)
    assert not any("refused a publish" in line for line in loop.logs), "it is not a fault of the node's"


@pytest.mark.broker
@pytest.mark.parametrize("missing", [None, Kind.ENVELOPE, Kind.CHUNK])
def test_a_rule_that_a_broker_filters_by_in_silence_is_named(
    start_broker, tmp_path, loop, doors, monkeypatch, missing: Kind | None
) -> None:
    """It grants both subscriptions, and takes what the node sends: nothing else tells that it is deaf."""
    monkeypatch.setattr(echo, "QUIET_S", 0.0)
    monkeypatch.setattr(echo, "WAIT_S", (0.5, 600.0))
    rules = [rule for kind, rule in READS.items() if kind is not missing]
    (tmp_path / "rules").write_text("\n".join([RULES, *rules, ""]))
    (tmp_path / "rules").chmod(0o644)
    broker = start_broker("mosquitto", config=[f"acl_file {tmp_path / 'rules'}"])
    node = doors("kitchen")
    at = f"mqtt://{node.peer_id}@{broker.host}:{broker.port}"
    cut = MqttOptions(max_packet_bytes=1024)
    transport = loop.join(node, at, federation="home", options=cut, planned=4096)
    if missing is not None:
        loop.until(lambda: any("do not come" in line for line in loop.logs))
        assert f"mosquitto: {READS[missing]})" in "".join(loop.logs)
        assert transport.deaf == 1
    else:
        for payload in (to_itself(node.peer_id), b"hello"):
            transport.send(SendEnvelope(node.peer_id, payload))
        loop.until(lambda: bool(node.got))
        assert [bytes(data) for data, _ in node.got] == [b"hello"], "its echo is not for the node"
        assert transport.deaf == 0
    assert transport.counters["chunks_received"] == 0, "no transfer begins of its own chunk"


def test_a_node_that_does_not_hear_itself_says_so_once_per_connection(doors) -> None:
    node, now, lines = doors("kitchen"), [0.0], list[str]()
    said: list[tuple[str, bytes]] = []
    log: Callable[..., None] = lambda _level, message, **_more: lines.append(message)  # noqa: E731
    acts = Acts(lambda topic, payload: said.append((topic, payload)), lambda *_: None, log)
    where, topics = "federation 'home' at mqtt://b", Topics("home", node.peer_id)
    counters = {"twins": 0, "malformed": 0}
    one = Membership(node, topics, {}, where, counters, acts, random.Random(1), lambda: now[0])
    one.will()
    one.connected()
    for now[0] in range(1, 200):
        one.tick(float(now[0]))
    [line] = lines
    assert line.startswith("the broker does not tell this node its own presence")
    assert "(mosquitto: pattern read bb/home/presence/+/%u)" in line
    one.lost()
    one.will()
    one.connected()
    topic, payload = said[-1]
    assert one.take(node.peer_id, topic.split("/")[3], payload)
    for now[0] in range(200, 400):
        one.tick(float(now[0]))
    assert len(lines) == 1
