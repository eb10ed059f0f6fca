"""`bb-host acl`: the rules that it writes, as a real broker reads them."""

from __future__ import annotations

import json

import paho.mqtt.publish as publish
import pytest

from bb_edge.cli import main as edge
from bb_edge.ir.ids import PeerId
from bb_edge.wire.presence import Presence, encode_presence
from bb_host.cli_acl import OPERATOR, AclError, Member, rules

KITCHEN = PeerId.from_name("kitchen")
HEARD = {"Client": ("Server",), "Server": ("Client",)}


def test_a_class_that_no_artifact_has_is_refused() -> None:
    with pytest.raises(AclError, match=r"'Clint'.*Client"):
        rules("home", HEARD, [Member("kitchen", KITCHEN, ("Clint",))], "x.onnx")


@pytest.mark.broker
def test_a_peer_is_of_its_classes_alone_and_the_operator_clears_what_is_left(start_broker, tmp_path, capsys):
    path = tmp_path / "rules"
    path.write_text(rules("home", HEARD, [Member("kitchen", KITCHEN, ("Client",))], "x.onnx"))
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
    assert edge([*peers, nobody, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peers"] == []
    assert edge([*peers, operator, "--forget", "kitchen"]) == 0
    capsys.readouterr()
    assert edge([*peers, operator, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peers"] == []
