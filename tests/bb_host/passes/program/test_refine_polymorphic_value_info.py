"""The pre-pass over types that bindings promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
from components import Slow
from program_text import parse

from bb_edge.ir import keys, types
from bb_edge.ir.types import ValueType
from bb_host import errors
from bb_host.compiler import Compiler, Stats
from bb_host.ir.program import Function, Program, Subgraph

TEXT = """
    program P {module=P}

    function program.P(x: F32[4,3]) -> ()
      slot model: model
      slot codec: codec
      p: F32[?] = role.model.Params() {slot=model, slot_id=1, required_trait=model}
      y: Tensor = role.model.Forward(x) {slot=model, slot_id=1, required_trait=model}
      z: Tensor = role.compressor.Compress(x) {slot=codec, slot_id=2, required_trait=codec}
    """


class Trained:
    """A config with parameters and a graph."""

    class Made:
        attribute = Subgraph(initializers={"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)})
        functions = (
            Function(
                "model.forward",
                keys.COMPONENT_DOMAIN,
                ("x", "w", "b"),
                ("y",),
                types={"y": ValueType(types.TENSOR_F32, ("n", 2))},
            ),
        )

    def construct(self, slot: str) -> Made:
        return self.Made()


class HalfCodec(Slow):
    TYPE_NAME: ClassVar[str] = "test.HalfCodec"
    STORAGE_TYPES: ClassVar[dict[str, str]] = {"Compress.code": "Tensor<F16>"}


def test_parameters_outputs_and_what_a_class_promises(run_pass: Callable[..., Program]) -> None:
    compiler = Compiler().bind_model("model", "bb.GraphModel", Trained()).bind_codec("codec", HalfCodec)
    stats = Stats()
    done = run_pass("refine_polymorphic_value_info", TEXT, stats, bindings=compiler.bindings)
    found = done.functions[0].types
    assert found["p"] == ValueType(types.TENSOR_F32, (8,))
    assert found["y"] == ValueType(types.TENSOR_F32, (None, 2))
    assert found["z"].node is types.TENSOR_F16
    assert stats.counters == {"types_narrowed": 3}


@pytest.mark.parametrize(("other", "size"), [(2, 8), (3, None)], ids=["the same", "another"])
def test_bindings_of_several_targets_promise_what_they_agree_on(
    run_pass: Callable[..., Program], other: int, size: int | None
) -> None:
    class Other(Trained):
        class Made(Trained.Made):
            attribute = Subgraph(
                initializers={"w": np.zeros((3, other), np.float32), "b": np.zeros(2, np.float32)}
            )

    compiler = (
        Compiler()
        .bind_model("model", "bb.GraphModel", Trained(), target="A")
        .bind_model("model", "bb.GraphModel", Other(), target="B")
    )
    done = run_pass("refine_polymorphic_value_info", TEXT, bindings=compiler.bindings)
    assert done.functions[0].types["p"].shape == (size,)
    assert done.functions[0].types["y"] == ValueType(types.TENSOR_F32, (None, 2))


def test_concrete_models_promise_too(run_pass: Callable[..., Program]) -> None:
    text = """
        program P {module=P}

        function program.P() -> ()
          slot model: model = bb.GraphModel(graph m() -> () {
            init w = F32[2]{1, 2}
          })
          p: F32[?] = role.model.Params() {slot=model, concrete_type=bb.GraphModel, instance=0}
        """
    done = run_pass("refine_polymorphic_value_info", text)
    assert done.functions[0].types["p"].shape == (2,)


def test_a_type_that_is_narrower_already_stays() -> None:
    given = parse(
        "function program.P() -> ()\n  slot model: model\n"
        "  p: F32[3] = role.model.Params() {slot=model, slot_id=1, required_trait=model}"
    )
    from bb_host.passes.options import Options
    from tests.aids.passes import pass_named

    options = Options(bindings=Compiler().bind_model("model", "bb.GraphModel", Trained()).bindings)
    assert pass_named("refine_polymorphic_value_info").run(given, options, Stats()) is given


def test_a_promise_of_no_type_is_refused() -> None:
    class Wrong(Slow):
        TYPE_NAME: ClassVar[str] = "test.Wrong"
        STORAGE_TYPES: ClassVar[dict[str, str]] = {"Compress.code": "Tensor<Nope>"}

    with pytest.raises(errors.BindingError, match="no type 'Tensor<Nope>'"):
        Compiler().bind_codec("codec", Wrong)
