"""`bb.GraphModel`: a model whose forward, gradient and loss are graphs of the artifact.

The parameters are one flat f32 vector in initializer order; the graphs read views of it, so that an update is
one pass over the vector and `Params` one copy. Gradients are written straight into a second such vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bb_edge.components.class_targets import IGNORE_INDEX
from bb_edge.components.gradient_sum import GradientSum, read_gradient
from bb_edge.components.kept_activations import Kept, KeptActivations
from bb_edge.components.model_graphs import ModelGraphs, prepare_graphs
from bb_edge.components.model_layout import LAYOUT_KEYS, ModelLayout, checked_counts, room_for_parameters
from bb_edge.components.optimizers import (
    MEAN,
    OPTIMIZER_CONFIG,
    Optimizer,
    doubtful_settings,
    unread_settings,
)
from bb_edge.components.parameter_adoption import adopt_parameters
from bb_edge.components.parameter_home import ParameterHome
from bb_edge.components.state import StateReader, pack_array, pack_state
from bb_edge.components.update_norm import is_finite
from bb_edge.components.vector_layout import VectorLayout, cut
from bb_edge.ir.annotated import annotate
from bb_edge.ir.lent_memory import LentArrays
from bb_edge.roles.adoption import Adoption
from bb_edge.roles.component import Component, ComponentEnv
from bb_edge.roles.contracts import Model
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Setting, settings_of

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.context import Ctx

__all__ = ["GraphModel"]

KEPT_KEY_BYTES = 16 << 20
"""Of activations under keys: 64 batches of 32 with 2,000 numbers each, a quarter of a board with 64 MiB."""

_VERSION = 1


class GraphModel(Model):
    """A model that is trained by gradient descent.

    Configuration, with defaults in parentheses:

    - `optimizer`: `sgd` (default), `adam` or `adamw`; `momentum` (0) and `nesterov` (false) of SGD, `beta1`
      (0.9), `beta2` (0.999) and `epsilon` (1e-8) of the others.
    - `weight_decay`: added to the gradient times the parameters, by `adamw` taken off the parameters (0).
    - `clip_norm`: the most that the gradient may measure (L2, all parameters together), 0 = any (0).
    - `learning_rate` (0.1), and how it changes: `schedule` is `constant` (default), `step_decay` (times
      `decay`, 0.1, every `schedule_length`) or `cosine` (down to `lowest_rate`, 0, in `schedule_length`);
      before it the rate grows for `warm_up` (0). `schedule_length` (100, which is warned of beside a
      schedule) and `warm_up` count what `schedule_by` says: a `step` (default) or a `round`. Rounds are those
      that `SetRound` tells, else every `LoadParameters` begins one.
    - `reset_state`: whether `LoadParameters` sets momentum and Adam's means back to zero (false).
    - `ignore_index`: the class of rows and places that have none, of targets that are numbers of classes (-1;
      `trainable` sets it).
    - `statistics`: how many tensors, the last ones, `Train` updates as statistics (0; `trainable` sets it).
    - `kept_activations`: of how many executions the activations are kept for `Backward` (64);
      `kept_keys` (64): how many forward passes with a key may wait for theirs; `kept_key_bytes` (16 MiB): the
      bytes of what those keep.
    - `personal_tensors`: how many tensors, the first ones, are trained and not sent (0; `trainable`
      sets it).
    - `personal_statistics`: how many of the statistics, the last ones, are not sent (0; `trainable` sets it).
    - `untrained_tensors`: how many tensors, those before the statistics, are sent and not trained (0;
      `trainable` sets it).

    Construction state: the parameters as initializers. Graphs: `forward`; for `Train` also `fit`, for
    `Backward` also `train`, for `Evaluate` also `loss` (docs/design/artifact.md). A `Step` without a `Train`
    or `Backward` before it applies a zero gradient.

    A subclass with a term of its own in the gradient overrides `adjust_gradient` and reads `parameters`; its
    configuration keys go into a `CONFIG` of its own.
    """

    TYPE_NAME: ClassVar[str] = "bb.GraphModel"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        **OPTIMIZER_CONFIG,
        "ignore_index": Setting.integer(IGNORE_INDEX, -(2**63)),
        "kept_activations": Setting.integer(64, 1),
        "kept_keys": Setting.integer(64, 1),
        "kept_key_bytes": Setting.integer(KEPT_KEY_BYTES, 1),
        "personal_statistics": Setting.integer(0),
        "personal_tensors": Setting.integer(0),
        "statistics": Setting.integer(0),
        "untrained_tensors": Setting.integer(0),
    }
    COMPILED: ClassVar[frozenset[str]] = frozenset((*LAYOUT_KEYS, "ignore_index"))
    NEEDS: ClassVar[tuple[str, ...]] = ("forward",)
    room = staticmethod(room_for_parameters)
    GRAPH_OPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "train": ("Backward", "BackwardKeyed", "BackwardInput"),
        "fit": ("Train",),
        "loss": ("Evaluate",),
    }

    def __init__(
        self,
        tensors: Mapping[str, Array],
        *,
        where: str = "",
        ignore_index: int = IGNORE_INDEX,
        kept_activations: int = 64,
        kept_keys: int = 64,
        kept_key_bytes: int = KEPT_KEY_BYTES,
        personal_tensors: int = 0,
        personal_statistics: int = 0,
        statistics: int = 0,
        untrained_tensors: int = 0,
        layout: ModelLayout | None = None,
        **optimizer: Any,
    ) -> None:
        """`layout` is that of the tensors, where it is known; `optimizer` are keys of `OPTIMIZER_CONFIG`.

        Those that are left out have their defaults.
        """
        self._where = where
        self._ignored = ignore_index
        if layout is None:
            counts = personal_tensors, personal_statistics, statistics, untrained_tensors
            layout = ModelLayout(tensors, *counts)
        self._names, self._shapes = layout.names, layout.shapes
        self._layout, self._shared, self._size = layout.all, layout.sent, layout.all.size
        self._home = ParameterHome(self.room(self._size), layout)
        for view, array in zip(self.views(self._home.vector), tensors.values(), strict=True):
            np.copyto(view, array)
        self._graphs: ModelGraphs | None = None
        self._gradient: GradientSum | None = None
        self._given = LentArrays(self._shared.size, 1)  # what `params` gives
        self._personal = layout.personal
        self._tensors_learned, self._learned = layout.tensors_learned, layout.learned
        self._statistics: Array = np.empty(layout.statistics, np.float32)  # of a batch
        self._statistic_views = cut(self._statistics, layout.statistic_shapes)
        settings = {key: setting.default for key, setting in OPTIMIZER_CONFIG.items()}
        self._optimizer = Optimizer({**settings, **optimizer}, self._size)
        self.untold = self._optimizer.notes
        self._adjusts = type(self).adjust_gradient is not GraphModel.adjust_gradient
        self._reads_only = self._optimizer.reads_only and not self._adjusts
        plain = self._reads_only and not layout.statistics  # those are sums over rows by their weights
        self._factor = self._optimizer.factor if plain else 1.0  # what gradients of batches are times
        self._activations = KeptActivations(kept_activations, kept_keys, kept_key_bytes, where)
        self.updates = 0
        """How often the parameters were changed: by a step, a delta, or others that were loaded."""

    @classmethod
    def construct(cls, env: ComponentEnv) -> GraphModel:
        read = env.settings(cls)
        for name, array in env.tensors.items():
            if array.dtype != np.float32:
                raise env.error(
                    f"parameter {name!r} is {array.dtype}",
                    hint="parameters are f32; make the others constants",
                )
        counts = checked_counts(env, read)
        layout = env.once(("layout", counts), lambda: ModelLayout(env.tensors, *counts))
        model = cls(
            env.tensors,
            layout=layout,
            where=f"slot {env.slot!r}",
            **{key: read[key] for key in GraphModel.CONFIG},
        )
        model.notes = env.unread_notes(cls)
        learned = model._tensors_learned, read["statistics"]
        tensors = model.views(model._home.vector)
        model._graphs = prepare_graphs(env, tensors, learned, model._factor)
        model._home.trained_by(model._graphs.fit, tensors)
        if model._graphs.learns:
            shapes = model._shapes[: model._tensors_learned]
            once = env.once(("gradients", counts), list[Any])
            model._gradient = GradientSum(model._size, partial(cut, shapes=shapes), once, model._factor)
        return model

    @classmethod
    def unread_settings(cls, config: Mapping[str, object]) -> Mapping[str, str]:
        return unread_settings(cls._own_settings(config))

    @classmethod
    def doubtful_settings(cls, config: Mapping[str, object]) -> Mapping[str, str]:
        return doubtful_settings(cls._own_settings(config))

    @classmethod
    def _own_settings(cls, config: Mapping[str, object]) -> dict[str, object]:
        """The keys that are read here: a subclass that declares one again reads it itself, and knows when."""
        kind: type[Component] = cls
        known = settings_of(kind) or {}
        return {k: v for k, v in config.items() if known.get(k) is OPTIMIZER_CONFIG.get(k)}

    def take_notes(self) -> Sequence[str]:
        return self._optimizer.take_notes()

    @property
    def activations_dropped(self) -> int:
        """How often activations were dropped for newer ones before a backward pass has used them."""
        return self._activations.dropped

    @property
    def layout_hash(self) -> str:
        """FNV-1a-64 in hex of the layout of what `params` gives."""
        return self._shared.hash

    @property
    def parameters(self) -> Array:
        """All parameters as they are now, 1-D f32, read-only and without a copy."""
        return self._home.shown()

    def adjust_gradient(self, gradient: Array) -> None:
        """Changes the gradient that `step` is about to apply, 1-D f32, in place; for subclasses.

        The default leaves it as it is: plain gradient descent. A result would be lost, so `step` raises a
        ComponentError where the method returns anything but None.
        """

    def views(self, flat: Array) -> tuple[Array, ...]:
        """Returns the parameters' tensors as views of a flat vector."""
        return cut(flat, self._shapes)

    # --- the Contract ----------------------------------------------------------------------------------

    def forward(self, ctx: Ctx, input: Array) -> Array:
        """Returns the output; a trainable model stores what a `Backward` of this execution reads."""
        output, kept = self._run_forward(input)
        if kept is not None:
            self._activations.keep(ctx.exec_id, kept)
        return output

    def forward_keyed(self, ctx: Ctx, input: Array, key: object) -> Array:
        """Returns the output; a trainable model keeps what a backward pass of the same key reads.

        In place of what it has kept under the key before. Beyond `kept_keys` and `kept_key_bytes` the oldest
        keys go. ComponentError for what is not a key, and for activations that are larger than all that may
        be kept.
        """
        output, kept = self._run_forward(input)
        if kept is not None:
            self._activations.keep_under(key, kept)
        return output

    def _run_forward(self, input: Array) -> tuple[Array, Kept | None]:
        """The output, and what a backward pass reads where the model has one."""
        graphs = self._programs()
        if graphs.forward is None:
            return graphs.infer.run((input,))[0], None
        output, *activations = graphs.forward.run((input,))
        return output, Kept((input, *activations), output.shape, output.dtype)

    def backward(self, ctx: Ctx, grad: Array) -> None:
        """Adds to the gradient.

        Raises ComponentError without a `Forward` of this execution, or for a gradient of another shape.
        """
        self._run_backward(ctx, grad, None)

    def backward_keyed(self, ctx: Ctx, grad: Array, key: object) -> None:
        """Adds to the gradient, and drops what is kept under the key.

        Raises UnknownKey where nothing is, ComponentError for a gradient of another shape.
        """
        self._run_backward(ctx, grad, key)

    def backward_input(self, ctx: Ctx, grad: Array, key: object = None) -> Array:
        """Does what `backward` or `backward_keyed` does; returns dL/dinput, in the input's shape and dtype.

        Raises what they raise, and ComponentError where the artifact's gradient is one without the input's.
        """
        found = self._run_backward(ctx, grad, key)
        if found is None:
            raise self._error(
                "its graph 'train' does not give the gradient of the input",
                "compile the program again, with the model that is bound to the slot",
            )
        return found

    def _run_backward(self, ctx: Ctx, grad: Array, key: object) -> Array | None:
        """Adds to the gradient; dL/dinput, where the graph gives it."""
        graphs = self._programs()
        if graphs.train is None or self._gradient is None:
            raise self._error("it cannot be trained: the artifact has no graph 'train' for it")
        kept = self._activations.find(ctx.exec_id, key)
        if grad.shape != kept.shape or grad.dtype != kept.dtype:
            raise self._error(
                f"the gradient is {grad.dtype}{list(grad.shape)}, the output {kept.dtype}{list(kept.shape)}"
            )
        first = kept.arrays[0]
        behind = (np.empty(first.shape, first.dtype),) if graphs.gives_input_gradient else ()
        self._gradient.add(graphs.train, (*kept.arrays, grad), ((), behind))
        if key is not None:
            self._activations.use(key)
        return behind[0] if behind else None

    def gradient(self, ctx: Ctx) -> Array:
        """Returns the gradient since the last step, 1-D f32, zeros without one; the next sum begins anew."""
        if self._gradient is None:
            raise self._error("it cannot be trained: the artifact has no graph 'train' or 'fit' for it")
        return annotate(self._gradient.gradient(), self._layout.metadata)

    def train(self, ctx: Ctx, input: Array, target: Array) -> Array:
        """Adds the gradient of the mean loss over the batch to the model's own; returns that loss.

        Rows and places whose class is `ignore_index` are not in the mean; it is 0 where none is left.
        It stores no activations, and changes no parameters but statistics: a `Step` behind it does that.
        ComponentError for a batch without rows, and for a target that names a class the model does not have.
        """
        graphs = self._graphs  # and not `_programs`: `fit` reads parameters that are away
        if graphs is None or (fit := graphs.fit) is None or self._gradient is None:
            raise self._error("it cannot be trained on batches: the artifact has no graph 'fit' for it")
        if (loss := fit.again(self._gradient, input, target)) is None:
            scale = graphs.mean_scale(input, target, self._ignored, self._where)
            loss = fit.add(self._gradient, input, target, self._where, self._statistic_views, scale)
        if self._statistic_views:
            np.copyto(self._home.vector[self._size - self._statistics.size :], self._statistics)
            self.updates += 1
        self._home.read = True
        return loss

    def step(self, ctx: Ctx, grads: Array | None = None) -> None:
        """Changes the parameters by the gradient, as the optimizer that is configured does.

        `adjust_gradient` sees the gradient first, then it is clipped.
        """
        if grads is not None:
            self._check(grads, "the gradient", self._layout)
            gradient = np.array(grads, np.float32)  # scaled in place below
        elif self._gradient is None:
            raise self._error("it cannot be trained: the artifact has no graph 'train' or 'fit' for it")
        elif self._reads_only and (parts := self._gradient.take_parts()):
            self._optimizer.step_by_parts(self._home.beside(parts), self._gradient.factor)
            self.updates += 1
            return
        else:
            gradient = self._gradient.take()
        if self._adjusts and (given := self.adjust_gradient(gradient)) is not None:  # type: ignore[func-returns-value]
            raise ComponentError(
                f"{self.TYPE_NAME}.adjust_gradient gives a {type(given).__name__}, which nobody reads",
                hint="change the gradient in place: gradient += …, gradient[...] = …",
            )
        rest = self._learned < self._size
        self._optimizer.step(self._home.learned(), gradient[: self._learned] if rest else gradient)
        self.updates += 1

    def set_round(self, ctx: Ctx, round: Array) -> None:
        """Sets the round that a schedule by round goes by, from 1. ComponentError for another number."""
        if round.size != 1 or round.dtype.kind not in "iu" or round.item() < 1:
            raise self._error(f"a round is one whole number from 1, not {round.dtype}{round.tolist()!r:.40}")
        self._optimizer.set_round(round.item())

    def evaluate(self, ctx: Ctx, input: Array, target: Array) -> Array:
        """Returns the mean loss; stores no activations and changes nothing.

        ComponentError for a target that names a class the model does not have.
        """
        graphs = self._programs()
        if graphs.loss is None:
            raise self._error("it has no loss: the artifact has no graph 'loss' for it")
        graphs.mean_scale(input, target, self._ignored, self._where)  # the graph takes the mean
        loss = graphs.loss.run((graphs.infer.run((input,))[0], target))[0]
        if loss.size != 1:
            raise self._error(f"its loss graph gives {list(loss.shape)}, not one number")
        return loss.reshape(()).astype(np.float32, copy=False)

    def apply_delta(self, ctx: Ctx, delta: Array) -> None:
        if delta.size or delta.ndim != 1:
            self._check(delta, "the delta", self._shared)
            self._check_finite(delta, "the delta")
            self._home.sent()[...] += delta
            self.updates += 1

    def load_parameters(self, ctx: Ctx, params: Array) -> None:
        """Sets the parameters.

        ComponentError, and the old ones stay, for another length or dtype, the hash of another layout, inf or
        nan. ComponentError with the new ones set where the optimizer's state had become inf or nan: it begins
        at zero then, and what was to be trained now is not.
        """
        if params.size or params.ndim != 1:
            self._check(params, "the parameter vector", self._shared)
            self._check_finite(params, "the parameter vector")
            np.copyto(self._home.sent(), params)
            self.updates += 1
            if broken := self._optimizer.loaded():
                raise self._error(
                    f"the optimizer's state ({', '.join(broken)}) holds inf or nan, from what was trained"
                    " before; it begins at zero",
                    "look at the samples, at clip_norm and at the learning rate; the next round trains again",
                )

    def reserve(self) -> None:
        self._given.reserve()

    def release(self) -> None:
        for each in (self._given, self._optimizer, self._home):
            each.release()
        if self._gradient is not None:
            self._gradient.release()

    def params(self, ctx: Ctx) -> Array:
        copied = self._given.take()
        self._home.copy_sent(copied)
        return annotate(copied, self._shared.metadata)

    def named_parameters(self) -> dict[str, Array]:
        """Returns a copy of the parameters, each under its name in the model's ONNX file."""
        return dict(zip(self._names, self.views(self._home.whole().copy()), strict=True))

    @property
    def personal_untrained(self) -> tuple[str, ...]:
        return () if self._optimizer.total else self._personal

    def _programs(self) -> ModelGraphs:
        """For graphs that read the parameters in the vector."""
        assert self._graphs is not None, "`construct` prepares them"
        self._home.whole()
        return self._graphs

    def _check(self, vector: Array, what: str, layout: VectorLayout) -> None:
        wrong, remedy = layout.misfit(vector)
        if wrong:
            raise self._error(f"{what} {wrong}", remedy)

    def _check_finite(self, vector: Array, what: str) -> None:
        if not is_finite(vector):
            raise self._error(f"{what} holds inf or nan; the old parameters stay")

    def _error(self, what: str, hint: str = "") -> ComponentError:
        return ComponentError(what, self._where, hint)

    # --- executions and snapshots ----------------------------------------------------------------------

    def execution_ended(self, exec_id: int) -> None:
        self._activations.forget(exec_id)

    def serialize(self) -> bytes:
        fields: dict[str, object] = {
            "layout": self._layout.hash,
            "tensors": [[n, list(s)] for n, s in zip(self._names, self._shapes, strict=True)],
            "params": pack_array(self._home.whole()),
            **({"gradient": None} if self._gradient is None else self._gradient.save()),
            "optimizer": self._optimizer.counts(),
            **{name: pack_array(vector) for name, vector in self._optimizer.saved().items()},
            **self._activations.save(),
        }
        if untrained := self.personal_untrained:
            fields["personal_untrained"] = list(untrained)
        return pack_state(self, _VERSION, fields)

    def restore(self, state: bytes) -> None:
        """Takes a state over.

        Raises ComponentStateError, changing nothing, where the bytes are damaged or those of another model.
        """
        read = StateReader(self, _VERSION, state)
        params, (gradient, factor) = read.array("params"), read_gradient(read)
        vectors = {name: read.optional_array(name) for name in self._optimizer.vectors}
        for array in (params, gradient, *vectors.values()):
            if array is not None and (array.shape != (self._size,) or array.dtype != np.float32):
                raise read.error(f"it holds {list(array.shape)} parameters, this model has {self._size}")
        counts = read.integers("optimizer", 4)
        activations = self._activations.read(read)
        np.copyto(self._home.whole(), params)
        if self._gradient is not None:
            self._gradient.restore(gradient, factor)
        self._optimizer.restore(counts, vectors)
        self._activations.restore(activations)

    def adopt(self, state: bytes) -> Adoption:
        """Takes the tensors whose name and shape are the same here, and what the optimizer keeps of them."""
        read = StateReader(self, _VERSION, state)

        def named(flat: Array) -> dict[str, Array]:
            return dict(zip(self._names, self.views(flat), strict=True))

        kept = {name: named(vector) for name, vector in self._optimizer.vectors.items()}
        adopted = adopt_parameters(read, named(self._home.whole()), kept)
        if adopted.taken and (counts := read.integers("optimizer", 4)):
            self._optimizer.adopt_counts(counts, with_means=read.optional_array(MEAN) is not None)
        self.updates += bool(adopted.taken)
        return adopted

    def drop_executions(self) -> tuple[str, ...]:
        """Drops activations and gradients whose step or backward pass was not taken."""
        left = []
        if count := self._activations.clear():
            left.append(f"activations of {count} forward passes: {_OLD}")
        if self._gradient is not None and self._gradient.filled:
            self._gradient.restore(None)
            left.append(f"a gradient without its step: {_OLD}")
        return tuple(left)


_OLD = "of executions of the old program"
