"""The six role opsets, op by op, in a real engine: layouts, attributes, effects."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32

from bb_edge.components import ArrayDataSource
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.roles import TRIGGER, Index, Model

PEER = PeerId.from_name("a")
OTHER = PeerId.from_name("b")


def i64(value):
    return np.asarray(value, dtype=np.int64)


@pytest.fixture
def registry():
    found = Registry()
    found.register(Affine)
    return found


# --- roles --------------------------------------------------------------------------------------------


class Affine(Model):
    """y = w·x, trained by hand: one parameter, gradient = grad·x."""

    TYPE_NAME: ClassVar[str] = "test.Affine"

    @classmethod
    def construct(cls, env: Any) -> Affine:
        return cls()

    def __init__(self) -> None:
        self.w, self.x, self.gradient = 2.0, 0.0, 0.0

    def forward(self, ctx: Any, input: Any) -> Any:
        self.x = float(input[0])
        return f32(self.w * self.x)

    def backward(self, ctx: Any, grad: Any) -> None:
        self.gradient += float(grad[0]) * self.x

    def train(self, ctx: Any, input: Any, target: Any) -> Any:
        error = self.w * float(input[0]) - float(target[0])
        self.gradient += 2 * error * float(input[0])
        return np.asarray(error * error, np.float32)

    def set_round(self, ctx: Any, round: Any) -> None:
        self.w += float(round)

    def step(self, ctx: Any, grads: Any = None) -> None:
        if grads is None:
            grads, self.gradient = (self.gradient,), 0.0
        self.w -= float(grads[0])

    def evaluate(self, ctx: Any, input: Any, target: Any) -> Any:
        return np.asarray((self.w * input - target) ** 2, np.float32).mean()

    def apply_delta(self, ctx: Any, delta: Any) -> None:
        self.w += float(delta[0])

    def load_parameters(self, ctx: Any, params: Any) -> None:
        self.w = float(params[0])

    def params(self, ctx: Any) -> Any:
        return f32(self.w)


MODEL = {"m": "model|test.Affine"}


@pytest.mark.covers(
    "role.model",
    "Forward",
    "Backward",
    "Step",
    "Params",
    "LoadParameters",
    "ApplyDelta",
    "Evaluate",
    "Train",
    "SetRound",
)
def test_model(bed, registry):
    body = """  y: F32 = role.model.Forward(x) {slot=m}
  cmd: CommandId = role.model.Backward(y) {slot=m}
  stepped: CommandId = role.model.Step(cmd) {slot=m, control_inputs=1}
  loaded: CommandId = role.model.LoadParameters(load) {slot=m}
  moved: CommandId = role.model.ApplyDelta(delta) {slot=m}
  given: CommandId = role.model.Step(grads) {slot=m}
  loss: F32[] = role.model.Evaluate(in, target) {slot=m}
  fitted: F32[] = role.model.Train(batch, labels) {slot=m}
  after: CommandId = role.model.Step(fitted) {slot=m, control_inputs=1}
  told: CommandId = role.model.SetRound(round) {slot=m}
  w: F32 = role.model.Params() {slot=m}
  both: F32 = syscall.GateDispatch(w, go)
  syscall.AppEmit<name="y">(y)
  syscall.AppEmit<name="loss">(loss)
  syscall.AppEmit<name="fitted">(fitted)
  syscall.AppEmit<name="w">(both)
  syscall.AppEmit<name="cmd">(stepped)"""
    inputs = "x: F32, load: F32, delta: F32, grads: F32, in: F32, target: F32, batch: F32, labels: F32, round: I64[], go: Trigger"
    look = {"go": TRIGGER}
    b = bed.run(
        body, inputs, look, {"load": f32(3)}, look, {"delta": f32(-1)}, look, {"grads": f32(0.5)}, look,
        {"in": f32(2), "target": f32(1)}, {"x": f32(2)}, look,
        {"batch": f32(2), "labels": f32(-8)}, look,
        {"round": i64(7)}, look, slots=MODEL, registry=registry,
    )  # fmt: skip
    # 2 as built; loaded 3; moved by -1; stepped by 0.5; own gradient 3·2 of y = 1.5·2; trained on
    # an error of -4.5·2 + 8 = -1, whose square has the gradient 2·(-1)·2.
    assert [float(v[0]) for v in b.events("w")] == [2, 3, 2, 1.5, -4.5, -0.5, 6.5]
    assert float(b.events("fitted")[0]) == 1
    assert b.events("y")[0].tolist() == [3] and float(b.events("loss")[0]) == 4
    assert isinstance(b.events("cmd")[0], int)
    b.assert_clean()


@pytest.mark.covers("role.aggregator", "Contribute", "Aggregate", "CurrentTensor")
def test_aggregator(bed):
    body = """  c: CommandId = role.aggregator.Contribute(x, w, p, r) {slot=agg}
  t: Tensor, total: F32[] = role.aggregator.Aggregate(go) {slot=agg, control_inputs=1}
  syscall.AppEmit<name="t">(t)
  syscall.AppEmit<name="total">(total)
  now: Tensor = role.aggregator.CurrentTensor(look) {slot=agg}
  syscall.AppEmit<name="now">(now)"""
    inputs = "x: F32[1], w: F32[], p: PeerIdVec, r: I64[], go: Trigger, look: Trigger"

    def give(value: float, weight: float, peer: PeerId) -> dict[str, object]:
        return {"x": f32(value), "w": np.float32(weight), "p": (peer,), "r": i64(1)}

    b = bed.run(
        body, inputs, {"go": TRIGGER}, give(1, 1, PEER), give(4, 3, OTHER), give(100, 1, PEER), {"go": TRIGGER},
        {"look": TRIGGER}, slots={"agg": "aggregator|bb.FedAvg"},
    )  # fmt: skip
    assert [v.tolist() for v in b.events("t")] == [[], [3.25]], "first of a (round, peer) wins"
    assert [float(v) for v in b.events("total")] == [0, 4]
    assert b.events("now")[0].tolist() == [3.25]


@pytest.mark.covers("role.index", "Add", "Search", "Remove")
def test_index(bed):
    body = """  a: CommandId = role.index.Add(v) {slot=i}
  r: CommandId = role.index.Remove(gone) {slot=i}
  ids: I64, d: F32 = role.index.Search<k=2>(q) {slot=i}
  syscall.AppEmit<name="ids">(ids)"""
    query = {"q": f32(0, 0)}
    b = bed.run(
        body, "v: F32[3,2], gone: I64[1], q: F32[2]",
        {"v": np.array([[3, 3], [1, 1], [2, 2]], np.float32)}, query, {"gone": np.array([1], np.int64)}, query,
        slots={"i": "index|bb.FlatIndex"},
    )  # fmt: skip
    assert [v.ravel().tolist() for v in b.events("ids")] == [[1, 2], [2, 0]]


@pytest.mark.covers("role.compressor", "TrainCodebook", "Compress", "Decompress")
def test_compressor(bed):
    body = """  t: CommandId = role.compressor.TrainCodebook(x) {slot=c}
  y: F32[4] = syscall.GateDispatch(x, t)
  code: Tensor = role.compressor.Compress(y) {slot=c}
  back: Tensor = role.compressor.Decompress(code) {slot=c}
  syscall.AppEmit<name="code">(code)
  syscall.AppEmit<name="back">(back)"""
    values = f32(0, 1, 2, 3)
    b = bed.run(body, "x: F32[4]", {"x": values}, slots={"c": "codec|bb.ScalarQuantizer"})
    b.assert_clean()
    assert b.events("code")[0].nbytes < values.nbytes
    np.testing.assert_allclose(b.events("back")[0], values, atol=0.02)


@pytest.mark.covers("role.data_loader", "NextBatch", "NumSamples", "Reset", "OnDataLoaded")
def test_data_loader(bed, tmp_path):
    np.savez(tmp_path / "d.npz", x=np.arange(6, dtype=np.float32).reshape(3, 2), y=np.arange(3))
    body = """  x: F32, y: I64 = role.data_loader.NextBatch(go) {slot=d, control_inputs=1}
  syscall.AppEmit<name="x">(x)
  n: I64[] = role.data_loader.NumSamples() {slot=d}
  counted: I64[] = syscall.GateDispatch(n, count)
  syscall.AppEmit<name="n">(counted)
  t: Trigger = role.data_loader.Reset(reset) {slot=d}
  syscall.AppNotify<name="reset">(t)
  loaded: Trigger = role.data_loader.OnDataLoaded() {slot=d}
  seen: Trigger = syscall.GateDispatch(loaded, count)
  syscall.AppNotify<name="loaded">(seen)"""
    go = {"go": TRIGGER}
    b = bed.run(
        body, "go: Trigger, count: Trigger, reset: Trigger", go, go, {"reset": TRIGGER}, go, {"count": TRIGGER},
        slots={"d": "data_source|bb.ArrayDataSource"},
        components={"d": {"path": str(tmp_path / "d.npz"), "batch_size": 1}},
    )  # fmt: skip
    first, second, again = (v.tolist() for v in b.events("x"))
    assert first != second and again == first
    assert int(b.events("n")[0]) == 3 and b.topics().count("reset") == b.topics().count("loaded") == 1
    b.assert_clean()


@pytest.mark.parametrize("trace", [False, True])
def test_nothing_is_trained_on_a_batch_without_its_labels(bed, registry, tmp_path, trace):
    np.savez(tmp_path / "d.npz", x=np.ones(1, np.float32))
    registry.register(ArrayDataSource)
    body = """  x: F32, y: F32 = role.data_loader.NextBatch(go) {slot=d, control_inputs=1}
  fitted: F32[] = role.model.Train(x, y) {slot=m}
  syscall.AppEmit<name="fitted">(fitted)"""
    b = bed.run(
        body, "go: Trigger", {"go": TRIGGER}, slots={"d": "data_source|bb.ArrayDataSource", **MODEL}, registry=registry,
        components={"d": {"path": str(tmp_path / "d.npz")}}, config=NodeConfig(trace=trace),
    )  # fmt: skip
    assert b.topics() == [] and b.of(steps.OpFailed) == []
    assert [s.ops for s in b.of(steps.ExecutionStarved)] == [("Train_1",)]


@pytest.mark.parametrize("trace", [False, True])
def test_ops_in_a_row_are_given_what_the_one_before_gave(bed, registry, trace):
    body = """  y: F32 = role.model.Forward(x) {slot=m}
  cmd: CommandId = role.model.Backward(y) {slot=m}
  stepped: CommandId = role.model.Step(cmd) {slot=m, control_inputs=1}
  w: F32 = role.model.Params(stepped) {slot=m, control_inputs=1}
  syscall.AppEmit<name="w">(w)"""
    b = bed.run(body, "x: F32", {"x": f32(2)}, slots=MODEL, registry=registry, config=NodeConfig(trace=trace))
    assert [float(v[0]) for v in b.events("w")] == [2 - (2 * 2) * 2]
    b.assert_clean()


@pytest.mark.covers("role.peer_selector", "Sample", "SampleShare", "CurrentView", "NearKey")
def test_peer_selector(bed):
    body = """  all: PeerIdVec = role.peer_selector.CurrentView() {slot=p}
  two: PeerIdVec = role.peer_selector.Sample<n=2>() {slot=p}
  none: PeerIdVec = role.peer_selector.Sample<n=2, min=4>() {slot=p}
  a: PeerIdVec = syscall.GateDispatch(all, go)
  b: PeerIdVec = syscall.GateDispatch(two, go)
  c: PeerIdVec = syscall.GateDispatch(none, go)
  third: PeerIdVec = role.peer_selector.SampleShare<n=2, share=100000000, min=1>() {slot=p}
  d: PeerIdVec = syscall.GateDispatch(third, go)
  near: PeerIdVec = role.peer_selector.NearKey<n=2>(key) {slot=p}
  syscall.AppEmit<name="near">(near)
  syscall.AppEmit<name="all">(a)
  syscall.AppEmit<name="two">(b)
  syscall.AppEmit<name="none">(c)
  syscall.AppEmit<name="third">(d)"""
    names = ["a", "b", "c"]
    b = bed.run(
        body, "go: Trigger, key: Bytes", {"go": TRIGGER}, {"key": b"some row"}, {"key": b"some row"},
        slots={"p": "peer_selector|bb.ConstantView"}, components={"p": {"names": names}},
    )  # fmt: skip
    (everybody,) = b.events("all")
    assert set(everybody) == {PeerId.from_name(n) for n in names}
    assert len(b.events("two")[0]) == 2 and set(b.events("two")[0]) < set(everybody)
    assert b.events("none") == [()]
    assert len(b.events("third")[0]) == 1 and set(b.events("third")[0]) < set(everybody)
    first, again = b.events("near")
    assert first == again and len(first) == 2 and set(first) < set(everybody)


class Short(Index):
    """An index that forgets how many were asked for."""

    TYPE_NAME = "acme.Short"
    stateless = True
    gives: ClassVar[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def construct(cls, env):
        return cls()

    def add(self, ctx, vec): ...

    def search(self, ctx, query, *, k):
        return self.gives


@pytest.mark.parametrize(
    ("ids", "distances"),
    [([1], [0.0]), ([1, 2], [0.0]), ([1, 2, 3], [0.0, 1.0, 2.0]), ([[1], [2]], [[0.0], [1.0]])],
)
def test_a_search_that_gives_another_number_than_asked_for_is_refused(bed, monkeypatch, ids, distances):
    monkeypatch.setattr(
        Short, "gives", (np.array(ids, np.int64), np.array(distances, np.float32)), raising=False
    )
    registry = Registry()
    registry.register(Short)
    body = """  ids: I64, d: F32 = role.index.Search<k=2>(q) {slot=i}
  syscall.AppEmit<name="ids">(ids)"""
    found = bed.run(body, "q: F32", {"q": f32(0, 0)}, slots={"i": "index|acme.Short"}, registry=registry)
    (failed,) = found.of(steps.OpFailed)
    assert "slot 'i' (acme.Short.search)" in failed.text and "the op asks for 2 per query" in failed.text
