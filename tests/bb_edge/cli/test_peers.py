"""`bb-edge peers`: who is in a federation, by what a real broker keeps, and how to forget who left."""

from __future__ import annotations

import json
import socket
import threading
import time

import paho.mqtt.publish as publish
import pytest
from node_processes import PATIENCE_S

from bb_edge.cli import main
from bb_edge.ir.ids import PeerId
from bb_edge.wire.presence import Presence, encode_presence
from bb_edge.wire.programs import ProgramClaim, pair
from bb_host import Compiler, DataSourceSlot, Module

pytestmark = pytest.mark.broker

FORMS = {"a topic per class": "presence/Client/{peer}", "a topic per peer": "presence/{peer}"}


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def say(request, mosquitto_broker):
    """`say(name, up, **meta)`: leaves a presence at the broker, as a node does."""

    def tell(name: str, up: bool, /, **meta: object) -> None:
        peer = PeerId.from_name(name)
        presence = Presence(up, 7, ("Client",), (), meta)
        publish.single(
            f"bb/home/{request.param.format(peer=peer)}",
            encode_presence(presence),
            qos=1,
            retain=True,
            hostname=mosquitto_broker.host,
            port=mosquitto_broker.port,
        )

    return tell


@pytest.fixture
def peers(mosquitto_broker, capsys):
    """`peers(*words)`: exit code, stdout and stderr of the command."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["peers", "--broker", mosquitto_broker.url, "--federation", "home", *words])
        return code, *capsys.readouterr()

    return run


def listed(peers) -> dict[str, dict]:
    code, out, _ = peers("--json")
    assert code == 0
    return {record["peer"]: record for record in json.loads(out)["peers"]}


def test_what_presences_tell_and_what_they_do_not(say, peers):
    say("kitchen", True, name="kitchen", since=1_700_000_000, program=b"\x3f\xa0", runtime="0.3.1")
    say("hall", False, name="hall")
    say("attic", True)
    say("evil", True, name="kitchen")
    found = listed(peers)
    kitchen = found[str(PeerId.from_name("kitchen"))]
    assert kitchen == {
        "name": "kitchen",
        "peer": str(PeerId.from_name("kitchen")),
        "claims": None,
        "classes": ["Client"],
        "up": True,
        "silent": False,
        "other_program": False,
        "since": "2023-11-14T22:13:20Z",
        "program": "3fa0",
        "runtime": "0.3.1",
        "failure": None,
    }
    assert not found[str(PeerId.from_name("hall"))]["up"]
    assert found[str(PeerId.from_name("attic"))]["name"] is None
    evil = found[str(PeerId.from_name("evil"))]
    assert (evil["name"], evil["claims"]) == (None, "kitchen")
    code, out, _ = peers()
    head, *rows, count, hint = out.splitlines()
    assert (code, count) == (0, "4 peers in federation home, 3 up")
    assert head.split()[:3] == ["name", "state", "classes"]
    assert any(row.split()[:4] == ["hall", "down", "Client", "unknown"] for row in rows)
    assert any("(claims 'kitchen')" in row for row in rows)
    assert any(row.startswith("kitchen") and "  none  " in row for row in rows)
    assert "--forget" in hint


def test_who_runs_another_program_is_marked(say, peers):
    """All are up, and one of them nobody asks: its server says so, and who looks at the fleet sees it."""
    claim = ProgramClaim(b"\1" * 32, contracts={pair("Client", "Client"): b"c"}).meta()
    for name in ("a", "b", "c"):
        say(name, True, name=name, **claim)
    assert not any(record["other_program"] for record in listed(peers).values())
    say("c", True, name="c", **{**claim, "program": b"\2" * 32})
    assert [record["name"] for record in listed(peers).values() if record["other_program"]] == ["c"]
    _, out, _ = peers()
    _, *rows, count, hint = out.splitlines()
    assert [row.split("  ")[0] for row in rows if "up, other program" in row] == ["c"]
    assert count == "3 peers in federation home, 3 up, 1 of these with another program"
    assert hint.startswith("another program: most peers that it would deal with neither ask nor hear it")


def test_a_long_class_makes_no_table_wide(mosquitto_broker, peers):
    peer = PeerId.from_name("hall")
    payload = encode_presence(Presence(True, 7, ("C" * 64, "D" * 64), (), {}))
    host, port = mosquitto_broker.host, mosquitto_broker.port
    publish.single(f"bb/home/presence/Client/{peer}", payload, qos=1, retain=True, hostname=host, port=port)
    row = peers()[1].splitlines()[1]
    assert "C" * 59 + "…  " in row and "DD" not in row, row
    assert listed(peers)[str(peer)]["classes"] == ["C" * 64, "Client", "D" * 64]


def test_a_device_that_is_gone_is_forgotten(say, peers):
    say("kitchen", False, name="kitchen")
    say("hall", True, name="hall")
    code, out, _ = peers("--forget", "kitchen")
    assert code == 0 and out.startswith(f"forgot kitchen ({PeerId.from_name('kitchen')})")
    assert list(listed(peers)) == [str(PeerId.from_name("hall"))]
    code, _, err = peers("--forget", "kitchen")
    assert code == 1 and "no presence of kitchen" in err
    code, _, err = peers("--forget", str(PeerId.from_name("hall")))
    assert code == 1 and "is up" in err and "--force" in err
    assert peers("--forget", "hall", "--force")[0] == 0
    assert listed(peers) == {}


def test_many_are_listed_before_they_are_forgotten(say, peers):
    for name in ("hall-1", "hall-2", "kitchen"):
        say(name, False, name=name)
    say("hall-3", True, name="hall-3")
    say("evil", False, name="hall-4")
    code, out, err = peers("--forget", "hall-*")
    assert code == 0 and "hall-1" in out and "hall-2" in out and "2 peers; --yes" in out
    assert "hall-3" not in out and "hall-4" not in out, "it is up; it only claims the name"
    assert "1 that are up are left" in err
    assert len(listed(peers)) == 5, "nothing is cleared"
    code, out, _ = peers("--forget", "hall-*", "--yes")
    assert code == 0 and out.count("forgot ") == 2
    assert len(listed(peers)) == 3
    code, out, _ = peers("--forget-down")
    assert code == 0 and out.count("would forget ") == 2 and "2 peers; --yes" in out
    assert peers("--forget-down", "--yes")[0] == 0
    assert list(listed(peers)) == [str(PeerId.from_name("hall-3"))]
    code, out, _ = peers("--forget", "*", "--force", "--yes")
    assert code == 0 and "1 peers" in out
    assert listed(peers) == {}
    assert peers("--forget", "*", "--yes")[:2] == (0, "0 peers\n")


def test_who_is_forgotten_is_listed_by_name_in_json_too(say, peers):
    for name in ("hall-2", "hall-1", "attic"):
        say(name, False, name=name)
    say("hall-3", True, name="hall-3")
    for words, forgot in (((), False), (("--yes",), True)):
        code, out, err = peers("--forget", "hall-*", "--forget", "attic", "--json", *words)
        told = json.loads(out)
        assert (code, err, told["forgot"], told["federation"]) == (0, "", forgot, "home")
        assert [record["name"] for record in told["peers"]] == ["attic", "hall-1", "hall-2"]
        assert [record["name"] for record in told["left"]] == ["hall-3"]
    assert len(listed(peers)) == 1
    for name in ("hall-2", "attic", "hall-1"):
        say(name, False, name=name)
    lines = peers("--forget-down")[1].splitlines()
    assert [line.split()[2] for line in lines[:-1]] == ["attic", "hall-1", "hall-2"]


def test_peers_in_a_failure_are_shown_by_name(say, peers):
    hub, stranger = PeerId.from_name("hub"), PeerId.from_name("stranger")
    say("hub", True, name="hub")
    say("kitchen", True, name="kitchen", failure=f"{hub} refuses its answers, {stranger} does not")
    failure = listed(peers)[str(PeerId.from_name("kitchen"))]["failure"]
    assert failure == f"hub ({hub}) refuses its answers, {stranger} does not"
    assert failure in peers()[1]


@pytest.mark.parametrize(("session", "up"), [(3, False), (2, True)])
def test_the_end_of_a_connection_is_told_under_one_class(session, up, peers, mosquitto_broker):
    """A broker publishes one will per connection; the presences of other classes still say up."""
    peer = PeerId.from_name("kitchen")
    where = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    server = Presence(True, 7, meta={"name": "kitchen"}, session=3, will="Client")
    for name, presence in (("Client", Presence(False, 7, session=session)), ("Server", server)):
        payload = encode_presence(presence)
        publish.single(f"bb/home/presence/{name}/{peer}", payload, qos=1, retain=True, **where)
    (found,) = listed(peers).values()
    assert (found["up"], found["classes"]) == (up, ["Client", "Server"])
    assert peers("--forget", "kitchen", "--force")[0] == 0
    assert listed(peers) == {}


def test_what_is_no_presence_is_told_and_left(say, peers, mosquitto_broker):
    where = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    publish.single("bb/home/presence/nobody", b"x", qos=1, retain=True, **where)
    code, out, err = peers()
    assert code == 0 and "0 peers" in out
    assert "bb/home/presence/nobody is not a presence" in err


def test_a_node_tells_its_name_and_since_when_it_runs(configured, start, peers):
    node = start("run", "--config", str(configured(federation="home")))
    node.says("connected to")
    node.says("tick")
    (found,) = listed(peers).values()
    assert (found["name"], found["up"]) == ("kitchen", True)
    assert found["since"].startswith("20")
    assert node.end() == 0
    since = found["since"]
    (found,) = listed(peers).values()
    assert (found["name"], found["up"], found["since"], found["classes"]) == (
        "kitchen",
        False,
        since,
        ["Main"],
    )


BROKEN = """
import bb_edge.roles as roles
from bb_edge import register

