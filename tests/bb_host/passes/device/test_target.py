"""From a module to files per target: what stands in them, that they run alike, that they appear whole."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import TensorProto, helper

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.entries.bootstrap import BootstrapAll
from bb_edge.installer import install
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.ir.seals import seal
from bb_edge.loading import load
from bb_edge.transport.in_process import Simulation
from bb_host.build import build_edge, compile_edge
from bb_host.errors import EdgeError, OverwriteError, StripError
from bb_host.ir.facts import NO_FACTS, Bound, OpFacts, ProgramFacts
from bb_host.ir.program import Program, walk_ops
from bb_host.ir.proto import from_proto, to_bytes, to_proto
from bb_host.passes.device.strip import strip, targets_of
from bb_host.report.source_map import source_map, to_json


@pytest.fixture(scope="module")
def build(tiny):
    return build_edge(*tiny)


def artifact(build, target):
    return next(a for a in build.artifacts if a.target == target)


# --- files ----------------------------------------------------------------------------------------


def test_files_are_named_after_module_and_target(tiny, tmp_path):
    compile_edge(*tiny, tmp_path / "build")
    assert sorted(p.name for p in (tmp_path / "build").iterdir()) == [
        "Tiny.Client.edge.map.json",
        "Tiny.Client.edge.onnx",
        "Tiny.Server.edge.map.json",
        "Tiny.Server.edge.onnx",
        "Tiny.onnx",
    ]
    for path in (tmp_path / "build").glob("*.onnx"):
        onnx.checker.check_model(onnx.load(path))
        load(path.read_bytes())


def test_the_same_program_gives_the_same_bytes(tiny, build):
    assert build_edge(*tiny).files == build.files


def test_recorded_and_compiled_models_give_the_same_artifacts(tiny, build):
    module, compiler = tiny
    recorded = module.build()
    assert build_edge(recorded, compiler).files == build.files
    compiled = to_proto(build.program)
    assert build_edge(compiled).files == build.files


def test_an_edge_artifact_is_not_taken_again(build):
    with pytest.raises(EdgeError, match="already"):
        build_edge(onnx.ModelProto.FromString(artifact(build, "Client").data))


@pytest.mark.parametrize("fails_at", [0, 1, 3, 4])
def test_nothing_half_written_appears(build, tmp_path, fails_at, monkeypatch):
    """The n-th file cannot be written: the old files stand, whole, and nothing else."""
    for name in build.files:
        (tmp_path / name).write_bytes(b"old")
    real, calls = os.fdopen, iter(range(100))

    def fdopen(*args, **kwargs):
        if next(calls) == fails_at:
            os.close(args[0])
            raise OSError(28, "No space left on device", str(tmp_path))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, "fdopen", fdopen)
    with pytest.raises(EdgeError, match="No space left"):
        build.write(tmp_path, force=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == dict.fromkeys(build.files, b"old")


def test_files_have_the_name_that_is_given_and_replace_others_with_force_alone(tiny, tmp_path):
    made = compile_edge(*tiny, tmp_path, name="other")
    assert {path.name for path in tmp_path.iterdir()} == set(made.files)
    first = tmp_path / made.artifacts[0].file
    assert first.name.startswith("other.")
    origin = first.with_name(first.name.replace(".onnx", ".map.json"))
    origin.write_text(origin.read_text().replace(f'"module": "{made.module}"', '"module": "Another"'))
    first.write_bytes(b"another's")
    with pytest.raises(OverwriteError, match="compiled from Another"):
        compile_edge(*tiny, tmp_path, name="other")
    compile_edge(*tiny, tmp_path, name="other", force=True)
    assert first.read_bytes() == made.artifacts[0].data


def test_a_folder_that_cannot_be_made_is_named(build, tmp_path):
    (tmp_path / "build").write_text("a file")
    with pytest.raises(EdgeError, match="build"):
        build.write(tmp_path / "build")


def test_the_source_is_never_replaced(build, tmp_path):
    source = tmp_path / "Tiny.onnx"
    source.write_bytes(build.data)
    with pytest.raises(EdgeError, match="would take its place"):
        build.write(tmp_path, source)
    assert sorted(tmp_path.iterdir()) == [source]


# --- what stands in an artifact ---------------------------------------------------------------------


@pytest.mark.parametrize("target", ["Server", "Client"])
def test_an_artifact_holds_one_target_and_nothing_for_people(build, target):
    model = onnx.ModelProto.FromString(artifact(build, target).data)
    meta = {p.key: p.value for p in model.metadata_props}
    assert meta[keys.TARGETS_KEY] == target
    assert meta[keys.STRIPPED_KEY] == "1"
    assert meta[keys.COMPILED_KEY] == keys.SEALED_VERSION
    assert meta[keys.MODULE_KEY] == "Tiny"
    assert all(key.startswith(f"{keys.BINDING_PREFIX}{target}.") for key in meta if "binding" in key)
    assert not any(key.startswith(keys.TELEMETRY_PREFIX) for key in meta)
    mains = [f for f in model.functions if f.domain == keys.PROGRAM_DOMAIN]
    assert {f.name for f in mains} <= {target, f"{target}{keys.BOOTSTRAP_SUFFIX}"}
    data = artifact(build, target).data
    assert b"conftest.py" not in data
    for function in model.functions:
        assert function.doc_string == ""
        for node in function.node:
            assert (node.name, node.doc_string) == ("", "")
            assert not {p.key for p in node.metadata_props} & {keys.SOURCE_LINE_KEY, keys.MODULE_INSTANCE_KEY}
            assert all(len(name) <= 2 for name in (*node.input, *node.output))


def test_the_bootstrap_goes_with_its_target(build):
    names = {t: {f.name for f in artifact(build, t).program.functions} for t in ("Server", "Client")}
    assert "Client__bootstrap" in names["Client"]
    assert "Server__bootstrap" not in names["Server"]


def test_component_graphs_go_with_the_targets_that_use_them(build):
    server = {
        f.name for f in artifact(build, "Server").program.functions if f.domain == keys.COMPONENT_DOMAIN
    }
    assert server == {"model.forward"}  # it runs the model, and has no op that trains or scores it
    client = {
        f.name for f in artifact(build, "Client").program.functions if f.domain == keys.COMPONENT_DOMAIN
    }
    assert client == {"model.forward", "model.train"}


def test_a_model_that_is_never_trained_hands_out_no_activations(build):
    found = {
        target: next(f for f in artifact(build, target).program.functions if f.name == "model.forward")
        for target in ("Server", "Client")
    }
    assert len(found["Server"].outputs) == 1 < len(found["Client"].outputs)
    assert found["Server"].facts.arity == (1, 4, 0)


def test_a_targets_own_graph_variant_is_taken(compiled):
    names = ("m.forward", "m.forward#Main", "m.forward#Other", "n.forward")
    graph = "function component.g(x: F32[4]) -> (y)\n  y = Exp(x)\n"
    program = compiled("function program.Main(x: F32[4]) -> (y)\n  y = Neg(x)\n", *[graph] * len(names))
    graphs = [dataclasses.replace(f, name=n) for f, n in zip(program.functions[1:], names, strict=True)]
    bound = ProgramFacts(bindings={("Main", "m"): Bound("model", "bb.GraphModel", 2)})
    program = Program("M", (program.functions[0], *graphs), program.facts | bound, program.opsets)
    stripped = strip(program, "Main").program
    assert [f.name for f in stripped.functions] == ["Main", "m.forward#Main"]


def test_ports_keep_their_names(compiled):
    text = """function program.Main(image: F32[4]) -> (scores)
  hidden = Exp(image)
  scores = syscall.PassThrough(hidden)
