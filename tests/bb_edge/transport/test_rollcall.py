"""Roll calls: when they come, who answers, and a fleet that a broker's queue does not hold."""

from __future__ import annotations

import contextlib
import threading

import cbor2
import paho.mqtt.client as paho
import paho.mqtt.publish as publish
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bb_edge.cli.peers import record_of
from bb_edge.ir.ids import PeerId
from bb_edge.transport import membership, rollcall, roster
from bb_edge.transport.broker import Broker
from bb_edge.transport.rollcall import (
    FEW,
    REST_S,
    ROLL_CALL,
    SPREAD_S,
    UNECHOED_S,
    RollCall,
    RollCallError,
    State,
    decode_call,
    encode_call,
)
from bb_edge.transport.topics import Topics
from bb_edge.transport.visitor import visit
from bb_edge.wire.peers import PeerTable
from bb_edge.wire.places import PeersFullError
from bb_edge.wire.presence import Presence, encode_presence
from tests.aids.peers import numbered
from tests.aids.transitions import assert_decides_by


class Roll:
    """A roll call with a clock of its own, and peers that somebody tells of."""

    def __init__(self, *hears: str) -> None:
        self.now = 100.0
        self._peers = 0
        self.calls: list[tuple[str, float]] = []
        self.roll = RollCall(lambda name, call: self.calls.append((name, decode_call(call))), hears)

    def tell(self, count: int, peer_class: str = "Client") -> None:
        for _ in range(count):
            self._peers += 1
            self.roll.told(numbered(self._peers), peer_class, self.now)

    def again(self, count: int) -> None:
        """Those who came first are told of once more."""
        for number in range(1, count + 1):
            self.roll.told(numbered(number), "Client", self.now)

    def goes_on(self, state: State, within_s: float) -> None:
        end = self.now + within_s
        before = self.roll.state
        while self.roll.state is before:
            assert self.now < end, f"still {before}"
            self.now += 1.0
            self.roll.tick(self.now)
        assert self.roll.state is state


def test_the_states_of_a_roll_call() -> None:
    def walk() -> None:
        few = Roll()
        few.roll.connected()  # resting: connected
        few.tell(FEW - 1)
        few.roll.connected()  # listening: connected
        few.tell(FEW - 1)
        few.goes_on(State.RESTING, UNECHOED_S + 2)  # listening: told few
        assert few.calls == []
        few.tell(1)
        few.goes_on(State.CALLING, REST_S[0] + 2)  # resting: due
        assert [name for name, _ in few.calls] == ["Client"]
        few.roll.connected()  # calling: connected
        assert few.roll.state is State.LISTENING
        many = Roll()
        many.roll.connected()
        many.tell(1000)
        many.goes_on(State.CALLING, UNECHOED_S + 2)  # listening: told many
        assert many.calls == [("Client", 5.0)]
        many.tell(1000)
        many.goes_on(State.WAITING, 15)  # calling: news
        many.goes_on(State.CALLING, 15)  # waiting: due
        assert many.calls[-1] == ("Client", 10.0)
        many.goes_on(State.WAITING, 20)
        many.roll.connected()  # waiting: connected
        assert many.roll.state is State.LISTENING
        many.tell(1000)
        many.goes_on(State.CALLING, UNECHOED_S + 2)
        many.goes_on(State.WAITING, 20)
        many.goes_on(State.CALLING, 20)
        many.goes_on(State.RESTING, 30)  # calling: no news, twice

    assert_decides_by(ROLL_CALL, walk)


def test_a_broker_that_is_slow_to_begin_is_waited_for() -> None:
    """Behind a slow link, what it holds comes long after the connection; what it says of the node ends it."""
    roll = Roll()
    roll.roll.connected()
    roll.now += 30
    roll.roll.tick(roll.now)
    assert roll.roll.state is State.LISTENING
    roll.tell(5)
    roll.now += UNECHOED_S - 1
    roll.roll.tick(roll.now)
    assert roll.roll.state is State.LISTENING
    roll.tell(FEW)
    roll.roll.echoed(roll.now)
    roll.goes_on(State.CALLING, 3)


