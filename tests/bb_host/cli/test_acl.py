"""`bb-host acl`: each peer's rules, lists of peers that are refused, and the rules that are shipped."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import paho.mqtt.publish as publish
import pytest
from host_commands import run

from bb_edge.cli import main as edge
from bb_edge.ir.ids import PeerId
from bb_edge.transport.broker import Broker
from bb_edge.transport.rights import rights
from bb_edge.transport.topics import TopicError
from bb_edge.transport.visitor import visit
from bb_edge.wire.presence import Presence, encode_presence
from bb_host.build import compile_edge
from bb_host.cli_acl import MOST_LIST_BYTES, OPERATOR, Member, peer_of, read_members, rules
from bb_host.errors import AclError
from federated_digits.federation import program

MOSQUITTO = Path(__file__).parents[3] / "firmware_shims" / "bb_shims" / "files" / "broker"
KITCHEN, HUB = PeerId.from_name("kitchen"), PeerId.from_name("hub")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The digits', for clients and for the server."""
    folder = tmp_path_factory.mktemp("digits")
    compile_edge(*program("softmax"), folder)
    return sorted(folder.glob("*.edge.onnx"))


def listed(folder: Path, text: str) -> Path:
    path = folder / "peers.txt"
    path.write_text(text)
    return path


def granted(text: str) -> dict[str, list[str]]:
    """The rules of each user; those of patterns are at ""."""
    found: dict[str, list[str]] = {}
    user = ""
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "user":
            user = rest
        elif kind == "pattern":
            found.setdefault("", []).append(rest)
        elif kind == "topic":
            found.setdefault(user, []).append(rest)
        else:
            assert kind in ("", "#"), line
    return found


def test_each_peer_is_bound_to_its_classes_and_hears_those_that_it_needs() -> None:
    heard = {"Client": ("Server",), "Server": ("Client",), "Viewer": ()}
    members = [Member("kitchen", KITCHEN, ("Client",)), Member("hub", HUB, ("Server", "Viewer"))]
    found = granted(rules("home", heard, members, "x.onnx"))
    assert found[str(KITCHEN)] == [
        f"write bb/home/presence/Client/{KITCHEN}",
        "read bb/home/rollcall/Client",
        "read bb/home/presence/Server/+",
        "write bb/home/rollcall/Server",
        f"read bb/home/presence/Viewer/{HUB}",  # where the end of its connection may be told
    ]
    assert found[str(HUB)] == [
        f"write bb/home/presence/Server/{HUB}",
        "read bb/home/rollcall/Server",
        f"write bb/home/presence/Viewer/{HUB}",
        "read bb/home/rollcall/Viewer",
        "read bb/home/presence/Client/+",
        "write bb/home/rollcall/Client",
    ]
    assert set(found) == {"", OPERATOR, str(KITCHEN), str(HUB)}


@pytest.mark.broker
def test_who_is_taken_out_may_do_nothing_at_once_and_the_others_all_that_they_could(start_broker, tmp_path):
    """Without a line of its own a peer keeps what the patterns grant: its session goes on, and is heard."""
    heard: dict[str, tuple[str, ...] | None] = {"Hub": ("Client",), "Client": ("Hub",)}
    text = "kitchen Client\nhub Hub\n"
    file = tmp_path / "bb.acl"

    def write(peers: str) -> None:
        file.write_text(rules("home", heard, read_members(listed(tmp_path, peers)), "a"))
        file.chmod(0o644)

    write(text)
    broker = start_broker("mosquitto", config=[f"acl_file {file}"])
    got: list[bytes] = []
    at = Broker.from_url(f"mqtt://{KITCHEN}@{broker.host}:{broker.port}")
    own = f"bb/home/{KITCHEN}/from/{KITCHEN}"
    with visit(at, take=lambda _topic, payload: got.append(payload)) as kitchen:

        def says(payload: bytes) -> bool:
            mid = kitchen.publish(own, payload)
            assert kitchen.until(lambda: kitchen.reason_of(mid) is not None)
            return not kitchen.reason_of(mid).is_failure

        def reload() -> None:
            before = len([line for line in broker.log if "Reloading" in line])
            os.kill(broker.pid, signal.SIGHUP)
            assert kitchen.until(lambda: len([x for x in broker.log if "Reloading" in x]) > before)

        kitchen.subscribe(own)
        assert says(b"in") and kitchen.until(lambda: got == [b"in"])
        write("hub Hub\n")
        reload()
        assert says(b"still in"), "the patterns are enough"
        write(text.replace("kitchen Client", "kitchen -"))
        reload()
        assert kitchen.until(lambda: not says(b"out"))
        found = rights(at, KITCHEN, "home", ["Client"], ["Hub"])
        assert not found.excess and "send envelopes" in found.lacking and "read its inbox" in found.lacking
    at = Broker.from_url(f"mqtt://{HUB}@{broker.host}:{broker.port}")
    hub = rights(at, HUB, "home", ["Hub"], ["Client"])
    assert (hub.lacking, hub.excess) == ((), ())


