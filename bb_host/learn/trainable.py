"""A model that a program can bind: forward, gradient and loss as graphs, and its parameters."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, SupportsFloat

import onnx

from bb_edge.components.class_targets import IGNORE_INDEX
from bb_edge.components.optimizers import OPTIMIZER_CONFIG
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.types import TENSOR_F32, ValueType
from bb_host.author_lines import author_line, short_line
from bb_host.diagnostics import ProgramWarning
from bb_host.dsl.misuse import typed_call
from bb_host.errors import ConstructionError, LearnError, place_of
from bb_host.ir.facts import FunctionFacts
from bb_host.ir.program import AttrValue, Function, Subgraph
from bb_host.ir.queries import is_onnx, live
from bb_host.learn.autodiff import Gradient, differentiate, refuse_operators
from bb_host.learn.batch_norm import BATCH_NORM, with_statistics
from bb_host.learn.fit_graph import fit_function
from bb_host.learn.folding import folded
from bb_host.learn.input_gradient import with_input_gradient
from bb_host.learn.losses import LOSSES, USUAL, LossSettings, class_count, loss_function
from bb_host.learn.model_warnings import warnings_of
from bb_host.learn.onnx_import import ImportedModel, import_onnx
from bb_host.learn.parameters import Initializer, refuse_quantized, render
from bb_host.learn.shapes import infer_types, with_types
from bb_host.whole_numbers import whole

OPTIMIZERS = OPTIMIZER_CONFIG["optimizer"].choices
"""The names of the optimizers."""


@dataclass(frozen=True, slots=True)
class Construction:
    """The construction state of one slot (docs/design/artifact.md, "Construction state").

    `attribute` stands under the slot's name in the partition main: here a graph, its initializers the
    tensors and its metadata the config with JSON values. `functions` are the component graphs.
    """

    attribute: AttrValue
    functions: tuple[Function, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainableModel:
    """What `Compiler.bind_model(slot, "bb.GraphModel", trainable(model))` takes as config.

    `gradient` is None for a model that is only run (`learning=False`). `statistics` are the last of its
    parameters: those that batches update, and no gradient. `config` are further configuration
    keys, those of a subclass of GraphModel; its values are JSON.
    """

    model: ImportedModel
    gradient: Gradient | None
    loss: str = LOSSES[0]
    learning_rate: float = 0.1
    momentum: float = 0.0
    optimizer: str = "sgd"
    statistics: tuple[str, ...] = ()
    loss_settings: LossSettings = USUAL
    config: Mapping[str, object] = field(default_factory=dict)

    @property
    def parameter_count(self) -> int:
        """Entries of the flat parameter vector."""
        return sum(array.size for array in self.model.parameters.values())

    @property
    def initializers(self) -> tuple[Initializer, ...]:
        """Every initializer of the model: learned or not, and why."""
        return self.model.initializers

    def table(self) -> str:
        """What is learned and what is not, as text: what `bb-host compile NET.onnx --trainable` prints."""
        return render(self.initializers)

    def __repr__(self) -> str:
        tensors = len(self.model.parameters)
        return f"<TrainableModel: {self.parameter_count:,} parameters in {tensors} tensors, loss {self.loss}>"

    def warnings(self) -> tuple[ProgramWarning, ...]:
        """Parameters that training does not change or that layers share, and statistics that it leaves.

        Where the model is bound, `bb-host compile` and `Compiler.compile` show them.
        """
        if self.gradient is None:
            return ()
        return warnings_of(self.model, self.gradient, self.loss)

    def graphs(self, slot: str, op_types: frozenset[str]) -> tuple[Function, ...] | None:
        """Those of `construct`, but with dL/dinput as last output of `train` where an op reads it; else None.

        LearnError and NotDifferentiableError where the gradient does not reach the input.
        """
        if "BackwardInput" not in op_types or self.gradient is None:
            return None
        wide = dataclasses.replace(self, gradient=with_input_gradient(self.model, self.gradient.wrt))
        return wide.construct(slot).functions

    def construct(self, slot: str) -> Construction:
        """The slot's construction state: a graph with the parameters, and `<slot>.forward|train|loss|fit`."""
        config: dict[str, object] = {"learning_rate": self.learning_rate, "momentum": self.momentum}
        if self.model.personal:
            config["personal_tensors"] = len(self.model.personal)
        config.update(self.config)
        if self.optimizer != "sgd":  # which devices take for granted that know no other
            config["optimizer"] = self.optimizer
        if self.loss_settings.ignored != IGNORE_INDEX:
            config["ignore_index"] = self.loss_settings.ignored
        if self.statistics:
            config["statistics"] = len(self.statistics)
        own = sum(i.personal and i.name in self.statistics for i in self.model.initializers)
        if own:
            config["personal_statistics"] = own
        untrained = [name for name in self.model.untrained if name not in self.statistics]
        if untrained:
            config["untrained_tensors"] = len(untrained)
        texts = {key: _json(key, value) for key, value in config.items()}
        state = Subgraph(slot, initializers=dict(self.model.parameters), config=texts)
        forward = self.model.function if self.gradient is None else self.gradient.forward
        n_parameters = len(self.model.parameters)
        arity = len(self.model.inputs), n_parameters, len(forward.outputs) - 1
        functions = [_named(forward, f"{slot}.forward", FunctionFacts(arity=arity))]
        if self.gradient is not None:
            functions.append(_named(self.gradient.backward, f"{slot}.train"))
        output = forward.types.get(forward.outputs[0])
        classes = class_count(self.loss, output)
        functions.append(
            _named(
                loss_function(self.loss, output, self.loss_settings),
                f"{slot}.loss",
                FunctionFacts(class_count=classes),
            )
        )
        fit = None
        if self.gradient is not None:
            fit = fit_function(self.model.function, self.loss, self.statistics, untrained, self.loss_settings)
        if fit is not None:
            facts = FunctionFacts(chunk=0 if self.statistics else None, class_count=classes)
            functions.append(_named(fit, f"{slot}.fit", facts))
        return Construction(state, tuple(functions))


