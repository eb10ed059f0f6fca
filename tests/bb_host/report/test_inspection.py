"""What `bb-host inspect` says about each form."""

from __future__ import annotations

import json

import pytest

from bb_host.build import build_edge
from bb_host.report.inspection import describe, render


@pytest.fixture(scope="module")
def build(tiny):
    return build_edge(*tiny)


def slot(part, name):
    return next(s for s in part["slots"] if s["slot"] == name)


def test_recorded(tiny):
    found = describe(tiny[0].record())
    assert found["form"] == "recorded"
    (module,) = found["partitions"]
    assert (module["name"], module["class"], module["bootstrap"]) == ("Tiny", "Server", True)
    assert slot(module, "clients") == {
        "slot": "clients",
        "role": "peer_selector",
        "type": None,
        "peer_class": "Client",
    }
    assert [e["kind"] for e in found["wire"]] == ["request", "reply"]
    assert {(e["from"], e["to"]) for e in found["wire"]} == {(None, None)}  # the compiler says where it runs
    assert "… → …" in render(found, "tiny.py") and "Tiny → " not in render(found, "tiny.py")


def test_compiled(build):
    found = describe(build.program, 7)
    assert (found["form"], found["bytes"]) == ("compiled", 7)
    assert [p["name"] for p in found["partitions"]] == ["Server", "Client"]
    server, client = found["partitions"]
    assert slot(server, "model")["type"] == "bb.GraphModel"
    assert slot(server, "model")["parameters"] == 23
    assert slot(client, "shard")["config"] == {"batch_size": 4, "one_hot": 2}
    assert slot(client, "backend")["slot_id"] > 0
    request, reply = found["wire"]
    assert (request["from"], request["to"]) == ("Server", "Client")
    assert (request["port"], request["deadline_ns"]) == ("global", 30_000_000_000)
    assert request["payload"] == ["Tensor<F32>"]
    assert (reply["from"], reply["to"], reply["payload"]) == (
        "Client",
        "Server",
        ["Tensor<F32>", "Tensor<I64>"],
    )


def test_edge(build):
    (client,) = (a for a in build.artifacts if a.target == "Client")
    found = describe(client.program)
    assert found["form"] == "edge"
    assert [p["name"] for p in found["partitions"]] == ["Client"]
    assert slot(found["partitions"][0], "model")["role"] == "model"
    assert [(e["from"], e["to"]) for e in found["wire"]] == [(None, "Client"), ("Client", None)]


def test_descriptions_are_json_and_text(build, tiny):
    for program in (tiny[0].record(), build.program, *(a.program for a in build.artifacts)):
        found = describe(program)
        assert json.loads(json.dumps(found)) == found
        text = render(found, "file.onnx")
        assert text.startswith("file.onnx: Tiny, ")
        for part in found["partitions"]:
            assert part["name"] in text
            assert all(s["slot"] in text for s in part["slots"])
