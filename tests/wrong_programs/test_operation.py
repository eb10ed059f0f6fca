"""Components, configurations and files that spoil a node's day: it says so, and goes on where it can."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32
from refusals import refused
from times import S

from bb_edge import PeerId, install, open_model
from bb_edge.cli import main
from bb_edge.engine import steps
from bb_edge.engine.config import ConfigError, NodeConfig
from bb_edge.engine.entries.bootstrap import BootstrapStatus
from bb_edge.engine.snapshot import SnapshotError
from bb_edge.inference import InferenceError
from bb_edge.registry import Registry
from bb_edge.roles import Codec, DataSource
from bb_edge.roles.completion import Later
from bb_edge.roles.context import Ctx
from bb_host import CodecSlot, Compiler, DataSourceSlot, Module
from bb_host.build import compile_edge
from bb_host.errors import ModuleError


class Device(DataSource):
    """A data source that has to be woken, and does then what each test says."""

    TYPE_NAME: ClassVar[str] = "acme.Device"
    stateless: ClassVar[bool] = True
    wakes: ClassVar[Callable[[Ctx], Any]] = staticmethod(lambda ctx: None)
    gives: ClassVar[Callable[[Ctx], Any]] = staticmethod(lambda ctx: (f32(1, 2), None))

    def __init__(self) -> None:
        self.ready = False

    @classmethod
    def construct(cls, env: Any) -> Device:
        return cls()

    def bootstrap(self, ctx: Any) -> Any:
        found = type(self).wakes(ctx)
        self.ready = True
        return found

    def next_batch(self, ctx: Any) -> Any:
        assert self.ready, "never woken"
        return type(self).gives(ctx)

    def num_samples(self, ctx: Any) -> Any:
        return np.array(2, np.int64)


class Reads(Module):
    """Three rounds that read it."""

    name = "Reads"
    dev = DataSourceSlot("dev")

    def body(self, g: Any) -> None:
        with g.rounds(3) as start:
            g.output("x", self.dev.next_batch(g, after=start)[0])
            g.output("round", start.round)


@pytest.fixture(scope="module")
def reads() -> bytes:
    data: bytes = Compiler().bind_data_source("dev", Device).compile(Reads()).SerializeToString()
    return data


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    found.register(Device)
    return found


def node_of(data: bytes, registry: Registry, snapshot: bytes | None = None, now_ns: int = 0) -> Any:
    node = install(
        PeerId.from_name("n"),
        (),
        data,
        ["Reads"],
        registry=registry,
        seed=1,
        snapshot=snapshot,
        now_ns=now_ns,
    )
    node.keep_bootstrapping({})
    return node


def polls(node: Any, times: range) -> list[Any]:
    return [step for now in times for step in node.poll(now)]


# --- a component that ends the process --------------------------------------------------------------------


def exits(ctx: Any) -> Any:
    sys.exit(3)


def offloads_an_exit(ctx: Any) -> Any:
    return ctx.offload(lambda: sys.exit(3))


class Gone(BaseException):
    """What no `except Exception` catches."""


def gone(ctx: Any) -> Any:
    raise Gone("away")


@pytest.mark.parametrize(
    ("gives", "said"),
    [(exits, "SystemExit: 3"), (offloads_an_exit, "SystemExit: 3"), (gone, "Gone: away")],
)
def test_a_component_does_not_end_the_node(gives, said, reads, registry, monkeypatch) -> None:
    monkeypatch.setattr(Device, "gives", staticmethod(gives))
    node = node_of(reads, registry)
    found = polls(node, range(0, 20 * S, S))
    failed = [s for s in found if isinstance(s, steps.OpFailed)]
    assert len(failed) == 3 and failed[0].error.hint
    assert all(
        s.text.startswith(f"slot 'dev' (acme.Device.next_batch): {said}: only the host") for s in failed
    )
    assert [s.value for s in found if isinstance(s, steps.AppEvent)] == [1, 2, 3]


def test_ctrl_c_ends_the_process_all_the_same(reads, registry, monkeypatch) -> None:
    def interrupted(ctx: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Device, "gives", staticmethod(interrupted))
    node = node_of(reads, registry)
    with pytest.raises(KeyboardInterrupt):
        polls(node, range(0, 3 * S, S))


def test_a_hosts_signal_handler_may_end_the_process(reads, registry, monkeypatch) -> None:
    import signal

    def stop(number: int, frame: object) -> None:
        sys.exit(7)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        monkeypatch.setattr(Device, "gives", staticmethod(lambda ctx: signal.raise_signal(signal.SIGTERM)))
        node = node_of(reads, registry)
        with pytest.raises(SystemExit):
            polls(node, range(0, 3 * S, S))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_component_that_cannot_be_written_costs_the_snapshot_alone(reads, registry, monkeypatch) -> None:
    monkeypatch.setattr(Device, "serialize", lambda self: {}["nothing"])
    node = node_of(reads, registry)
    node.poll(1)
    with refused(SnapshotError, "slot 'dev'", "acme.Device.serialize", "KeyError", marked=False):
        node.snapshot(2)


def test_a_deadline_below_zero(reads, registry, monkeypatch) -> None:
    monkeypatch.setattr(Device, "gives", staticmethod(lambda ctx: ctx.later(deadline_ns=-5)))
    found = polls(node_of(reads, registry), range(1, 3))
    (failed,) = [s for s in found if isinstance(s, steps.OpFailed)]
    assert "a deadline of -5 ns" in failed.text and failed.error.hint


# --- bootstraps of components -----------------------------------------------------------------------------


def rounds_of(found: list[Any]) -> list[int]:
    return [int(s.value) for s in found if isinstance(s, steps.AppEvent) and s.topic == "round"]


@pytest.mark.parametrize("between", [True, False])
def test_what_a_bootstrap_has_done_is_done_again_where_no_state_is_kept(between, reads, registry) -> None:
    """Also where the restart finds a round at work."""
    node = node_of(reads, registry)
    found = polls(node, range(1, 3) if between else range(1, 2))
    assert node.bootstraps[0].status is BootstrapStatus.DONE
    again = node_of(reads, registry, node.snapshot(3), 3)
    assert not again.bootstraps[0].status.over
    found += polls(again, range(4, 20))
    assert not [s for s in found if isinstance(s, steps.OpFailed)]
    assert rounds_of(found) == [1, 2, 3]


def test_a_bootstrap_whose_work_is_kept_is_not_done_again(reads, registry, monkeypatch) -> None:
    def restore(self: Device, state: bytes) -> None:
        self.ready = state == b"ready"

    monkeypatch.setattr(Device, "serialize", lambda self: b"ready" if self.ready else b"")
    monkeypatch.setattr(Device, "restore", restore)
    node = node_of(reads, registry)
    node.poll(1)
    again = node_of(reads, registry, node.snapshot(2), 2)
    assert again.bootstraps[0].status is BootstrapStatus.DONE
    assert not [
        s for s in polls(again, range(3, 20)) if isinstance(s, steps.OpFailed | steps.BootstrapStarted)
    ]


def five_later(ctx: Any) -> Later:
    found = ctx.later()
    found.complete(5)
    return found


@pytest.mark.parametrize(
    ("wakes", "came"), [(lambda ctx: 5, "int 5"), (lambda ctx: False, "bool"), (five_later, "int 5")]
)
def test_a_bootstrap_that_gives_something_has_failed(wakes, came, reads, registry, monkeypatch) -> None:
    monkeypatch.setattr(Device, "wakes", staticmethod(wakes))
    node = node_of(reads, registry)
    polls(node, range(1, 5))
    (state,) = node.bootstraps
    assert state.status is BootstrapStatus.FAILED
    assert f"gave {came}" in state.reason and "return nothing" in state.reason


# --- capacities and files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        {"max_executions": 300_000},
        {"max_executions": 10_000, "max_children": 11},
        {"ingress_bytes": 1 << 61},
        {"resend_ns": 10**30},
    ],
)
def test_capacities_beyond_all_bounds(limits) -> None:
    with refused(ConfigError, *limits, "at most", marked=False):
        NodeConfig(**limits)
    assert NodeConfig(max_executions=10_000, max_children=10)


@pytest.mark.parametrize("name", ["later_deadline_ns", "ack_delay_ns", "resend_ns", "round_backoff_ns"])
def test_times_that_were_meant_in_seconds(name) -> None:
    with refused(ConfigError, f"{name} = 30", "1000000 at least", "1 s is 1000000000", marked=False):
        NodeConfig(**{name: 30})
    assert NodeConfig(later_deadline_ns=0, ack_delay_ns=0, round_backoff_ns=1_000_000)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"round_backoff_ns": 61 * 10**9}, "at most round_backoff_max_ns, which is 60000000000"),
        ({"round_backoff_max_ns": 10**9 - 1}, "at most round_backoff_max_ns, which is 999999999"),
        ({"ack_delay_ns": 2 * 10**9}, "at most resend_ns, which is 1000000000"),
    ],
)
def test_a_first_wait_is_no_longer_than_the_last(limits, said) -> None:
    with refused(ConfigError, said, marked=False):
        NodeConfig(**limits)
    assert NodeConfig(round_backoff_ns=60 * 10**9, ack_delay_ns=10**9)


def test_memory_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys) -> None:
    def full(path: Path) -> Any:
        raise MemoryError

    monkeypatch.setattr("bb_edge.loading.load", full)
    assert main(["check", str(tmp_path / "net.onnx")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "not enough memory" in line and "limits" in line


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    class Net(Module):
        name = "Net"

        def body(self, g: Any) -> None:
            g.output("y", g.onnx.relu(g.input("x", "F32", [3])))

    path = tmp_path_factory.mktemp("net") / "net.onnx"
    path.write_bytes(Compiler().compile(Net()).SerializeToString())
    return path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "input 'x' is missing (its inputs: x)"),
        ({"X": f32(1, 2, 3)}, "input 'x' is missing; it has no input 'X'"),
        ({"x": f32(1, 2, 3), "y": f32(1)}, "it has no input 'y'"),
    ],
)
def test_inputs_that_are_missing_or_unknown(given, said, net) -> None:
    with refused(InferenceError, said, "its inputs: x", marked=False):
        open_model(net).run(given)


@pytest.mark.parametrize("case", ["an .npy", "cut off", "empty", "a text", "pickled"])
def test_inputs_of_a_bench_that_are_none(case, net, tmp_path, capsys) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros(300, np.float32))
    if case == "an .npy":
        path = tmp_path / "x.npy"
        np.save(path, np.zeros(3, np.float32))
    elif case == "pickled":
        np.savez(path, x=np.array([{}]))
    else:
        path.write_bytes({"cut off": path.read_bytes()[:200], "empty": b"", "a text": b"1 2 3"}[case])
    assert main(["bench", str(net), "--inputs", str(path), "--no-cold-start"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and "np.savez" in line


def test_the_last_round_is_followed_by_no_back_off(reads, registry, monkeypatch) -> None:
    monkeypatch.setattr(Device, "gives", staticmethod(exits))
    found = polls(node_of(reads, registry), range(0, 20 * S, S))
    assert [s.round for s in found if isinstance(s, steps.RoundBackedOff)] == [1, 2]
    assert [s.rounds for s in found if isinstance(s, steps.RoundsCompleted)] == [3]


# --- what classes promise, and what bootstraps cannot have --------------------------------------------------


class Promises(Codec):
    """Says F32, and gives what each test says."""

    TYPE_NAME: ClassVar[str] = "acme.Promises"
    STORAGE_TYPES: ClassVar[dict[str, str]] = {"Compress.code": "Tensor<F32>"}
    gives: ClassVar[Callable[[Any], Any]] = staticmethod(lambda t: t)

    @classmethod
    def construct(cls, env: Any) -> Promises:
        return cls()

    def compress(self, ctx: Any, t: Any) -> Any:
        return type(self).gives(t)

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code


class Coded(Module):
    name = "Coded"
    codec = CodecSlot("codec")

    def body(self, g: Any) -> None:
        g.output("code", self.codec.compress(g, g.input("t", "F32", [3])))


@pytest.mark.parametrize("stripped", [True, False])
@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda t: t.astype(np.float64), "Tensor<F64>[3], expected Tensor<F32>"),
        (lambda t: t.astype(np.int64), "Tensor<I64>[3], expected Tensor<F32>"),
        (lambda t: np.ma.masked_array(t, [True, False, False]), "a masked array of float32[3]"),
    ],
)
def test_a_promise_that_is_not_kept(gives, said, stripped, monkeypatch) -> None:
    monkeypatch.setattr(Promises, "gives", staticmethod(gives))
    compiler = Compiler().bind_codec("codec", Promises)
    data = compile_edge(Coded(), compiler=compiler).artifacts[0].data if stripped else None
    registry = Registry()
    registry.register(Promises)
    artifact = data or compiler.compile(Coded()).SerializeToString()
    node = install(PeerId.from_name("n"), (), artifact, ["Coded"], registry=registry, seed=1)
    node.invoke("Coded", {"t": f32(1, 2, 3)})
    found = node.poll(1)
    (failed,) = [s for s in found if isinstance(s, steps.OpFailed)]
    assert failed.text.startswith("slot 'codec' (acme.Promises.compress): ") and said in failed.text
    assert failed.error.hint and not [s for s in found if isinstance(s, steps.AppEvent)]


def test_an_array_of_a_subclass_is_taken_as_an_array(monkeypatch) -> None:
    monkeypatch.setattr(Promises, "gives", staticmethod(lambda t: t.view(np.recarray)))
    registry = Registry()
    registry.register(Promises)
    data = Compiler().bind_codec("codec", Promises).compile(Coded()).SerializeToString()
    node = install(PeerId.from_name("n"), (), data, ["Coded"], registry=registry, seed=1)
    node.invoke("Coded", {"t": f32(1, 2, 3)})
    (event,) = [s for s in node.poll(1) if isinstance(s, steps.AppEvent)]
    assert type(event.value) is np.ndarray


def test_an_output_of_a_bootstrap() -> None:
    class Boot(Reads):
        def bootstrap(self, g: Any) -> None:
            g.output("v", g.input("p", "F32", (3,)))  # <-

    with refused(ModuleError, "'v'", "a bootstrap has no outputs", "g.app_emit"):
        Boot().record()

    class Tells(Reads):
        def bootstrap(self, g: Any) -> None:
            g.app_emit("v", g.input("p", "F32", (3,)))

    data = Compiler().bind_data_source("dev", Device).compile(Tells()).SerializeToString()
    assert data