"""
    main = strip(compiled(text), "Main").program.functions[0]
    assert (main.inputs, main.outputs) == (("image",), ("scores",))
    assert [op.outputs for op in main.ops] == [("a",), ("scores",)]
    assert set(main.types) == {"image"}


def test_tags_that_only_people_read_are_left_behind(compiled):
    program = compiled("function program.Main(a: F32[4]) -> (b)\n  b = Exp(a)\n")
    tags = OpFacts(source="model.py:1", foreign={"anybody.original_op": "model:Forward"})
    (main,) = program.functions
    main = dataclasses.replace(main, ops=tuple(op.saying(tags) for op in main.ops))
    program = from_proto(to_proto(dataclasses.replace(program, functions=(main,))))
    assert vars(tags).items() <= vars(program.functions[0].ops[0].facts).items()
    assert strip(program, "Main").program.functions[0].ops[0].facts == NO_FACTS


def test_hints_for_several_devices_in_onnxs_own_fields_are_left_behind(compiled):
    model = to_proto(compiled("function program.Main(a: F32[4]) -> (b)\n  b = Exp(a)\n"))
    model.configuration.add(name="two", num_devices=2, device=["gpu:0", "gpu:1"])
    for function in model.functions:
        for node in function.node:
            node.device_configurations.add(configuration_id="two", pipeline_stage=1)
    program = from_proto(model)
    assert to_proto(program) == model
    told = to_proto(strip(program, "Main").program)
    assert not told.configuration
    assert not any(n.device_configurations for f in told.functions for n in f.node)


def test_short_names_avoid_ports(compiled):
    text = "function program.Main(a: F32[4], b: F32[4]) -> (c)\n  x = Add(a, b)\n  y = Exp(x)\n  c = Neg(y)\n"
    main = strip(compiled(text), "Main").program.functions[0]
    assert [op.outputs[0] for op in main.ops] == ["d", "e", "c"]


def test_opsets_are_those_that_are_used(build):
    for found in build.artifacts:
        functions = found.program.functions
        used = {op.domain for f in functions for op in walk_ops(f.ops)} | {f.domain for f in functions}
        assert set(found.program.opsets) == used


def test_unknown_targets_and_programs_that_are_not_compiled_are_refused(build, tiny):
    with pytest.raises(StripError, match="targets: Server, Client"):
        strip(build.program, "Sensor")
    with pytest.raises(StripError, match="not compiled"):
        targets_of(tiny[0].record())


def test_artifacts_are_smaller_and_reported(build):
    for found in build.artifacts:
        row = found.report.to_dict()
        assert row["bytes_after"] == len(found.data) < len(build.data)
        assert row["bytes_after"] < row["bytes_before"]
        assert row["ops_after"] < row["ops_before"] or found.target == "Server"
        assert row["parameters"] == 4 * 3 + 3 + 3 * 2 + 2
    client = artifact(build, "Client").report
    assert (client.subgraphs, client.calls) == (1, 2)


# --- source map -----------------------------------------------------------------------------------


def test_the_source_map_leads_from_a_devices_names_to_the_author(build):
    import hashlib

    client = artifact(build, "Client")
    found = json.loads(client.source_map)
    assert found["artifact"] == hashlib.sha256(client.data).hexdigest()
    assert (found["module"], found["target"]) == ("Tiny", "Client")
    names = {op.name for op in load(client.data).graphs[(keys.PROGRAM_DOMAIN, "Client")].ops}
    ops = found["functions"]["Client"]["ops"]
    assert set(ops) <= names, "ops are called as the device calls them"
    calls = [entries for name, entries in ops.items() if name.startswith("subgraph_")]
    assert [e["op"] for e in calls[0]] == ["Softmax", "Sub", "Div"]
    assert all("conftest.py:" in e["source"] for entries in ops.values() for e in entries)
    values = found["functions"]["Client"]["values"]
    main = next(f for f in client.program.functions if f.name == "Client")
    assert set(values) == {v for op in main.ops for v in op.outputs if v}


def test_a_source_map_names_ops_that_the_author_named(compiled):
    program = compiled("function program.Main(x: F32[4]) -> (y)\n  y = syscall.PassThrough(x) @mine\n")
    stripped = strip(program, "Main")
    found = source_map(program, {}, stripped, b"")
    assert found["functions"]["Main"]["ops"] == {"PassThrough_0": [{"op": "PassThrough", "name": "mine"}]}
    assert to_json(found) == to_json(source_map(program, {}, stripped, b""))


# --- running --------------------------------------------------------------------------------------


def federation(server: bytes, client: bytes, folder: Path):
    """Two rounds in a simulation; the app events with what they carry, and the server's last parameters."""
    rng = np.random.default_rng(1)
    sim = Simulation(seed=3)
    for name, data, target in (
        ("server", server, "Server"),
        ("a", client, "Client"),
        ("b", client, "Client"),
    ):
        components = {}
        if target == "Client":
            path = folder / f"{name}.npz"
            labels = rng.integers(0, 2, 16)
            np.savez(path, x=rng.standard_normal((16, 4)).astype(np.float32), y=labels)
            components = {"shard": {"path": str(path)}}
        node = install(
            PeerId.from_name(name), (), load(data), [target], NodeConfig(), components=components, seed=5
        )
        node.run_bootstrap(BootstrapAll())
        sim.add(node)
    sim.run(lambda: len(sim.events("round")) == 3, for_ns=120_000_000_000)
    failures = [s.step for s in sim.seen if isinstance(s.step, steps.OpFailed)]
    return [float(np.asarray(e.value)) for e in sim.events("round")], sim.trace_hash(), failures


