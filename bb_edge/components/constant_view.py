"""`bb.ConstantView`: a fixed list of peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from bb_edge.components.presence_selector import ViewSelector
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from bb_edge.roles.context import Ctx

__all__ = ["ConstantView"]

_MAX_PEERS = 65_536


class ConstantView(ViewSelector):
    """Has a fixed list of peers in view, whether they are up or not, in the order given.

    Configuration: `peers`, ids in base58 text; `names`, names that ids are hashed from. The node itself is
    not in view.
    """

    TYPE_NAME: ClassVar[str] = "bb.ConstantView"
    CONFIG: ClassVar[Mapping[str, Setting]] = {"peers": Setting.anything(), "names": Setting.anything()}

    def __init__(self, peers: tuple[PeerId, ...]) -> None:
        self._peers = peers

    @classmethod
    def construct(cls, env: ComponentEnv) -> ConstantView:
        env.check(cls)
        peers: dict[PeerId, None] = {}
        for key, make in (("peers", PeerId.from_text), ("names", PeerId.from_name)):
            listed = env.config.get(key, ())
            if not isinstance(listed, (list, tuple)) or not all(isinstance(text, str) for text in listed):
                raise env.error("must be a list of texts", key)
            if len(listed) > _MAX_PEERS:
                raise env.error(f"more than {_MAX_PEERS} peers", key)
            for text in listed:
                try:
                    peers[make(text)] = None
                except PeerIdError as error:
                    raise env.error(f"{text!r} is not a peer id: {error}", key) from error
        return cls(tuple(peers))

    def current_view(self, ctx: Ctx) -> tuple[PeerId, ...]:
        own = ctx.own_peer
        return tuple(peer for peer in self._peers if peer != own)
