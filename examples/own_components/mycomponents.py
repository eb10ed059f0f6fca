"""Components of one's own, as a device loads them: `bb-edge run … --load mycomponents.py`.

A data source over a CSV file, a codec, an aggregator, a model with a term of its own, a backend on plain
NumPy, and a protocol component with a type that travels. Nothing here needs the compiler: a device has this
file and the edge install.
"""

from __future__ import annotations

import csv
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bb_edge.extend import (
    Array,
    Backend,
    BackendAttrs,
    BackendRunError,
    Codec,
    Combiner,
    CombiningAggregator,
    ComponentEnv,
    ComponentError,
    Ctx,
    DataSource,
    Effect,
    FunctionProto,
    GraphModel,
    GraphProto,
    NodeProto,
    Opset,
    OpTable,
    ProtocolComponent,
    Setting,
    StateReader,
    array_of,
    pack_state,
    register,
    register_codec,
    register_type,
)

# --- data: a CSV file -----------------------------------------------------------------------------------


@register
class CsvSource(DataSource):
    """Batches of a CSV file with a header; the last column is the label.

    Configuration: `path`, the file; `batch_size` (8).
    """

    TYPE_NAME: ClassVar[str] = "own.CsvSource"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "path": Setting.text(),  # required: where the data lies is the device's business
        "batch_size": Setting.integer(8, minimum=1),
    }

    def __init__(self, rows: Array, batch_size: int) -> None:
        self._rows = rows
        self._batch = batch_size
        self._at = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> CsvSource:
        read = env.settings(cls)
        path = Path(read["path"])
        try:
            with path.open(newline="", encoding="utf-8") as file:
                header, *lines = csv.reader(file)
            rows = np.array(lines, np.float32)
        except (OSError, ValueError) as error:
            raise env.error(
                f"{path} cannot be read: {error}", "path", "name a CSV file of numbers"
            ) from error
        if len(header) < 2 or len(rows) < read["batch_size"]:
            raise env.error(
                f"{path} holds {len(rows)} rows of {len(header)} columns", "path", "give more data"
            )
        return cls(rows, read["batch_size"])

    def next_batch(self, ctx: Ctx) -> tuple[Array, Array]:
        chosen = np.arange(self._at, self._at + self._batch) % len(self._rows)
        self._at = int(chosen[-1]) + 1
        batch = self._rows[chosen]
        return batch[:, :-1], batch[:, -1:]

    def num_samples(self, ctx: Ctx) -> Array:
        return np.array(len(self._rows), np.int64)

    def serialize(self) -> bytes:
        return pack_state(self, 1, {"at": self._at})

    def restore(self, state: bytes) -> None:
        self._at = StateReader(self, 1, state).integer("at")


# --- codec: f32 as 16 bits of one scale -----------------------------------------------------------------


@register
class Fixed16(Codec):
    """Half the bytes: 16 bits per value, times one scale per vector, which is the code's first 4 bytes."""

    TYPE_NAME: ClassVar[str] = "own.Fixed16"
    CONFIG: ClassVar[Mapping[str, Setting]] = {}  # no keys: any is refused
    STORAGE_TYPES: ClassVar[Mapping[str, str]] = {
        "Compress.code": "Tensor<U8>",
        "Decompress.t": "Tensor<F32>",
    }
    shared: ClassVar[bool] = True

    @classmethod
    def construct(cls, env: ComponentEnv) -> Fixed16:
        return cls()

    def compress(self, ctx: Ctx, t: Array) -> Array:
        scale = np.float32(np.abs(t).max(initial=0.0) / 32767 or 1.0)
        code = np.rint(t.reshape(-1) / scale).astype("<i2")
        return np.frombuffer(scale.tobytes() + code.tobytes(), np.uint8)

    def decompress(self, ctx: Ctx, code: Array) -> Array:
        if code.dtype != np.uint8 or code.size < 4 or code.size % 2:
            raise ComponentError(f"no code of this codec: {code.dtype}{list(code.shape)}", self.TYPE_NAME)
        scale = np.frombuffer(code[:4].tobytes(), np.float32)[0]
        found: Array = np.frombuffer(code[4:].tobytes(), "<i2").astype(np.float32) * scale
        return found