@register
class Broken(roles.DataSource):
    TYPE_NAME = "acme.Broken"
    CONFIG = {}
    stateless = True

    @classmethod
    def construct(cls, env):
        return cls()

    def next_batch(self, ctx):
        raise OSError("camera unplugged")

    def num_samples(self, ctx):
        return 0
"""


class Looks(Module):
    """Asks a camera that is not there."""

    name = "Looks"
    camera = DataSourceSlot("camera")

    def body(self, g) -> None:
        g.app_emit("x", self.camera.next_batch(g, after=g.interval(20_000_000))[0])


def test_what_failed_last_is_told(tmp_path, start, peers, mosquitto_broker):
    (tmp_path / "broken.py").write_text(BROKEN)
    compiler = Compiler().bind_data_source("camera", "acme.Broken")
    (tmp_path / "looks.onnx").write_bytes(compiler.compile(Looks()).SerializeToString())
    words = [
        "--target",
        "Looks",
        "--peer",
        "hall",
        "--federation",
        "home",
        "--load",
        str(tmp_path / "broken.py"),
    ]
    node = start("run", str(tmp_path / "looks.onnx"), *words, "--broker", mosquitto_broker.url)
    node.says("camera unplugged")
    end = time.monotonic() + PATIENCE_S
    while (failure := next(iter(listed(peers).values()), {}).get("failure")) is None:
        assert time.monotonic() < end
    assert "OSError: camera unplugged" in failure
    assert node.end() == 0


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_rules_that_let_nobody_clear_presences(version, start_broker, tmp_path, capsys):
    rules = tmp_path / "rules"
    rules.write_text("topic read bb/#\nuser node\ntopic readwrite bb/#\n")
    rules.chmod(0o644)
    broker = start_broker("mosquitto", config=[f"acl_file {rules}"])
    peer = PeerId.from_name("kitchen")
    words = ["peers", "--broker", broker.url, "--federation", "home", "--mqtt-version", version]
    where = {"hostname": broker.host, "port": broker.port, "auth": {"username": "node"}}
    topic = f"bb/home/presence/Client/{peer}"
    publish.single(topic, encode_presence(Presence(False, 7)), qos=1, retain=True, **where)
    assert main([*words, "--forget", "kitchen"]) == 1
    assert "does not let this client clear" in capsys.readouterr().err
    words[2] = broker.url.replace("mqtt://", "mqtt://node@")
    assert main([*words, "--forget", "kitchen"]) == 0


LOGINS = {"as an operator": ("operator@", 0), "as one that may read nothing": ("guest@", 1)}


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize(("login", "code"), LOGINS.values(), ids=LOGINS)
def test_nobody_is_there_or_the_rules_let_nobody_be_seen(
    login, code, version, start_broker, tmp_path, capsys
):
    rules = tmp_path / "rules"
    rules.write_text("user operator\ntopic readwrite bb/home/presence/#\n")
    rules.chmod(0o644)
    broker = start_broker("mosquitto", config=[f"acl_file {rules}"])
    url = broker.url.replace("mqtt://", f"mqtt://{login}")
    words = ["peers", "--broker", url, "--federation", "home", "--mqtt-version", version]
    assert main(words) == code
    out, err = capsys.readouterr()
    if code:
        assert not out and "passes on no presence to this client" in err and "operator" in err
    else:
        assert "0 peers in federation home" in out


def test_a_broker_that_refuses_subscriptions_is_said_to_refuse(capsys):
    """Mosquitto grants them all; others answer 0x87."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listener.accept()
        with sock, sock.makefile("rb") as packets:
            while head := packets.read(2):  # no packet here has 128 bytes or more
                body = packets.read(head[1])
                if head[0] == 0x10:
                    sock.sendall(b"\x20\x03\x00\x00\x00")
                elif head[0] == 0x82:
                    filters = body.count(b"/presence/+") or body.count(b"$SYS") or 1
                    sock.sendall(b"\x90" + bytes([3 + filters]) + body[:2] + b"\x00" + b"\x87" * filters)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    assert main(["peers", "--broker", f"mqtt://127.0.0.1:{port}", "--mqtt-version", "5"]) == 1
    out, err = capsys.readouterr()
    assert not out and "refuses the subscription to bb/default/presence/+: Not authorized" in err
    thread.join(10)
    listener.close()


