"""What components are built from on the device, in all the forms that a construction state has."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_edge import PeerId, install
from bb_edge.components import ArrayDataSource
from bb_edge.engine.steps import AppEvent
from bb_edge.ir import types
from bb_edge.ir.types import ValueType
from bb_edge.ir.values import TRIGGER
from bb_edge.registry import Registry
from bb_edge.roles import Codec
from bb_host import CodecSlot, Compiler, DataSourceSlot, Module
from bb_host.errors import ConstructionError
from bb_host.ir.construction import construction_state

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


class Sum(Module):
    """Adds up a shard."""

    name = "Sum"
    shard = DataSourceSlot("shard")

    def body(self, g: Any) -> None:
        x, _ = self.shard.next_batch(g, after=g.input("go", "Trigger"))
        g.app_emit("sum", g.onnx.reduce_sum(x, keepdims=0))


def run(data: bytes, target: str, inputs: dict[str, Any], registry: Registry | None = None) -> Any:
    node = install(PeerId.from_name("n"), (), data, [target], registry=registry)
    node.invoke(target, inputs)
    (value,) = [s.value for s in node.poll(1) if isinstance(s, AppEvent)]
    return value


def test_a_component_is_built_from_one_tensor():
    data = Compiler().bind_data_source("shard", ArrayDataSource, ROWS).compile(Sum()).SerializeToString()
    assert float(run(data, "Sum", {"go": TRIGGER})) == 15.0


class Rounding(Codec):
    """Carries tensors as another element type: the one that it is built from."""

    TYPE_NAME: ClassVar[str] = "test.Rounding"

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    @classmethod
    def construct(cls, env: Any) -> Rounding:
        elem = env.config["type"].node.elem_type
        return cls(types.dtype_of_elem(elem))

    def compress(self, ctx: Any, t: Any) -> Any:
        return t.astype(self.dtype)

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code.astype(np.float32)


class Rounded(Module):
    name = "Rounded"
    codec = CodecSlot("codec", Rounding, ValueType(types.tensor_type(np.int8)))

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, (2,))
        g.app_emit("y", self.codec.decompress(g, self.codec.compress(g, x)))


def test_a_component_is_built_from_a_type():
    registry = Registry()
    registry.register(Rounding)
    data = Compiler().compile(Rounded()).SerializeToString()
    assert run(data, "Rounded", {"x": np.array([1.7, -2.2], np.float32)}, registry).tolist() == [1.0, -2.0]


def test_what_is_none_of_the_forms_is_refused():
    with pytest.raises(ConstructionError, match="an array, a type"):
        construction_state("s", 3)
