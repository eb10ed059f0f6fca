"""The base of aggregators that combine contributions by a rule: `FedAvg`, and what users write beside it.

`CombiningAggregator` decides what counts: finite numbers of the right layout, weighted within bounds, clipped
where it is told to, once per peer, in the sum that they belong to. A `Combiner` makes one vector of what
counts, and sees nothing else.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from bb_edge.components.combiner import Combiner, misfit_of
from bb_edge.components.open_sums import OpenSums, Sum, open_in
from bb_edge.components.state import StateReader, pack_array, pack_state
from bb_edge.components.update_norm import clipped as shortened
from bb_edge.components.update_norm import is_finite, largest_of, update_norm
from bb_edge.ir.quiet import hush, unhush
from bb_edge.roles.adoption import Adoption
from bb_edge.roles.contracts import Aggregator, Clipped, Dominant, GivenUp
from bb_edge.roles.errors import AggregateNotFinite, ComponentError
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from bb_edge.ir.ids import PeerId
    from bb_edge.ir.tensors import Array
    from bb_edge.ir.values import Trigger
    from bb_edge.roles.component import ComponentEnv
    from bb_edge.roles.context import Ctx

__all__ = ["CombiningAggregator"]

MAX_WEIGHT = 2**31
"""What a contribution may weigh where nothing is configured: more samples than a device holds."""

FLOAT32_MAX = float(np.finfo(np.float32).max)
LARGEST = 1e18
"""Numbers beyond this count as not finite: their squares overflow float32, so no model computes with them."""

SPOILT = 1e9
"""Parameters that hold such numbers are nobody's training: honest updates of them may be inf."""

_VERSION = 2


_DIVERGED = "lower the learning rate of the peer's training, or look at what its parameters began with"
_SPREAD = f"look for NaN in the peer's data, which its log names at the start; without any, {_DIVERGED}"


