"""The peer selectors: who is in view, and fair samples of them."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from bb_edge.components import (
    ConstantView,
    Cyclon,
    GlobalRegistryClient,
    GlobalRegistryServer,
    PresenceSelector,
)
from bb_edge.ir.ids import PeerId
from bb_edge.ir.shares import WHOLE
from bb_edge.roles import ComponentEnv, ComponentError
from bb_edge.roles.completion import Later
from tests.aids.peers import numbered

Ctx = Any
PEERS = tuple(sorted(numbered(n) for n in range(1, 6)))


def selector(peer_class: str, own_class: str) -> PresenceSelector:
    return PresenceSelector.construct(ComponentEnv("clients", own_class=own_class, peer_class=peer_class))


def test_the_view_is_the_up_peers_of_the_class(ctx: Ctx) -> None:
    ctx.peers.classes = {"Client": PEERS, "Server": (ctx.own_peer,)}
    assert selector("Client", "Server").current_view(ctx) == PEERS
    assert selector("Observer", "Server").current_view(ctx) == ()


def test_itself_only_where_the_class_is_another(ctx: Ctx) -> None:
    everybody = (ctx.own_peer, *PEERS)
    ctx.peers.classes = {"Client": everybody, "self": everybody}
    assert selector("Client", "Server").current_view(ctx) == everybody
    assert selector("self", "self").current_view(ctx) == PEERS


def test_those_that_are_away_are_in_view_where_the_slot_says_so(ctx: Ctx) -> None:
    ctx.peers.classes, ctx.peers.away = {"Client": PEERS[:2]}, {"Client": PEERS[2:]}
    env = ComponentEnv("clients", config={"known": True}, own_class="Server", peer_class="Client")
    known, up = PresenceSelector.construct(env), selector("Client", "Server")
    assert (known.sees_absent, up.sees_absent) == (True, False)
    assert (known.current_view(ctx), up.current_view(ctx)) == (PEERS, PEERS[:2])
    assert set(known.sample(ctx, n=9, min=5)) == set(PEERS) and not up.sample(ctx, n=9, min=5)
    assert set(known.near_key(ctx, b"x", n=9)) == set(PEERS)


@pytest.mark.parametrize("kind", [ConstantView, Cyclon, GlobalRegistryClient, GlobalRegistryServer])
def test_selectors_that_cannot_tell_who_is_away_refuse_to_be_asked(kind: Any) -> None:
    with pytest.raises(ComponentError, match="known"):
        kind.construct(ComponentEnv("clients", config={"known": True}, peer_class="Client"))


@pytest.mark.parametrize(
    ("n", "minimum", "size"), [(3, 0, 3), (5, 5, 5), (9, 0, 5), (3, 6, 0), (3, 5, 3), (0, 0, 0)]
)
def test_sample_sizes(ctx: Ctx, n: int, minimum: int, size: int) -> None:
    ctx.peers.classes = {"Client": PEERS}
    found = selector("Client", "Server").sample(ctx, n=n, min=minimum)
    assert len(found) == len(set(found)) == size
    assert set(found) <= set(PEERS)


@pytest.mark.parametrize(
    ("share", "n", "minimum", "size"),
    [(0.2, 9, 0, 1), (0.21, 9, 0, 2), (1.0, 9, 0, 5), (1.0, 3, 0, 3), (0.2, 9, 4, 4), (0.2, 9, 6, 0)],
)
def test_a_share_of_those_in_view(ctx: Ctx, share: float, n: int, minimum: int, size: int) -> None:
    ctx.peers.classes = {"Client": PEERS}
    billionths = round(share * WHOLE)
    found = selector("Client", "Server").sample_share(ctx, n=n, share=billionths, min=minimum)
    assert len(found) == len(set(found)) == size and set(found) <= set(PEERS)


def test_a_share_of_a_view_that_comes_later_is_refused(ctx: Ctx, monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = selector("Client", "Server")
    later = Later.__new__(Later)
    monkeypatch.setattr(PresenceSelector, "current_view", lambda self, ctx: later)
    with pytest.raises(ComponentError, match=r"comes later.*override sample_share"):
        chooser.sample_share(ctx, n=9, share=WHOLE // 10)


def test_samples_are_seeded_and_fair(ctx: Ctx) -> None:
    ctx.peers.classes = {"Client": PEERS}
    chooser = selector("Client", "Server")
    found = [chooser.sample(ctx, n=2) for _ in range(500)]
    ctx.rng = np.random.default_rng(5)
    assert [chooser.sample(ctx, n=2) for _ in range(500)] == found
    counts = Counter(peer for sample in found for peer in sample)
    assert all(150 < counts[peer] < 250 for peer in PEERS)  # 200 expected, deviation 11


def test_keys_have_their_nearest_peers(ctx: Ctx) -> None:
    ctx.peers.classes = {"Client": PEERS}
    chooser = selector("Client", "Server")
    keys = [f"row {n}".encode() for n in range(300)]
    found = {key: chooser.near_key(ctx, key, n=len(PEERS)) for key in keys}
    for key, order in found.items():
        assert set(order) == set(PEERS) and chooser.near_key(ctx, key, n=2) == order[:2]
        at = sha256(key).digest()
        far = [bytes(a ^ b for a, b in zip(at, sha256(p.to_bytes()).digest(), strict=True)) for p in order]
        assert far == sorted(far)
    assert len(Counter(order[0] for order in found.values())) == len(PEERS), "everybody is near to some"
    # Who goes takes only its own keys along.
    ctx.peers.classes = {"Client": PEERS[1:]}
    for key, order in found.items():
        assert chooser.near_key(ctx, key, n=2) == tuple(p for p in order if p != PEERS[0])[:2]
    assert chooser.near_key(ctx, b"x", n=0) == ()


def test_a_constant_view(ctx: Ctx) -> None:
    config = {"names": ["a", "b", "a"], "peers": [PEERS[0].to_text()]}
    view = ConstantView.construct(ComponentEnv("peers", config=config))
    expected = (PEERS[0], PeerId.from_name("a"), PeerId.from_name("b"))
    assert view.current_view(ctx) == expected
    assert set(view.sample(ctx, n=9)) == set(expected)
    ctx.own_peer = PeerId.from_name("a")
    assert view.current_view(ctx) == (PEERS[0], PeerId.from_name("b"))


@pytest.mark.parametrize("config", [{"peers": ["0OIl"]}, {"peers": "text"}, {"names": [1]}, {"ids": []}])
def test_a_bad_list_of_peers_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(ComponentError, match="slot 'peers'"):
        ConstantView.construct(ComponentEnv("peers", config=config))
