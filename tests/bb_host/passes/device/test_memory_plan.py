"""Memory plans made at compile time: what is planned, what is not and why, and that devices use them."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from bb_edge import NodeConfig, PeerId, install, open_model
from bb_edge.backends.stored_plan import BASIS, MemoryPlanError, decode
from bb_edge.components import GraphModel
from bb_edge.engine import steps
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.roles.errors import UnsupportedOpsError
from bb_host.build import build_edge
from bb_host.errors import BudgetError, EdgeError
from bb_host.ir.facts import Bound, ProgramFacts
from bb_host.ir.program import Program
from bb_host.ir.proto import from_proto
from bb_host.passes.device.budget import Limits
from bb_host.report.inspection import describe, render
from benchmarks import models
from tests.aids.seals import resealed, unsealed

NETS = [*models.MLPERF_TINY, "transformer", "gru", "u_net"]


def texts(data: bytes) -> dict[str, str]:
    """Function → its plan, as it stands in an artifact."""
    return {
        f.name: entry.value
        for f in onnx.ModelProto.FromString(data).functions
        for entry in f.metadata_props
        if entry.key == keys.MEMORY_PLAN_KEY
    }


def with_text(data: bytes, change: Callable[[str], str]) -> bytes:
    """The artifact with each of its plans changed."""
    model = onnx.ModelProto.FromString(data)
    for function in model.functions:
        for entry in function.metadata_props:
            if entry.key == keys.MEMORY_PLAN_KEY:
                entry.value = change(entry.value)
    return resealed(model)


def without_plan(data: bytes) -> bytes:
    model = onnx.ModelProto.FromString(data)
    for function in model.functions:
        kept = [entry for entry in function.metadata_props if entry.key != keys.MEMORY_PLAN_KEY]
        del function.metadata_props[:]
        function.metadata_props.extend(kept)
    return resealed(model)


def installed(data: bytes, target: str, components: Any = None) -> Any:
    return install(PeerId.from_name("a"), (), data, [target], NodeConfig(), components=components, seed=1)


def parsed(text: str, opset: int = 17) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


OPEN = parsed("m (float[N, 4] x) => (float[N, 4] y) { t = Relu(x) u = Sigmoid(t) y = Softmax(u) }")


# --- what is planned ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_plans_stay_within_five_percent_of_the_lower_bound(name: str) -> None:
    (artifact,) = build_edge(models.ALL[name]()).artifacts
    (plan,) = artifact.planned
    assert plan.reason == ""
    # The strict bound: bytes as they are, without the padding to cache lines.
    at: dict[int, int] = {}
    for life in plan.entries[0].lives:
        for step in range(life.first, life.last + 1):
            at[step] = at.get(step, 0) + life.nbytes
    assert plan.arena <= 1.05 * max(at.values())
    assert artifact.report.plan_ratio == round(plan.ratio, 4) <= 1.05
    assert artifact.report.arena_bytes == plan.arena


@pytest.mark.parametrize("name", NETS)
def test_the_device_uses_the_plan(name: str) -> None:
    net = models.ALL[name]()
    (artifact,) = build_edge(net).artifacts
    x = models.example(net)["x"]
    planned, unplanned = (open_model(data) for data in (artifact.data, without_plan(artifact.data)))
    np.testing.assert_array_equal(planned(x), unplanned(x))
    program: Any = planned.program
    assert program.plan_for([x]).arena_bytes == artifact.planned[0].arena
    assert (program.plans_made, program.plans_stale) == (1, 0)


def test_equal_programs_have_equal_plans(tiny: tuple[Any, Any]) -> None:
    first, second = (build_edge(*tiny, max_batch=8) for _ in range(2))
    assert first.files == second.files


def test_buffers_follow_from_the_basis() -> None:
    """Fails where kernels, fitting or placing now need other buffers: artifacts in the field have plans of
    the old ones. Raise the number in `BASIS` and put the new digest here.
    """
    plans = [artifact.planned[0] for name in NETS for artifact in build_edge(models.ALL[name]()).artifacts]
    lives = [(entry.lives, entry.steps) for plan in plans for entry in plan.entries]
    digest = hashlib.sha256(repr(lives).encode()).hexdigest()[:16]
    if BASIS.endswith("-64"):
        assert (BASIS, digest) == ("2-64", "41350a80cb6c4653")


def test_an_open_batch_is_planned_for_the_stated_one() -> None:
    (left_open,) = build_edge(OPEN).artifacts
    assert texts(left_open.data) == {}
    assert "dim 0 of input 'x' is open" in left_open.planned[0].reason
    (stated,) = build_edge(OPEN, max_batch=16).artifacts
    (text,) = texts(stated.data).values()
    (entry,) = decode(text).entries
    assert [spec.shape for spec in entry.inputs] == [(16, 4)]
    model = open_model(stated.data)
    for rows in (16, 3, 40):  # smaller and larger batches run as before
        assert model(np.ones((rows, 4), np.float32)).shape == (rows, 4)


def test_a_largest_batch_without_an_open_one_is_refused() -> None:
    with pytest.raises(EdgeError, match="max-batch 3 has nothing to plan for"):
        build_edge(OPEN, shapes={"x": (2, 4)}, max_batch=3)


def test_a_fixed_shape_is_planned() -> None:
    (artifact,) = build_edge(OPEN, shapes={"x": (2, 4)}).artifacts
    assert [spec.shape for spec in artifact.planned[0].entries[0].inputs] == [(2, 4)]


def test_shapes_that_depend_on_data_are_left_to_the_device() -> None:
    model = parsed("m (float[4] x) => (int64[1, K] y) { y = NonZero(x) }")
    (artifact,) = build_edge(model).artifacts
    assert texts(artifact.data) == {}
    assert "NonZero" in artifact.planned[0].reason
    assert "depends on data" in artifact.planned[0].reason


def test_another_backend_plans_for_itself(compiled: Callable[..., Program]) -> None:
    program = compiled("function program.Main(x: F32[2,2]) -> (y)\n  y: F32[2,2] = Relu(x)\n")
    bound = ProgramFacts(bindings={("Main", "backend"): Bound("backend", "my.Backend", 1)})
    program = dataclasses.replace(program, facts=program.facts | bound)
    (artifact,) = build_edge(program).artifacts
    assert artifact.planned[0].reason == "my.Backend plans its memory itself"
    assert "a backend of your own has to say" in artifact.planned[0].remedy
    with pytest.raises(BudgetError, match="a backend of your own has to say on the device"):
        build_edge(program, limits=Limits(ram=1 << 30))


def test_an_operator_that_the_device_has_not_is_refused(compiled: Callable[..., Program]) -> None:
    program = compiled("function program.Main(x: F32[2,2]) -> (y)\n  y: F32[2,2] = DFT(x)\n")
    with pytest.raises(UnsupportedOpsError, match=r"has no DFT"):
        build_edge(program)


def test_operators_outside_of_subgraphs_are_planned_on_the_device(compiled: Callable[..., Program]) -> None:
    text = "function program.Main(x: F32[2,2]) -> (y)\n  t: F32[2,2] = RandomUniformLike(x)\n"
    (artifact,) = build_edge(compiled(text + "  y: F32[2,2] = Relu(t)\n")).artifacts
    reasons = [plan.reason for plan in artifact.planned if plan.reason]
    assert reasons == ["RandomUniformLike runs outside of subgraphs, planned when it runs"]
    assert artifact.report.planned == artifact.report.graphs - 1


def test_component_graphs_have_plans_for_training_and_for_inference(tiny: tuple[Any, Any]) -> None:
    build = build_edge(*tiny, max_batch=4)
    client = next(a for a in build.artifacts if a.target == "Client")
    found = {name: decode(text).entries for name, text in texts(client.data).items()}
    assert {name: [e.results for e in entries] for name, entries in found.items() if "." in name} == {
        "model.forward": [1, 2],
        "model.train": [4],
    }
    # Parameters are resident: they are not inputs of the plan.
    assert all(len(e.inputs) == 1 for e in found["model.forward"])


def test_a_node_with_plans_trains_as_one_without(tiny: tuple[Any, Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    shard = tmp_path / "d.npz"
    np.savez(shard, x=rng.standard_normal((16, 4)).astype(np.float32), y=rng.integers(0, 2, 16))
    batches = [rng.standard_normal((4, 4)).astype(np.float32) for _ in range(3)]
    ctx: Any = SimpleNamespace(exec_id=1)
    results = []
    for max_batch in (None, 4):
        build = build_edge(*tiny, max_batch=max_batch)
        data = next(a.data for a in build.artifacts if a.target == "Client")
        settings = {"shard": {"path": str(shard)}}
        node = installed(data, "Client", settings)
        model = node.component("model")
        assert isinstance(model, GraphModel)
        for x in batches:
            model.backward(ctx, np.ones_like(model.forward(ctx, x)))
            model.step(ctx)
        results.append(model.params(ctx))
    np.testing.assert_array_equal(*results)


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def artifact() -> Any:
    model = parsed(
        "m (float[2, 8] x) => (float[2, 8] y) { t = Sigmoid(x) u = Tanh(t) v = Add(t, u) y = Softmax(v) }"
    )
    return build_edge(model).artifacts[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace("v1|", "v7|"), "v7"),
        (lambda text: text[:-4], "checksum"),
        (lambda text: text[:12], "cut off"),
        (lambda text: text.replace(" 0:", " 64:"), "checksum"),
    ],
)
def test_a_bad_plan_is_refused_at_install(artifact: Any, change: Callable[[str], str], why: str) -> None:
    with pytest.raises(MemoryPlanError, match=why):
        installed(with_text(artifact.data, change), artifact.target)
    with pytest.raises(MemoryPlanError, match=why):
        open_model(with_text(artifact.data, change))


def test_inputs_of_another_shape_or_dtype_are_refused_at_run_time(artifact: Any) -> None:
    model = open_model(artifact.data)
    with pytest.raises(BBError, match=r"expected shape \[2, 8\], got \[2, 9\]"):
        model(np.zeros((2, 9), np.float32))
    with pytest.raises(BBError, match="expected dtype float32, got float64"):
        model(np.zeros((2, 8)))
    node = installed(artifact.data, artifact.target)
    with pytest.raises(BBError):
        node.invoke(artifact.target, {"x": np.zeros((2, 8), np.int32)})


def test_truncated_and_mutated_artifacts_raise_typed_errors_only(artifact: Any) -> None:
    """Thousands of them; what still installs runs, or says why not."""
    rng = random.Random(11)
    x = np.ones((2, 8), np.float32)
    ran = refused = 0
    plain = unsealed(artifact.data)  # with its digest every one of them would be refused
    for number in range(3000):
        data = bytearray(plain)
        if number % 5 == 0:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            node = install(PeerId.from_name("a"), (), bytes(data), [artifact.target], NodeConfig(), seed=1)
            node.invoke(artifact.target, {"x": x})
            found = node.poll(0)
            ran += any(isinstance(step, steps.AppEvent) for step in found)
        except BBError:
            refused += 1
    assert ran > 50
    assert refused > 1000


# --- what is shown --------------------------------------------------------------------------------


def test_inspect_shows_the_plan(artifact: Any) -> None:
    found = describe(artifact.program, len(artifact.data))
    (plan,) = found["memory"]
    assert plan["arena_bytes"] == artifact.planned[0].arena
    assert plan["shapes"] == ["float32[2, 8]"]
    assert all(b["offset"] + b["bytes"] <= plan["arena_bytes"] for b in plan["buffers"])
    text = render(found, "m.onnx")
    assert "memory plans" in text
    assert "1.00× the lower bound" in text


def test_inspect_says_what_is_wrong_with_a_plan(artifact: Any) -> None:
    broken = from_proto(onnx.ModelProto.FromString(with_text(artifact.data, lambda text: text[:-3])))
    found = describe(broken)
    assert "checksum" in found["memory"][0]["damaged"]
    assert "damaged" in render(found, "m.onnx")
