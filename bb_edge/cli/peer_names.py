"""Peers as people know them: `kitchen (QmYw…)` instead of an id alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from bb_edge.ir.ids import PeerId, PeerIdError

if TYPE_CHECKING:
    from bb_edge.cli.render import Log as LineLog
    from bb_edge.transport.base import Log

MetaOf = Callable[[PeerId], Mapping[str, object]]
"""Tells the metadata of a peer's presence; empty for a peer without one."""

MAX_NAME = 64
"""Letters of a name that is shown: a hostname has at most as many, and a log line stays a line."""
MAX_KNOWN = 4096
"""Texts that are kept, so that a name is hashed once: some four times the peers of a node."""

_ID = re.compile(r"(?<![\w/])Qm[1-9A-HJ-NP-Za-km-z]{44}(?![\w/])")
"""An id in a text, but not in a topic or as part of another word."""


class PeerNames:
    """The texts for peers in logs and events: name and id, or the id alone.

    A peer's id is the hash of its name, so a name that a presence claims is checked against the id; one that
    is not its own is shown as a claim.
    """

    def __init__(self, meta_of: MetaOf, names: Iterable[str] = ()) -> None:
        """`names` are known besides: the node's own, and those in its configuration."""
        self._meta_of = meta_of
        self._given = {PeerId.from_name(name): name for name in names}
        self._shown: dict[tuple[PeerId, object], str] = {}

    def __call__(self, peer: PeerId) -> str:
        name = self._given.get(peer) or self._meta_of(peer).get("name")
        if name is None:
            return str(peer)
        if not isinstance(name, str):
            return peer_text(peer, name)
        known = self._shown.get((peer, name))
        if known is None:
            if len(self._shown) >= MAX_KNOWN:
                self._shown.clear()
            known = self._shown[peer, name] = peer_text(peer, name)
        return known

    def in_text(self, text: str) -> str:
        """A text in which each peer id is written with its name, where that is known."""
        return _ID.sub(self._named, text) if "Qm" in text else text

    def _named(self, match: re.Match[str]) -> str:
        try:
            return self(PeerId.from_text(match[0]))
        except PeerIdError:
            return match[0]

    def log_to(self, log: LineLog) -> Log:
        """What a transport logs to: lines of `log`, with the peer that they are about by name."""

        def named(level: str, message: str, *, kind: str = "", peer: PeerId | None = None) -> None:
            if peer is None:
                log(level, message, kind=kind)
            else:
                log(level, message, kind=kind, peer=self(peer))

        return named


def peer_text(peer: PeerId, name: object) -> str:
    """`kitchen (QmYw…)` with the whole id; the id alone, or with the claim, where the name is not its own."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        return str(peer)
    if PeerId.from_name(name) == peer:
        return f"{name} ({peer})"
    return f"{peer} (calls itself {name!r})"


def configured_names(components: Mapping[str, Mapping[str, object]]) -> list[str]:
    """The names of peers among the settings of components: `names` of a view, `server_name` of a registry."""
    found: list[str] = []
    for settings in components.values():
        named = settings.get("names", ())
        for name in (*(named if isinstance(named, list | tuple) else ()), settings.get("server_name")):
            if isinstance(name, str):
                found.append(name)
    return found