class CombiningAggregator(Aggregator):
    """Counts each contribution once, in the sum that it belongs to, and combines a sum when it is asked to.

    Configuration: `max_weight` (2³¹), `clip_norm` (0: none), `remembered_rounds` (8), `max_peers` (4096 per
    sum), `allow_nonfinite` (false).

    Refused, by a ComponentError, are contributions that are not of floating point, hold inf, nan or numbers
    beyond 1e18 (with `clip_norm`: beyond float32), whose shape differs from those that count already, whose
    weight is not above 0 and at most `max_weight`, and those whose sum is closed. A refused contribution
    leaves no trace, and its peer may send another.

    With `clip_norm` an update whose L2 norm is larger is scaled to that norm. The update is the difference to
    `sent`; the contribution itself, where `Contribute` has no `sent`.

    One without `peer` always counts. Which sum a contribution belongs to is `ctx.cohort`: an execution, the
    round, or the only one there is (`OpenSums`).

    Contributions that count more than a hundred times as much as is usual in their sum, by weight × length or
    by weight alone, are taken, and named (`take_dominant`). So are those that were scaled, where most were
    not (`take_clipped`).

    Where the combination is not finite, `aggregate` raises AggregateNotFinite, which names the peers that
    were in it; the sum is gone, and `current_tensor` stays. So it is where a `Combiner` gives anything but
    one float32 vector of the contributions' size: a ComponentError names it, and what it gave.
    """

    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "max_weight": Setting.number(float(MAX_WEIGHT), above=0.0),
        "clip_norm": Setting.number(0.0, 0.0),
        "remembered_rounds": Setting.integer(8, 1, 1024),
        "max_peers": Setting.integer(4096, 1),
        "allow_nonfinite": Setting.flag(False),
    }

    def __init__(
        self,
        *,
        where: str = "",
        max_weight: float = MAX_WEIGHT,
        clip_norm: float = 0.0,
        remembered_rounds: int = 8,
        max_peers: int = 4096,
        allow_nonfinite: bool = False,
    ) -> None:
        self._where = where
        self._max_weight = max_weight
        self._bounded = max_weight < MAX_WEIGHT
        self._largest = LARGEST if not clip_norm else FLOAT32_MAX  # what is clipped may be of any length
        self._clip_norm = clip_norm
        self._allow_nonfinite = allow_nonfinite
        self._sums = OpenSums(self.combiner, where, remembered_rounds, max_peers)
        self._current: Array = np.empty(0, np.float32)
        self._dominant: list[Dominant] = []
        self._clipped: list[Clipped] = []

    @classmethod
    def construct(cls, env: ComponentEnv) -> CombiningAggregator:
        read = env.settings(cls)
        return cls(where=f"slot {env.slot!r}", **{key: read[key] for key in CombiningAggregator.CONFIG})

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns that contributions are of floating point, and results float32 of their shape, or empty."""
        like = "F32[Contribute.contribution]"
        return {
            "Contribute.contribution": "Float",
            "Aggregate.result": like,
            "CurrentTensor.tensor": like,
        }

    @abstractmethod
    def combiner(self, size: int) -> Combiner:
        """Returns the rule for one sum of vectors of that size; a subclass says no more than this."""

    @property
    def duplicates(self) -> int:
        """Contributions that were left out because their peer's had counted already."""
        return self._sums.duplicates

    @property
    def stale(self) -> int:
        """Contributions that were refused because their sum was closed."""
        return self._sums.stale

    def take_given_up(self) -> Sequence[GivenUp]:
        return self._sums.take_given_up() if self._sums.given_up else ()

    def take_dominant(self) -> Sequence[Dominant]:
        if not self._dominant:
            return ()
        told, self._dominant = self._dominant, []
        return told

    def take_clipped(self) -> Sequence[Clipped]:
        if not self._clipped:
            return ()
        told, self._clipped = self._clipped, []
        return told

    def check_rule(self, size: int | None) -> None:
        """Tries out the `Combiner` of an author's class. ContractError, with its line, where it is wrong."""
        if self.combiner.__module__.startswith("bb_edge."):
            return
        from bb_edge.components.combiner_check import check_combiner  # only authors' rules need it

        check_combiner(self.combiner, self.TYPE_NAME, self._where, size)

    def reserve(self, size: int) -> None:
        self._sums.reserve(size)

    # --- the Contract ----------------------------------------------------------------------------------

    def contribute(
        self,
        ctx: Ctx,
        contribution: Array,
        weight: Array | None = None,
        peer: tuple[PeerId, ...] | None = None,
        round: Array | None = None,
        sent: Array | None = None,
    ) -> None:
        """Adds a contribution. ComponentError for one that does not count; its peer may send another."""
        number = None if round is None else self._integer(round)
        factor = 1.0 if weight is None else self._weight(weight)
        whose = None if peer is None else self._one(peer)
        sums = self._sums
        found = sums.of(ctx.cohort, number, whose)
        if whose is not None and sums.counted(found, whose, number):
            return
        self._check_form(contribution, found)
        values, length, times = self._checked(contribution.reshape(-1), sent)
        if whose is not None:
            sums.mark(found, whose, number)
        found.add(contribution.shape, values, factor)
        found.pulls.add(factor, length, whose)
        if times > 1.0:
            found.pulls.clip(times, factor, whose)

    def aggregate(self, ctx: Ctx, stack: object = None, round: Array | None = None) -> tuple[Array, Array]:
        """Returns the combination and the total weight of a sum, and closes it.

        The rows of a tensor count first, each with weight 1 and without a peer.
        """
        found = self._sums.of(ctx.cohort, None if round is None else self._integer(round), None, True)
        if isinstance(stack, np.ndarray):
            self._add_rows(stack, found)
        far = found.pulls.far(self._where, self._remedy())
        if far is not None:
            self._dominant.append(far)
        total = found.total
        clipped = found.pulls.clipped(found.count, total, self._where)
        if clipped is not None:
            self._clipped.append(clipped)
        result: Array = np.empty(0, np.float32)
        try:
            if found.combiner is not None and total > 0.0:
                if found.combiner.always_finite:
                    self._current = np.empty(0, np.float32)  # its memory may take the next one
                token = hush()
                try:
                    result = self._combined(found.combiner, total).reshape(found.shape)
                finally:
                    unhush(token)
                if not self._allow_nonfinite and not is_finite(result.reshape(-1)):
                    if found.combiner.always_finite:
                        raise self._broken_promise(found.combiner)
                    raise AggregateNotFinite(found.peers, self._where)
                result.setflags(write=False)  # it is handed out more than once
                self._current = result
        finally:
            self._sums.close(found)
        return result, np.array(total, np.float32)

    def current_tensor(self, ctx: Ctx, trigger: Trigger | None = None) -> Array:
        return self._current

    def _combined(self, combiner: Combiner, total: float) -> Array:
        """What a combiner gives, held to what it has to give. ComponentError for anything else."""
        given: object = combiner.result(total)
        wrong = misfit_of(given, combiner.size)
        if wrong is None:
            return cast("Array", given)
        came, remedy = wrong
        raise self._error(
            f"{type(combiner).__name__}.result of {self.TYPE_NAME} gave {came},"
            f" float32[{combiner.size}] is expected",
            remedy,
        )

    def _broken_promise(self, combiner: Combiner) -> ComponentError:
        return self._error(
            f"{type(combiner).__name__}.result of {self.TYPE_NAME} gave inf or nan, of contributions that are"
            " finite: no peer is to blame",
            "mend it, or leave always_finite out where large numbers may do that",
        )

    def _remedy(self) -> str:
        """What to do about contributions that decide the result alone."""
        unset = [
            name for name, on in (("clip_norm", self._clip_norm), ("max_weight", self._bounded)) if not on
        ]
        return f"set {' and '.join(unset)}" if unset else "lower clip_norm or max_weight"

    # --- one contribution ------------------------------------------------------------------------------

    def _integer(self, value: Array) -> int:
        number = np.asarray(value)
        if number.size != 1 or number.dtype.kind not in "iu":
            raise self._error(f"the round must be one integer, not {value!r}")
        return int(number.item())

    def _weight(self, value: Array) -> float:
        number = np.asarray(value)
        if number.size != 1:
            raise self._error(f"the weight must be one number, not {list(number.shape)}")
        weight = float(number.item())
        if not 0.0 < weight < float("inf"):
            raise self._error(f"the weight must be finite and above 0, not {weight:g}")
        if weight > self._max_weight:
            raise self._error(
                f"a weight of {weight:g} is above max_weight, {self._max_weight:g}",
                "raise max_weight where peers have as many samples",
            )
        return weight

    def _one(self, peer: tuple[PeerId, ...]) -> PeerId:
        if len(peer) != 1:
            raise self._error(f"a contribution comes from one peer, not {len(peer)}")
        return peer[0]

    def _check_form(self, contribution: Array, found: Sum) -> None:
        if contribution.dtype.kind != "f":
            raise self._error(f"a contribution is {contribution.dtype}, not floating point")
        if found.count and contribution.shape != found.shape:
            raise self._error(
                f"a contribution has shape {list(contribution.shape)}, those before it {list(found.shape)}"
            )

    def _checked(self, values: Array, sent: Array | None = None) -> tuple[Array, float, float]:
        """Returns what counts of a contribution, itself or clipped, and the length that its update has then.

        The third is how many times as long it was: 1 where it is not clipped.
        """
        base = None if sent is None or sent.size != values.size else sent.reshape(-1)
        norm = update_norm(values, base)
        # A norm in bounds is proof that no element is out of them by more than what was sent.
        if not (norm <= self._largest or self._allow_nonfinite):
            self._check_numbers(values, base)
        if self._clip_norm and norm > self._clip_norm:
            times = norm / self._clip_norm
            return shortened(values, base, self._clip_norm / norm), self._clip_norm, times
        return values, norm, 1.0

    def _check_numbers(self, values: Array, base: Array | None = None) -> None:
        """Raises ComponentError for numbers that no model computes with."""
        largest = largest_of(values)
        if largest <= self._largest:
            return
        what, hint = "inf or nan", _SPREAD
        if math.isfinite(largest):
            hint = _DIVERGED
            what = f"numbers of {largest:.2g}, beyond {self._largest:.2g}: their squares overflow float32"
        if base is not None and (sent := largest_of(base)) > SPOILT:
            hint = (
                f"what it was sent holds numbers of {sent:.2g}: the parameters here are spoilt, not the peer;"
                " start from some of before, with clip_norm"
            )
        raise self._error(f"a contribution holds {what}", hint)

    def _add_rows(self, stack: Array, found: Sum) -> None:
        if stack.ndim == 0:
            raise self._error("expected a stack with rows, got a scalar")
        for row in stack:  # all of it, before any of it counts
            self._check_form(row, found)
            if not self._allow_nonfinite:
                self._check_numbers(row.reshape(-1))
        for row in stack:
            values, length, times = self._checked(row.reshape(-1))
            found.add(row.shape, values, 1.0)
            found.pulls.add(1.0, length, None)
            if times > 1.0:
                found.pulls.clip(times, 1.0, None)

    def _error(self, what: str, hint: str = "") -> ComponentError:
        return ComponentError(what, self._where, hint)

    # --- executions and snapshots ----------------------------------------------------------------------

    def execution_ended(self, exec_id: int) -> None:
        self._sums.execution_ended(exec_id)

    def serialize(self) -> bytes:
        return pack_state(self, _VERSION, {"current": pack_array(self._current), **self._sums.save()})

    def restore(self, state: bytes) -> None:
        read = StateReader(self, _VERSION, state, oldest=1)
        current = read.array("current")
        if read.version == 1:
            self._sums.given_up_at_restore(read)
        else:
            self._sums.restore(read)
        self._current = current

    def adopt(self, state: bytes) -> Adoption:
        """Takes the last aggregate; sums are of executions and rounds that this program does not have."""
        read = StateReader(self, _VERSION, state, oldest=1)
        current, still_open = read.array("current"), open_in(read)
        if current.size:
            self._current = current
        taken = (f"the last aggregate, {current.size:,} numbers",) if current.size else ()
        return Adoption(taken, _left(still_open))

    def drop_executions(self) -> tuple[str, ...]:
        """Drops all sums."""
        return _left(self._sums.clear())


def _left(still_open: int) -> tuple[str, ...]:
    what = f"open sums, {still_open} of them: of executions or rounds of the old program"
    return (what,) if still_open else ()