def _number(name: str, value: object, most: float = math.inf) -> float:
    """A setting as a number from 0 to `most`: no bool, no text."""
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, SupportsFloat):
        raise LearnError(f"{name} must be a number, not {value!r}", "trainable", "write 0.1")
    number = float(value)
    if not (math.isfinite(number) and 0 <= number <= most):
        above = "" if most == math.inf else f" and at most {most:g}"
        raise LearnError(f"{name} must be finite, at least 0{above}, not {value!r}", "trainable", "write 0.1")
    return number


def _ignored(given: object, loss: str) -> int:
    """The class of what has none. LearnError for no whole number, and for a loss that has no such class."""
    if given is None:
        return IGNORE_INDEX
    number = whole(given)
    if number is None or not -(2**63) < number < 2**63:
        what = f"ignore_index is the number of a class, not {given!r}"
        raise LearnError(what, "trainable", "write ignore_index=-100")
    if loss != "sparse_softmax_cross_entropy":
        what = f"ignore_index is for numbers of classes, and the loss {loss!r} takes others"
        raise LearnError(what, "trainable", 'leave it out, or write loss="sparse_softmax_cross_entropy"')
    return number


_OWN_KEYS = {
    "ignore_index": "trainable(…, ignore_index=…)",
    "learning_rate": "trainable(…, learning_rate=…)",
    "momentum": "trainable(…, momentum=…)",
    "optimizer": "trainable(…, optimizer=…)",
    "personal_tensors": 'trainable(…, personal=["head.*"])',
    "personal_statistics": 'trainable(…, personal=["norm.running_*"])',
    "statistics": 'trainable(…, batch_norm="update")',
    "untrained_tensors": 'trainable(…, sent=["encoder.*"])',
}
"""Keys of GraphModel that `trainable` writes, and what says them."""


def _refuse_own_keys(config: Mapping[str, object]) -> None:
    """LearnError for a key that an argument of `trainable` says: one of the two would have no effect."""
    for key in config:
        if key in _OWN_KEYS:
            what = f"config has {key!r}, which an argument says"
            raise LearnError(what, "trainable", f"write {_OWN_KEYS[key]}, and leave {key!r} out of config")