# --- aggregator: the mean without the extremes -----------------------------------------------------------


class Trimmed(Combiner):
    """Keeps every contribution, and leaves out the ends of each parameter."""

    def __init__(self, size: int, trim: float) -> None:
        super().__init__(size)
        self._trim = trim
        self._rows: list[Array] = []

    def add(self, values: Array, weight: float) -> None:
        self._rows.append(np.array(values, np.float32))

    def result(self, total: float) -> Array:
        rows = np.sort(np.stack(self._rows), axis=0)
        cut = int(len(rows) * self._trim)
        mean: Array = rows[cut : len(rows) - cut].mean(axis=0, dtype=np.float32)
        return mean

    def clear(self) -> None:
        self._rows = []

    def save(self) -> list[Array]:
        return self._rows

    def restore(self, arrays: list[Array]) -> None:
        self._rows = arrays


@register
class TrimmedMean(CombiningAggregator):
    """The mean of each parameter without its largest and smallest values: one broken peer changes little.

    Configuration: `trim` (0.25), the share that is left out at either end, and that of every
    `CombiningAggregator`. Weights count as samples only.
    """

    TYPE_NAME: ClassVar[str] = "own.TrimmedMean"
    CONFIG: ClassVar[Mapping[str, Setting]] = {"trim": Setting.number(0.25, 0.0, 0.49)}
    trim = 0.25

    @classmethod
    def construct(cls, env: ComponentEnv) -> TrimmedMean:
        agg = super().construct(env)
        assert isinstance(agg, TrimmedMean)
        agg.trim = env.settings(cls)["trim"]
        return agg

    def combiner(self, size: int) -> Combiner:
        return Trimmed(size, self.trim)


# --- model: a subclass with a key and a term of its own -----------------------------------------------------


@register
class FedProx(GraphModel):
    """Gradient descent that is pulled back to the parameters that the server sent.

    Configuration: `mu` (0.01) beside the keys of GraphModel.
    """

    TYPE_NAME: ClassVar[str] = "own.FedProx"
    CONFIG: ClassVar[Mapping[str, Setting]] = {"mu": Setting.number(0.01, minimum=0.0)}

    _mu = 0.0
    _start: Array | None = None  # in no snapshot: the server's next parameters set it again

    @classmethod
    def construct(cls, env: ComponentEnv) -> FedProx:
        model = super().construct(env)
        assert isinstance(model, FedProx)
        model._mu = env.settings(cls)["mu"]
        return model

    def load_parameters(self, ctx: Ctx, params: Array) -> None:
        super().load_parameters(ctx, params)
        self._start = self.parameters.copy()

    def adjust_gradient(self, gradient: Array) -> None:
        if self._start is not None:
            gradient += np.float32(self._mu) * (self.parameters - self._start)


# --- backend: thirteen operators on NumPy -------------------------------------------------------------------


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def run(attrs: Mapping[str, Any], a: Array, axes: Array | None = None) -> Array:
        along = None if axes is None or not axes.size else tuple(axes.tolist())
        return function(a, axis=along, keepdims=bool(attrs.get("keepdims", 1)))

    return run


_DTYPES = {1: np.float32, 7: np.int64, 9: np.bool_}
"""ONNX's numbers of the element types that this backend casts to."""

_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda attrs, a, b: a + b,
    "Sub": lambda attrs, a, b: a - b,
    "Mul": lambda attrs, a, b: a * b,
    "Div": lambda attrs, a, b: a / b,
    "MatMul": lambda attrs, a, b: a @ b,
    "Relu": lambda attrs, a: np.maximum(a, 0),
    "Greater": lambda attrs, a, b: a > b,
    "Cast": lambda attrs, a: a.astype(_DTYPES[attrs["to"]]),
    "Transpose": lambda attrs, a: np.transpose(a, attrs.get("perm")),
    "ReduceSum": _reduce(np.sum),
    "ReduceMean": _reduce(np.mean),
    "Identity": lambda attrs, a: a,
}