def test_who_needs_every_class_gets_those_of_the_artifacts() -> None:
    heard = {"Client": None, "Server": ("Client",)}
    found = granted(rules("home", heard, [Member("kitchen", KITCHEN, ("Client",))], "x.onnx"))
    reads = [rule for rule in found[str(KITCHEN)] if rule.startswith("read bb/home/presence")]
    assert reads == ["read bb/home/presence/Client/+", "read bb/home/presence/Server/+"]


def test_no_pattern_writes_a_presence_or_a_call() -> None:
    found = granted(rules("home", {"Client": ()}, [Member("kitchen", KITCHEN, ("Client",))], "x.onnx"))
    writes = [rule for rule in found[""] if not rule.startswith("read ")]
    assert writes == ["write bb/home/+/from/%u", "write bb/home/+/chunk/%u"]
    assert all("%u" in rule for rule in found[""])


@pytest.mark.parametrize("name", ["", "a/b", "a+", "#"])
def test_a_federation_that_no_topic_holds_is_refused(name: str) -> None:
    with pytest.raises(TopicError):
        rules(name, {"Client": ()}, [Member("kitchen", KITCHEN, ("Client",))], "x.onnx")


def test_a_list_has_names_ids_and_comments(tmp_path: Path) -> None:
    path = listed(tmp_path, f"# all of them\n\nkitchen Client,Hub  # in the kitchen\n{HUB}\tServer\n")
    assert read_members(path) == (
        Member("kitchen", KITCHEN, ("Client", "Hub")),
        Member(str(HUB), HUB, ("Server",)),
    )
    assert peer_of("hub") == peer_of(str(HUB)) == HUB


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("kitchen\n", 1, "'kitchen' is not a name and classes"),
        ("\nkitchen Client Server\n", 2, "is not a name and classes"),
        ("kitchen ,\n", 1, "',' is not a list of classes"),
        ("kitchen Client,\n", 1, "'Client,' is not a list of classes"),
        ("kitchen Client,Client\n", 1, "is not a list of classes"),
        ("kitchen Client\nkitchen Server\n", 2, "'kitchen' is there already"),
        (f"kitchen Client\n{KITCHEN} Server\n", 2, "is there already"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = listed(tmp_path, text)
    with pytest.raises(AclError) as caught:
        read_members(path)
    assert said in str(caught.value) and f"{path}:{line}" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"# nobody\n", b"\xff\xfe"])
def test_a_list_of_nobody_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "peers.txt"
    path.write_bytes(data)
    with pytest.raises(AclError, match=r"peers\.txt"):
        read_members(path)


@pytest.mark.parametrize("name", ["*", "+", "kitchen*", "a+b", "%u"])
def test_a_name_that_looks_like_a_pattern_is_refused_at_its_line(tmp_path: Path, name: str) -> None:
    path = listed(tmp_path, f"hub Server\n{name} Client\n")
    with pytest.raises(AclError, match=r"looks like a pattern") as caught:
        read_members(path)
    assert (caught.value.where, caught.value.hint != "") == (f"{path}:2", True)
    assert repr(name) in caught.value.what