def _patterns(name: str, given: object) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else given
    if isinstance(patterns, Collection) and not isinstance(patterns, (bytes, Mapping)):
        wrong = [p for p in patterns if not isinstance(p, str)]
        if not wrong:
            return tuple(patterns)
        given = wrong[0]
    what = f"{name} holds names of initializers, not {given!r}"
    raise LearnError(what, "trainable", f'write {name}=["encoder.*"]')


def _json(key: str, value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ConstructionError(
            f"key {key!r} has no JSON form: {error}", hint="give numbers, texts, lists and tables of those"
        ) from error


def _named(function: Function, name: str, more: FunctionFacts | None = None) -> Function:
    return dataclasses.replace(
        function,
        name=name,
        domain=keys.COMPONENT_DOMAIN,
        facts=function.facts if more is None else function.facts | more,
    )


@typed_call
def trainable(
    model: onnx.ModelProto | str | Path | bytes,
    loss: str = LOSSES[0],
    learning_rate: float | None = None,
    momentum: float = 0.0,
    *,
    learning: bool = True,
    frozen: Collection[str] = (),
    train: Collection[str] = (),
    train_last: int | None = None,
    personal: Collection[str] = (),
    sent: Collection[str] = (),
    optimizer: str = "sgd",
    batch_norm: str = "frozen",
    huber_delta: float | None = None,
    ignore_index: int | None = None,
    output: str | None = None,
    config: Mapping[str, object] | None = None,
) -> TrainableModel:
    """Makes an inference model trainable.

    `model` has one input (`join_inputs` makes several one), and is trained by one output: `output` names it
    where there are several, or an inner value such as the logits before a softmax. What only other outputs
    need is left out. Its parameters are the weights, biases, scales and tables of its layers, in the order of
    its initializers; constants of the exporter are not among them. `print(trainable( model).table())` shows
    what is learned and why; docs/how-to/models.md has the rule. `loss` is what `Train` and `Evaluate` answer,
    one of `bb_host.learn.LOSSES`: the mean over the batch, of the plain output (logits); `huber_delta` (1) is
    up to which error `huber` is a square, `ignore_index` (-1) the class of what has no part in the mean.
    `learning_rate` (0.1; 0.001 for Adam), `momentum` and `optimizer` (`sgd`, `adam`, `adamw`) are defaults
    that a device's configuration may override. With `learning=False`
    there is no gradient graph. Initializers that match a pattern of `frozen` (names or globs: `encoder.*`)
    are neither trained nor sent; those that match one of `train` are, whatever the rule says. `train_last`
    leaves the parameters of that many last layers as the only ones that are learned, beside those of `train`.
    What matches a pattern of `personal` is trained and never sent: `params`, `load_parameters` and
    `apply_delta` leave it out, so each node has its own. What matches a pattern of `sent` and is not trained
    is a parameter all the same: sent, loaded and averaged, and changed by nothing else. With
    `batch_norm="update"` batches are normalized by their own mean and variance in `Train`, and running
    statistics are updated, sent and averaged with the parameters, unless `personal` names them; `frozen`,
    they stay as in the file. With `learning=False` as well they are parameters, so that vectors of models
    that learn fit. `config` are further keys of GraphModel, `{"weight_decay": 0.01, "clip_norm": 1.0}`,
    or of a subclass.

    Raises ModelImportError, NotDifferentiableError, LearnError, each at the line that calls it.
    """
    settings = TrainableSettings(
        loss=loss,
        learning_rate=learning_rate,
        momentum=momentum,
        learning=learning,
        frozen=frozen,
        train=train,
        config=config,
        optimizer=optimizer,
        batch_norm=batch_norm,
        train_last=train_last,
        personal=personal,
        sent=sent,
        huber_delta=huber_delta,
        output=output,
        ignore_index=ignore_index,
    )
    try:
        return make_trainable(model, settings)
    except BBError as error:
        error.where = ", ".join(filter(None, (short_line(author_line()), error.where)))
        raise


class TrainableSettings(NamedTuple):
    """What `trainable` takes beside the model, as it came."""

    loss: object = LOSSES[0]
    learning_rate: object = None
    momentum: object = 0.0
    learning: bool = True
    frozen: object = ()
    train: object = ()
    config: object = None
    optimizer: object = "sgd"
    batch_norm: object = "frozen"
    train_last: object = None
    personal: object = ()
    sent: object = ()
    huber_delta: object = None
    output: object = None
    ignore_index: object = None


def make_trainable(model: onnx.ModelProto | str | Path | bytes, given: TrainableSettings) -> TrainableModel:
    """`trainable` for callers without an author's line: errors name the model's file alone."""
    if given.optimizer not in OPTIMIZERS:
        raise LearnError(
            f"unknown optimizer {given.optimizer!r}", "trainable", f"known: {', '.join(OPTIMIZERS)}"
        )
    if given.batch_norm not in BATCH_NORM:
        known = ", ".join(BATCH_NORM)
        raise LearnError(f"unknown batch_norm {given.batch_norm!r}", "trainable", f"known: {known}")
    usual = 0.1 if given.optimizer == "sgd" else 0.001
    rate = _number("learning_rate", usual if given.learning_rate is None else given.learning_rate)
    kept = _number("momentum", given.momentum, 1.0)
    if given.loss not in LOSSES:
        raise LearnError(f"unknown loss {given.loss!r}", "trainable", f"known: {', '.join(LOSSES)}")
    delta = 1.0 if given.huber_delta is None else _number("huber_delta", given.huber_delta)
    if given.huber_delta is not None and given.loss != "huber":
        what = f"huber_delta is for the loss 'huber', and this is {given.loss!r}"
        raise LearnError(what, "trainable", 'leave it out, or write loss="huber"')
    if not delta:
        raise LearnError("huber_delta is 0, which makes a loss of 0", "trainable", "write huber_delta=1.0")
    ignored = _ignored(given.ignore_index, str(given.loss))
    if given.config is not None and not isinstance(given.config, Mapping):
        what = f"config is a table of keys and values, not {given.config!r}"
        raise LearnError(what, "trainable", 'write config={"mu": 0.01}')
    _refuse_own_keys(dict(given.config or {}))
    frozen, train = _patterns("frozen", given.frozen), _patterns("train", given.train)
    personal, sent = _patterns("personal", given.personal), _patterns("sent", given.sent)
    last = whole(given.train_last)
    if given.train_last is not None and (last is None or last < 1):
        what = f"train_last is a number of layers, not {given.train_last!r}"
        raise LearnError(what, "trainable", "write train_last=1, or leave it out")
    if given.output is not None and not isinstance(given.output, str):
        what = f"output is the name of a value, not {given.output!r}"
        raise LearnError(what, "trainable", 'write output="logits"')
    where = str(model) if isinstance(model, (str, Path)) else "model"
    try:
        statistics: tuple[str, ...] = ()
        updates = given.batch_norm == "update"
        imported = import_onnx(
            model,
            frozen=frozen,
            train=train,
            train_last=last,
            personal=personal,
            sent=sent,
            output=given.output,
            one_output=True,
            learn_statistics=updates,
        )
        refuse_quantized(imported.initializers, where)
        if updates:
            imported, statistics = with_statistics(imported, where)
        imported, gradient = _differentiated(imported, given.learning, where)
    except BBError as error:
        inner = "" if error.where in ("model", "function model", where) else error.where
        if not inner.startswith(where):
            error.where = ", ".join(filter(None, (where, inner)))
        raise
    return TrainableModel(
        imported,
        gradient,
        str(given.loss),
        rate,
        kept,
        str(given.optimizer),
        statistics,
        LossSettings(delta, ignored),
        dict(given.config or {}),
    )


def _differentiated(
    imported: ImportedModel, learning: bool, where: str
) -> tuple[ImportedModel, Gradient | None]:
    function = imported.function
    _one_input(function, imported.inputs, where)
    try:
        if learning:
            function = folded(function)
            imported = dataclasses.replace(imported, function=function)
        out = infer_types(function).get(function.outputs[0])
    except LearnError:
        if learning:
            refuse_operators(function, tuple(imported.parameters))  # which ONNX may have no types for
        raise
    if out is None or out.node != TENSOR_F32:
        raise _no_floats(imported.initializers, out, where)
    if learning:
        _refuse_rows_of_data(function, out, where)
    gradient = None
    if learning:
        learned = tuple(name for name in imported.parameters if name not in imported.untrained)
        if not learned:
            raise _nothing_learned(imported.initializers, where)
        gradient = differentiate(function, learned)
        if len(gradient.unreached) == len(gradient.wrt):
            name, end = gradient.unreached[0]
            raise LearnError(
                f"no gradient reaches any of its parameters: that of {name!r} ends at {end or 'the graph'}",
                where,
                "export the model before it is quantized, or without that operator",
            )
    else:
        imported = dataclasses.replace(imported, function=with_types(function))
    return imported, gradient


_FLOATS = {"float64": "double", "float16": "half", "bfloat16": "bfloat16"}
"""Dtypes of weights that are not trained, and what PyTorch calls the method that makes them."""


def _no_floats(initializers: Sequence[Initializer], out: ValueType | None, where: str) -> LearnError:
    """What is wrong with a model whose output is not float32: the dtype of its weights, as a rule."""
    weights = [i for i in initializers if i.dtype in _FLOATS and i.count > 1]
    if not weights:
        hint = "cast it to float32 in the model, or train the part before it"
        return LearnError(f"its output is {out}, a trainable model's is f32", where, hint)
    dtype, more = weights[0].dtype, f" and {len(weights) - 1} more" if len(weights) > 1 else ""
    return LearnError(
        f"its weights are {dtype} ({weights[0].name}{more}): models are trained in float32",
        where,
        f"convert the net before the export: net.float() and an example of float32 in PyTorch (in place of"
        f" net.{_FLOATS[dtype]}()), keras.config.set_floatx('float32') in Keras",
    )


_ROWS_OF_DATA = ("NonZero", "Compress", "Unique", "NonMaxSuppression")
"""Operators whose results have as many rows as the data say."""


def _refuse_rows_of_data(function: Function, out: ValueType, where: str) -> None:
    """LearnError for an output that has as many rows as the data say: no targets go with them."""
    sizes = {d for name in function.inputs for d in function.types[name].shape or ()}
    if not out.shape or isinstance(out.shape[0], int) or out.shape[0] in sizes:
        return
    for op in live(function.ops, function.outputs):
        if is_onnx(op, *_ROWS_OF_DATA):
            raise LearnError(
                f"its output {function.outputs[0]!r} has as many rows as the data say ({place_of(op)}), and a"
                " loss compares it with a target for each row of the batch",
                where,
                "keep all rows: multiply by a mask (y * mask[:, None], torch.where) in place of y[mask], and"
                " leave rows out by their label (ignore_index)",
            )


def _one_input(function: Function, names: Sequence[str], where: str) -> None:
    if len(names) > 1:
        named = ", ".join(map(repr, names))
        hint = "trainable(join_inputs(model)) makes them one: from bb_host.learn import join_inputs"
        first = {name: (function.types[name].shape or (None,))[0] for name in names}
        fixed = [name for name, dim in first.items() if isinstance(dim, int)]
        if fixed and len(fixed) < len(names):
            hint = (
                f"{fixed[0]!r} has no batch: where it is none of your model's inputs, its exporter has lost a"
                " constant (tf2onnx those of Keras's Normalization: leave it out, and scale the data)"
            )
        raise LearnError(f"it has {len(names)} inputs ({named}), and a slot's model has one", where, hint)
    if not names:
        what, hint = "it has no input: its result is always the same", "export it with an input"
        raise LearnError(what, where, hint)


def _nothing_learned(initializers: Sequence[Initializer], where: str) -> LearnError:
    if not initializers:
        return LearnError("it has no f32 initializers to train", where, "export it with its weights")
    named = "; ".join(f"{i.name}: {i.why}" for i in initializers[:4])
    more = f"; … ({len(initializers)} in all)" if len(initializers) > 4 else ""
    hint = "name what is to be learned: train=[PATTERN], or --train PATTERN"
    return LearnError(f"nothing of it is learned: {named}{more}", where, hint)
