"""The broker of firmware_shims for devices in the field: certificates, access rules, and who is kept out."""

from __future__ import annotations

import re
import ssl
import subprocess
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from certificates import OPENSSL, Authority
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bb_edge.engine.steps import SendEnvelope
from bb_edge.ir.ids import PeerId
from bb_edge.transport.certificate import Certificate, _seconds
from bb_edge.transport.credentials import stranger
from bb_edge.transport.mqtt import Broker, BrokerFileError, BrokerUrlError, MqttOptions
from bb_edge.transport.visitor import VisitError, visit
from bb_edge.wire.envelope import Envelope, encode

MOSQUITTO = Path(__file__).parents[3] / "firmware_shims" / "bb_shims" / "files" / "broker"
NOT_AUTHORIZED = 135
PROGRAM = """program P {module=P, targets="Main"}
function program.Main(x: F32) -> () {entry=1, partition=Main}
  syscall.AppEmit<name="x">(x)
"""
pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(OPENSSL is None, reason="no openssl on this machine"),
]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """`certificates(name)` -> (certificate, key), made once each by an authority of this test."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    return lambda name: tuple(map(str, authority(name)))


@pytest.fixture
def tls_broker(start_broker, certificates, tmp_path):
    """Our configuration for the field, its paths and port exchanged; `acl=False` leaves the rules out.

    In the example's rules `b` stands for the server, `a` and `mallory` for its clients.
    """
    rules = (MOSQUITTO / "bb.acl").read_text().replace("bb/home/", "bb/test/")
    for ours, shipped in (("b", "server"), ("a", "kitchen"), ("mallory", "hall")):
        assert str(PeerId.from_name(shipped)) in rules
        rules = rules.replace(str(PeerId.from_name(shipped)), str(PeerId.from_name(ours)))
    (tmp_path / "bb.acl").write_text(rules)
    (tmp_path / "bb.acl").chmod(0o644)

    def start(acl: bool = True):
        certificate, key = certificates("broker")
        kept = []
        for line in (MOSQUITTO / "mosquitto-tls.conf").read_text().splitlines():
            if not line or line.startswith(("#", "listener", "persistence", "log_", "allow_anonymous")):
                continue
            kept.append(line)
        text = "\n".join(kept)
        for name, path in (
            ("cafile", certificates("ca")[0]),
            ("certfile", certificate),
            ("keyfile", key),
            ("acl_file", str(tmp_path / "bb.acl")),
        ):
            text, count = re.subn(rf"(?m)^{name} .*$", f"{name} {path}", text)
            assert count == 1
        lines = text.splitlines()
        if not acl:
            lines = [line for line in lines if not line.startswith("acl_file")]
        return start_broker("mosquitto", config=[*lines, "allow_anonymous false"])

    return start


@pytest.fixture
def admitted(certificates):
    """`admitted(broker, name)`: the Broker record of a peer that has a certificate."""

    def make(broker, name: str) -> Broker:
        certificate, key = certificates(str(PeerId.from_name(name)))
        return Broker.from_url(
            f"mqtts://{broker.host}:{broker.port}",
            ca_file=certificates("ca")[0],
            cert_file=certificate,
            key_file=key,
        )

    return make


def mallory(broker, certificates, topic: str, payload: bytes) -> int:
    """Publishes with a good certificate of the name mallory; the broker's reason code."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "mallory", protocol=MQTTProtocolVersion.MQTTv5)
    context = ssl.create_default_context(cafile=certificates("ca")[0])
    context.load_cert_chain(*certificates(str(PeerId.from_name("mallory"))))
    client.tls_set_context(context)
    codes: list[int] = []
    client.on_publish = lambda c, u, mid, reason, p: codes.append(reason.value)
    client.connect(broker.host, broker.port)
    client.loop_start()
    client.publish(topic, payload, qos=1).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()
    client.on_publish = None
    return codes[0]


def test_nodes_with_certificates_meet_and_large_values_pass(tls_broker, admitted, loop, doors):
    broker = tls_broker()
    a, b = doors("a"), doors("b")
    a.hears, b.classes = ("Server",), ("Server",)
    options = MqttOptions(max_packet_bytes=50_000)
    ta = loop.join(a, admitted(broker, "a"), options=options)
    tb = loop.join(b, admitted(broker, "b"))
    loop.until(lambda: a.presence.get(b.peer_id) == (True, 1) and b.presence.get(a.peer_id) == (True, 1))
    large = bytes(range(256)) * 2000
    ta.send(SendEnvelope(b.peer_id, large))  # in chunks
    tb.send(SendEnvelope(a.peer_id, large))  # whole
    loop.until(lambda: bool(a.got and b.got))
    assert a.got == [(large, b.peer_id)]
    assert b.got == [(large, a.peer_id)]
    assert ta.counters["cut"] == 1
    assert ta.counters["refused"] == tb.counters["refused"] == 0