@register
class PlainBackend(Backend):
    """Runs graphs operator by operator. What it does not have is refused when the program is installed."""

    TYPE_NAME: ClassVar[str] = "own.PlainBackend"
    CONFIG: ClassVar[Mapping[str, Setting]] = {}

    @classmethod
    def construct(cls, env: ComponentEnv) -> PlainBackend:
        return cls()

    @classmethod
    def supported_ops(cls) -> frozenset[str]:
        return frozenset({*_OPERATORS, "Constant"})

    def execute(
        self,
        graph: FunctionProto | GraphProto,
        inputs: Mapping[str, Array],
        attrs: BackendAttrs | None = None,
    ) -> dict[str, Array]:
        values: dict[str, Any] = {**inputs, "": None}
        for node in graph.node:
            given = [values[name] for name in node.input]
            try:
                values[node.output[0]] = _run(node, given)
            except (TypeError, ValueError, KeyError) as error:
                raise BackendRunError(
                    f"{type(error).__name__}: {error}", node.name or node.op_type
                ) from error
        names = [out if isinstance(out, str) else out.name for out in graph.output]
        return {name: np.asarray(values[name]) for name in names}


def _run(node: NodeProto, given: Sequence[Any]) -> Any:
    attrs = {a.name: _value(a) for a in node.attribute}
    if node.op_type == "Constant":
        ((kind, value),) = attrs.items()
        return value if kind == "value" else np.array(value, np.float32 if "float" in kind else np.int64)
    return _OPERATORS[node.op_type](attrs, *given)


def _value(attribute: Any) -> Any:
    """An attribute's value: a tensor, a list, or a number."""
    if attribute.HasField("t"):
        return array_of(attribute.t)
    listed = list(attribute.ints) or list(attribute.floats)
    return listed or (attribute.i if not attribute.HasField("f") else attribute.f)


# --- protocol: ops of its own, and a type of its own that travels ---------------------------------------


class Health(NamedTuple):
    """How a device is; degrees Celsius, and the share of its battery that is left."""

    celsius: float
    battery: float


HEALTH = register_type("own.Health")
register_codec(
    HEALTH,
    encode=lambda health: struct.pack(">ff", *health),
    decode=lambda data: Health(*struct.unpack(">ff", bytes(data))),
    python_type=Health,
)


@register
class HealthBook(ProtocolComponent):
    """Clients say how they are (`Measure`); the server writes down who was worst (`Note`).

    Configuration: `celsius` (40.0), `battery` (1.0): what a device without sensors says.
    """

    TYPE_NAME: ClassVar[str] = "own.HealthBook"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "celsius": Setting.number(40.0, -60.0, 125.0),
        "battery": Setting.number(1.0, 0.0, 1.0),
    }

    def __init__(self, own: Health) -> None:
        self._own = own
        self._hottest = -273.15
        self._noted = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> HealthBook:
        return cls(Health(**env.settings(cls)))

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = OpTable("own.health")
        table.op("Measure", "asked:Tensor", "health:own.Health", doc="How this device is.")
        table.op(
            "Note",
            "health:own.Health",
            "noted:Tensor<I64>, hottest:Tensor<F32>",
            effect=Effect.WRITE,
            doc="Notes a device; how many were noted, and the highest temperature among them.",
        )
        return table.opset()

    def measure(self, ctx: Ctx, asked: Array) -> Health:
        return self._own

    def note(self, ctx: Ctx, health: Health) -> tuple[Array, Array]:
        self._noted += 1
        self._hottest = max(self._hottest, health.celsius)
        return np.array(self._noted, np.int64), np.array(self._hottest, np.float32)

    def serialize(self) -> bytes:
        return pack_state(self, 1, {"noted": self._noted, "hottest": self._hottest})

    def restore(self, state: bytes) -> None:
        read = StateReader(self, 1, state)
        self._noted, self._hottest = read.integer("noted"), read.number("hottest")
