"""Own components and their configurations: classes, bindings, settings, files, as authors get them wrong."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge import PeerId, install, load, register
from bb_edge.components import ArrayDataSource, FedAvg, Float16Codec, GraphModel, ScalarQuantizer
from bb_edge.ir.opsets import Table
from bb_edge.registry import Registry, RegistryError
from bb_edge.roles import Aggregator, Codec, ComponentError, DataSource, ProtocolComponent, Setting
from bb_edge.roles.errors import ConstructionFailed
from bb_host import AggregatorSlot, CodecSlot, Compiler, DataSourceSlot, ModelSlot, Module
from bb_host.errors import BindingError, LearnError, SlotError, UnknownStage
from bb_host.ir.proto import to_bytes
from bb_host.learn import mlp, trainable
from tests.aids.refusals import refused

NET = mlp([4, 3], seed=1)


class Halves(Codec):
    TYPE_NAME = "acme.Halves"
    CONFIG = {"level": Setting.integer(1, 1, 9), "mode": Setting.text("fast", ("fast", "small"))}  # noqa: RUF012

    def __init__(self, level):
        self.level = level

    @classmethod
    def construct(cls, env):
        return cls(env.settings(cls)["level"])

    def compress(self, ctx, t):
        return t.astype(np.float16)

    def decompress(self, ctx, code):
        return code.astype(np.float32)


class FedProx(GraphModel):
    TYPE_NAME = "acme.FedProx"
    CONFIG = {"mu": Setting.number(0.01, 0.0)}  # noqa: RUF012

    @classmethod
    def construct(cls, env):
        model = super().construct(env)
        model.mu = env.settings(cls)["mu"]
        return model

    def load_parameters(self, ctx, params):
        super().load_parameters(ctx, params)
        self.start = self.parameters.copy()

    def adjust_gradient(self, gradient):
        gradient += self.mu * (self.parameters - self.start)


class Coded(Module):
    codec = CodecSlot("codec")

    def body(self, g):
        x = g.input("x", "F32", (4,))
        g.output("y", self.codec.decompress(g, self.codec.compress(g, x)))


def artifact(compiler, module=Coded):
    return to_bytes(compiler.compile_program(module()))


def on_device(data, registry_of=(), **components):
    registry = Registry()
    for kind in registry_of:
        registry.register(kind)
    program = load(data)
    return install(
        PeerId.from_name("n"), (), program, list(program.targets), components=components, registry=registry
    )


# --- configurations, where they are bound ---------------------------------------------------------------

BAD_CONFIGS = {
    "a misspelt key of a data source": (
        "data_source",
        ArrayDataSource,
        {"one_hott": 4},
        "did you mean 'one_hot'?",
    ),
    "a misspelt key, by name": (
        "data_source",
        "bb.ArrayDataSource",
        {"batchsize": 4},
        "did you mean 'batch_size'?",
    ),
    "a negative batch": ("data_source", ArrayDataSource, {"batch_size": -1}, "must lie in [0, "),
    "a batch as a text": ("data_source", ArrayDataSource, {"batch_size": "8"}, "must be an integer, not '8'"),
    "a flag as a number": ("data_source", ArrayDataSource, {"shuffle": 1}, "must be true or false, not 1"),
    "something that is not a choice": (
        "data_source",
        ArrayDataSource,
        {"remainder": "keep"},
        "one of drop, wrap",
    ),
    "keys where there are none": ("codec", Float16Codec, {"min": 3}, "bb.Float16Codec has none"),
    "rounds out of range": ("aggregator", FedAvg, {"remembered_rounds": 0}, "must lie in [1, 1024]"),
    "another aggregator's key": (
        "aggregator",
        FedAvg,
        {"trim": 0.1},
        "known keys of bb.FedAvg: allow_nonfinite",
    ),
    "a range as a text": ("codec", ScalarQuantizer, {"low": "-1"}, "must be a number, not '-1'"),
    "threads of a backend": ("backend", "bb.TFLiteBackend", {"threads": 0}, "must lie in [1, 64]"),
    "an own class's key": ("codec", Halves, {"levle": 2}, "did you mean 'level'?"),
    "an own class's value": ("codec", Halves, {"level": 10}, "must lie in [1, 9]"),
    "an own class's choice": ("codec", Halves, {"mode": "tiny"}, "must be one of fast, small, not 'tiny'"),
    "a model without a model": ("model", GraphModel, {"a": 1}, "unknown configuration key"),
    "a model of settings alone": ("model", GraphModel, {"learning_rate": 0.1}, "there is no model"),
    "a model of nothing": ("model", "bb.GraphModel", None, "there is no model"),
    "an ONNX model as it is": ("model", GraphModel, NET, "a config is a mapping"),
    "a key of the base, not of the subclass": (
        "model",
        FedProx,
        {"mu": 0.1, "lr": 1},
        "unknown configuration key",
    ),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_a_configuration_is_checked_where_it_is_bound(case):
    role, kind, config, words = BAD_CONFIGS[case]
    bind = getattr(Compiler(), f"bind_{role}")
    with refused(BindingError, f"bind_{role}('it')", words):
        bind("it", kind, config)  # <-


def test_a_configuration_of_a_slot_is_checked_where_it_is_declared():
    class Mean(Module):
        agg = AggregatorSlot("agg", FedAvg, {"max_peer": 3})  # <-

        def body(self, g):
            self.agg.contribute(g, g.input("x", "F32", (4,)))

    with refused(SlotError, "slot 'agg': bb.FedAvg, key 'max_peer'", "did you mean 'max_peers'?"):
        Mean().record()


@pytest.mark.parametrize("config", [None, {"rate": 3}])
def test_a_class_in_a_slot_of_another_role(config):
    """Its settings are of another role, and not what is wrong."""

    class Mean(Module):
        agg = AggregatorSlot("agg", Halves, config)  # <-

        def body(self, g):
            self.agg.contribute(g, g.input("x", "F32", (4,)))

    with refused(SlotError, "acme.Halves is a component of role codec"):
        Mean().record()


def test_a_learning_rate_that_is_a_word():
    with refused(LearnError, "learning_rate must be a number, not 'fast'"):
        trainable(NET, learning_rate="fast")  # <-


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
def test_a_learning_rate_that_is_no_number(rate):
    with refused(LearnError, "learning_rate must be finite"):
        trainable(NET, learning_rate=rate)  # <-


def test_keys_of_a_trainable_model_are_those_of_its_class():
    Compiler().bind_model("model", FedProx, trainable(NET, config={"mu": 0.1, "kept_activations": 2}))
    with refused(BindingError, "acme.FedProx, key 'mux'", "did you mean 'mu'?"):
        Compiler().bind_model("model", FedProx, trainable(NET, config={"mux": 0.1}))  # <-
    with refused(BindingError, "bb.GraphModel, key 'mu'", "known keys"):
        Compiler().bind_model("model", GraphModel, trainable(NET, config={"mu": 0.1}))  # <-
    with refused(BindingError, "key 'mu' has no JSON form"):
        Compiler().bind_model("model", FedProx, trainable(NET, config={"mu": object()}))  # <-


def test_a_misspelt_slot():
    compiler = Compiler().bind_codec("kodec", Halves)  # <-
    with refused(BindingError, "Coded has no slot 'kodec'", "did you mean 'codec'?"):
        compiler.compile(Coded())


# --- classes --------------------------------------------------------------------------------------------


class Misspelt(Aggregator):
    TYPE_NAME = "acme.Misspelt"

    @classmethod
    def construct(cls, env):
        return cls()

    def contribut(self, ctx, contribution, weight=None, peer=None, round=None, sent=None): ...

    def aggregate(self, ctx, stack=None, round=None): ...

    def current_tensor(self, ctx, trigger=None): ...


class Short(DataSource):
    TYPE_NAME = "acme.Short"

    @classmethod
    def construct(cls, env):
        return cls()

    def next_batch(self):
        return np.zeros((2, 2), np.float32), None

    def num_samples(self, ctx):
        return np.array(2)


class Opless(ProtocolComponent):
    TYPE_NAME = "acme.Opless"

    @classmethod
    def construct(cls, env):
        return cls()

    @classmethod
    def atomic_opset(cls):
        table = Table(cls.TYPE_NAME)
        table.op("Greet", "sender:PeerId, payload:Bytes", "", remote=True)
        return table.opset()

    def gret(self, ctx, sender, payload): ...


class Nameless(Halves):
    TYPE_NAME = ""


CLASSES = {
    "a misspelt method": ("aggregator", Misspelt, "lacks contribute(", "did you mean 'contribute'?"),
    "a method without ctx": (
        "data_source",
        Short,
        "next_batch(self) cannot be called",
        "def next_batch(self, ctx)",
    ),
    "an op without a method": ("protocol", Opless, "its op Greet has no method", "did you mean 'gret'?"),
    "no name": ("codec", Nameless, "TYPE_NAME", ""),
    "a class that is not a component": (
        "codec",
        type("Plain", (), {"TYPE_NAME": "a.P"}),
        "is not a component class",
        "Codec",
    ),
    "an object": ("codec", Halves(1), "is not a component class", "give the class: Halves"),
    "a class of another role": ("model", Halves, "is a component of role codec", "use bind_codec"),
}


@pytest.mark.parametrize("case", CLASSES)
def test_a_class_that_is_not_whole_is_refused_where_it_is_bound(case):
    role, kind, what, hint = CLASSES[case]
    bind = getattr(Compiler(), f"bind_{role}")
    with refused(BindingError, what, hint):
        bind("it", kind)  # <-


@pytest.mark.parametrize("case", ["a misspelt method", "a method without ctx", "an op without a method"])
def test_a_class_that_is_not_whole_is_refused_where_it_is_registered(case):
    _, kind, what, hint = CLASSES[case]
    with refused(RegistryError, kind.__name__, what, hint):
        register(kind)  # <-


def test_a_name_that_another_class_has():
    registry = Registry(entry_points=False)
    registry.register(Halves)
    other = type("Other", (Halves,), {})
    with refused(RegistryError, "TYPE_NAME 'acme.Halves' is taken by", "choose another name"):
        registry.register(other)  # <-
    with refused(
        RegistryError, "TYPE_NAME 'bb.FedAvg' belongs to a built-in component", 'TYPE_NAME = "package.Mine"'
    ):
        registry.register(type("Mine", (FedAvg,), {}))  # <-
    with refused(RegistryError, "is not a subclass of Component"):
        registry.register(object)  # <-


# --- compiler passes ------------------------------------------------------------------------------------


class Passes:
    NAME = "passes"

    def run(self, program, options, stats):
        return program


class Unnamed:
    def run(self, program, options, stats):
        return program


STAGES = {
    "a class": (Passes, "validate", UnknownStage, "is not a stage", "give an object: Passes()"),
    "no NAME": (Unnamed(), "validate", UnknownStage, "is not a stage", "give it NAME and run"),
    "a misspelt neighbour": (Passes(), "typesolver", UnknownStage, "no stage 'typesolver'", "'type_solver'?"),
}


@pytest.mark.parametrize("case", STAGES)
def test_what_is_no_pass(case):
    stage, after, kind, *words = STAGES[case]
    with refused(kind, *words):
        Compiler().with_stage(stage, after=after)  # <-


def test_a_pass_that_is_there_already():
    compiler = Compiler().with_stage(Passes(), after="validate")
    with refused(UnknownStage, "stage 'passes' is there already"):
        compiler.with_stage(Passes(), after="validate")  # <-


# --- devices --------------------------------------------------------------------------------------------


def test_a_subclass_trains_with_its_own_key():
    class Trains(Module):
        model = ModelSlot("model")

        def body(self, g):
            x, y = g.input("x", "F32", (2, 4)), g.input("grad", "F32", (2, 3))
            loaded = self.model.load_parameters(g, g.input("p", "F32", (15,)))
            out = self.model.forward(g, x, after=loaded)
            learned = self.model.backward(g, y, after=out)
            g.output("p2", self.model.params(g, after=self.model.step(g, after=learned)))

    data = artifact(Compiler().bind_model("model", FedProx, trainable(NET, config={"mu": 0.5})), Trains)
    with refused(ComponentError, "at least 0.0, not -1", "out: the artifact has 0.5", marked=False):
        on_device(data, [FedProx], model={"mu": -1})
    with refused(ComponentError, "at least 0.0, not -2", "out: it is 0.0 by default", marked=False):
        on_device(data, [FedProx], model={"weight_decay": -2})
    with refused(ComponentError, "unknown configuration key", "did you mean 'momentum'?", marked=False):
        on_device(data, [FedProx], model={"momentun": 0.5})
    on_device(data, [FedProx], model={"mu": 0.25})


FAILING = {
    "a missing key": (lambda env: env.config["levle"], "KeyError: 'levle'"),
    "an argument that is not there": (lambda env: Halves(levl=1), "TypeError: "),
    "a file that is not there": (lambda env: open("/nope.csv"), "FileNotFoundError: "),  # noqa: SIM115
    "nothing returned": (lambda env: None, "construct returns None"),
}


@pytest.mark.parametrize("case", FAILING)
def test_what_construct_raises_names_slot_type_and_exception(case):
    construct, words = FAILING[case]

    class Fails(Halves):
        TYPE_NAME = "acme.Fails"

        @classmethod
        def construct(cls, env):
            return construct(env)

    data = artifact(Compiler().bind_codec("codec", Fails))
    kind = ComponentError if case == "nothing returned" else ConstructionFailed
    with refused(kind, "slot 'codec' of 'Coded'", "acme.Fails cannot be built", words, marked=False):
        on_device(data, [Fails])


def test_settings_of_a_device_are_checked_too():
    data = artifact(Compiler().bind_codec("codec", Halves))
    with refused(ComponentError, "slot 'codec' of", "key 'level': must lie in [1, 9], not 0", marked=False):
        on_device(data, [Halves], codec={"level": 0})


def test_a_source_without_data_is_the_devices_business():
    class Reads(Module):
        shard = DataSourceSlot("shard")

        def body(self, g):
            g.app_emit("n", self.shard.num_samples(g))

    data = artifact(Compiler().bind_data_source("shard", ArrayDataSource, {"batch_size": 2}), Reads)
    with refused(ComponentError, "slot 'shard'", "no data", "--set shard.path=FILE", marked=False):
        on_device(data)