def test_a_spoofed_sender_is_refused_by_the_broker(tls_broker, admitted, certificates, loop, doors):
    broker = tls_broker()
    a, b = doors("a"), doors("b")
    tb = loop.join(b, admitted(broker, "b"))
    loop.until(lambda: tb.connected)
    topic = f"bb/test/{b.peer_id}/from/{a.peer_id}"
    assert mallory(broker, certificates, topic, b"forged") == NOT_AUTHORIZED
    name = PeerId.from_name("mallory")
    for presence in (f"Server/{name}", f"Server/{b.peer_id}", f"Client/{a.peer_id}"):
        assert mallory(broker, certificates, f"bb/test/presence/{presence}", b"forged") == NOT_AUTHORIZED
    assert mallory(broker, certificates, "bb/test/rollcall/Client", b"call") == NOT_AUTHORIZED
    own = f"bb/test/{b.peer_id}/from/{name}"
    assert mallory(broker, certificates, own, b"own") == 0
    loop.until(lambda: b.got == [(b"own", PeerId.from_name("mallory"))])


def test_a_refused_publish_is_counted_and_told_to_the_node(tls_broker, admitted, loop, doors):
    broker = tls_broker()
    b = doors("b")
    # A node that runs under another name than its certificate's: the rules let it say nothing.
    a = doors("a")
    ta = loop.join(a, admitted(broker, "mallory"))
    loop.until(lambda: ta.connected)
    ta.send(SendEnvelope(b.peer_id, b"x"))
    loop.until(lambda: a.failed == [b.peer_id])
    assert ta.counters["refused"] >= 2  # its presence too
    refused = next(line for line in loop.logs if "refused a publish" in line)
    known_as = PeerId.from_name("mallory")
    assert f"the broker knows this client as {known_as}, this node is {a.peer_id}" in refused
    assert (
        "is --peer, or peer of the configuration, misspelt? Else make the certificate's common name"
        in refused
    )


@pytest.mark.parametrize("name", ["kitchen", str(PeerId.from_name("kitchen"))])
def test_the_name_in_a_certificate_is_read(name, certificates):
    assert Certificate.of(certificates(name)[0]).name == name