def test_who_answers_once_more_is_no_news() -> None:
    roll = Roll()
    roll.roll.connected()
    roll.tell(100)
    roll.goes_on(State.CALLING, UNECHOED_S + 2)
    for state in (State.WAITING, State.CALLING, State.RESTING):  # the second call without news is the last
        if roll.roll.state is State.CALLING:
            roll.again(100)
        roll.goes_on(state, 20)
    assert len(roll.calls) == 2


def test_a_node_alone_rests_once_it_hears_itself() -> None:
    roll = Roll()
    roll.roll.connected()
    roll.roll.echoed(roll.now)
    roll.goes_on(State.RESTING, 3)


def test_a_node_that_heard_few_calls_ever_more_seldom() -> None:
    """Twice each time, in case the first answer was lost; a new connection begins anew."""
    roll, rests = Roll("Server"), []
    for _ in range(2):
        roll.roll.connected()
        roll.roll.echoed(roll.now)
        roll.goes_on(State.RESTING, 3)
        for _ in range(8):
            began = roll.now
            roll.goes_on(State.CALLING, REST_S[1] + 2)
            rests.append(round(roll.now - began))
            for state in (State.WAITING, State.CALLING, State.RESTING):
                roll.goes_on(state, 20)
    assert rests[:8] == rests[8:]
    assert [abs(rest - rests[0] * 2**n) <= 2 for n, rest in enumerate(rests[:6])] == [True] * 6
    assert rests[6] >= REST_S[1] - 2 and rests[7] <= REST_S[1] + 2
    assert {name for name, _ in roll.calls} == {"Server"}


def test_a_peer_that_something_too_large_hides_is_found(
    mosquitto_broker, loop, doors, url, monkeypatch
) -> None:
    """What is retained in the place of its presence is larger than any node takes: nobody is told."""
    monkeypatch.setattr(rollcall, "REST_S", (0.5, 1.0))
    monkeypatch.setattr(membership, "ANSWER_S", 0.0)
    hidden, server = doors("hidden"), doors("server")
    hidden.hears, server.classes = (), ("Server",)
    node = loop.join(hidden, url(mosquitto_broker))
    loop.until(lambda: node.counters["presences"] == 1)
    topic = Topics("test", hidden.peer_id).presence("Client", hidden.peer_id)
    where = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    publish.single(topic, bytes(9_000_000), qos=1, retain=True, **where)
    loop.join(server, url(mosquitto_broker))
    loop.until(lambda: hidden.peer_id in server.presence)


def test_waits_double_while_there_are_news() -> None:
    roll = Roll()
    roll.roll.connected()
    roll.tell(FEW)
    waits = []
    for _ in range(10):
        roll.goes_on(State.CALLING, 700)
        roll.tell(1)
        roll.goes_on(State.WAITING, 20)
        began = roll.now
        roll.goes_on(State.CALLING, 700)
        waits.append(roll.now - began)
        roll.tell(1)
        roll.goes_on(State.WAITING, 20)
    assert waits == sorted(waits) and waits[0] < 10 and 590 < waits[-1] < 610


def test_a_small_class_beside_a_large_one_is_called_too() -> None:
    """All share the broker's queue: what it dropped may be of a class of which nobody was told."""
    roll = Roll("Client", "Relay")
    roll.roll.connected()
    roll.tell(FEW - 1, "Client")
    roll.tell(1, "Server")
    roll.goes_on(State.CALLING, UNECHOED_S + 2)
    assert [name for name, _ in roll.calls] == ["Client", "Relay", "Server"]


@pytest.mark.parametrize(("asked", "granted"), [(0, 0), (3, 1), (10**9, 1)])
def test_what_a_caller_may_ask(asked: int, granted: int) -> None:
    low, high = SPREAD_S
    assert decode_call(encode_call(asked)) == min(max(asked, low), high)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", cbor2.dumps([]), cbor2.dumps({}), cbor2.dumps({"spread_ms": -1}), b"\xa0" * 100]
)
def test_what_is_no_call(data: bytes) -> None:
    with pytest.raises(RollCallError):
        decode_call(data)


