"""How a gradient changes parameters: SGD with momentum, Adam and AdamW, as PyTorch computes them.

All of them work in place on flat f32 vectors, `CHUNK` elements at a time, so that the memory that a step
needs beside the vectors that it keeps does not grow with the model. Plain SGD needs none where the
gradient may be changed: it scales it where it lies, and goes over more elements at a time. At a constant
rate it need not scale: the rows of a batch weigh `Optimizer.factor` times as much, and a step is an addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.components.learning_rates import RATE_CONFIG, Schedule, doubtful_rates
from bb_edge.components.update_norm import CHUNK, is_finite, update_norm
from bb_edge.ir.quiet import hush, unhush
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = [
    "MEAN",
    "OPTIMIZER_CONFIG",
    "Optimizer",
    "doubtful_settings",
    "kept_vectors",
    "scratch_bytes",
    "unread_settings",
]

OPTIMIZER_CONFIG: Mapping[str, Setting] = {
    **RATE_CONFIG,
    "optimizer": Setting.text("sgd", ("sgd", "adam", "adamw")),
    "momentum": Setting.number(0.0, 0.0, 1.0),
    "nesterov": Setting.flag(False),
    "beta1": Setting.number(0.9, 0.0, 0.999999),  # with 1 nothing new would come in, and 0 divide
    "beta2": Setting.number(0.999, 0.0, 0.999999),
    "epsilon": Setting.number(1e-8, 0.0),
    "weight_decay": Setting.number(0.0, 0.0),
    "clip_norm": Setting.number(0.0, 0.0),
    "reset_state": Setting.flag(False),
}
"""The configuration keys, those of the learning rate among them, with defaults."""

PLAIN_CHUNK = 64 * 1024
"""Elements at a time of plain SGD: with their gradient half a megabyte, a second-level cache.

Each call of NumPy costs as much as some 2,000 elements do, so that smaller parts take longer.
"""

RATES = (1e-6, 1e6)
"""The rates, from the least to the largest, that gradients are made times: f32 has room for both."""

VELOCITY, MEAN, SQUARE = "velocity", "mean", "square"
"""Names of what is kept between steps: momentum's velocity, and Adam's two means."""

_NOTHING: Array = np.empty(0, np.float32)


def kept_vectors(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the vectors, each as long as the parameters, that an optimizer keeps.

    A key that is not there has its default.
    """
    if settings.get("optimizer", "sgd") != "sgd":
        return (MEAN, SQUARE)
    return (VELOCITY,) if settings.get("momentum", 0.0) else ()


def scratch_bytes(settings: Mapping[str, Any], size: int) -> int:
    """Returns the bytes that a step of `size` parameters works in, at most.

    A key that is not there has its default.
    """
    plain = not kept_vectors(settings) and not settings.get("weight_decay", 0.0)
    return 4 * min(PLAIN_CHUNK if plain else CHUNK, size)


_READ_WITH: Mapping[str, tuple[str, frozenset[str]]] = {
    "momentum": ("optimizer", frozenset({"sgd"})),
    "nesterov": ("optimizer", frozenset({"sgd"})),
    "beta1": ("optimizer", frozenset({"adam", "adamw"})),
    "beta2": ("optimizer", frozenset({"adam", "adamw"})),
    "epsilon": ("optimizer", frozenset({"adam", "adamw"})),
    "decay": ("schedule", frozenset({"step_decay"})),
    "lowest_rate": ("schedule", frozenset({"cosine"})),
    "schedule_length": ("schedule", frozenset({"step_decay", "cosine"})),
}
"""By key: the other key on whose value it depends whether anything reads it, and those values."""


def unread_settings(given: Mapping[str, object]) -> dict[str, str]:
    """Returns the keys of a configuration that nothing reads, each with the reason.

    Keys that have their default are not told: they ask for nothing.
    """
    values = {key: given.get(key, setting.default) for key, setting in OPTIMIZER_CONFIG.items()}
    changed = [
        key for key in given if key in OPTIMIZER_CONFIG and values[key] != OPTIMIZER_CONFIG[key].default
    ]
    unread = {}
    for key in changed:
        other, readers = _READ_WITH.get(key, ("", frozenset()))
        if other and values[other] not in readers:
            names = " and ".join(sorted(readers))
            unread[key] = (
                f"{names} {'reads' if len(readers) == 1 else 'read'} it, and {other} is {values[other]}"
            )
        elif key == "nesterov" and not values["momentum"]:
            unread[key] = "momentum is 0"
        elif key == "reset_state" and not kept_vectors(values):
            unread[key] = "SGD without momentum keeps nothing that it could reset"
        elif key == "schedule_by" and values["schedule"] == "constant" and not values["warm_up"]:
            unread[key] = "schedule is constant, and warm_up is 0"
    return unread


def doubtful_settings(given: Mapping[str, object]) -> dict[str, str]:
    """Returns the keys of a configuration by which rates are hardly wanted, each with what comes of it."""
    return doubtful_rates(given)


