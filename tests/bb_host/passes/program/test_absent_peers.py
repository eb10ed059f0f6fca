"""Peers that are known though not up: durable sends alone go to them, and pass no gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.components import ConstantView, PresenceSelector
from bb_edge.ir import keys
from bb_host import MS, Graph, Module, PeerSelectorSlot
from bb_host.compiler import Compiler
from bb_host.errors import AbsentPeers, BindingError
from bb_host.ir.spelling import written

Send = Callable[[Graph, Any, Any], None]


def ask(g: Graph, port: str, x: Any, peers: Any, **more: Any) -> None:
    r = g.request(port, peers, x, deadline_ns=500 * MS, **more)
    r.reply(r.value)


class Telling(Module):
    """A server that tells clients, whether they are there or not, in a way that the test gives."""

    clients = PeerSelectorSlot("clients", peer_class="Client")
    present = PeerSelectorSlot("present", peer_class="Client")

    def __init__(self, send: Send) -> None:
        self.send = send

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", (4,))
        self.send(g, x, self.clients.sample(g, n=2, after=x))
        ask(g, "ask", x, self.present.sample(g, n=2, after=x))


def compiled(send: Send, selector: type = PresenceSelector, **config: object) -> Any:
    compiler = Compiler().bind_peer_selector("present", PresenceSelector)
    return compiler.bind_peer_selector("clients", selector, config).compile_program(Telling(send))


def durably(g: Graph, x: Any, peers: Any) -> None:
    g.app_emit("got", g.net_out("told", peers, x, durable=True))


def gates(program: Any) -> dict[str, list[str]]:
    """By wire port, the gates on the list of peers that it sends to."""
    (main,) = (f for f in program.functions if written(f.facts).get(keys.PARTITION_KEY) == "self")
    of_wire: dict[str, list[str]] = {}
    for op in main.ops:
        if op.domain == keys.GATE_DOMAIN and op.op_type.endswith("Tx"):
            of_wire.setdefault(op.facts.wire_id, []).append(op.op_type)
    sends = (op for op in main.ops if op.domain == keys.WIRE_DOMAIN and op.op_type.startswith("Send"))
    return {op.facts.port: of_wire.get(op.facts.wire_id, []) for op in sends}


def test_durable_sends_go_to_them_without_a_gate() -> None:
    both = ["PeerHealthGateTx", "BackoffGateTx"]
    assert gates(compiled(durably, known=True)) == {"told": [], "ask": both}
    assert gates(compiled(lambda g, x, peers: g.wire.send("told", peers, x))) == {"told": both, "ask": both}


def asks(g: Graph, x: Any, peers: Any) -> None:
    ask(g, "asked", x, peers)


def asks_durably(g: Graph, x: Any, peers: Any) -> None:
    ask(g, "asked", x, peers, durable=True)


def sends(g: Graph, x: Any, peers: Any) -> None:
    g.app_emit("got", g.net_out("asked", peers, x))


@pytest.mark.parametrize("send", [asks, asks_durably, sends])
def test_nothing_else_does(send: Send) -> None:
    with pytest.raises(AbsentPeers, match=r"test_absent_peers.py:.*'clients' may be away.*durable=True"):
        compiled(send, known=True)
    compiled(send, known=False)


def test_a_selector_that_does_not_know_them_is_refused_where_it_is_bound() -> None:
    with pytest.raises(BindingError, match="known"):
        compiled(durably, ConstantView, known=True)