def test_a_node_that_is_called_says_its_presence_again(
    mosquitto_broker, loop, doors, url, monkeypatch
) -> None:
    monkeypatch.setattr(membership, "ANSWER_S", 0.0)
    called = doors("node")
    called.hears = ()
    node = loop.join(called, url(mosquitto_broker))
    loop.until(lambda: node.counters["presences"] == 1)
    where = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    topics = Topics("test", PeerId.from_name("x"))
    publish.single(topics.roll_call("Client"), encode_call(0), qos=1, **where)
    loop.until(lambda: node.counters["presences"] == 2)
    publish.single(topics.roll_call("Client"), b"\xff", qos=1, **where)
    loop.until(lambda: node.counters["malformed"] == 1)
    assert node.counters["foreign"] == 0


class Fleet:
    """Many peers on one connection: they say their presence, and answer calls as one message each.

    The broker keeps the presences of the first `kept` alone: the others are found by calls.
    """

    def __init__(self, broker, count: int, kept: int | None = None) -> None:
        self._kept = frozenset(numbered(n + 1) for n in range(count if kept is None else kept))
        self.peers = [numbered(number) for number in range(1, count + 1)]
        self.calls = 0
        self.spread_s = 0.0  # of the first call
        self._done = threading.Event()
        self._left = count
        self._client = client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id="fleet", protocol=MQTTProtocolVersion.MQTTv5
        )
        client.on_connect = self._connected
        client.on_message = self._called
        client.on_publish = self._published
        client.max_queued_messages_set(0)
        client.max_inflight_messages_set(200)
        client.connect(broker.host, broker.port)
        client.loop_start()
        assert self._done.wait(60)

    def _connected(self, client, *_rest) -> None:
        client.subscribe("bb/test/rollcall/Client", 0)
        for peer in self.peers:
            self._say(peer)

    def _say(self, peer: PeerId) -> None:
        topic = Topics("test", peer).presence("Client", peer)
        self._client.publish(topic, encode_presence(Presence(True, 1, session=1)), 1, peer in self._kept)

    def _published(self, *_rest) -> None:
        self._left -= 1
        if not self._left:
            self._done.set()

    def _called(self, _client, _data, message) -> None:
        """All peers answer, spread over the time that the call names."""
        self.calls += 1
        spread_s, at_once = decode_call(message.payload), 50
        self.spread_s = self.spread_s or spread_s
        chunks = [self.peers[at : at + at_once] for at in range(0, len(self.peers), at_once)]
        for number, chunk in enumerate(chunks):
            timer = threading.Timer(
                spread_s * number / len(chunks), lambda c=chunk: [self._say(p) for p in c]
            )
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def test_the_roster_has_everybody_who_answers_a_call(start_broker, monkeypatch) -> None:
    """Of 2,000 peers the broker keeps less than half; so it is where its queue holds no more."""
    monkeypatch.setattr(roster, "ANSWER_S", 0.0)  # nobody was called just now
    started = start_broker("mosquitto", config=["sys_interval 1"])
    fleet = Fleet(started, 2000, kept=950)
    broker = Broker(started.host, started.port)
    found = roster.read_roster(broker, "test")
    assert found.members.keys() == {*fleet.peers} and fleet.calls >= 1
    fleet.close()


def test_who_says_up_and_answers_no_call_is_silent(mosquitto_broker, monkeypatch) -> None:
    monkeypatch.setattr(roster, "MANY", 10)
    monkeypatch.setattr(roster, "ANSWER_S", 0.0)  # nobody was called just now
    fleet = Fleet(mosquitto_broker, 20)
    broker = Broker(mosquitto_broker.host, mosquitto_broker.port)
    forged, gone = numbered(5001), numbered(5002)
    with visit(broker) as visitor:
        for peer, up in ((forged, True), (gone, False)):
            payload = encode_presence(Presence(up, 1))
            mid = visitor.publish(Topics("test", peer).presence("Client", peer), payload, retain=True)
            assert visitor.until(lambda mid=mid: visitor.reason_of(mid) is not None)
    kept: list[int] = []
    found = roster.read_roster(broker, "test", calling=kept.append)
    assert kept == [22]
    assert {peer for peer, member in found.members.items() if member.silent} == {forged, gone}
    shown = {peer: record_of(found.members[peer], str)["silent"] for peer in (forged, gone, fleet.peers[0])}
    assert shown == {forged: True, gone: False, fleet.peers[0]: False}, "who is down says nothing anyway"
    fleet.close()


