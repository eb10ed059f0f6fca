"""The service unit and the broker's configuration, each tried with the program that reads it."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from brokers import Broker
from certificates import OPENSSL, Authority
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bb_edge.cli.endings import Exit
from bb_edge.ir.ids import PeerId

SHIMS = Path(__file__).parents[2] / "firmware_shims" / "bb_shims" / "files"
SYSTEMD_ANALYZE, MOSQUITTO = (shutil.which(name) for name in ("systemd-analyze", "mosquitto"))
NOT_AUTHORIZED = 135
PATIENCE_S = 20


def settings(path: Path) -> dict[str, list[str]]:
    """The lines ``key value`` or ``key=value`` of a configuration, without comments."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            key, value = re.split(r"[ =]", line, maxsplit=1)
            found.setdefault(key, []).append(value)
    return found


# ----------------------------------------------------- service


def test_the_unit_is_watched_restarted_and_limited() -> None:
    unit = settings(SHIMS / "service" / "bb-edge@.service")
    expected = {
        "Type": "notify",
        "Restart": "on-failure",
        "RestartPreventExitStatus": f"{Exit.USAGE:d} {Exit.REFUSED:d}",
        "StateDirectory": "bb-edge/%i",
        "StartLimitIntervalSec": "0",
    }
    assert {key: unit[key] for key in expected} == {key: [value] for key, value in expected.items()}
    never = {0, *map(int, unit["RestartPreventExitStatus"][0].split())}
    again = {code for code in Exit if code not in never}
    assert again == {Exit.FAILED, Exit.NO_RESULT, Exit.UNDELIVERED}, (
        "what is done stays done, what is refused stays refused"
    )
    assert int(unit["WatchdogSec"][0]) > 0
    assert unit["MemoryMax"][0].endswith("M")


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="no systemd-analyze on this machine")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "bb-edge@test.service"
    unit.write_text((SHIMS / "service" / "bb-edge@.service").read_text())
    result = subprocess.run(
        [str(SYSTEMD_ANALYZE), "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in result.stderr.splitlines() if "bb-edge" in line]
    assert complaints == []


# ----------------------------------------------------- broker


def test_both_brokers_differ_in_their_listener_only() -> None:
    plain, tls = (settings(SHIMS / "broker" / f"{name}.conf") for name in ("mosquitto", "mosquitto-tls"))
    common = {"set_tcp_nodelay", "persistence", "max_queued_messages", "max_packet_size", "log_type"}
    assert common <= plain.keys()
    of_plain = {"listener", "allow_anonymous"}
    assert {k: v for k, v in plain.items() if k not in of_plain} == {
        k: v for k, v in tls.items() if k in plain and k not in of_plain
    }
    assert plain["listener"] == ["1883 127.0.0.1"], (
        "nobody opens an unprotected port to the network by accident"
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start mosquitto with one of our configurations; only port and paths are exchanged."""
    if MOSQUITTO is None:
        pytest.skip("no mosquitto on this machine")
    started: list[Broker] = []

    def start(name: str, paths: dict[str, Path] | None = None) -> Broker:
        data = tmp_path / "broker"
        data.mkdir()

        def command(port: int, folder: Path) -> list[str]:
            text = (SHIMS / "broker" / name).read_text()
            text = re.sub(r"(?m)^listener .*$", f"listener {port} 127.0.0.1", text)
            # As root it would become the user "mosquitto", who cannot write here.
            for key, path in {"persistence_location": f"{data}/", "user": "root", **(paths or {})}.items():
                line = f"{key} {path}"
                text, exchanged = re.subn(rf"(?m)^{key} .*$", line, text)
                text += "" if exchanged else f"\n{line}\n"
            text += "log_type information\n"  # it says then that it is running
            config = folder / name
            config.write_text(text)
            return [str(MOSQUITTO), "-c", str(config)]

        broker = Broker("mosquitto", command, tmp_path)
        started.append(broker)
        broker.start()
        return broker

    yield start
    for running in started:
        running.stop()


@dataclass
class Peer:
    """An MQTT 5 client whose every step waits for the broker's answer."""

    broker: Broker
    client_id: str
    tls: ssl.SSLContext | None = None
    will: tuple[str, bytes] | None = None
    received: list[tuple[str, bytes]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    answers: dict[tuple[str, int], int] = field(default_factory=dict)

    def __enter__(self) -> Peer:
        self.client = Client(CallbackAPIVersion.VERSION2, self.client_id, protocol=MQTTProtocolVersion.MQTTv5)
        if self.tls is not None:
            self.client.tls_set_context(self.tls)
        if self.will is not None:
            self.client.will_set(*self.will, qos=1, retain=True)
        self.client.on_connect = lambda c, u, f, reason, p: self._note(("connect", 0), reason.value)
        self.client.on_publish = lambda c, u, mid, reason, p: self._note(("publish", mid), reason.value)
        self.client.on_subscribe = lambda c, u, mid, reasons, p: self._note(
            ("subscribe", mid), reasons[0].value
        )
        self.client.on_message = self._message
        self.client.connect("127.0.0.1", self.broker.port)
        self.client.loop_start()
        assert self._answer(("connect", 0)) == 0
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        # Without the cycle through the callbacks paho closes its pair of sockets now, not at some collection.
        self.client.on_connect = self.client.on_publish = None
        self.client.on_subscribe = self.client.on_message = None
        del self.client

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> int:
        """The broker's reason code."""
        return self._answer(("publish", self.client.publish(topic, payload, qos=1, retain=retain).mid))

    def subscribe(self, topic: str) -> None:
        assert self._answer(("subscribe", self.client.subscribe(topic, qos=1)[1])) in (1, NOT_AUTHORIZED)

    def wait(self, count: int) -> list[tuple[str, bytes]]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.received) >= count, PATIENCE_S), self.received
            return list(self.received)

    def _answer(self, key: tuple[str, int]) -> int:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.answers, PATIENCE_S), f"no answer to {key}"
            return self.answers[key]

    def _note(self, key: tuple[str, int], value: int) -> None:
        with self.changed:
            self.answers[key] = value
            self.changed.notify_all()

    def _message(self, _client: Client, _user: object, message: MQTTMessage) -> None:
        with self.changed:
            self.received.append((message.topic, message.payload))
            self.changed.notify_all()


@pytest.mark.broker
def test_the_plain_broker_keeps_presence_over_a_restart(broker: Callable[..., Broker]) -> None:
    running = broker("mosquitto.conf")
    with Peer(running, "a") as a:
        assert a.publish("bb/f/presence/C/a", b"up", retain=True) in (0, 16)
    running.stop()
    running.start()
    with Peer(running, "b") as b:
        b.subscribe("bb/f/presence/C/+")
        assert b.wait(1) == [("bb/f/presence/C/a", b"up")]


@pytest.mark.broker
def test_the_largest_envelope_fits(broker: Callable[..., Broker]) -> None:
    envelope = bytes(16 << 20)
    with Peer(broker("mosquitto.conf"), "a") as a:
        a.subscribe("bb/f/a/from/+")
        assert a.publish("bb/f/a/from/" + "b" * 46, envelope) == 0
        assert a.wait(1)[0][1] == envelope


@pytest.fixture
def certificates(tmp_path: Path) -> Authority:
    """Certificates, with their keys, of an authority that is made here."""
    if OPENSSL is None:
        pytest.skip("no openssl on this machine")
    folder = tmp_path / "certs"
    folder.mkdir()
    return Authority(folder)


@pytest.mark.broker
def test_with_certificates_a_client_is_bound_to_its_name(
    broker: Callable[..., Broker], certificates: Authority
) -> None:
    authority = certificates("ca")[0]
    certificate, key = certificates("broker")
    acl = SHIMS / "broker" / "bb.acl"
    paths = {"cafile": authority, "certfile": certificate, "keyfile": key, "acl_file": acl}
    running = broker("mosquitto-tls.conf", paths)

    def context(name: str | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(authority))
        if name is not None:
            context.load_cert_chain(*map(str, certificates(name)))
        return context

    kitchen, hall, server = (str(PeerId.from_name(name)) for name in ("kitchen", "hall", "server"))
    to_bob, to_self = f"bb/home/{server}/from/{kitchen}", f"bb/home/{hall}/from/{hall}"
    here = f"bb/home/presence/Client/{kitchen}"
    alice = Peer(running, kitchen, context(kitchen), will=(here, b"down"))
    # Mallory has a certificate of her own, and tries to be others.
    with Peer(running, server, context(server)) as bob, Peer(running, server, context(hall)) as mallory:
        mallory.subscribe(f"bb/home/{server}/from/+")
        mallory.subscribe("bb/#")
        bob.subscribe(f"bb/home/{server}/from/+")
        bob.subscribe("bb/home/presence/Client/+")
        assert mallory.publish(to_bob, b"forged") == NOT_AUTHORIZED
        for presence in (f"Server/{server}", here.removeprefix("bb/home/presence/"), f"Server/{hall}"):
            topic = f"bb/home/presence/{presence}"
            assert mallory.publish(topic, b"down", retain=True) == NOT_AUTHORIZED
        assert mallory.publish("bb/home/rollcall/Client", b"call") == NOT_AUTHORIZED
        assert mallory.publish("elsewhere", b"x") == NOT_AUTHORIZED
        with alice:
            assert alice.publish(here, b"up", retain=True) == 0
            assert alice.publish(to_bob, b"to bob") == 0
            assert sorted(bob.wait(2)) == sorted([(to_bob, b"to bob"), (here, b"up")])
            # A connection that ends without a word: the will speaks. (The socket is cut under the client.)
            alice.client.loop_stop()
            sock = alice.client.socket()
            assert sock is not None
            sock.close()
        assert bob.wait(3)[2] == (here, b"down")
        # Mallory may see the server's presence only; her own message shows that nothing else comes.
        mallory.subscribe(f"bb/home/{hall}/from/+")
        assert mallory.publish(to_self, b"last") == 0
        with mallory.changed:
            last = (to_self, b"last")
            assert mallory.changed.wait_for(lambda: last in mallory.received, PATIENCE_S)
        seen = {topic for topic, _ in mallory.received}
        assert seen == {to_self}
        assert not [item for item in bob.received if item[1] == b"forged"]


def knock(secure: ssl.SSLSocket) -> None:
    """Ask for an MQTT 5 connection; under TLS 1.3 the refusal comes with the first read."""
    with secure:
        secure.sendall(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00")
        if not secure.recv(16):
            raise ConnectionError("closed by the broker")


@pytest.mark.broker
def test_without_a_certificate_nobody_gets_in(broker: Callable[..., Broker], certificates: Authority) -> None:
    authority = certificates("ca")[0]
    certificate, key = certificates("broker")
    acl = SHIMS / "broker" / "bb.acl"
    paths = {"cafile": authority, "certfile": certificate, "keyfile": key, "acl_file": acl}
    running = broker("mosquitto-tls.conf", paths)
    context = ssl.create_default_context(cafile=str(authority))
    raw = socket.create_connection(("127.0.0.1", running.port), PATIENCE_S)
    with raw, pytest.raises((ssl.SSLError, ConnectionError)):
        knock(context.wrap_socket(raw, server_hostname="127.0.0.1"))
