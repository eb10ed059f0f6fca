"""The Contracts against the op catalog, and the configuration readers."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest

from bb_edge.components import FedAvg, PresenceSelector
from bb_edge.ir import keys
from bb_edge.ir.opsets import opset
from bb_edge.roles import (
    TRIGGER,
    Aggregator,
    Codec,
    Component,
    ComponentEnv,
    ComponentError,
    ComponentStateError,
    Composite,
    DataSource,
    Index,
    Model,
    OptionalMethodError,
    PeerSelector,
    Setting,
    forgets,
    method_name,
    offers,
)

CONTRACTS = {
    keys.ROLE_MODEL_DOMAIN: Model,
    keys.ROLE_AGGREGATOR_DOMAIN: Aggregator,
    keys.ROLE_INDEX_DOMAIN: Index,
    keys.ROLE_COMPRESSOR_DOMAIN: Codec,
    keys.ROLE_DATA_LOADER_DOMAIN: DataSource,
    keys.ROLE_PEER_SELECTOR_DOMAIN: PeerSelector,
}


class Minimal(Model):
    TYPE_NAME = "test.Minimal"

    def forward(self, ctx: object, input: np.ndarray) -> np.ndarray:
        return input

    def load_parameters(self, ctx: object, params: np.ndarray) -> None: ...

    def params(self, ctx: object) -> np.ndarray:
        return np.empty(0, np.float32)


@pytest.mark.parametrize("domain", keys.ROLE_DOMAINS)
def test_every_op_has_a_method_with_its_inputs_and_attributes(domain: str) -> None:
    table = opset(domain)
    assert table is not None
    contract = CONTRACTS[domain]
    assert keys.ROLE_OF_DOMAIN[domain] == contract.ROLE
    for op in table.ops.values():
        parameters = list(inspect.signature(getattr(contract, method_name(op.name))).parameters.values())[2:]
        positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        assert [p.name for p in positional] == [port.name for port in op.inputs], op.name
        assert [p.default is not p.empty for p in positional] == [
            port.ready.value == "optional" for port in op.inputs
        ], op.name
        named = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
        assert set(named) == {attr.name for attr in op.attrs}, op.name
        for attr in op.attrs:
            default = named[attr.name].default
            assert attr.required if default is inspect.Parameter.empty else default == attr.default, op.name


@pytest.mark.parametrize(
    ("op", "method"),
    [("LoadParameters", "load_parameters"), ("Params", "params"), ("OnDataLoaded", "on_data_loaded")],
)
def test_method_names(op: str, method: str) -> None:
    assert method_name(op) == method


def test_an_optional_method_refuses_by_name_and_is_known_not_to_be_there() -> None:
    model = Minimal()
    assert offers(model, "Forward") and offers(Minimal, "Params")
    assert not offers(model, "Backward")
    assert not offers(model, "Frobnicate")
    with pytest.raises(OptionalMethodError, match=r"test\.Minimal does not offer Backward"):
        model.backward(None, np.zeros(1))  # type: ignore[arg-type]


def test_a_contract_half_kept_cannot_be_built() -> None:
    class Half(Model):
        TYPE_NAME = "test.Half"

    with pytest.raises(TypeError, match="forward"):
        Half()  # type: ignore[abstract]


def test_a_component_without_state_refuses_one() -> None:
    component = Component()
    assert component.serialize() == b""
    component.restore(b"")
    with pytest.raises(ComponentStateError):
        component.restore(b"x")


def test_the_trigger_is_one_and_stays_one() -> None:
    assert type(TRIGGER)() is TRIGGER
    assert copy.deepcopy(TRIGGER) is TRIGGER
    assert pickle.loads(pickle.dumps(TRIGGER)) is TRIGGER


def test_a_composite_gives_its_values_in_order() -> None:
    bundle = Composite(((0x0101, "a"), (0x0A, TRIGGER)))
    assert bundle.values == ("a", TRIGGER)
    assert len(bundle) == 2


def test_configuration_is_read_with_its_bounds() -> None:
    env = ComponentEnv("s", "T", {"n": 3, "x": 0.5, "t": "a", "f": True})
    assert env.integer("n", 1, 3, 3) == 3
    assert env.integer("other", 5) == 5
    assert env.number("x") == 0.5 and env.number("n") == 3.0
    assert env.text("t", choices=("a", "b")) == "a"
    assert env.flag("f", False) is True
    assert env.with_config({"n": 4}).integer("n") == 4 and env.integer("n") == 3


class Base(Component):
    TYPE_NAME = "acme.Base"
    CONFIG = {"rate": Setting.number(0.5, 0.0, 1.0), "mode": Setting.text(None, ("a", "b"))}  # noqa: RUF012


class Derived(Base):
    TYPE_NAME = "acme.Derived"
    CONFIG = {"mu": Setting.number(), "rate": Setting.number(0.25)}  # noqa: RUF012


class Free(Component):
    TYPE_NAME = "acme.Free"


def test_keys_of_a_subclass_extend_those_of_its_base() -> None:
    env = ComponentEnv("s", "T", {"mu": 1, "rate": 2})
    assert env.settings(Derived) == {"rate": 2.0, "mode": None, "mu": 1.0}
    assert isinstance(env.settings(Derived)["mu"], float)
    assert ComponentEnv("s").settings(Base) == {"rate": 0.5, "mode": None}
    said = r"slot 's' of 'T': key 'mu': unknown .* acme.Base: mode, rate\); key 'rate': must"
    with pytest.raises(ComponentError, match=said):
        env.settings(Base)
    with pytest.raises(ComponentError, match="key 'mu': missing configuration key"):
        ComponentEnv("s").settings(Derived)
    with pytest.raises(ComponentError, match=r"key 'rate': must lie in \[0.0, 1.0\], not 2"):
        ComponentEnv("s", "", {"rate": 2}).settings(Base)
    with pytest.raises(ComponentError, match=r"key 'ratte': .*did you mean 'rate'\?"):
        ComponentEnv("s", "", {"ratte": 2}).settings(Base)
    with pytest.raises(ComponentError, match="key 'mode': must be one of a, b, not 'c'"):
        ComponentEnv("s", "", {"mode": "c"}).settings(Base)


def test_all_keys_of_a_slot_that_do_not_fit_are_told_at_once() -> None:
    with pytest.raises(ComponentError) as caught:
        ComponentEnv("s", "T", {"ratte": 2, "mode": "", "rate": 10**4000}).settings(Derived)
    text = str(caught.value)
    assert text.startswith("slot 's' of 'T': key 'ratte': unknown configuration key (did you mean 'rate'?); ")
    assert "key 'mode': must be one of a, b, not ''" in text
    assert "key 'rate': must" in text and ", not 10000000000000000000… (4001 digits)" in text
    assert "key 'mu': missing configuration key" in text and len(text) < 600
    with pytest.raises(ComponentError, match=r"key 'mu': must be finite, not 1(0){19}… \(4001 digits\)"):
        ComponentEnv("s", "T", {"mu": 10**4000}).settings(Derived)
    with pytest.raises(ComponentError, match="and 12 more"):
        ComponentEnv("s", "T", {f"k{n}": n for n in range(20)}).settings(Base)


def test_the_value_that_holds_without_a_wrong_one_is_named() -> None:
    def told(env: ComponentEnv) -> str:
        with pytest.raises(ComponentError) as caught:
            env.settings(Base)
        return caught.value.hint

    compiled = {"rate": 0.75, "mode": "a"}
    env = ComponentEnv("s", "T", {"rate": 2.0, "mode": "a"}, compiled=compiled)
    assert told(env) == "give such a value, or leave the key out: the artifact has 0.75"
    assert "it is 0.5 by default" in told(ComponentEnv("s", "T", {"rate": 2.0}))
    of_artifact = ComponentEnv("s", "T", {"rate": 2.0}, compiled={"rate": 2.0})  # its own is the wrong one
    assert "it is 0.5 by default" in told(of_artifact)
    other = env.with_config({"rate": 3.0})  # of a component that this one builds
    assert "it is 0.5 by default" in told(other)
    assert "the artifact has 'a'" in told(ComponentEnv("s", "T", {"mode": "c"}, compiled=compiled))


def test_a_choice_that_is_empty_is_seen() -> None:
    with pytest.raises(ComponentError, match=r"must be one of '' \(nothing\), f16, not 'f8'"):
        ComponentEnv("s", "T", {"as": "f8"}).text("as", choices=("", "f16"))


def test_a_class_that_declares_no_keys_takes_all() -> None:
    assert ComponentEnv("s", "T", {"anything": 1}).settings(Free) == {}


def test_who_forgets_at_a_restart() -> None:
    assert not forgets(FedAvg) and not forgets(PresenceSelector)

    class Forgetful(Aggregator):
        def contribute(self, *_: object) -> None: ...

    class Still(Codec):
        def compress(self, ctx: object, t: object) -> object: ...

    class Trained(Still):
        def train_codebook(self, *_: object) -> None: ...

    class Source(DataSource):
        def next_batch(self, ctx: object) -> object: ...

    class Generator(Source):
        stateless = True

    class Cached(Still):
        stateless = False

    class Kept(Cached):
        def serialize(self) -> bytes:
            return b"x"

    found = {c.__name__ for c in (Forgetful, Still, Trained, Source, Generator, Cached, Kept) if forgets(c)}
    assert found == {"Forgetful", "Trained", "Source", "Cached"}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda e: e.integer("x"), "must be an integer"),
        (lambda e: e.integer("f"), "must be an integer"),
        (lambda e: e.integer("n", 1, 4), r"\[4, "),
        (lambda e: e.integer("n", 1, 0, 2), r"\[0, 2\]"),
        (lambda e: e.integer("none"), "missing"),
        (lambda e: e.number("t"), "must be a number"),
        (lambda e: e.number("inf"), "finite"),
        (lambda e: e.number("nan"), "finite"),
        (lambda e: e.text("n"), "must be a text"),
        (lambda e: e.text("t", choices=("b",)), "one of b"),
        (lambda e: e.flag("n", True), "true or false"),
        (lambda e: e.settings(Base), "unknown configuration key"),
        (lambda e: e.with_config({"mu": 1}).settings(Derived), "unknown configuration key"),
        (lambda e: e.require_backend(), "needs a backend"),
    ],
)
def test_a_bad_configuration_names_slot_and_key(read: object, message: str) -> None:
    env = ComponentEnv(
        "s", "T", {"n": 3, "x": 0.5, "t": "a", "f": True, "inf": float("inf"), "nan": float("nan")}
    )
    with pytest.raises(ComponentError, match=message) as caught:
        read(env)  # type: ignore[operator]
    assert "slot 's' of 'T'" in str(caught.value)