@pytest.mark.parametrize("drops", [False, True])
def test_that_some_may_be_missing_is_said_where_the_broker_has_dropped_some(
    drops, start_broker, monkeypatch
) -> None:
    """What the sockets do not hold goes to a queue, of 50 messages here, and is dropped beyond it."""
    monkeypatch.setattr(roster, "MANY", 10)
    monkeypatch.setattr(roster, "ANSWER_S", 0.0)  # nobody was called just now
    config = ["sys_interval 1", "max_queued_messages 50" if drops else "max_queued_messages 100000"]
    started = start_broker("mosquitto", config=config)
    broker = Broker(started.host, started.port)
    told = threading.Event()
    with visit(broker, take=lambda _topic, _payload: told.set()) as visitor:
        visitor.subscribe(roster.DROPPED)
        assert visitor.until(told.is_set)
        count, padding = (600, bytes(60_000)) if drops else (1200, b"")
        sent = []
        for number in range(1, count + 1):
            peer = numbered(number)
            payload = encode_presence(Presence(False, 1)) + padding
            sent.append(visitor.publish(Topics("test", peer).presence("Client", peer), payload, retain=True))
        assert visitor.until(lambda: all(visitor.reason_of(mid) is not None for mid in sent), 60)
    found = roster.read_roster(broker, "test")
    there = len(found.members) + len(found.unreadable)
    if drops:
        assert there < count and "are down may be missing" in found.doubt
    else:
        assert there == count and not found.doubt


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_small_roster_calls_nobody(version, mosquitto_broker) -> None:
    fleet = Fleet(mosquitto_broker, 100)
    broker = Broker(mosquitto_broker.host, mosquitto_broker.port)
    found = roster.read_roster(broker, "test", version)
    assert (len(found.members), found.doubt, fleet.calls) == (100, "", 0)
    fleet.close()


def test_a_client_that_may_call_no_roll_is_told_that_peers_may_be_missing(
    start_broker, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(roster, "MANY", 10)
    rules = tmp_path / "rules"
    rules.write_text("topic readwrite bb/test/presence/#\n")
    rules.chmod(0o644)
    started = start_broker("mosquitto", config=[f"acl_file {rules}"])
    fleet = Fleet(started, 20)
    found = roster.read_roster(Broker(started.host, started.port), "test")
    assert len(found.members) == 20 and "lets this client call no roll" in found.doubt
    fleet.close()


@pytest.mark.parametrize("places", [4096, 100])
def test_a_fleet_that_the_broker_s_queue_does_not_hold_is_heard_whole(
    places, mosquitto_broker, loop, doors, url, monkeypatch
) -> None:
    """2,000 peers are up before the server starts; mosquitto keeps 1,000 messages for one client.

    What the server's table holds is another thing: whoever finds no place in it is heard all the same.
    """
    monkeypatch.setattr(rollcall, "WAIT_S", (0.5, 5.0))
    fleet = Fleet(mosquitto_broker, 2000)

    class Server(doors):
        def __init__(self):
            super().__init__("server", full=0)
            self.classes, self.hears = ("Server",), ("Client",)
            self.peers = PeerTable(places)
            self.heard = set()

        def peer_presence(self, peer, up, *_rest, classes=(), epoch=0, session=0, **_more):
            self.heard.add(peer)
            with contextlib.suppress(PeersFullError):
                self.peers.update(peer, Presence(up, epoch, classes, session=session))

    server = Server()
    transport = loop.join(server, url(mosquitto_broker))
    loop.until(lambda: transport.counters["roll_calls"] >= 1)
    assert len(server.heard) < 2000, "the broker's queue held them all: this tests nothing"
    loop.until(lambda: server.heard == {*fleet.peers}, 60)
    assert len(server.peers.up_peers("Client")) == min(places, 2000)
    assert fleet.calls >= 1
    assert fleet.spread_s > 2 * 500 / 400, "for as many as came, however few are kept"
    assert transport.counters["connects"] == 1
    fleet.close()
