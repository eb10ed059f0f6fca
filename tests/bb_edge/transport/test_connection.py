"""A connection to a broker: every row of its tables, driven by a broker that answers as it is told."""

from __future__ import annotations

import contextlib
import random
import re
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from bb_edge.transport import connection as module
from bb_edge.transport import dialing, outage
from bb_edge.transport.broker import Broker, MqttOptions
from bb_edge.transport.connection import Connection
from bb_edge.transport.connection_states import CONNECTION, VERSION, State
from bb_edge.transport.lost import KEEP_ALIVE, lost_because
from bb_edge.transport.packets import subscribe_bytes
from tests.aids.transitions import assert_decides_by

ACCEPT = b"\x20\x03\x00\x00\x00"
NOT_AUTHORIZED = b"\x20\x03\x00\x87\x00"
UNSUPPORTED = b"\x20\x03\x00\x84\x00"
SILENCE = b""
HANG_UP = None


@contextmanager
def broker(*answers: bytes | None) -> Iterator[tuple[int, Callable[..., None]]]:
    """Its port, and what closes the connection that is open.

    Each connection gets the next answer to its CONNECT, and stays open; HANG_UP closes it instead.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = []

    def serve() -> None:
        for answer in answers:
            try:
                sock, _ = listener.accept()
                sockets.append(sock)
                sock.recv(4096)
                if answer is None:
                    sock.close()
                else:
                    sock.sendall(answer)
            except OSError:
                return

    def hang_up(reset: bool = False) -> None:
        if reset:
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sockets[-1].close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], hang_up
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        for sock in sockets:
            sock.close()


class Driven:
    """A connection, and what a transport does around it."""

    def __init__(
        self,
        port: int,
        patience: float,
        version: str = "auto",
        jitter: random.Random | None = None,
        keepalive_s: int = 30,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.events: list[str] = []
        self.logs: list[str] = []
        self._patience = patience
        self.connection = Connection(
            Broker("127.0.0.1", port),
            MqttOptions(keepalive_s=keepalive_s),
            version,
            client_id="bb-test",
            will=lambda: ("bb/test/presence/Main/test", b"\xa0"),
            filters=("bb/test/test/from/+",),
            counters=self.counters,
            log=lambda _, message, **_more: self.logs.append(message),
            jitter=jitter or random.Random(1),
            wake=lambda: None,
            opened=lambda: self.events.append("opened"),
            up=lambda granted: self.events.append("up"),
            down=lambda: self.events.append("down"),
        )

    def turn(self) -> None:
        """A part of a driver's turn: one step towards a socket, or one packet and a look at the time."""
        connection = self.connection
        shared = connection.shared
        if shared is None:
            connection.before_wait(0.0)
            select.poll().poll(1)
            return
        if connection.client.want_write():
            connection.client.loop_write()
        ready = select.poll()
        ready.register(shared.fileno(), select.POLLIN)
        if ready.poll(5):
            data = bytearray(4096)
            count = shared.read_into(memoryview(data))
            connection.feed(shared, bytes(data[:count]))
        connection.after_wait()

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 20 * self._patience
        while not condition():
            assert time.monotonic() < end, f"did not come about; logs: {self.logs}"
            assert "malformed" not in self.counters, self.logs
            self.turn()

    def reaches(self, state: State) -> None:
        self.until(lambda: self.connection.state is state)

    def comes_back_from(self, state: State) -> None:
        self.reaches(state)
        self.reaches(State.WAITING)

    def ends(self) -> None:
        self.connection.leave()
        self.connection.close()
        assert self.connection.state is State.CLOSED


@contextmanager
def driven(
    patience: float,
    *answers: bytes | None,
    version: str = "auto",
    jitter: random.Random | None = None,
    keepalive_s: int = 30,
) -> Iterator[Driven]:
    with broker(*answers) as (port, _):
        one = Driven(port, patience, version, jitter, keepalive_s)
        try:
            yield one
        finally:
            sock = one.connection.client.socket()
            if sock is not None:
                sock.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(dialing, "RETRY_MAX_S", 0.002)


