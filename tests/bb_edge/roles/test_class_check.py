"""Component classes that are not whole are refused before a program meets them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from bb_edge.components import FedAvg, GraphModel
from bb_edge.extend import CombiningAggregator
from bb_edge.ir import keys
from bb_edge.ir.opsets import Table
from bb_edge.registry import BUILT_IN, default_registry
from bb_edge.roles import (
    Aggregator,
    Backend,
    Codec,
    Component,
    ContractError,
    PeerSelector,
    ProtocolComponent,
    Setting,
)
from bb_edge.roles.class_check import check_class


class Whole(Codec):
    TYPE_NAME: ClassVar[str] = "acme.Whole"

    @classmethod
    def construct(cls, env: Any) -> Whole:
        return cls()

    def compress(self, ctx: Any, t: Any) -> Any:
        return t

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code


class Counter(ProtocolComponent):
    TYPE_NAME: ClassVar[str] = "acme.Counter"

    @classmethod
    def construct(cls, env: Any) -> Counter:
        return cls()

    @classmethod
    def atomic_opset(cls) -> Any:
        table = Table(cls.TYPE_NAME)
        table.op("Count", "t:Trigger", "n:Tensor<I64>", "by:int=1")
        table.op("Tell", "sender:PeerId, payload:Bytes", "", remote=True)
        return table.opset()

    def count(self, ctx: Any, t: Any, *, by: int) -> Any: ...

    def tell(self, ctx: Any, sender: Any, payload: Any) -> Any: ...


def test_whole_classes_pass() -> None:
    for kind in (Whole, Counter, *(default_registry().lookup(name) for name in BUILT_IN)):
        check_class(kind)


def _made(base: type, **members: Any) -> type:
    return type("Made", (base,), {"TYPE_NAME": "acme.Made", "__module__": "acme", **members})


def _misspelt() -> type:
    class TrimmedMean(Aggregator):
        TYPE_NAME: ClassVar[str] = "acme.TrimmedMean"

        @classmethod
        def construct(cls, env: Any) -> TrimmedMean: ...

        def contribut(self, ctx: Any, contribution: Any) -> None: ...

        def aggregate(self, ctx: Any, stack: Any = None, round: Any = None) -> Any: ...

        def current_tensor(self, ctx: Any, trigger: Any = None) -> Any: ...

    return TrimmedMean


def _with_ops(notation: tuple[str, ...], **members: Any) -> type:
    def atomic_opset(cls: Any) -> Any:
        table = Table("acme.Made")
        table.op(*notation)
        return table.opset()

    return _made(Counter, atomic_opset=classmethod(atomic_opset), **members)


CASES: dict[str, tuple[type, str, str]] = {
    "a misspelt method": (
        _misspelt(),
        "the class lacks contribute(self, ctx, contribution, weight, peer, round, sent)",
        "it has 'contribut': did you mean 'contribute'?",
    ),
    "a rule of its own that is not there": (
        _made(CombiningAggregator),
        "the class lacks combiner(self, size)",
        "define what is missing",
    ),
    "no construct": (
        _made(Codec, compress=Whole.compress, decompress=Whole.decompress),
        "the class lacks construct(cls, env)",
        "define what is missing",
    ),
    "no TYPE_NAME": (_made(Whole, TYPE_NAME=""), "has no TYPE_NAME", 'TYPE_NAME = "package.Made"'),
    "a TYPE_NAME that is a number": (_made(Whole, TYPE_NAME=3), "has no TYPE_NAME", "name it"),
    "a separator in the TYPE_NAME": (_made(Whole, TYPE_NAME="a|b"), "separates bindings", "leave it out"),
    "no ROLE": (_made(Component), "the class has no ROLE", "derive it from a Contract"),
    "a misspelt ROLE": (_made(Whole, ROLE="codek"), "ROLE 'codek' is not a role", "did you mean 'codec'?"),
    "a role without its class": (
        _made(Component, ROLE=keys.ROLE_BACKEND),
        "a component of role backend must be a subclass of Backend",
        "derive it",
    ),
    "construct on an object": (
        _made(Whole, construct=lambda self, env: None),
        "construct is called on the class",
        "@classmethod",
    ),
    "too few arguments": (
        _made(Whole, compress=lambda self, t: t),
        "compress(self, t) cannot be called as compress(ctx, t)",
        "def compress(self, ctx, t)",
    ),
    "an argument of the contract that is left out": (
        _made(FedAvg, contribute=lambda self, ctx, contribution, weight=None: None),
        "cannot be called as contribute(ctx, contribution, weight, peer, round, sent)",
        "def contribute(self, ctx, contribution, weight, peer, round, sent)",
    ),
    "an attribute that is left out": (
        _made(
            PeerSelector,
            construct=classmethod(lambda cls, env: None),
            sample=lambda self, ctx, n: (),
            current_view=lambda self, ctx: (),
        ),
        "cannot be called as sample(ctx, n=…, min=…)",
        "def sample(self, ctx, *, n, min)",
    ),
    "an op without a method": (
        _with_ops(("Counts", "t:Trigger")),
        "its op Counts has no method",
        "did you mean 'count'? define counts(self, ctx, …)",
    ),
    "an op whose method takes less": (
        _with_ops(("Count", "t:Trigger, by:Bytes")),
        "cannot be called as count(ctx, t, by)",
        "def count(self, ctx, t, by)",
    ),
    "an opset that fails": (
        _with_ops(("Count", "t:Trigger", "", "by:integer")),
        "atomic_opset() fails: 'by:integer' is not an attribute",
        "all inputs in one text",
    ),
    "CONFIG of another kind": (
        _made(GraphModel, CONFIG=("mu",)),
        "CONFIG is not a mapping",
        "Setting.number",
    ),
    "CONFIG of other values": (_made(GraphModel, CONFIG={"mu": 0.1}), "CONFIG is not a mapping", "Setting"),
    "a default that cannot be": (
        _made(GraphModel, CONFIG={"mu": Setting.number("fast")}),
        "CONFIG: the default of 'mu' must be a number",
        "another default",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_whole_says_what_and_how(case: str) -> None:
    kind, what, hint = CASES[case]
    with pytest.raises(ContractError) as caught:
        check_class(kind)
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_a_backend_is_checked_when_it_is_defined() -> None:
    with pytest.raises(ContractError, match="overrides neither execute nor a primitive"):
        _made(Backend)
