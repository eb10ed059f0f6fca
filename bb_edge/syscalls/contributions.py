"""The border of aggregators: what `Contribute` checks for every one of them, and whom a refusal names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bb_edge.engine.binding import OpContext
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.roles.errors import ContributionRefused


def refusing(method: Callable[..., object]) -> Callable[..., object]:
    """Returns the call of a `contribute` method whose typed errors name the peer."""

    def contribute(
        ctx: OpContext, contribution: Any, weight: Any = None, peer: Any = None, round: Any = None
    ) -> object:
        try:
            return method(ctx, contribution, weight, peer, round)
        except BBError as error:
            whose = _one_peer(peer) or ctx.execution.source
            raise ContributionRefused(
                f"the contribution{f' of {whose}' if whose else ''} does not count: {error.what}",
                error.where,
                error.hint,
                whose,
            ) from error

    return contribute


def _one_peer(peer: Any) -> PeerId | None:
    return peer[0] if isinstance(peer, tuple) and len(peer) == 1 else None
