"""`bb.Cyclon`: a peer selector that knows a few peers, and by gossip always new ones.

Each node has a small view of the network: some peers with an age. Once a period it takes the oldest of them,
gives it a few others and itself, and gets a few in exchange (Voulgaris, Gavidia and van Steen, "CYCLON:
Inexpensive Membership Management for Unstructured P2P Overlays", 2005). Views stay small and random, and each
peer is known by about as many others as it knows. Peers that are gone are forgotten: the oldest entry is
asked first, and dropped when it does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from bb_edge.components.peer_lists import Descriptor, learn, own_addresses, peers_of, rows
from bb_edge.components.presence_selector import ViewSelector, load_generators, sample_of
from bb_edge.components.state import StateReader, pack_state
from bb_edge.ir.opsets import Effect, Opset, Table
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import ProtocolComponent
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Setting
from bb_edge.wire import cbor

if TYPE_CHECKING:
    from bb_edge.ir.ids import PeerId
    from bb_edge.roles.context import Ctx, ProtocolCtx

__all__ = ["Cyclon"]

S = 1_000_000_000
_STATE_VERSION = 1


class Cyclon(ViewSelector, ProtocolComponent):
    """Samples peers from a view that it renews by gossip.

    Configuration: the view has `view_size` (8) peers, of which `shuffle_size` (4) are exchanged every
    `period_ns` (1 s); a peer that has not answered after `deadline_ns` (half a period) is dropped. A node
    without any view asks `introducers` (base58 ids) and `introducer_names`, or, where there are none, any
    peer that is present.

    `Sample` and `CurrentView` return peers of the view; the op `Introduce` of its own opset adds peers to it.
    """

    TYPE_NAME: ClassVar[str] = "bb.Cyclon"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "introducers": Setting.anything(),
        "introducer_names": Setting.anything(),
        "view_size": Setting.integer(8, 1, 256),
        "shuffle_size": Setting.integer(4, 1, 64),
        "period_ns": Setting.integer(1 * S, 1),
        "deadline_ns": Setting.integer(0),
    }

    def __init__(
        self,
        introducers: tuple[PeerId, ...],
        peer_class: str,
        view_size: int = 8,
        shuffle_size: int = 4,
        period_ns: int = 1 * S,
        deadline_ns: int = 0,
    ) -> None:
        self._introducers = introducers
        self._peer_class = peer_class
        self._view_size = view_size
        self._shuffle_size = min(shuffle_size, view_size)
        self._period_ns = period_ns
        self._deadline_ns = deadline_ns or max(period_ns // 2, 1)
        self._view: dict[PeerId, Descriptor] = {}
        self._asked: dict[PeerId, Descriptor] = {}  # peers of exchanges under way, as the view had them
        self.shuffles = 0
        self.unanswered = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> Cyclon:
        read = env.settings(cls)
        load_generators()
        return cls(
            peers_of(env, "introducers", "introducer_names"),
            env.peer_class,
            read["view_size"],
            read["shuffle_size"],
            read["period_ns"],
            read["deadline_ns"],
        )

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table(cls.TYPE_NAME)
        table.op("Introduce", "peers:PeerIdVec", "cmd:CommandId", "", "Adds peers.", effect=Effect.WRITE)
        table.op(
            "Shuffle", "sender:PeerId, payload:Bytes", "reply:Bytes", "", "An exchange of peers.", remote=True
        )
        return table.opset()

    # --- the view -------------------------------------------------------------------------------------

    def current_view(self, ctx: Ctx) -> tuple[PeerId, ...]:
        return tuple(sorted(self._view))

    def introduce(self, ctx: ProtocolCtx, peers: tuple[PeerId, ...]) -> None:
        """Adds peers while there are free places."""
        self._merge(ctx, [Descriptor(peer, 0, ()) for peer in peers], ())

    # --- gossip ---------------------------------------------------------------------------------------

    def started(self, ctx: ProtocolCtx) -> None:
        self.introduce(ctx, self._introducers)
        # Nodes that start together do not speak together.
        ctx.scheduler.after(int(ctx.rng.integers(self._period_ns)), self._turn)

    def _turn(self, ctx: ProtocolCtx) -> None:
        """Runs one period: all entries get older, and the oldest peer is asked for an exchange."""
        ctx.scheduler.after(self._period_ns, self._turn)
        if not self._view:
            known = self._introducers or ctx.peers.up_peers(self._peer_class)
            self.introduce(ctx, tuple(peer for peer in known if peer != ctx.own_peer)[: self._view_size])
        if not self._view:
            return
        self._view = {p: Descriptor(p, d.number + 1, d.addresses) for p, d in self._view.items()}
        oldest = max(self._view.values(), key=lambda d: (d.number, d.peer))
        # Out of the view: if it answers it will be heard of again, if not it is gone.
        del self._view[oldest.peer]
        outgoing = self._some(ctx, self._shuffle_size - 1, without=oldest.peer)
        if not learn(ctx, oldest.peer, oldest.addresses):
            return
        own = Descriptor(ctx.own_peer, 0, own_addresses(ctx))
        sent = tuple(d.peer for d in outgoing)

        def done(ctx: ProtocolCtx, reply: bytes | None) -> None:
            self._asked.pop(oldest.peer, None)
            if reply is None:
                self.unanswered += 1
            else:
                self.shuffles += 1
                self._merge(ctx, _decode(reply), sent)

        payload = cbor.dumps([d.row() for d in (own, *outgoing)])
        ctx.request(oldest.peer, "Shuffle", payload, self._deadline_ns, done)
        self._asked[oldest.peer] = oldest

    def shuffle(self, ctx: ProtocolCtx, sender: PeerId, payload: bytes) -> bytes:
        """Answers another node's exchange: takes the peers offered, and returns as many of its own."""
        offered = _decode(payload)
        outgoing = self._some(ctx, self._shuffle_size, without=sender)
        self._merge(ctx, offered, tuple(d.peer for d in outgoing))
        return cbor.dumps([d.row() for d in outgoing])

    def _some(self, ctx: ProtocolCtx, count: int, without: PeerId) -> list[Descriptor]:
        peers = tuple(sorted(p for p in self._view if p != without))
        return [self._view[p] for p in sample_of(ctx, peers, count, 0)]

    def _merge(self, ctx: ProtocolCtx, offered: Iterable[Descriptor], sent: Sequence[PeerId]) -> None:
        """Takes new peers into free places first, then in place of those that were given away."""
        replaceable = [peer for peer in sent if peer in self._view]
        for new in offered:
            known = self._view.get(new.peer)
            if new.peer == ctx.own_peer or (known is not None and known.number <= new.number):
                continue
            if known is None and len(self._view) >= self._view_size and not replaceable:
                continue
            if not learn(ctx, new.peer, new.addresses):
                continue
            if known is None and len(self._view) >= self._view_size:
                del self._view[replaceable.pop()]
            if new.peer in replaceable:
                replaceable.remove(new.peer)
            self._view[new.peer] = new

    # --- snapshot -------------------------------------------------------------------------------------

    def serialize(self) -> bytes:
        # A restart hears no answer to what was under way. So the peers that were asked are known again, as
        # the oldest ones that they are, where the view has not been filled without them meanwhile.
        asked = [d for peer, d in self._asked.items() if peer not in self._view]
        return pack_state(self, _STATE_VERSION, {"view": [d.row() for d in (*self._view.values(), *asked)]})

    def restore(self, state: bytes) -> None:
        reader = StateReader(self, _STATE_VERSION, state)
        try:
            view = rows(reader.items("view"))
        except ComponentError as error:
            raise reader.error(error.what) from error
        self._view = {d.peer: d for d in view[: self._view_size]}


def _decode(payload: bytes) -> list[Descriptor]:
    try:
        return rows(cbor.loads(payload, max_items=4096))
    except cbor.CborError as error:
        raise ComponentError(error.what, "bb.Cyclon") from error
