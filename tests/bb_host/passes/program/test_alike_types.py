"""An aggregate has the shape of what is contributed, where all that the compiler sees of it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from bb_edge.components import FedAvg, GraphModel, PresenceSelector
from bb_host import AggregatorSlot, Compiler, Graph, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.diagnostics import ProgramWarning
from bb_host.errors import TypeConstraintFailed
from bb_host.learn import mlp, trainable

Given = Callable[[Graph, Any], Any]


class Own(FedAvg):
    """One whose results are its own, of a shape that it does not say."""

    TYPE_NAME = "test.OwnResults"

    @classmethod
    def port_types(cls, config: Any, tensors: Any) -> Mapping[str, str]:
        return {"Contribute.contribution": "Float"}


class Summed(Module):
    """Each peer answers what it was sent, `replied`; the sum of `summed` is handed on."""

    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")

    def __init__(self, replied: Given, summed: Callable[..., Any], aggregator: type = FedAvg) -> None:
        self.mean = AggregatorSlot("mean", aggregator, at="Server")
        self.replied, self.summed = replied, summed
        super().__init__()

    def body(self, g: Graph) -> None:
        with g.rounds(1) as start:
            peers = self.clients.sample(g, n=2, min=1, after=start)
            sent = g.constant(np.zeros((3, 4), np.float32))
            r = g.request("work", peers, sent, deadline_ns=S)
            r.reply(self.replied(g, r.value))
            g.app_emit("mean", g.net_out("mean", peers, self.summed(g, self.mean, r, sent)))


def contributed(g: Graph, slot: AggregatorSlot, r: Any, sent: Any) -> Any:
    slot.contribute(g, r.answer, peer=r.answer.sender)
    return slot.aggregate(g, after=r.closed)[0]


def like_sent(g: Graph, slot: AggregatorSlot, r: Any, sent: Any) -> Any:
    slot.contribute(g, r.answer, peer=r.answer.sender, sent=sent)
    return slot.aggregate(g, after=r.closed)[0]


def rows(g: Graph, slot: AggregatorSlot, r: Any, sent: Any) -> Any:
    return slot.aggregate(g, r.responses)[0]


def both(g: Graph, slot: AggregatorSlot, r: Any, sent: Any) -> Any:
    slot.contribute(g, g.onnx.reshape(r.answer, [12]))
    return contributed(g, slot, r, sent)


def in_a_branch(g: Graph, slot: AggregatorSlot, r: Any, sent: Any) -> Any:
    slot.contribute(g, r.answer, peer=r.answer.sender)

    def flat(inner: Graph) -> None:
        slot.contribute(inner, inner.onnx.reshape(sent, [12]))

    def as_sent(inner: Graph) -> None:
        slot.contribute(inner, sent)

    g.onnx.if_(g.onnx.reduce_max(sent, keepdims=0) > 0.0, flat, as_sent)
    return slot.aggregate(g, after=r.closed)[0]


def the_last(g: Graph, slot: AggregatorSlot, r: Any, sent: Any) -> Any:
    last = slot.current_tensor(g, r.closed)
    slot.contribute(g, r.answer, peer=r.answer.sender)
    slot.aggregate(g, after=r.closed)
    return last


def as_it_came(g: Graph, value: Any) -> Any:
    return value


def of_some_rows(g: Graph, value: Any) -> Any:
    return g.onnx.compress(value, g.onnx.reduce_max(g.onnx.abs(value), [1], keepdims=0) >= 0.0, axis=0)


def planned(module: Module) -> dict[str, int]:
    """Planned bytes of what arrives at each port of a client."""
    program = Compiler().compile_program(module)
    client = next(f for f in program.functions if f.name == "Client")
    return {op.facts.port: op.facts.max_bytes[0] for op in client.ops if op.facts.max_bytes and op.facts.port}


SIZE = 3 * 4 * 4 + 1024


@pytest.mark.parametrize("summed", [contributed, like_sent, rows, the_last])
def test_an_aggregate_has_the_shape_of_what_counts(summed: Callable[..., Any]) -> None:
    assert planned(Summed(as_it_came, summed))["mean"] == SIZE


def test_it_has_that_of_what_was_sent_where_that_alone_is_known() -> None:
    assert planned(Summed(of_some_rows, like_sent))["mean"] == SIZE
    with pytest.warns(ProgramWarning, match="layout-unknown"):
        assert planned(Summed(of_some_rows, contributed))["mean"] == 0


@pytest.mark.parametrize("summed", [both, in_a_branch])
def test_nothing_is_known_where_shapes_differ(summed: Callable[..., Any]) -> None:
    assert planned(Summed(as_it_came, summed))["mean"] == 0


def test_a_contribution_that_is_not_like_what_was_sent_is_refused_where_it_is_given() -> None:
    def loaded(g: Graph, slot: AggregatorSlot, r: Any, sent: Any) -> Any:
        mean = like_sent(g, slot, r, sent)
        return mean + sent  # which takes no mean of what came

    with pytest.raises(TypeConstraintFailed, match=r"Contribute.*it is given \[5\], and `sent` is \[3,4\]"):
        Compiler().compile_program(Summed(lambda g, value: g.onnx.reshape(value, [12])[:5], loaded))


def test_nothing_is_known_of_results_that_an_author_writes() -> None:
    assert planned(Summed(as_it_came, contributed, Own))["mean"] == 0


def test_a_model_of_another_size_does_not_take_a_mean() -> None:
    class Wrong(Summed):
        model = ModelSlot("model", GraphModel, trainable(mlp([2, 2])))

        def body(self, g: Graph) -> None:
            super().body(g)
            self.model.load_parameters(g, self.mean.current_tensor(g))

    with pytest.raises(
        TypeConstraintFailed, match=r"takes F32\[6\] or an empty vector as params, got F32\[3,4\]"
    ):
        Compiler().compile_program(Wrong(as_it_came, contributed))
