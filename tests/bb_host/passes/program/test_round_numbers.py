"""`bb.OncePerRound` goes by the number of an attempt: of a round's own number the author is warned."""

from __future__ import annotations

import pytest

from bb_edge.components import OncePerRound, PresenceSelector
from bb_host import Compiler, Module, PeerSelectorSlot, ProtocolSlot, S


class Tiers(Module):
    """A server that asks gateways, which ask clients; `chosen` is what of the start the clients go by."""

    name, home = "Tiers", "Server"
    gateways = PeerSelectorSlot("gateways", PresenceSelector, peer_class="Gateway", at="Server")
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client", at="Gateway")
    once = ProtocolSlot("once", OncePerRound, at="Client")

    def __init__(self, chosen) -> None:
        super().__init__()
        self.chosen = chosen

    def body(self, g):
        with g.rounds(3) as start:
            peers = self.gateways.sample(g, n=2, after=start)
            r = g.request("site", peers, [start.round, self.chosen(g, start)], deadline_ns=30 * S)
            number, chosen = r.value
            children = self.clients.sample(g, n=2, after=number)
            q = g.request("client", children, [number, g.gate(chosen, number)], deadline_ns=10 * S)
            number, chosen = q.value
            first = self.once.first(g, chosen)  # the line that is named
            q.reply(g.gate(number, first))
            g.app_emit("site", q.answer)
            number, _ = r.value
            r.reply(number + 1)
            g.app_emit("round", r.answer)


def told(chosen) -> list[str]:
    return [str(w) for w in Compiler().run(Tiers(chosen)).warnings if w.code == "round-not-attempt"]


@pytest.mark.parametrize(
    "chosen",
    [
        lambda g, start: start.round,
        lambda g, start: g.onnx.reshape(start.round, g.constant([1])),
    ],
)
def test_the_number_of_a_round_is_warned_of_where_it_is_used(chosen):
    (said,) = told(chosen)
    assert said.startswith("First → first_1: it is given start.round of the rounds at test_round_numbers.py:")
    assert "is declined (send start.attempt as well, and give it that)" in said


@pytest.mark.parametrize(
    "chosen",
    [lambda g, start: start.attempt, lambda g, start: start.round + 1, lambda g, start: g.constant([7])],
)
def test_another_number_is_not(chosen):
    assert told(chosen) == []
