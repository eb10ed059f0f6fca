"""Budgets: what is counted, what is refused, and that nothing is written then."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from host_commands import run

from bb_edge.components import FedAvg, GraphModel
from bb_edge.components.fed_avg import WeightedMean
from bb_edge.components.optimizers import OPTIMIZER_CONFIG, Optimizer, scratch_bytes
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.run.frames import Execution, FreeFrames
from bb_edge.extend import register
from bb_host import Graph, Module, ValueSlot
from bb_host.build import build_edge, compile_edge
from bb_host.cli import main
from bb_host.columns import parse_size
from bb_host.errors import BudgetError, EdgeError, UnsupportedOperatorError
from bb_host.learn import mlp, trainable
from bb_host.passes.device.budget import FILE_PAGES, INTERPRETER, Limits

MIB = 1024 * 1024


def parsed(text: str) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


SMALL = parsed("small (float[2, 8] x) => (float[2, 8] y) { t = Sigmoid(x) u = Tanh(t) y = Add(t, u) }")
OPEN = parsed("open (float[N, 8] x) => (float[N, 8] y) { t = Sigmoid(x) y = Tanh(t) }")


@register
class Kept(FedAvg):
    TYPE_NAME = "test.KeptMean"


def share(budget: Any, what: str) -> int:
    (found,) = [s.nbytes for s in budget.ram if s.what.startswith(what)]
    return int(found)


# --- what is counted ------------------------------------------------------------------------------


def test_a_model_without_a_network_needs_no_queues() -> None:
    (artifact,) = build_edge(SMALL).artifacts
    names = [s.what for s in artifact.budget.ram]
    assert not any("envelopes" in name or "MQTT" in name for name in names)
    assert share(artifact.budget, "arena") == artifact.planned[0].arena > 0
    assert share(artifact.budget, "Python") == INTERPRETER


def test_a_server_that_never_trains_is_charged_for_no_gradient(tiny: tuple[Any, Any]) -> None:
    server = next(a for a in build_edge(*tiny, max_batch=4).artifacts if a.target == "Server")
    names = [s.what for s in server.budget.ram]
    assert any("parameters of model" in name for name in names)
    assert not any("gradient" in name or "optimizer" in name or "a step" in name for name in names)


def test_a_server_is_charged_for_the_sum_of_a_round_and_for_what_it_sends(tiny: tuple[Any, Any]) -> None:
    """What `bb.FedAvg` and the model take when the node starts."""
    server = next(a for a in build_edge(*tiny, max_batch=4).artifacts if a.target == "Server")
    n_parameters = 4 * 3 + 3 + 3 * 2 + 2
    mean = WeightedMean(n_parameters)
    held = sum(array.nbytes for array in vars(mean).values() if isinstance(array, np.ndarray))
    assert share(server.budget, "a sum of agg") == held + 4 * n_parameters  # the result beside it
    assert share(server.budget, "a copy of the parameters of model") == 4 * n_parameters


def test_an_aggregator_of_ones_own_is_taken_for_one_that_holds_a_sum(tiny: tuple[Any, Any]) -> None:
    module, compiler = tiny
    bound = compiler.without_binding("agg").bind_aggregator("agg", Kept)
    server = next(a for a in build_edge(module, bound).artifacts if a.target == "Server")
    assert share(server.budget, "a sum of agg, as bb.FedAvg holds it (estimate)") > 0


def test_a_federated_client_counts_parameters_training_and_queues(tiny: tuple[Any, Any]) -> None:
    build = build_edge(*tiny, max_batch=4)
    client = next(a for a in build.artifacts if a.target == "Client")
    budget = client.budget
    n_parameters = 4 * 3 + 3 + 3 * 2 + 2
    config = NodeConfig.edge()
    assert share(budget, "parameters of model") == 4 * n_parameters
    assert share(budget, "gradient of model") == 2 * 4 * n_parameters
    assert share(budget, "inbound") == share(budget, "outbound") == config.ingress_bytes
    assert share(budget, "activations") > 0
    assert budget.unknown == ()
    # Every graph has a row of its own; only the largest counts, since they never run at once.
    arenas = [s for s in budget.ram if not s.counted]
    assert max(s.nbytes for s in arenas) == share(budget, "arena")
    assert len(arenas) == len(client.planned)


class Keeps(Module):
    """A program that keeps a vector, and a bundle of it and a number."""

    vector, pair = ValueSlot("vector"), ValueSlot("pair")

    def __init__(self, size: int | None) -> None:
        super().__init__()
        self._size = size

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", (self._size,))
        both = g.bundle([x, np.array(1, np.int64)])
        g.output("y", self.vector.read(g, x))
        g.output("z", self.pair.read(g, both))
        self.vector.add(g, x)
        self.pair.write(g, both, after=self.vector.add(g, x))


def test_what_a_slot_keeps_is_counted_once_more_for_when_it_is_written() -> None:
    (artifact,) = build_edge(Keeps(10)).artifacts
    assert share(artifact.budget, "what vector keeps") == 2 * 40
    assert share(artifact.budget, "what pair keeps") == 2 * (40 + 8)
    assert artifact.budget.unknown == ()


def test_ram_cannot_be_told_of_what_a_slot_keeps_where_its_size_is_open() -> None:
    with pytest.raises(BudgetError, match=r"slot vector: nothing tells .* it keeps \(give read\(g, first\)"):
        build_edge(Keeps(None), limits=Limits(ram=64 * MIB))


def test_sums_and_the_predicted_rss() -> None:
    (artifact,) = build_edge(SMALL).artifacts
    budget = artifact.budget
    assert budget.ram_bytes == sum(s.nbytes for s in budget.ram if s.counted)
    ceilings = sum(s.nbytes for s in budget.ram if s.ceiling)
    assert budget.rss_bytes == budget.ram_bytes - ceilings + FILE_PAGES
    assert budget.flash_bytes == len(artifact.data)
    assert artifact.report.rss_bytes == budget.rss_bytes


def test_a_device_may_say_what_its_interpreter_takes() -> None:
    (artifact,) = build_edge(SMALL, limits=Limits(interpreter=7 * MIB)).artifacts
    assert share(artifact.budget, "Python") == 7 * MIB


@pytest.mark.parametrize(
    ("text", "size"),
    [("32M", 32 * MIB), ("512K", 512 * 1024), ("1GiB", 1 << 30), ("65536", 65536), ("8 mb", 8 * MIB)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1K", "1.5M", "32X", "9" * 20])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


# --- what is refused ------------------------------------------------------------------------------


def test_a_limit_that_is_just_enough_and_one_byte_less() -> None:
    (artifact,) = build_edge(SMALL, limits=Limits(interpreter=0)).artifacts
    # Weights and steps are measured while compiling: they differ by some objects from time to time.
    enough = Limits(artifact.budget.ram_bytes + 4096, artifact.budget.flash_bytes, interpreter=0)
    build_edge(SMALL, limits=enough)
    with pytest.raises(BudgetError, match="1 too many"):
        build_edge(SMALL, limits=Limits(flash=artifact.budget.flash_bytes - 1))


def test_over_ram_is_refused_with_a_table(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"bytes of RAM, 16,777,216 are there: [\d,]+ too many") as caught:
        compile_edge(SMALL, None, tmp_path / "out", limits=Limits(ram=16 * MIB))
    assert caught.value.where == "target small"
    assert "Python, NumPy and the runtime" in caught.value.table
    assert "within the arena" in caught.value.table
    assert not (tmp_path / "out").exists()


def test_over_flash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="bytes of flash, 256 are there"):
        compile_edge(SMALL, None, tmp_path / "out", limits=Limits(flash=256))
    assert not (tmp_path / "out").exists()


def test_ram_cannot_be_told_of_open_shapes() -> None:
    with pytest.raises(BudgetError, match=r"cannot be told.*input 'x' is open.*--max-batch"):
        build_edge(OPEN, limits=Limits(ram=64 * MIB))
    build_edge(OPEN, limits=Limits(ram=64 * MIB), max_batch=8)
    build_edge(OPEN, limits=Limits(ram=64 * MIB), shapes={"x": (4, 8)})
    build_edge(OPEN, limits=Limits(flash=MIB))  # flash asks for no shapes


def test_ram_cannot_be_told_of_shapes_that_depend_on_data() -> None:
    model = parsed("m (float[4] x) => (int64[1, K] y) { y = NonZero(x) }")
    with pytest.raises(
        BudgetError, match=r"NonZero.*depends on data \(leave --ram out: on the device, limits\."
    ):
        build_edge(model, limits=Limits(ram=64 * MIB))


def test_an_unsupported_operator_is_refused_before_anything_is_planned() -> None:
    model = parsed("m (float[4] x) => (float[4] y) { y = Relu(x) }")
    model.graph.node[0].op_type = "RandomUniformLike"
    with pytest.raises(UnsupportedOperatorError, match="RandomUniformLike"):
        build_edge(model, limits=Limits(ram=64 * MIB))


def test_limits_of_the_portable_model_are_refused() -> None:
    with pytest.raises(EdgeError, match="for no device"):
        build_edge(SMALL, portable=True, limits=Limits(ram=MIB))
    with pytest.raises(EdgeError, match="at least 1"):
        build_edge(OPEN, max_batch=0)


# --- on the command line --------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(SMALL, path)
    return path


def test_compile_within_the_limits_shows_the_table(small: Path, tmp_path: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "compile", small, "-o", tmp_path / "b", "--ram", "32M", "--flash", "8M")
    assert (code, err) == (0, "")
    assert "small: RAM" in out and "small: flash" in out
    assert "1.00×" in out and "MiB" in out
    assert [p.name for p in (tmp_path / "b").glob("*.edge.onnx")] == ["small.edge.onnx"]


def test_compile_over_the_limit_exits_1_and_writes_nothing(small: Path, tmp_path: Path, capsys: Any) -> None:
    for limit in (["--ram", "1M"], ["--flash", "100"]):
        code, out, err = run(capsys, "compile", small, "-o", tmp_path / "b", *limit)
        assert (code, out) == (1, "")
        assert "too many" in err and "small: RAM" in err
        assert not (tmp_path / "b").exists()


def test_a_wrong_size_is_a_wrong_command_line(small: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["compile", str(small), "--ram", "lots"])
    assert caught.value.code == 2
    assert "write it as 32M" in capsys.readouterr().err


def test_the_report_as_json_has_plans_and_rows(small: Path, tmp_path: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "compile", small, "-o", tmp_path / "b", "--json", "--backend", "numpy")
    (target,) = json.loads(out)["targets"]
    assert code == 0
    assert target["arena_bytes"] >= target["live_bytes"] > 0
    assert target["memory"]["plans"][0]["shapes"] == [["float32[2, 8]"]]
    assert sum(row["bytes"] for row in target["memory"]["flash"]) == target["flash_bytes"]


def test_inspect_shows_the_plan(small: Path, tmp_path: Path, capsys: Any) -> None:
    run(capsys, "compile", small, "-o", tmp_path / "b")
    code, out, _ = run(capsys, "inspect", tmp_path / "b" / "small.edge.onnx")
    assert code == 0
    assert "memory plans" in out and "× the lower bound" in out


def test_what_an_optimizer_keeps_is_counted(tiny: tuple[Any, Any]) -> None:
    module, compiler = tiny
    n_parameters = 4 * 3 + 3 + 3 * 2 + 2
    for settings, vectors in (({"optimizer": "adam"}, 2), ({"momentum": 0.9}, 1)):
        net = trainable(mlp([4, 3, 2], 0), **settings)
        bound = compiler.without_binding("model").bind_model("model", GraphModel, net)
        client = next(a for a in build_edge(module, bound).artifacts if a.target == "Client")
        assert share(client.budget, "what the optimizer of model keeps") == 4 * vectors * n_parameters


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"optimizer": "adam"}])
def test_what_a_step_works_in_is_counted(settings: dict[str, Any]) -> None:
    config = {key: row.default for key, row in OPTIMIZER_CONFIG.items()} | settings
    for size in (5, 200_000):
        optimizer = Optimizer(config, size)
        parameters, gradient = np.zeros(size, np.float32), np.ones(size, np.float32)
        tracemalloc.start()
        optimizer.step_by_parts([(0, gradient, parameters)])
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 0 <= held - scratch_bytes(settings, size) < 4096


def test_executions_are_made_on_demand_and_so_a_ceiling(tiny: tuple[Any, Any]) -> None:
    """Those of a server have children, where answers run."""
    config = NodeConfig.edge()
    found = {}
    for artifact in build_edge(*tiny, max_batch=4).artifacts:
        (found[artifact.target],) = (s for s in artifact.budget.ram if s.what.startswith("executions"))
    assert all(row.ceiling and row.counted for row in found.values())
    a_record = sys.getsizeof(Execution(FreeFrames()))
    assert found["Client"].nbytes > config.max_executions * a_record
    assert found["Server"].nbytes == (1 + config.max_children) * found["Client"].nbytes
