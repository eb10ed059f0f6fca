"""The ops by which gradients are values, in a real engine: a component of the test's own answers them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32

from bb_edge.engine import steps
from bb_edge.registry import Registry
from bb_edge.roles import TRIGGER, Model


def i64(value: int) -> Any:
    return np.asarray(value, dtype=np.int64)


class Affine(Model):
    """y = 3·x; keeps x for the execution and for each key, three keys at most."""

    TYPE_NAME: ClassVar[str] = "test.KeyedAffine"

    @classmethod
    def construct(cls, env: Any) -> Affine:
        return cls()

    def __init__(self) -> None:
        self.kept: dict[object, float] = {}
        self.total, self.gone = 0.0, 0

    @property
    def activations_dropped(self) -> int:
        return self.gone

    def forward(self, ctx: Any, input: Any) -> Any:
        self.kept[None] = float(input[0])
        return f32(3 * self.kept[None])

    def forward_keyed(self, ctx: Any, input: Any, key: Any) -> Any:
        if len(self.kept) == 3:
            self.kept.pop(next(iter(self.kept)))
            self.gone += 1
        self.kept[int(key)] = float(input[0])
        return f32(3 * float(input[0]))

    def backward_keyed(self, ctx: Any, grad: Any, key: Any) -> None:
        self.total += float(grad[0]) * self.kept[int(key)]

    def backward_input(self, ctx: Any, grad: Any, key: Any = None) -> Any:
        self.total += float(grad[0]) * self.kept[None if key is None else int(key)]
        return f32(3 * float(grad[0]))

    def gradient(self, ctx: Any) -> Any:
        found, self.total = self.total, 0.0
        return f32(found)

    def load_parameters(self, ctx: Any, params: Any) -> None:
        raise NotImplementedError

    def params(self, ctx: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def keyed() -> Registry:
    known = Registry()
    known.register(Affine)
    return known


MODEL = {"m": "model|test.KeyedAffine"}
BODY = """  y: F32 = role.model.Forward(x) {slot=m}
  dx: F32 = role.model.BackwardInput(y) {slot=m}
  z: F32 = role.model.ForwardKeyed(kx, key) {slot=m}
  cmd: CommandId = role.model.BackwardKeyed(dk, back) {slot=m}
  ki: F32 = role.model.BackwardInput(di, in) {slot=m}
  g: F32[?] = role.model.Gradient() {slot=m}
  both: F32[?] = syscall.GateDispatch(g, look)
  syscall.AppEmit<name="dx">(dx)
  syscall.AppEmit<name="z">(z)
  syscall.AppEmit<name="cmd">(cmd)
  syscall.AppEmit<name="ki">(ki)
  syscall.AppEmit<name="g">(both)"""
INPUTS = "x: F32, kx: F32, key: I64[], dk: F32, back: I64[], di: F32, in: I64[], look: Trigger"


@pytest.mark.covers("role.model", "ForwardKeyed", "BackwardKeyed", "BackwardInput", "Gradient")
def test_gradients_are_values(bed: Any, keyed: Registry) -> None:
    look = {"look": TRIGGER}
    b = bed.run(
        BODY, INPUTS, {"x": f32(2)}, look, {"kx": f32(5), "key": i64(1)}, {"kx": f32(7), "key": i64(2)},
        {"dk": f32(10), "back": i64(1)}, look, {"di": f32(1), "in": i64(2)}, look, look,
        slots=MODEL, registry=keyed,
    )  # fmt: skip
    assert [float(v[0]) for v in b.events("dx")] == [18]  # 3·y, of y = 6
    assert [float(v[0]) for v in b.events("z")] == [15, 21]
    assert [float(v[0]) for v in b.events("ki")] == [3]
    # 6·2; then that of key 1, of key 2, and none.
    assert [float(v[0]) for v in b.events("g")] == [12, 50, 7, 0]
    assert len(b.events("cmd")) == 1 and "activations.dropped" not in b.node.counters
    b.assert_clean()


def test_activations_that_had_to_go_are_counted(bed: Any, keyed: Registry) -> None:
    forwards = [{"kx": f32(1), "key": i64(key)} for key in range(5)]
    b = bed.run(BODY, INPUTS, *forwards, slots=MODEL, registry=keyed)
    assert b.node.counters["activations.dropped"] == 2


def test_a_component_without_keys_says_so(bed: Any) -> None:
    class Few(Affine):
        TYPE_NAME = "test.Few"
        forward_keyed = Model.forward_keyed
        backward_keyed = Model.backward_keyed

    found = Registry()
    found.register(Few)
    with pytest.raises(Exception, match=r"test\.Few does not offer ForwardKeyed"):
        bed.run(BODY, INPUTS, {"x": f32(1)}, slots={"m": "model|test.Few"}, registry=found)


def test_what_a_model_notes_of_its_training_is_told(bed: Any) -> None:
    class Noting(Affine):
        TYPE_NAME = "test.Noting"

        def step(self, ctx: Any, grads: Any = None) -> None:
            self.total += 1

        def take_notes(self) -> list[str]:
            return ["it learns no more"] if self.total == 2 else []

    found = Registry()
    found.register(Noting)
    body = '  cmd: CommandId = role.model.Step(grads) {slot=m}\n  syscall.AppEmit<name="cmd">(cmd)'
    grads = {"grads": f32(1)}
    b = bed.run(body, "grads: F32", grads, grads, grads, slots={"m": "model|test.Noting"}, registry=found)
    (step,) = b.of(steps.ModelNoted)
    assert (step.target, step.slot, step.note) == ("Main", "m", "it learns no more")
    assert len(b.events("cmd")) == 3
    b.assert_clean()