@pytest.mark.parametrize("text", ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_without_a_certificate_has_no_name(text, tmp_path):
    (tmp_path / "x.crt").write_text(text)
    assert Certificate.of(str(tmp_path / "x.crt")) == (None, None, None)
    assert Certificate.of(str(tmp_path / "nowhere.crt")) == (None, None, None)


def test_who_the_broker_takes_a_client_for():
    peer = PeerId.from_name("kitchen")
    assert stranger(Broker("h", 1883), peer) == ""
    assert stranger(Broker("h", 1883, username=str(peer)), peer) == ""
    assert f"knows this client as kitchen, this node is {peer}" in stranger(
        Broker("h", 1883, username="kitchen"), peer
    )


def test_without_rules_the_node_itself_refuses_a_spoofed_envelope(
    tls_broker, admitted, certificates, loop, bench
):
    broker = tls_broker(acl=False)
    node = bench(PROGRAM, peer="b").node
    tb = loop.join(node, admitted(broker, "b"))
    loop.until(lambda: tb.connected)
    victim, other = PeerId.from_name("a"), PeerId.from_name("mallory")
    forged = encode(Envelope(src_peer=other.to_bytes(), epoch=1, seq=1))
    assert mallory(broker, certificates, f"bb/test/{node.peer_id}/from/{victim}", forged) == 0
    loop.until(lambda: tb.counters["received"] == 1)
    node.poll(1)
    assert node.counters["ingress.spoofed"] == 1


def test_a_broker_with_a_foreign_certificate_is_not_spoken_to(tls_broker, certificates, loop, doors):
    broker = tls_broker()
    other = Broker.from_url(f"mqtts://{broker.host}:{broker.port}", ca_file=certificates("stranger")[0])
    ta = loop.join(doors("a"), other)
    loop.until(lambda: any("certificate verify failed" in line for line in loop.logs))
    assert any("is it the authority that signed the broker's certificate?" in line for line in loop.logs)
    loop.join(doors("b"), Broker.from_url(f"mqtts://{broker.host}:{broker.port}"))
    loop.until(lambda: any("as broker.ca (--ca)" in line for line in loop.logs))
    assert not ta.connected


def test_a_node_without_a_certificate_is_not_let_in(tls_broker, certificates, loop, doors):
    broker = tls_broker()
    bare = Broker.from_url(f"mqtts://{broker.host}:{broker.port}", ca_file=certificates("ca")[0])
    ta = loop.join(doors("a"), bare, version="5")
    loop.until(lambda: len([line for line in loop.logs if "next try" in line]) >= 2)
    assert not ta.connected
    auto = loop.join(doors("b"), bare)
    loop.until(lambda: len([line for line in loop.logs if "next try" in line]) >= 8)
    assert not auto.connected
    assert all("wants a certificate of this client: give broker.cert" in line for line in loop.logs), (
        loop.logs
    )
    with pytest.raises(VisitError, match=r"ended TLS: .*wants a certificate of this client"), visit(bare):
        pass


def test_a_certificate_of_an_authority_that_the_broker_does_not_know(
    tls_broker, certificates, tmp_path, loop, doors
):
    broker = tls_broker()
    (tmp_path / "other").mkdir()
    certificate, key = map(str, Authority(tmp_path / "other")("a"))
    other = Broker.from_url(
        f"mqtts://{broker.host}:{broker.port}",
        ca_file=certificates("ca")[0],
        cert_file=certificate,
        key_file=key,
    )
    loop.join(doors("a"), other)
    loop.until(lambda: any("next try" in line for line in loop.logs))
    trusts = f"does the broker trust the authority that signed {certificate}"
    assert trusts in loop.logs[0], loop.logs
    with pytest.raises(VisitError, match=re.escape(trusts)), visit(other):
        pass


def test_a_certificate_that_is_renewed_serves_the_next_connection(
    tls_broker, certificates, tmp_path, loop, doors
):
    """No restart: a node whose certificate has ended would wait for somebody to log in to the device."""
    broker = tls_broker(acl=False)
    (tmp_path / "other").mkdir()
    certificate, key = Authority(tmp_path / "other")("a")
    ours = Broker.from_url(
        f"mqtts://{broker.host}:{broker.port}",
        ca_file=certificates("ca")[0],
        cert_file=str(certificate),
        key_file=str(key),
    )
    ta = loop.join(doors("a"), ours)
    loop.until(lambda: any("does the broker trust the authority" in line for line in loop.logs))
    new_certificate, new_key = map(Path, certificates("a"))
    certificate.write_bytes(new_certificate.read_bytes())  # its key is still the old one
    loop.until(lambda: any("is not the key of" in line for line in loop.logs))
    assert not ta.connected
    key.write_bytes(new_key.read_bytes())
    loop.until(lambda: ta.connected)


@pytest.mark.parametrize(
    ("kind", "text", "seconds"),
    [
        (0x17, b"700101000000Z", 0),
        (0x17, b"491231235959Z", 2524607999),
        (0x17, b"500101000000Z", -631152000),
        (0x18, b"20500101000000Z", 2524608000),
    ],
)
def test_the_times_of_certificates(kind, text, seconds):
    assert _seconds(kind, text) == seconds


def test_keys_that_do_not_fit_are_named_and_nobody_is_asked_for_a_password(certificates, tmp_path):
    (certificate, key), (_, other) = certificates("kitchen"), certificates("hall")
    locked = str(tmp_path / "locked.key")
    command = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:word", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)

    def refused(key_file: str | None) -> str:
        with pytest.raises(BrokerFileError) as caught:
            Broker.from_url("mqtts://h", cert_file=certificate, key_file=key_file).tls_context()
        return str(caught.value)

    assert f"{other} is not the key of {certificate}" in refused(other)
    assert f"the key {locked} has a password" in refused(locked) and "openssl pkey" in refused(locked)
    assert f"{certificate} holds no key" in refused(None) and "broker.key (--key)" in refused(None)
    assert "give readable PEM files" in refused(str(tmp_path / "missing.key"))


def test_files_that_are_no_certificates_are_named(tmp_path):
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    with pytest.raises(BrokerFileError, match=r"broken\.pem"):
        Broker.from_url("mqtts://h", ca_file=str(broken)).tls_context()
    with pytest.raises(BrokerFileError, match=r"missing\.pem"):
        Broker.from_url("mqtts://h", ca_file=str(tmp_path / "missing.pem")).tls_context()


def test_files_need_mqtts_and_a_key_needs_a_certificate():
    with pytest.raises(BrokerUrlError, match="ca given"):
        Broker.from_url("mqtt://h", ca_file="x")
    with pytest.raises(BrokerUrlError, match="key without a certificate"):
        Broker.from_url("mqtts://h", key_file="x")
    with pytest.raises(BrokerUrlError) as caught:
        Broker.from_url("http://user:secret@h")
    assert "secret" not in str(caught.value)