def test_every_transition_of_a_connection(monkeypatch, patience):
    def walk() -> None:
        nobody = socket.create_server(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        nobody.close()
        waits = Driven(port, patience)
        waits.comes_back_from(State.DIALING)
        assert "not reachable" in waits.logs[0]
        waits.ends()

        with broker(ACCEPT, ACCEPT) as (port, close):
            goes = Driven(port, patience)
            goes.reaches(State.CONNECTED)
            close()
            goes.reaches(State.WAITING)
            assert goes.events == ["opened", "up", "down"]
            assert "lost" in goes.logs[-1]
            goes.reaches(State.CONNECTED)
            goes.connection.leave()
            assert goes.connection.state is State.LEAVING
            assert goes.connection.connected
            goes.connection.close()
            assert goes.connection.state is State.CLOSED
            assert goes.events[3:] == ["opened", "up", "down"]
            assert goes.counters == {"connects": 2, "disconnects": 1}

        with driven(patience, NOT_AUTHORIZED) as refused:
            refused.comes_back_from(State.GREETING)
            assert refused.counters["refused"] == 1
            assert "refuses the connection: Not authorized (it wants a login" in refused.logs[-1]

        with driven(patience, HANG_UP) as hung_up:
            hung_up.comes_back_from(State.GREETING)
            assert "hung up" in hung_up.logs[-1] and "then write mqtts://" in hung_up.logs[-1]
            assert "max_packet_size" in hung_up.logs[-1], "nobody tells a client whose CONNECT is too large"

        with driven(patience, SILENCE) as greets:
            greets.reaches(State.GREETING)
            greets.ends()

        with driven(patience, SILENCE) as dials:
            dials.connection.dial()
            assert dials.connection.state is State.DIALING
            dials.ends()

        with monkeypatch.context() as at_once, driven(patience, SILENCE, version="5") as silent:
            at_once.setattr(module, "CONNACK_S", 0.02)
            silent.comes_back_from(State.GREETING)
            assert "does not answer" in silent.logs[-1]

    assert_decides_by(CONNECTION, walk)


def test_every_change_of_version(monkeypatch, patience):
    def walk() -> None:
        with driven(patience, UNSUPPORTED) as old:
            old.comes_back_from(State.GREETING)
            assert not old.connection.v5
            assert "no message expiry" in old.logs[-1]

        with driven(patience, HANG_UP, HANG_UP) as shy:
            shy.comes_back_from(State.GREETING)
            assert shy.connection.v5
            shy.comes_back_from(State.GREETING)
            assert not shy.connection.v5

        with monkeypatch.context() as at_once, driven(patience, *[SILENCE] * 3) as silent:
            at_once.setattr(module, "CONNACK_S", 0.02)
            silent.comes_back_from(State.GREETING)
            assert silent.connection.v5
            silent.comes_back_from(State.GREETING)
            assert not silent.connection.v5
            silent.comes_back_from(State.GREETING)
            assert silent.connection.v5

    assert_decides_by(VERSION, walk)


SHUTTING_DOWN = b"\xe0\x01\x8b"


@pytest.mark.parametrize(
    ("resets", "words"),
    [
        (False, r"the broker ended it: Server shutting down \(reason 139\)"),
        (True, r"the broker, or the network, broke it off: Connection reset by peer"),
    ],
)
def test_a_lost_connection_is_told_in_words(patience, resets, words):
    with broker(ACCEPT) as (port, close):
        one = Driven(port, patience)
        one.reaches(State.CONNECTED)
        if resets:
            close(reset=True)
        else:
            shared = one.connection.shared
            assert shared is not None
            one.connection.feed(shared, SHUTTING_DOWN)
        one.reaches(State.WAITING)
        assert re.search(f"connection to .* lost: {words}; next try in", one.logs[-1]), one.logs
        one.ends()


def test_a_broker_that_is_silent_or_closes_is_told_in_words():
    silent, closed = (ReasonCode(PacketTypes.DISCONNECT, identifier=code) for code in (KEEP_ALIVE, 0x80))
    assert "answered no ping, which is sent after 30 s" in lost_because(silent, False, "", 30)
    assert "closed it and gave no reason" in lost_because(closed, False, "", 30)
    assert lost_because(silent, True, "", 30) == "the broker ended it: Keep alive timeout (reason 141)"


def test_a_connection_that_is_half_open_is_dialed_anew(patience):
    """Nothing comes any more, and nothing says so: a router that forgot it, a broker that hangs."""
    with driven(patience, ACCEPT, ACCEPT, keepalive_s=1) as one:
        one.comes_back_from(State.CONNECTED)
        assert "answered no ping" in one.logs[-1], one.logs
        assert one.counters["disconnects"] == 1
        one.reaches(State.CONNECTED)
        one.ends()
        assert one.events == ["opened", "up", "down", "opened", "up", "down"]


def test_a_node_that_leaves_over_a_half_open_connection_is_not_told_twice(patience):
    with driven(patience, ACCEPT, keepalive_s=1) as one:
        one.reaches(State.CONNECTED)
        one.connection.leave()
        one.reaches(State.CLOSED)
        one.connection.close()
        assert one.events == ["opened", "up", "down"]


@pytest.mark.parametrize("answer", [UNSUPPORTED, HANG_UP])
def test_a_version_that_is_set_is_not_changed(patience, answer):
    with driven(patience, answer, answer, version="5") as one:
        for _ in range(2):
            one.comes_back_from(State.GREETING)
        assert one.connection.v5


def test_a_second_connack_ends_the_connection(patience):
    with driven(patience, ACCEPT + ACCEPT) as one:
        one.reaches(State.CONNECTED)
        shared = one.connection.shared
        assert shared is not None
        one.connection.feed(shared, ACCEPT)
        assert one.connection.state is State.WAITING
        assert one.counters["malformed"] == one.counters["disconnects"] == 1
        assert "a second CONNACK" in one.logs[-1]


class Even(random.Random):
    def random(self) -> float:
        return 0.5  # a wait is its length


def waits_told(logs: list[str]) -> list[float]:
    return [float(line.split()[-2]) for line in logs if "next try" in line]


def test_outages_of_a_broker_that_lets_in_do_not_add_up(monkeypatch, patience):
    """Lost and back, again and again, as while somebody restarts it: no wait becomes the longest one."""
    monkeypatch.setattr(dialing, "RETRY_FIRST_S", 0.1)
    monkeypatch.setattr(dialing, "RETRY_KNOWN_S", 0.2)
    monkeypatch.setattr(dialing, "RETRY_MAX_S", 30.0)
    with broker(*[ACCEPT] * 6) as (port, close):
        one = Driven(port, patience, jitter=Even())
        for _ in range(5):
            one.reaches(State.CONNECTED)
            close()
            one.reaches(State.WAITING)
        assert waits_told(one.logs) == [0.1, 0.2, 0.2, 0.2, 0.2]
        one.ends()


def test_a_mute_broker_is_dialed_ever_more_seldom(monkeypatch, patience):
    """It takes connections and answers neither version: the change of version costs one line and no wait."""
    monkeypatch.setattr(module, "CONNACK_S", 0.01)
    monkeypatch.setattr(dialing, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(dialing, "RETRY_MAX_S", 0.128)
    monkeypatch.setattr(outage, "AT_ONCE", 12)

    with driven(patience, *[SILENCE] * 12, jitter=Even()) as mute:
        mute.until(lambda: sum("does not answer" in line for line in mute.logs) >= 9)
        waits = waits_told(mute.logs)
        assert waits == sorted(waits) and waits[-1] == 0.1
        assert sum("seems not to speak MQTT 5" in line for line in mute.logs) == 1


def test_a_host_that_no_dns_knows_is_named(monkeypatch, patience):
    def no_such_host(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(module, "connect", no_such_host)
    with driven(patience) as lost:
        lost.comes_back_from(State.DIALING)
        assert (
            "Name or service not known (is 127.0.0.1 the broker's name, and does this machine" in lost.logs[0]
        )


def test_a_port_at_which_nothing_listens_is_named(monkeypatch, patience):
    def refused(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(module, "connect", refused)
    with driven(patience) as lost:
        lost.comes_back_from(State.DIALING)
        assert "Connection refused (nothing listens at 127.0.0.1, port " in lost.logs[0]
        assert "does the broker run, and is that its port?" in lost.logs[0]


@contextmanager
def late_broker(delay_s: float) -> Iterator[int]:
    """The port of a broker behind a link that takes its time: it answers `delay_s` after a CONNECT."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))

        def answer(sock: socket.socket) -> None:
            with contextlib.suppress(OSError):
                sock.recv(4096)
                time.sleep(delay_s)
                sock.sendall(ACCEPT)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock = sockets.enter_context(listener.accept()[0])
                    answers.append(threading.Thread(target=answer, args=(sock,), daemon=True))
                    answers[-1].start()

        answers: list[threading.Thread] = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for ending in (thread, *answers):
                ending.join(10)


def test_a_link_on_which_answers_take_long_is_given_longer(monkeypatch, patience):
    monkeypatch.setattr(module, "CONNACK_S", 0.1)
    monkeypatch.setattr(dialing, "RETRY_FIRST_S", 0.001)
    with late_broker(0.25) as port:
        one = Driven(port, patience, version="5")
        one.reaches(State.CONNECTED)
        assert sum("does not answer" in line for line in one.logs) >= 1
        one.ends()


def test_a_link_that_is_slow_once_leaves_the_version_as_it_is(monkeypatch, patience):
    """The second CONNECT is answered in time: nothing was wrong with MQTT 5."""
    monkeypatch.setattr(module, "CONNACK_S", 0.2)
    monkeypatch.setattr(dialing, "RETRY_FIRST_S", 0.001)
    with late_broker(0.25) as port:
        one = Driven(port, patience)
        one.reaches(State.CONNECTED)
        assert one.connection.v5 and not any("3.1.1" in line for line in one.logs)
        one.ends()


def test_a_handshake_that_takes_long_is_given_longer_up_to_a_bound(monkeypatch, patience):
    given: list[int] = []

    def slow(_host: str, _port: int, _timeout_s: float, _tls: object, patience: int) -> None:
        given.append(patience)
        raise TimeoutError("The handshake operation timed out")

    monkeypatch.setattr(module, "connect", slow)
    monkeypatch.setattr(dialing, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(dialing, "RETRY_MAX_S", 0.001)
    with driven(patience) as one:
        one.until(lambda: len(given) >= 6)
    assert given[:6] == [1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    "answer", [b"\x20\x06\0\0\x03\x21\0\0", b"\x20\x05\0\0\x02\xff\0"], ids=["maximum 0", "property 255"]
)
def test_an_answer_to_connect_that_cannot_be_read_is_no_broker_that_hangs_up(patience, answer):
    """The node closes that connection itself, and said that the broker did, with remedies for that."""
    with driven(patience, answer, version="5") as one:
        one.comes_back_from(State.GREETING)
        assert f"what it answers to CONNECT is not MQTT 5: {answer.hex()}" in one.logs[-1]
        assert "hung up" not in one.logs[-1] and "max_packet_size" not in one.logs[-1]


@pytest.mark.parametrize(("limit", "said"), [(64, False), (34, False), (24, True)])
def test_a_subscription_that_no_packet_holds_is_named(patience, limit, said):
    connack = b"\x20\x08\x00\x00\x05\x27" + limit.to_bytes(4, "big")
    assert subscribe_bytes(("bb/test/test/from/+",)) == 27
    with driven(patience, connack) as one:
        one.reaches(State.CONNECTED)
        told = [line for line in one.logs if "the subscription to bb/test/test/from/+ is larger" in line]
        assert bool(told) is said and all(f"packets of {limit} bytes at most" in line for line in told)


@pytest.mark.broker
def test_subscriptions_go_one_by_one_where_the_broker_takes_no_larger_packet(start_broker, loop, doors, url):
    """It hangs up on a larger one, and tells no client why."""
    broker = start_broker("mosquitto", config=["max_packet_size 400"])
    a, b = doors("a"), doors("b")
    a.hears = tuple(letter * 60 for letter in "CDEFGH")
    b.classes = ("H" * 60,)
    transports = [loop.join(node, url(broker)) for node in (a, b)]
    loop.until(lambda: a.in_classes.get(b.peer_id) == ("H" * 60,))
    assert [transport.counters["connects"] for transport in transports] == [1, 1]
