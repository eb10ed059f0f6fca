"""`bb-host symbolize`: a device's log leads to the author's lines."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from bb_edge import PeerId, install, load
from bb_edge.cli.render import Output, step_record
from bb_edge.components import PresenceSelector
from bb_edge.engine import steps
from bb_host import Module, PeerSelectorSlot
from bb_host.build import build_edge
from bb_host.cli import main
from bb_host.errors import SourceMapError
from bb_host.report.symbolize import Source, SourceMap


class Mixed(Module):
    """A MatMul, and an Add that fails where the shapes do not broadcast."""

    name = "Mixed"

    def body(self, g):
        a, b = g.input("a"), g.input("b")
        product = g.onnx.matmul(a, b)
        g.output("y", g.onnx.softmax(product + a, axis=1))


LINES = {number: text.strip() for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)}


@pytest.fixture(scope="module")
def built():
    return build_edge(Mixed()).artifacts[0]


@pytest.fixture(params=["text", "json"])
def log(request, built):
    """What `bb-edge run` logs of the failing op."""
    node = install(PeerId.from_name("device"), (), load(built.data), ["Mixed"])
    node.invoke("Mixed", {"a": np.ones((2, 3), "f4"), "b": np.ones((3, 4), "f4")})
    err = io.StringIO()
    output = Output(request.param == "json", "debug", io.StringIO(), err)
    output.log("info", "device runs Mixed")
    for step in node.poll(1):
        if isinstance(step, steps.OpFailed):
            record = step_record(step)
            output.log("error", record.pop("step"), **record)
    return err.getvalue()


def test_an_error_on_a_device_names_the_authors_op_and_line(built, log):
    lines = list(SourceMap(built.source_map).annotated(iter(log.splitlines(keepends=True))))
    assert [text for text, _ in lines] == log.splitlines()
    (_, nothing), (_, found) = lines
    assert nothing == ()
    assert [source.op for source in found] == ["Add"]
    file, _, number = found[0].source.partition(":")
    assert file == Path(__file__).name
    assert "product + a" in LINES[int(number)]


class Waiting(Module):
    """Rounds that begin with two peers, of which none is there."""

    name, home = "Waiting", "Hub"
    devices = PeerSelectorSlot("devices", PresenceSelector, peer_class="Device", at="Hub")

    def body(self, g):
        with g.rounds() as start:
            peers = self.devices.sample(g, n=2, min=2, after=start)
            heard = g.net_out("hello", peers, g.constant(1.0))
            g.app_emit("heard", heard)


def test_a_round_that_waits_names_the_sample_that_lacks_peers():
    built = build_edge(Waiting()).artifacts
    (hub,) = (artifact for artifact in built if artifact.target == "Hub")
    node = install(PeerId.from_name("hub"), (), load(hub.data), ["Hub"])
    (waits,) = [step for n in range(3) for step in node.poll(n) if isinstance(step, steps.RoundWaits)]
    (found,) = SourceMap(hub.source_map).find(f"RoundWaits target=Hub op={waits.op}")
    file, _, number = found.source.partition(":")
    assert file == Path(__file__).name and "self.devices.sample" in LINES[int(number)]


def test_a_message_that_names_a_subgraph_alone_is_about_all_of_it(built):
    called = next(iter(json.loads(built.source_map)["functions"]["Mixed"]["ops"]))
    found = SourceMap(built.source_map).find(f"slow: {called}")
    assert [source.op for source in found] == ["MatMul", "Add", "Softmax"]


def test_a_step_without_its_subgraph_is_found_too(built):
    source_map = SourceMap(built.source_map)
    (step,) = source_map.find("Add → d: Add: shapes (2, 4), (2, 3) do not broadcast")
    assert step.op == "Add"
    assert source_map.find("Add → nowhere") == ()


def test_names_are_found_as_a_whole():
    data = {
        "version": 1,
        "module": "M",
        "target": "T",
        "artifact": "",
        "functions": {
            "T": {
                "values": {},
                "ops": {
                    "Gate_1": [{"op": "Gate", "source": "a.py:1"}],
                    "Hold.Stash_1": [{"op": "Hold.Stash", "name": "kept"}],
                },
            }
        },
    }
    source_map = SourceMap(json.dumps(data).encode())
    assert source_map.find("op=Gate_11") == source_map.find("Agate_1 Other.Gate_1") == ()
    assert source_map.find("op=Gate_1") == (Source("Gate", source="a.py:1"),)
    assert [str(s) for s in source_map.find("Hold.Stash_1, Gate_1")] == ["Hold.Stash 'kept'", "a.py:1: Gate"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"version": 1}',
        b'{"version": 1, "module": "", "target": "", "artifact": "", "functions": []}',
        b'{"version": 1, "module": "", "target": "", "artifact": "", "functions": {"f": {"ops": {"a": 1}}}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_source_map_is_refused(data):
    with pytest.raises(SourceMapError, match=re.escape("not a source map")):
        SourceMap(data, "x.map.json")


def test_a_newer_source_map_is_refused():
    with pytest.raises(SourceMapError, match="version 9"):
        SourceMap(b'{"version": 9}')


def test_the_command_line(built, log, tmp_path, capsys):
    (tmp_path / "m.json").write_bytes(built.source_map)
    (tmp_path / "log").write_text(log)
    assert main(["symbolize", str(tmp_path / "m.json"), str(tmp_path / "log")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == log.splitlines()
    assert re.fullmatch(rf"    {Path(__file__).name}:\d+: Add", shown[2])
    assert main(["symbolize", str(tmp_path / "m.json"), str(tmp_path / "log"), "--json"]) == 0
    (record,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert record["line"] == log.splitlines()[1]
    assert [source["op"] for source in record["sources"]] == ["Add"]
    assert main(["symbolize", str(tmp_path / "log"), str(tmp_path / "log")]) == 1
    assert "not a source map" in capsys.readouterr().err


def test_a_log_of_another_artifact_is_said(built, tmp_path, capsys):
    (tmp_path / "m.json").write_bytes(built.source_map)
    (tmp_path / "log").write_text("error OpFailed op=PeerAt_25\n")
    assert main(["symbolize", str(tmp_path / "m.json"), str(tmp_path / "log")]) == 0
    shown = capsys.readouterr()
    assert shown.out == "error OpFailed op=PeerAt_25\n"
    assert "no line names an op of Mixed on Mixed" in shown.err and "m.json" in shown.err
