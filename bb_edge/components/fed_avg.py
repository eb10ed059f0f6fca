"""`bb.FedAvg`: the weighted mean of contributions, each counted once per (round, peer).

The running sum is f64, the result f32. An f64 sum is exact to 2⁻⁵³ whatever the order of
arrival, costs one vector of 8 bytes per parameter, and needs no second pass; a compensated f32 sum would take
the same memory and three times the arithmetic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_edge.components.state import StateReader, pack_array, pack_state
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import Aggregator
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.ir.values import Trigger
    from bb_edge.roles.context import Ctx

__all__ = ["FedAvg"]

_CHUNK = 16 * 1024
"""Elements that are scaled at a time: their f64 scratch (128 KiB) stays in a second-level cache."""

_VERSION = 1


class FedAvg(Aggregator):
    """Averages contributions by weight, and counts each (round, peer) once.

    Configuration: `remembered_rounds` (8), `max_peers` (4096 per round), `allow_nonfinite` (false).

    A contribution without `peer` always counts. One without `round` counts once per peer until the next
    `Aggregate`. The newest `remembered_rounds` rounds are remembered: a contribution to an older one cannot
    be told from a duplicate and is dropped (`stale`). Contributions to an older round that is still
    remembered count. Tensors with inf or nan are refused unless `allow_nonfinite`, since a single one would
    spoil the model.
    """

    TYPE_NAME: ClassVar[str] = "bb.FedAvg"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "remembered_rounds": Setting.integer(8, 1, 1024),
        "max_peers": Setting.integer(4096, 1),
        "allow_nonfinite": Setting.flag(False),
    }

    def __init__(
        self,
        *,
        where: str = "",
        remembered_rounds: int = 8,
        max_peers: int = 4096,
        allow_nonfinite: bool = False,
    ) -> None:
        self._where = where
        self._remembered = remembered_rounds
        self._max_peers = max_peers
        self._allow_nonfinite = allow_nonfinite
        self._sum: Array | None = None  # flat f64; its memory is kept from round to round
        self._shape: tuple[int, ...] = ()
        self._count = 0
        self._total = 0.0
        self._scratch = np.empty(_CHUNK, np.float64)
        self._seen: OrderedDict[int | None, set[PeerId]] = OrderedDict()
        self._current: Array = np.empty(0, np.float32)
        self.duplicates = 0
        self.stale = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> FedAvg:
        read = env.settings(cls)
        return cls(
            where=f"slot {env.slot!r}",
            remembered_rounds=read["remembered_rounds"],
            max_peers=read["max_peers"],
            allow_nonfinite=read["allow_nonfinite"],
        )

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns that contributions are of floating point."""
        return {"Contribute.contribution": "Float"}

    # --- the Contract ----------------------------------------------------------------------------------

    def contribute(
        self,
        ctx: Ctx,
        contribution: Array,
        weight: Array | None = None,
        peer: tuple[PeerId, ...] | None = None,
        round: Array | None = None,
    ) -> None:
        """Adds weight * contribution. ComponentError for one that does not fit; it may come again."""
        number = None if round is None else self._integer(round)
        factor = 1.0 if weight is None else self._weight(weight)
        self._check(contribution)
        if peer is not None:
            if len(peer) != 1:
                raise self._error(f"a contribution comes from one peer, not {len(peer)}")
            if not self._first(number, peer[0]):
                return
        self._add(contribution, factor)

    def aggregate(self, ctx: Ctx, stack: object = None) -> tuple[Array, Array]:
        """Returns the mean and the total weight so far, and starts anew.

        The rows of a tensor count first, each with weight 1 and without a peer.
        """
        if isinstance(stack, np.ndarray):
            if stack.ndim == 0:
                raise self._error("expected a stack with rows, got a scalar")
            if len(stack):
                self._check(stack[0], stack)  # all of it, before any of it counts
            for row in stack:
                self._add(row, 1.0)
        total = self._total
        result: Array
        if self._sum is None or total == 0.0:
            result = np.empty(0, np.float32)
            total = 0.0
        else:
            mean = np.empty(self._sum.size, np.float32)
            np.divide(self._sum, total, out=mean, casting="same_kind")
            result = self._current = mean.reshape(self._shape)
            result.setflags(write=False)  # it is handed out more than once
        self._count, self._total = 0, 0.0
        self._seen.pop(None, None)
        return result, np.array(total, np.float32)

    def current_tensor(self, ctx: Ctx, trigger: Trigger | None = None) -> Array:
        return self._current

    # --- one contribution ------------------------------------------------------------------------------

    def _integer(self, value: Array) -> int:
        if np.size(value) != 1 or np.asarray(value).dtype.kind not in "iu":
            raise self._error(f"the round must be one integer, not {value!r}")
        return int(np.asarray(value).reshape(()))

    def _weight(self, value: Array) -> float:
        if np.size(value) != 1:
            raise self._error(f"the weight must be one number, not {list(np.shape(value))}")
        weight = float(np.asarray(value).reshape(()))
        if not 0.0 <= weight < float("inf"):
            raise self._error(f"the weight must be finite and not negative, not {weight}")
        return weight

    def _check(self, contribution: Array, stack: Array | None = None) -> None:
        if contribution.dtype.kind != "f":
            raise self._error(f"a contribution is {contribution.dtype}, not floating point")
        if self._count and contribution.shape != self._shape:
            raise self._error(
                f"a contribution has shape {list(contribution.shape)}, those before it {list(self._shape)}"
            )
        values = contribution if stack is None else stack
        if not self._allow_nonfinite and not np.isfinite(values).all():
            raise self._error(
                "a contribution holds inf or nan",
                "lower the learning rate of the peer's training, or look at what its parameters began with",
            )

    def _first(self, number: int | None, peer: PeerId) -> bool:
        """Returns whether this (round, peer) is new, and marks it."""
        seen = self._seen.get(number)
        if seen is None:
            rounds = [known for known in self._seen if known is not None]
            if number is not None and len(rounds) >= self._remembered:
                oldest = min(rounds)
                if number < oldest:
                    self.stale += 1
                    return False
                del self._seen[oldest]
            seen = self._seen[number] = set()
        if peer in seen:
            self.duplicates += 1
            return False
        if len(seen) >= self._max_peers:
            raise self._error(f"more than {self._max_peers} peers contribute to one round", "raise max_peers")
        seen.add(peer)
        return True

    def _add(self, contribution: Array, weight: float) -> None:
        if self._sum is None or self._sum.size != contribution.size:
            self._sum = np.empty(contribution.size, np.float64)
        if self._count == 0:
            self._shape = contribution.shape
            self._sum.fill(0.0)
        flat = contribution.reshape(-1)
        if weight == 1.0:
            np.add(self._sum, flat, out=self._sum)
        else:
            for start in range(0, flat.size, _CHUNK):
                part = flat[start : start + _CHUNK]
                scaled = self._scratch[: part.size]
                np.multiply(part, weight, out=scaled, dtype=np.float64)
                target = self._sum[start : start + _CHUNK]
                np.add(target, scaled, out=target)
        self._count += 1
        self._total += weight

    def _error(self, what: str, hint: str = "") -> ComponentError:
        return ComponentError(what, self._where, hint)

    # --- snapshots -------------------------------------------------------------------------------------

    def serialize(self) -> bytes:
        return pack_state(
            self,
            _VERSION,
            {
                "sum": pack_array(self._sum) if self._count else None,
                "shape": list(self._shape),
                "count": self._count,
                "total": self._total,
                "current": pack_array(self._current),
                "seen": [[n, sorted(p.to_bytes() for p in peers)] for n, peers in self._seen.items()],
                "duplicates": self.duplicates,
                "stale": self.stale,
            },
        )

    def restore(self, state: bytes) -> None:
        read = StateReader(self, _VERSION, state)
        running, current = read.optional_array("sum"), read.array("current")
        shape = tuple(dim for dim in read.items("shape") if isinstance(dim, int))
        seen: OrderedDict[int | None, set[PeerId]] = OrderedDict()
        for item in read.items("seen"):
            if not (isinstance(item, list) and len(item) == 2 and isinstance(item[1], list)):
                raise read.error("its list of (round, peer) is damaged")
            try:
                seen[item[0]] = {PeerId.from_bytes(peer) for peer in item[1]}
            except (PeerIdError, TypeError) as error:
                raise read.error(f"it names a peer whose id is damaged: {error}") from error
        if running is not None and (running.dtype != np.float64 or running.size != int(np.prod(shape))):
            raise read.error("its sum and its shape do not fit")
        count, total = read.integer("count"), read.number("total")
        self.duplicates, self.stale = read.integer("duplicates"), read.integer("stale")
        self._sum, self._shape, self._count, self._total = running, shape, count, total
        self._current, self._seen = current, seen
