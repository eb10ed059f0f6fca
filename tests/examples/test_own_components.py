"""examples/own_components and docs/how-to/components.md: what they import, and that what they show works."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from components import forgotten_components

import bb_edge.extend
from tests.aids.peers import numbered

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_components"
PAGE = ROOT / "docs" / "how-to" / "components.md"
PUBLIC = {"bb_edge", "bb_edge.extend", "bb_host", "bb_host.extend"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def imported(text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name for name in found if name.split(".")[0] in ("bb_edge", "bb_host", "bb_kernels", "bb_shims")}


@pytest.mark.parametrize(
    "path", [EXAMPLE / "mycomponents.py", EXAMPLE / "mypasses.py", PAGE], ids=lambda p: p.name
)
def test_authors_import_from_the_public_namespaces_alone(path: Path) -> None:
    text = "\n".join(blocks("python")) if path == PAGE else path.read_text()
    found = imported(text)
    assert found and found <= PUBLIC
    if path.name == "mycomponents.py":
        assert found == {"bb_edge.extend"}, "a device has no compiler"


def test_the_program_imports_from_the_public_namespaces_and_the_models() -> None:
    assert imported((EXAMPLE / "federation.py").read_text()) <= PUBLIC | {"bb_host.learn"}


@pytest.mark.parametrize("name", ["bb_edge.extend", "bb_host.extend"])
def test_every_name_of_the_namespaces_is_there(name: str) -> None:
    module = __import__(name, fromlist=["__all__"])
    assert len(module.__all__) == len(set(module.__all__))
    for public in module.__all__:
        assert getattr(module, public) is not None
        assert public in dir(module)
    with pytest.raises(AttributeError, match="did you mean"):
        getattr(module, module.__all__[0] + "s")


def test_the_namespace_of_devices_imports_nothing_before_it_is_used() -> None:
    code = (
        "import sys, bb_edge.extend; print(sorted({'numpy', 'google.protobuf', 'paho'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_has_one_example_per_kind() -> None:
    """That they run is held by tests/pages."""
    code = "\n".join(blocks("python"))
    kinds = "CombiningAggregator Codec DataSource GraphModel PeerSelector Index Backend ProtocolComponent"
    for base in kinds.split():
        assert f"({base}):" in code, base
    # The median comes with noise as well, and the protocol component with one of several ports.
    assert code.count('TYPE_NAME = "acme.') == len(kinds.split()) + 2


# --- the example's own files ----------------------------------------------------------------------------


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's modules, as a program beside them sees them."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    with forgotten_components():
        yield importlib.import_module


class Calls:
    exec_id, now_ns, cohort = 1, 0, 0


def build(kind: Any, **config: object) -> Any:
    return bb_edge.extend.build(kind, bb_edge.extend.ComponentEnv("it", config=config))


def test_the_codec_keeps_16_bits(own: Any) -> None:
    codec = build(own("mycomponents").Fixed16)
    t = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    code = codec.compress(Calls(), t)
    assert (code.dtype, code.size) == (np.uint8, 204)
    np.testing.assert_allclose(codec.decompress(Calls(), code), t, atol=np.abs(t).max() / 32767)
    assert codec.decompress(Calls(), codec.compress(Calls(), np.zeros(0, np.float32))).size == 0
    with pytest.raises(bb_edge.extend.ComponentError, match="no code of this codec"):
        codec.decompress(Calls(), np.zeros(3, np.uint8))


def test_the_aggregator_leaves_out_the_extremes_and_is_restored(own: Any) -> None:
    peers = [(numbered(n),) for n in range(4)]
    agg = build(own("mycomponents").TrimmedMean, trim=0.25)
    for peer, value in zip(peers, (1.0, 2.0, 4.0, 1e9), strict=True):
        for _ in range(2):  # once per peer
            agg.contribute(Calls(), np.array([value], np.float32), np.array(2.0), peer)
    again = build(own("mycomponents").TrimmedMean, trim=0.25)
    again.restore(agg.serialize())
    for each in (agg, again):
        result, total = each.aggregate(Calls())
        assert (result.tolist(), float(total)) == ([3.0], 8.0)
        assert each.current_tensor(Calls()).tolist() == [3.0]
        assert each.aggregate(Calls())[0].size == 0


def test_the_data_source_wraps_around_and_is_restored(own: Any) -> None:
    path = str(EXAMPLE / "readings" / "kitchen.csv")
    source = build(own("mycomponents").CsvSource, path=path, batch_size=20)
    first = source.next_batch(Calls())
    assert (first[0].shape, first[1].shape, int(source.num_samples(Calls()))) == ((20, 3), (20, 1), 48)
    again = build(own("mycomponents").CsvSource, path=path, batch_size=20)
    again.restore(source.serialize())
    for _ in range(3):
        np.testing.assert_array_equal(source.next_batch(Calls())[0], again.next_batch(Calls())[0])
    for config, words in (({}, "missing configuration key"), ({"path": "/nope.csv"}, "cannot be read")):
        with pytest.raises(bb_edge.extend.ComponentError, match=f"slot 'it', key 'path': .*{words}"):
            build(own("mycomponents").CsvSource, **config)


def test_the_pass_refuses_raw_data_at_the_authors_line(own: Any) -> None:
    pytest.importorskip("onnx")
    from bb_host import MS, Compiler, DataSourceSlot, Module, PeerSelectorSlot

    passes = own("mypasses")

    class Leaks(Module):
        home = "Client"
        shard = DataSourceSlot("shard", at="Client")
        peers = PeerSelectorSlot("peers", peer_class="Server", at="Client")
        raw = True

        def body(self, g: Any) -> None:
            x, _ = self.shard.next_batch(g, after=g.interval(1000 * MS))
            sent = g.bundle([x]) if self.raw else g.onnx.reduce_mean(x)
            arrived = g.net_out("batch", self.peers.current_view(g), sent)  # here
            g.app_emit("x", arrived)

    compiler = (
        Compiler()
        .bind_data_source("shard", "bb.ArrayDataSource")
        .bind_peer_selector("peers", "bb.PresenceSelector")
    )
    compiler = compiler.with_stage(passes.KeepRawDataHome(), after="type_solver")
    line = Path(__file__).read_text().split("# here")[0].count("\n") + 1
    said = f"test_own_components.py:{line}: .*raw data of slot 'shard'"
    with pytest.raises(passes.RawDataLeaves, match=said):
        compiler.compile(Leaks())
    harmless = Leaks()
    harmless.raw = False
    report = next(p for p in compiler.run(harmless).passes if p.name == "keep_raw_data_home")
    assert report.counters == {"sends_checked": 1}


def test_the_model_gives_what_it_has_learned_since_it_was_sent_parameters(own: Any) -> None:
    pytest.importorskip("onnx")
    from bb_host.build import build_edge

    artifacts = {a.target: a.data for a in build_edge(*own("federation").program()).artifacts}
    readings = {"path": str(EXAMPLE / "readings" / "kitchen.csv")}
    peer = bb_edge.PeerId.from_name("kitchen")
    node = bb_edge.install(peer, (), artifacts["Client"], ["Client"], components={"shard": readings})
    model, (x, _) = node.component("model"), node.component("shard").next_batch(Calls())
    sent = model.params(Calls()) + np.float32(0.125)
    model.load_parameters(Calls(), sent)
    model.backward(Calls(), np.ones_like(model.forward(Calls(), x)))
    model.step(Calls())
    assert not np.array_equal(model.params(Calls()), sent)
