"""What goes into bound components: shapes, element types and lengths that they do not take are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from bb_edge import register
from bb_edge.components import (
    ArrayDataSource,
    FedAvg,
    FlatIndex,
    Float16Codec,
    GraphModel,
    PresenceSelector,
    ScalarQuantizer,
)
from bb_edge.roles import Codec, ComponentEnv
from bb_host import (
    AggregatorSlot,
    CodecSlot,
    Compiler,
    DataSourceSlot,
    Graph,
    IndexSlot,
    ModelSlot,
    Module,
    PeerSelectorSlot,
)
from bb_host.errors import BindingError, TypeConstraintFailed
from bb_host.ir.program import Function, Program
from bb_host.learn import mlp, trainable
from tests.aids.refusals import refused

MODEL = trainable(mlp([4, 8, 2]))  # 58 parameters


class Learner(Module):
    """One model, bound as `model`; `act` is what the program does with it."""

    home = "Server"

    def __init__(self, act: Callable[[ModelSlot, Graph], Any]) -> None:
        self.model = ModelSlot("model")
        self._act = act
        super().__init__()

    def body(self, g: Graph) -> None:
        found = self._act(self.model, g)
        g.output("y", g.syscall.pass_through(found) if found.node.id == "CommandId" else found)


def compiled(act: Callable[[ModelSlot, Graph], Any], model: Any = MODEL) -> Program:
    return Compiler().bind_model("model", GraphModel, model).compile_program(Learner(act))


def f32(g: Graph, name: str, *shape: int | None) -> Any:
    return g.input(name, np.float32, shape)


def trained(m: ModelSlot, g: Graph, *grad: int | None) -> Any:
    y = m.forward(g, f32(g, "x", 2, 4))
    done = m.backward(g, f32(g, "dy", *grad), after=y)  # <-
    return m.params(g, after=m.step(g, after=done))


def fed(m: ModelSlot, g: Graph, op: str, *shape: int | None) -> Any:
    return m.params(g, after=getattr(m, op)(g, f32(g, "p", *shape)))  # <-


def evaluated(m: ModelSlot, g: Graph, target: list[int], dtype: Any = np.float32) -> Any:
    return m.evaluate(g, f32(g, "x", 2, 4), g.input("t", dtype, target))  # <-


WRONG: list[tuple[Callable[[ModelSlot, Graph], Any], str, str]] = [
    (lambda m, g: m.forward(g, f32(g, "x", 2, 7)), "takes F32[?,4] as input", "F32[2,7]"),  # <-
    (lambda m, g: m.forward(g, f32(g, "x", 4)), "takes F32[?,4] as input", "F32[4]"),  # <-
    (lambda m, g: m.forward(g, f32(g, "x", 1, 2, 4)), "takes F32[?,4] as input", "F32[1,2,4]"),  # <-
    (lambda m, g: m.forward(g, f32(g, "x", None, 3)), "takes F32[?,4] as input", "F32[?,3]"),  # <-
    (lambda m, g: m.forward(g, g.input("x", np.float64, [2, 4])), "cast it with", "F64[2,4]"),  # <-
    (lambda m, g: m.forward(g, g.input("x", np.int64, [2, 4])), "cast it with", "I64[2,4]"),  # <-
    (lambda m, g: m.forward(g, np.zeros((2, 7), np.float32)), "takes F32[?,4] as input", "F32[2,7]"),  # <-
    (lambda m, g: m.evaluate(g, f32(g, "x", 2, 7), f32(g, "t", 2, 2)), "as input", "F32[2,7]"),  # <-
    (lambda m, g: evaluated(m, g, [2, 3]), "F32[2,2] as target", "F32[2,3]"),
    (lambda m, g: evaluated(m, g, [3, 2]), "F32[2,2] as target", "F32[3,2]"),
    (lambda m, g: evaluated(m, g, [2]), "F32[2,2] as target", "F32[2]"),
    (lambda m, g: evaluated(m, g, [2], np.int64), "F32[2,2] as target", "I64[2]"),
    (lambda m, g: trained(m, g, 2), "takes F32[?,2] as grad", "F32[2]"),
    (lambda m, g: trained(m, g, 2, 3), "takes F32[?,2] as grad", "F32[2,3]"),
    (lambda m, g: trained(m, g, 3, 2), "takes F32[2,2] as grad", "F32[3,2]"),
    (lambda m, g: fed(m, g, "load_parameters", 57), "takes F32[58] or an empty vector", "F32[57]"),
    (lambda m, g: fed(m, g, "load_parameters", 1, 58), "takes F32[58] or an empty vector", "F32[1,58]"),
    (lambda m, g: fed(m, g, "apply_delta", 59), "takes F32[58] or an empty vector as delta", "F32[59]"),
    (lambda m, g: fed(m, g, "step", 57), "takes F32[58] as grads", "F32[57]"),
    (lambda m, g: fed(m, g, "step", 0), "takes F32[58] as grads", "F32[0]"),
]


@pytest.mark.parametrize(("act", "takes", "got"), WRONG, ids=[f"{a}, {b}" for _, a, b in WRONG])
def test_what_a_bound_model_does_not_take(
    act: Callable[[ModelSlot, Graph], Any], takes: str, got: str
) -> None:
    with refused(TypeConstraintFailed, "model 'model'", takes, f"got {got}"):
        compiled(act)


@pytest.mark.parametrize(
    ("loss", "dtype", "shape", "remedy"),
    [
        (
            "softmax_cross_entropy",
            np.int64,
            [2],
            "numbers of classes want loss='sparse_softmax_cross_entropy'",
        ),
        ("sparse_softmax_cross_entropy", np.float32, [2, 2], "want loss='softmax_cross_entropy'"),
        ("sparse_softmax_cross_entropy", np.float32, [2], "cast it with"),
    ],
)
def test_labels_of_the_other_form_are_told_with_the_loss_that_takes_them(
    loss: str, dtype: Any, shape: list[int], remedy: str
) -> None:
    with refused(TypeConstraintFailed, "as target", remedy):
        compiled(lambda m, g: evaluated(m, g, shape, dtype), trainable(mlp([4, 8, 2]), loss))


@pytest.mark.parametrize(
    ("shape", "most"), [(None, "3 elements of axis 1 at most"), ([None, 7], "3 elements of")]
)
def test_a_slice_that_can_never_be_as_wide_as_the_model_takes(shape: Any, most: str) -> None:
    def act(m: ModelSlot, g: Graph) -> Any:
        return m.forward(g, g.input("x", np.float32, shape)[:, 0:3])  # <-

    with refused(TypeConstraintFailed, "Slice", most, "read by Forward", "as F32[?,4]"):
        compiled(act)


RIGHT: list[Callable[[ModelSlot, Graph], Any]] = [
    lambda m, g: m.forward(g, g.input("x", np.float32)[:, 0:4]),
    lambda m, g: m.forward(g, f32(g, "x", None, 7)[:, 1:5]),
    lambda m, g: m.forward(g, f32(g, "x", 2, 4)),
    lambda m, g: m.forward(g, f32(g, "x", None, 4)),
    lambda m, g: m.forward(g, g.input("x", np.float32)),
    lambda m, g: m.forward(g, g.input("x", "Tensor")),
    lambda m, g: m.evaluate(g, f32(g, "x", None, 4), f32(g, "t", None, 2)),
    lambda m, g: trained(m, g, 2, 2),
    lambda m, g: trained(m, g, None, 2),
    lambda m, g: fed(m, g, "load_parameters", 58),
    lambda m, g: fed(m, g, "load_parameters", 0),
    lambda m, g: fed(m, g, "apply_delta", None),
]


@pytest.mark.parametrize("act", RIGHT, ids=range(len(RIGHT)))
def test_what_a_bound_model_takes(act: Callable[[ModelSlot, Graph], Any]) -> None:
    compiled(act)


def main(program: Program) -> Function:
    return next(f for f in program.functions if f.name in ("Learner", "Server"))


def test_what_the_model_knows_is_known_of_the_values_around_it() -> None:
    """Types meet from both sides: an input that says nothing has the model's, an output the input's rows."""

    def act(m: ModelSlot, g: Graph) -> Any:
        return m.forward(g, g.input("x", "Tensor")) + m.forward(g, f32(g, "z", 3, 4))

    found = main(compiled(act))
    assert str(found.types["x"]) == "Tensor<F32>[?,4]"
    assert str(found.types["y"]) == "Tensor<F32>[3,2]"


def test_an_output_that_does_not_fit_what_reads_it() -> None:
    def act(m: ModelSlot, g: Graph) -> Any:
        y = m.forward(g, f32(g, "x", 3, 4))
        return y @ np.zeros((3, 1), np.float32)  # <-

    with refused(TypeConstraintFailed, "inner dimensions 2 and 3 differ"):
        compiled(act)


def test_a_concrete_model_is_held_to_as_well() -> None:
    class Concrete(Module):
        def body(self, g: Graph) -> None:
            model = ModelSlot("model", GraphModel, MODEL)
            g.output("y", model.forward(g, f32(g, "x", 2, 7)))  # <-

    with refused(TypeConstraintFailed, "takes F32[?,4] as input"):
        Compiler().compile(Concrete())


def test_a_model_of_a_fixed_batch() -> None:
    model = mlp([4, 8, 2])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    with refused(TypeConstraintFailed, "takes F32[1,4] as input", "got F32[32,4]"):
        compiled(lambda m, g: m.forward(g, f32(g, "x", 32, 4)), trainable(model))  # <-


# --- data sources, codecs, indexes


class Learned(Module):
    """A model over the batches of a source."""

    def body(self, g: Graph) -> None:
        source, model = DataSourceSlot("data"), ModelSlot("model")
        x, y = source.next_batch(g)
        g.output("loss", model.evaluate(g, x, y))  # <-


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"path": "x.npz", "one_hot": 3}, ("F32[?,2] as target", "got F32[?,3]")),
        (np.zeros((10, 5), np.float32), ("F32[?,4] as input", "got F32[?,5]")),
        (np.zeros((10, 4), np.float64), ("F32[?,4] as input", "got F64[?,4]")),
    ],
    ids=["one_hot", "columns", "element"],
)
def test_batches_that_the_model_does_not_take(config: Any, words: tuple[str, ...]) -> None:
    compiler = Compiler().bind_model("model", GraphModel, MODEL)
    compiler.bind_data_source("data", ArrayDataSource, {"path": "x.npz", "one_hot": 2}).compile(Learned())
    with refused(TypeConstraintFailed, *words):
        compiler.bind_data_source("data", ArrayDataSource, config).compile(Learned())


def coded(codec: Any, op: str, dtype: Any) -> None:
    class Coded(Module):
        def body(self, g: Graph) -> None:
            g.output("y", getattr(CodecSlot("codec"), op)(g, g.input("x", dtype, [2])))  # <-

    Compiler().bind_codec("codec", codec).compile(Coded())


@pytest.mark.parametrize(
    ("codec", "op", "dtype", "takes"),
    [
        (Float16Codec, "compress", np.float64, "takes F32 as t, got F64[2]"),
        (Float16Codec, "decompress", np.float32, "takes F16 as code, got F32[2]"),
        (ScalarQuantizer, "compress", np.int32, "takes F32 as t, got I32[2]"),
        (ScalarQuantizer, "decompress", np.float16, "takes U8 as code, got F16[2]"),
    ],
)
def test_what_a_bound_codec_does_not_take(codec: Any, op: str, dtype: Any, takes: str) -> None:
    with refused(TypeConstraintFailed, "'codec'", takes):
        coded(codec, op, dtype)


def between(*decompress: str) -> Module:
    """What a client compresses by slot `one` and the server decompresses by the slots named."""

    class Between(Module):
        home = "Server"
        peers = PeerSelectorSlot("peers", peer_class="Client")
        one = CodecSlot("one")
        average = AggregatorSlot("average")

        def body(self, g: Graph) -> None:
            with g.rounds() as start:
                params = g.constant(np.zeros(4, np.float32))
                r = g.request(
                    "work", self.peers.sample(g, n=1, min=1, after=start), params, deadline_ns=9**12
                )
                r.reply([self.one.compress(g, r.value), g.constant(np.float32(1))])
                found, samples = r.answer
                for name in decompress:
                    found = CodecSlot(name).decompress(g, found)  # <-
                self.average.contribute(g, found, weight=samples, peer=r.answer.sender, sent=params)  # <-
                mean, _ = self.average.aggregate(g, after=r.closed)
                g.app_emit("mean", mean)

    return Between()


def test_another_codec_decompresses_than_compressed() -> None:
    compiler = Compiler().bind_peer_selector("peers", PresenceSelector).bind_aggregator("average", FedAvg)
    compiler = compiler.bind_codec("one", Float16Codec)
    compiler.compile(between("one"))
    compiler = compiler.bind_codec("two", ScalarQuantizer)
    both = (
        "codec 'two' (bb.ScalarQuantizer) takes U8",
        "codec 'one' (bb.Float16Codec) at Compress",
    )
    with refused(TypeConstraintFailed, *both, "decompress by the slot that compressed, 'one'"):
        compiler.compile(between("two"))


def test_a_code_that_nothing_decompresses() -> None:
    compiler = Compiler().bind_peer_selector("peers", PresenceSelector).bind_aggregator("average", FedAvg)
    compiler = compiler.bind_codec("one", ScalarQuantizer)
    with refused(TypeConstraintFailed, "got U8: it is the code of Compress", "by the slot 'one': decompress"):
        compiler.compile(between())


class Bytes(ScalarQuantizer):
    """One that reads the codes of a ScalarQuantizer."""

    TYPE_NAME = "acme.Bytes"


class Signs(Codec):
    """Another codec of one byte per number."""

    TYPE_NAME = "acme.Signs"
    stateless = True

    @classmethod
    def port_types(cls, config: Any, tensors: Any) -> dict[str, str]:
        return ScalarQuantizer.port_types(config, tensors)

    @classmethod
    def construct(cls, env: ComponentEnv) -> Signs:
        return cls()

    def train_codebook(self, ctx: Any, training: Any) -> None:
        """Nothing is learned."""

    def compress(self, ctx: Any, t: Any) -> Any:
        return (t > 0).astype(np.uint8)

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code.astype(np.float32)


SIGNS_READ = "acme.Signs in slot 'two' on Server decompresses what bb.ScalarQuantizer in slot 'one' on Client"


def test_a_codec_of_another_class_decompresses_though_its_code_has_that_type() -> None:
    compiler = Compiler().bind_peer_selector("peers", PresenceSelector).bind_aggregator("average", FedAvg)
    compiler = compiler.bind_codec("one", ScalarQuantizer)
    compiler.bind_codec("two", Bytes).compile(between("two"))
    with refused(BindingError, SIGNS_READ, "compressed at Compress", "bind one class to both slots"):
        compiler.bind_codec("two", Signs).compile(between("two"))


def test_one_slot_of_two_codecs_that_meet() -> None:
    compiler = Compiler().bind_peer_selector("peers", PresenceSelector).bind_aggregator("average", FedAvg)
    compiler = compiler.bind_codec("one", ScalarQuantizer, target="Client")
    compiler.bind_codec("one", ScalarQuantizer, target="Server").compile(between("one"))
    with refused(BindingError, "acme.Signs in slot 'one' on Server", "bind one class to slot 'one'"):
        compiler.bind_codec("one", Signs, target="Server").compile(between("one"))


@pytest.mark.parametrize("looped", [False, True])
def test_two_codecs_on_one_device_and_in_a_loop(looped: bool) -> None:
    class Here(Module):
        def body(self, g: Graph) -> None:
            one, two = CodecSlot("one", ScalarQuantizer), CodecSlot("two", Signs)
            code = one.compress(g, g.input("x", np.float32, [2]))
            if not looped:
                g.output("y", two.decompress(g, code))  # <-
                return
            with g.loop(2) as step:
                found = step.collect(two.decompress(g, code))  # <-
            g.output("y", found)

    with refused(BindingError, "acme.Signs in slot 'two' decompresses what bb.ScalarQuantizer in slot 'one'"):
        Compiler().compile(Here())


def searched(shape: list[int | None]) -> None:
    class Searched(Module):
        def body(self, g: Graph) -> None:
            ids, _ = IndexSlot("index").search(g, g.input("q", np.float32, shape), k=1)  # <-
            g.output("ids", ids)

    Compiler().bind_index("index", FlatIndex, {"dim": 8}).compile(Searched())


def test_vectors_of_another_length_than_the_index_holds() -> None:
    searched([8])
    searched([None, 8])
    for shape in ([7], [2, 7]):
        with refused(TypeConstraintFailed, "index 'index' takes Tensor[…,8] as query"):
            searched(shape)


# --- components of one's own say such things, too


class Halves(Codec):
    """Packs rows of `width` numbers; says so."""

    TYPE_NAME = "test.Halves"

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Any]) -> Mapping[str, str]:
        width = config.get("width")
        return {"Compress.t": f"F32[n,{width}]", "Compress.code": "U8[n,4]", "Decompress.code": "U8[n,4]"}

    @classmethod
    def construct(cls, env: Any) -> Any:
        return cls()

    def train_codebook(self, ctx: Any, training: Any) -> None: ...

    def compress(self, ctx: Any, t: Any) -> Any: ...

    def decompress(self, ctx: Any, code: Any) -> Any: ...


class Packed(Module):
    def __init__(self, *shape: int | None) -> None:
        self.shape = shape
        super().__init__()

    def body(self, g: Graph) -> None:
        codec = CodecSlot("codec")
        code = codec.compress(g, g.input("x", np.float32, self.shape))  # <-
        g.output("y", code)


def test_a_component_of_ones_own_says_what_it_takes_and_yields() -> None:
    compiler = Compiler().bind_codec("codec", Halves, {"width": 6})
    found = compiler.compile_program(Packed(5, 6))
    assert str(found.functions[0].types["y"]) == "Tensor<U8>[5,4]"
    with refused(TypeConstraintFailed, "takes F32[?,6] as t", "got F32[5,7]"):
        compiler.compile(Packed(5, 7))


def test_a_port_that_an_op_does_not_have_is_refused() -> None:
    class Misspelt(Halves):
        TYPE_NAME = "test.Misspelt"

        @classmethod
        def port_types(cls, config: Any, tensors: Any) -> Any:
            return {"Compress.codes": "U8[n,4]"}

    with refused(BindingError, "'Compress.codes'", "did you mean 'Compress.code'", "bind_codec('codec')"):
        Compiler().bind_codec("codec", Misspelt)  # <-


@pytest.mark.parametrize(
    "answer",
    [
        "F33[2]",
        7,
        {"Compress.t": "no type at all"},
        ["F32"],
        {"Compress.code": "F32[Contribute.contributed]"},
    ],
)
def test_a_component_of_ones_own_that_says_nonsense(answer: Any) -> None:
    class Odd(Halves):
        TYPE_NAME = "test.Odd"

        @classmethod
        def port_types(cls, config: Any, tensors: Any) -> Any:
            return answer

    with refused(BindingError, "test.Odd.port_types", "bind_codec('codec')"):
        Compiler().bind_codec("codec", Odd)  # <-


def test_a_slots_own_component_that_says_nonsense_is_named_at_the_slots_line_and_at_its_own() -> None:
    @register
    class Hasty(Halves):
        TYPE_NAME = "test.Hasty"

        @classmethod
        def port_types(cls, config: Any, tensors: Any) -> Any:
            return {"Compress.t": f"F32[{config['width']}]"}

    class Coded(Module):
        codec = CodecSlot("codec", Hasty, {})  # <-

        def body(self, g: Graph) -> None:
            g.output("y", self.codec.compress(g, g.input("x", np.float32, [5, 6])))

    line = inspect.getsourcelines(Hasty.port_types)[1] + 2
    with refused(BindingError, f"KeyError: 'width' (test_bound_inputs.py:{line})", "slot 'codec'"):
        Compiler().compile(Coded())


# --- behind a gate, and weights -----------------------------------------------------------------------------


class Scored(Module):
    """A model that is scored with its two inputs in that order, once something is done."""

    home = "Server"
    model = ModelSlot("model", GraphModel, MODEL)
    data = DataSourceSlot("data", ArrayDataSource, {"one_hot": 2})

    def body(self, g: Graph) -> None:
        done = self.model.load_parameters(g, f32(g, "p", 58))
        x, y = self.data.next_batch(g)
        loss = self.model.evaluate(g, y, x, after=done)  # <-
        g.output("loss", loss)


def test_a_value_behind_a_gate_is_refused_by_who_takes_it() -> None:
    with refused(TypeConstraintFailed, "model 'model' takes F32[?,4] as input, got F32[?,2]"):
        Compiler().compile(Scored())


class Weighed(Module):
    """An aggregator whose contributions weigh a value of that shape."""

    home = "Server"
    agg = AggregatorSlot("agg", FedAvg)

    def __init__(self, *shape: int | None) -> None:
        self.shape = shape
        super().__init__()

    def body(self, g: Graph) -> None:
        done = self.agg.contribute(g, f32(g, "x", 4), weight=f32(g, "w", *self.shape))  # <-
        g.output("mean", self.agg.aggregate(g, after=done)[0])


@pytest.mark.parametrize("shape", [(4,), (1, 2), (None, 3)])
def test_a_weight_that_cannot_be_one_number(shape: tuple[int | None, ...]) -> None:
    with refused(TypeConstraintFailed, "its weight has shape [", "a contribution weighs one number"):
        Compiler().compile(Weighed(*shape))


@pytest.mark.parametrize("shape", [(), (1,), (None,), (1, 1)])
def test_a_weight_that_may_be_one_number(shape: tuple[int | None, ...]) -> None:
    Compiler().compile(Weighed(*shape))