def test_a_visit_under_a_node_s_name_is_refused_and_the_node_stays(configured, start, start_broker, capsys):
    """Such a broker takes the user name for the client id, and ends the session that has it."""
    broker = start_broker("mosquitto", config=["use_username_as_clientid true"])
    peer = PeerId.from_name("kitchen")
    path = configured(federation="home", broker={"url": broker.url, "username": str(peer)})
    node = start("run", "--config", str(path))
    node.says("connected to")
    assert main(["peers", "--config", str(path)]) == 1
    err = capsys.readouterr().err
    assert f"as the node {peer}" in err and "use_username_as_clientid" in err and "--as-node" in err
    other = broker.url.replace("mqtt://", "mqtt://operator@")
    assert main(["peers", "--config", str(path), "--broker", other]) == 0
    assert "kitchen" in capsys.readouterr().out
    assert not [line for line in node.lines if "lost" in line], "nobody threw the node out"
    assert main(["peers", "--config", str(path), "--as-node"]) == 0
    node.says("connection to .* lost")
    assert node.end() == 0


def test_a_node_s_own_presence_that_is_missing_is_told(say, configured, capsys):
    say("hall", True, name="hall")
    assert main(["peers", "--config", str(configured(federation="home"))]) == 0
    assert "tells nothing of kitchen" in capsys.readouterr().err