# --- as a real broker reads them -------------------------------------------------------------------------


@pytest.mark.broker
def test_a_peer_is_of_its_classes_alone_and_the_operator_clears_what_is_left(start_broker, tmp_path, capsys):
    heard = {"Client": ("Server",), "Server": ("Client",)}
    path = tmp_path / "rules"
    path.write_text(rules("home", heard, [Member("kitchen", KITCHEN, ("Client",))], "x.onnx"))
    path.chmod(0o644)
    broker = start_broker("mosquitto", config=[f"acl_file {path}"])
    where = {"hostname": broker.host, "port": broker.port, "auth": {"username": str(KITCHEN)}}
    presence = encode_presence(Presence(False, 7, meta={"name": "kitchen"}))
    for name in ("Client", "Server"):
        publish.single(f"bb/home/presence/{name}/{KITCHEN}", presence, qos=1, retain=True, **where)
    peers = ["peers", "--federation", "home", "--broker"]
    operator = f"mqtt://{OPERATOR}@{broker.host}:{broker.port}"
    assert edge([*peers, operator, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["peers"]
    assert (found["name"], found["classes"]) == ("kitchen", ["Client"])
    nobody = f"mqtt://somebody@{broker.host}:{broker.port}"
    assert edge([*peers, nobody, "--json"]) == 1
    assert "passes on no presence to this client" in capsys.readouterr().err
    assert edge([*peers, operator, "--forget", "kitchen"]) == 0
    capsys.readouterr()
    assert edge([*peers, operator, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peers"] == []


# --- the command ---------------------------------------------------------------------------------------


def test_rules_go_to_a_file_or_to_standard_output(artifacts, tmp_path, capsys) -> None:
    peers = listed(tmp_path, "kitchen Client\n")
    words = ["acl", *artifacts, "--federation", "home", "--peers", peers]
    code, out, _ = run(capsys, *words)
    assert code == 0 and f"user {KITCHEN}" in out
    target = tmp_path / "bb.acl"
    code, said, _ = run(capsys, *words, "-o", target)
    assert code == 0 and "rules of 1 peer" in said
    assert target.read_text() == out


def test_what_cannot_be_read_or_written_is_named(artifacts, tmp_path, capsys) -> None:
    peers = listed(tmp_path, "kitchen Client\n")
    (tmp_path / "unknown").mkdir()
    unknown = listed(tmp_path / "unknown", "kitchen Client\nhall Clint\n")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no artifact")
    more = ["--federation", "home", "--peers"]
    for words, said in (
        ([broken, *more, peers], "broken.onnx"),
        ([tmp_path / "none.onnx", *more, peers], "none.onnx"),
        ([*artifacts, *more, tmp_path / "none.txt"], "none.txt"),
        ([*artifacts, *more, peers, "-o", tmp_path / "no" / "bb.acl"], "bb.acl"),
        ([*artifacts, *more, unknown], f"{unknown}:2: error: hall is of class 'Clint'"),
    ):
        code, out, err = run(capsys, "acl", *words)
        assert code == 1 and not out, words
        assert said in err and "Traceback" not in err, err


def test_the_shipped_rules_are_what_the_command_writes(artifacts, capsys) -> None:
    words = ["--federation", "home", "--peers", MOSQUITTO / "peers.txt"]
    _, out, _ = run(capsys, "acl", *artifacts, *words)
    assert (MOSQUITTO / "bb.acl").read_text() == out, (
        "write it anew: the command stands in docs/how-to/operations.md"
    )


def test_a_list_that_has_no_end_is_refused(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(MOST_LIST_BYTES + 1)
    for path, word in (
        (Path("/dev/zero"), "device"),
        (pipe, "FIFO"),
        (tmp_path, "folder"),
        (large, "larger than"),
    ):
        with pytest.raises(AclError, match=word) as caught:
            read_members(path)
        assert caught.value.where == str(path)