def test_stripped_artifacts_run_as_the_portable_model_does(build, tmp_path):
    portable = federation(build.data, build.data, tmp_path)
    edge = federation(artifact(build, "Server").data, artifact(build, "Client").data, tmp_path)
    assert edge[2] == []
    assert edge[0] == [0.0, 32.0, 32.0]  # the first round asks before anybody is up, and is not counted
    assert edge == portable


# --- ordinary models ------------------------------------------------------------------------------


def plain_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def test_an_ordinary_model_gives_one_artifact():
    build = build_edge(plain_model(), shapes={"x": (2, 4)})
    assert sorted(build.files) == ["net.edge.map.json", "net.edge.onnx"]
    (found,) = build.artifacts
    assert found.program.functions[0].types["x"].shape == (2, 4)
    node = install(PeerId.from_name("t"), (), load(found.data), ["net"])
    x = np.array([[1, -1, 2, -2], [0, 3, -3, 1]], np.float32)
    node.invoke("net", {"x": x})
    (event,) = (s for s in node.poll(0) if isinstance(s, steps.AppEvent))
    np.testing.assert_array_equal(event.value, np.maximum(x, 0))


def test_shapes_are_for_ordinary_models(tiny):
    with pytest.raises(EdgeError, match="ordinary ONNX models"):
        build_edge(*tiny, shapes={"x": (1, 4)})


def test_an_invalid_model_is_refused_before_anything_is_written(build, tmp_path):
    program = build.program
    functions = tuple(dataclasses.replace(f, opsets={}) for f in program.functions)
    broken = Program(program.name, functions, program.facts, program.opsets)
    with pytest.raises(EdgeError, match="checker"):
        compile_edge(broken, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_portable_alone(tiny, build):
    assert build_edge(*tiny, portable=True).files == {"Tiny.onnx": build.data}


def test_round_trip(build):
    for found in build.artifacts:
        model = onnx.ModelProto.FromString(found.data)
        digest = model.metadata_props.pop()
        assert digest.key == keys.DIGEST_KEY
        assert seal(to_bytes(from_proto(model))) == found.data