def test_a_broker_must_be_named(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["peers"])
    assert ended.value.code == 2
    assert "--broker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--yes"], "--yes says nothing without"),
        (["--force", "--json"], "--force says nothing without"),
        (["--forget", ""], "an empty text names no peer"),
    ],
)
def test_flags_that_ask_for_nothing_are_usage(flags, word, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["peers", "--broker", "mqtt://127.0.0.1:1", *flags])
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


def test_what_is_no_presence_is_cleared_by_its_id_by_a_pattern_or_with_what_is_down(
    mosquitto_broker, say, peers
):
    one, two, three = (str(PeerId.from_name(f"forged {n}")) for n in range(3))
    for text in (one, two, three):
        where = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
        publish.single(f"bb/home/presence/Client/{text}", b"garbage", qos=1, retain=True, **where)
    say("kitchen", True)
    assert "3 hold no presence: --forget-down --yes clears them, too" in peers()[2]
    code, out, _ = peers("--forget", one)
    assert code == 0 and f"cleared bb/home/presence/Client/{one}, which holds no presence" in out
    code, out, _ = peers("--forget", f"{two[:12]}*")
    assert code == 0 and f"would clear bb/home/presence/Client/{two}" in out
    code, out, _ = peers("--forget-down", "--yes")
    assert code == 0 and out.count("cleared") == 2
    code, out, err = peers()
    assert "1 peers in federation home, 1 up" in out and "no presence" not in err


@pytest.mark.parametrize(("limit", "doubted"), [(330, True), (512, False)])
def test_a_broker_that_takes_small_packets_alone_is_no_broker_without_nodes(
    start_broker, capsys, limit, doubted
):
    """It said that there are no peers, and no more: their presences do not fit."""
    url = start_broker("mosquitto", config=[f"max_packet_size {limit}"]).url
    assert main(["peers", "--broker", url, "--federation", "home"]) == 0
    out, err = capsys.readouterr()
    assert "0 peers in federation home" in out
    assert (f"takes packets of {limit} bytes at most, and a node whose presence is larger" in err) is doubted


def test_a_broker_that_is_missing_is_missed_by_this_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["peers"])
    assert ended.value.code == 2
    assert "--broker is missing (give it to bb-edge peers, or" in capsys.readouterr().err