class Optimizer:
    """Changes parameters by gradients, and has the state that this needs.

    `vectors` by name are its state, 1-D f32; `steps` counts steps since they began at zero, `total` all
    steps, and `rounds` rounds from 1, for the schedule. `notes` is for whoever tells what happens: that the
    rate has fallen to 0.
    """

    def __init__(self, settings: Mapping[str, Any], size: int) -> None:
        """`settings` has all keys of `OPTIMIZER_CONFIG`; `size` is the number of parameters."""
        self._settings = dict(settings)
        self._schedule = Schedule.read(settings)
        self._by_round = settings["schedule_by"] == "round"
        self._constant = self._schedule.kind == "constant" and not self._schedule.warm_up
        self._momentum, self._decay, self._clip = (
            settings[key] for key in ("momentum", "weight_decay", "clip_norm")
        )
        self.vectors: dict[str, Array] = {n: np.zeros(size, np.float32) for n in kept_vectors(settings)}
        self._plain = settings["optimizer"] == "sgd" and not self.vectors and not self._decay
        changes = self._clip or settings["nesterov"] or (self._decay and settings["optimizer"] != "adamw")
        self.reads_only = not changes
        """Whether a step changes nothing in the gradient: `step_by_parts` can be called."""
        rate = self._schedule.rate
        adds = self._plain and self._constant and self.reads_only and RATES[0] <= rate <= RATES[1]
        self.factor = -rate if adds else 1.0
        """What gradients may be times from the start, so that a step only has to add them; else 1."""
        self._scratch = _NOTHING
        self.steps = self.total = self.rounds = 0
        self._told = False  # whether the program says which round it is
        self._ended = False  # whether the rate of the last step had fallen to 0
        self._last_rate = math.nan  # of the last step, and what multiplies a gradient by it
        self._minus_rate = np.float32(0)
        self.notes: list[str] = []

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self._schedule.at(max(0, self.rounds - 1) if self._by_round else self.total)

    def step(self, parameters: Array, gradient: Array) -> None:
        """Changes `parameters` in place, both 1-D f32; what is in `gradient` afterwards says nothing."""
        token = hush()  # a warning that is raised would leave parameters of which some are changed
        try:
            rate = self._begin_step()
            if self._clip:
                norm = update_norm(gradient, None)
                if self._clip < norm < math.inf:  # inf and nan stay what they are, as without a bound
                    np.multiply(gradient, np.float32(self._clip / (norm + 1e-6)), out=gradient)
            if self._plain:  # the gradient is the scratch memory
                minus_rate, multiply, add = self._minus_rate, np.multiply, np.add
                size = parameters.size
                for start in range(0, size, PLAIN_CHUNK):
                    p, g = parameters, gradient
                    if size > PLAIN_CHUNK:
                        end = start + PLAIN_CHUNK
                        p, g = parameters[start:end], gradient[start:end]
                    multiply(g, minus_rate, g)  # where a result goes is read quicker by place than by name
                    add(p, g, p)
            else:
                self._apply(rate, ((0, gradient, parameters),), CHUNK)
        finally:
            unhush(token)

    def step_by_parts(self, parts: Sequence[tuple[int, Array, Array]], factor: float = 1.0) -> None:
        """Does what `step` does, to the same bits, with a gradient in parts that are not changed.

        Each part is the place of its first number, its gradient, and its parameters, which are changed in
        place; 1-D f32 arrays, which cover all parameters together. Only where `reads_only`. `factor` is 1, or
        the optimizer's own: the gradient is times it already.
        """
        token = hush()
        try:
            if factor == 1:
                self._apply(self._begin_step(), parts, PLAIN_CHUNK if self._plain else CHUNK)
            else:
                self.steps += 1
                self.total += 1
                add = np.add
                for _, change, parameters in parts:
                    add(parameters, change, parameters)
        finally:
            unhush(token)

    def _begin_step(self) -> float:
        """Counts a step; returns its learning rate."""
        rate = self._schedule.rate if self._constant else self.learning_rate
        if rate != self._last_rate:  # most steps have the rate of the one before
            self._note_end(rate)
            self._last_rate, self._minus_rate = rate, np.float32(-rate)
        self.steps += 1
        self.total += 1
        return rate

    def _apply(self, rate: float, parts: Sequence[tuple[int, Array, Array]], chunk: int) -> None:
        apply = self._adam(rate) if MEAN in self.vectors else self._sgd()
        room = min(chunk, max((gradient.size for _, gradient, _ in parts), default=0))
        if self._scratch.size < room:
            self._scratch = np.empty(room, np.float32)
        scratch, vectors = self._scratch, tuple(self.vectors.values())
        for first, gradient, parameters in parts:
            for start in range(0, gradient.size, chunk):
                g, p = gradient[start : start + chunk], parameters[start : start + chunk]
                at = first + start
                end = at + g.size
                apply(p, g, scratch[: g.size], *[vector[at:end] for vector in vectors])

    def _note_end(self, rate: float) -> None:
        """Notes, once, that the rate has fallen to 0: steps change nothing from here on."""
        ended = self._schedule.rate > 0 and np.float32(rate) == 0
        if ended and not self._ended:
            unit, time = ("round", self.rounds) if self._by_round else ("step", self.total + 1)
            self.notes.append(
                f"its learning rate has fallen to 0 at {unit} {time} (schedule {self._schedule.kind}): it"
                " learns no more; raise lowest_rate or schedule_length, or end the rounds there"
            )
        self._ended = ended

    def take_notes(self) -> Sequence[str]:
        """Returns its notes since the last call."""
        notes = tuple(self.notes)
        self.notes.clear()
        return notes

    def _sgd(self) -> Callable[..., None]:
        minus_rate, momentum, decay = self._minus_rate, np.float32(self._momentum), np.float32(self._decay)
        nesterov = self._settings["nesterov"]

        def apply(p: Array, g: Array, scratch: Array, velocity: Array | None = None) -> None:
            if decay:
                np.multiply(p, decay, out=scratch)
                np.add(g, scratch, out=g)
            if velocity is not None:
                np.multiply(velocity, momentum, out=velocity)
                np.add(velocity, g, out=velocity)
                if nesterov:
                    np.multiply(velocity, momentum, out=scratch)
                    np.add(g, scratch, out=g)
                else:
                    g = velocity
            np.multiply(g, minus_rate, out=scratch)
            np.add(p, scratch, out=p)

        return apply

    def _adam(self, rate: float) -> Callable[..., None]:
        beta1, beta2 = self._settings["beta1"], self._settings["beta2"]
        size = np.float32(-rate / (1 - beta1**self.steps))
        correction = np.float32(math.sqrt(1 - beta2**self.steps))
        new_mean, kept, new_square = np.float32(1 - beta1), np.float32(beta2), np.float32(1 - beta2)
        epsilon, decay = np.float32(self._settings["epsilon"]), np.float32(self._decay)
        shrink = np.float32(1 - rate * self._decay)
        apart = self._settings["optimizer"] == "adamw"

        def apply(p: Array, g: Array, scratch: Array, mean: Array, square: Array) -> None:
            if decay and apart:
                np.multiply(p, shrink, out=p)
            elif decay:
                np.multiply(p, decay, out=scratch)
                np.add(g, scratch, out=g)
            np.subtract(g, mean, out=scratch)
            np.multiply(scratch, new_mean, out=scratch)
            np.add(mean, scratch, out=mean)
            np.multiply(g, g, out=scratch)
            np.multiply(scratch, new_square, out=scratch)
            np.multiply(square, kept, out=square)
            np.add(square, scratch, out=square)
            np.sqrt(square, out=scratch)
            np.divide(scratch, correction, out=scratch)
            np.add(scratch, epsilon, out=scratch)
            np.divide(mean, scratch, out=scratch)
            np.multiply(scratch, size, out=scratch)
            np.add(p, scratch, out=p)

        return apply

    def release(self) -> None:
        """Gives back the memory that a step works in; the next one takes it again."""
        self._scratch = _NOTHING

    def loaded(self) -> tuple[str, ...]:
        """Says that the parameters are other ones: a round begins, unless the program says itself when.

        The state goes back to zero where `reset_state` says so; and where it holds inf or nan, of a bad
        sample or a rate that was too high, since the next step would make them of any parameters. Returns the
        names of the vectors that did.
        """
        if not self._told:
            self.rounds += 1
        if self._settings["reset_state"]:
            self.reset()
            return ()
        broken = tuple(name for name, vector in self.saved().items() if not is_finite(vector))
        if broken:
            self.reset()
        return broken

    def set_round(self, number: int) -> None:
        """Says which round it is, counted from 1; from now on loading does not count any more."""
        self._told = True
        self.rounds = number

    def reset(self) -> None:
        """Sets the state back to zero; the schedule goes on."""
        if not self.steps:
            return  # memory that was never written to is the system's promise alone
        self.steps = 0
        for vector in self.vectors.values():
            vector.fill(0)

    def saved(self) -> Mapping[str, Array]:
        """Returns its vectors, for a snapshot; none where no step has written to them."""
        return self.vectors if self.steps else {}

    def counts(self) -> list[int]:
        """Returns its counts, for a snapshot."""
        return [self.steps, self.total, self.rounds, int(self._told)]

    def adopt_counts(self, counts: list[int], with_means: bool) -> None:
        """Takes over what `counts` was in another program; the steps only with the means that they made."""
        steps, self.total, self.rounds, told = counts
        self.steps, self._told = steps if with_means else 0, bool(told)

    def restore(self, counts: list[int], vectors: Mapping[str, Array | None]) -> None:
        """Takes over what `counts` and `vectors` were; where a vector is None, all of them begin at zero."""
        self.reset()
        steps, self.total, self.rounds, told = counts or (1, 0, 0, 0)  # older snapshots have no counts
        self._told = bool(told)
        given = {name: vector for name in self.vectors if (vector := vectors.get(name)) is not None}
        if len(given) == len(self.vectors):
            self.steps = steps
            for name, vector in given.items():
                np.copyto(self.vectors[name], vector)
