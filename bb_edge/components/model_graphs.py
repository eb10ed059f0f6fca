"""The graphs that an artifact brings for a model, checked against each other and made ready to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bb_edge.components.batch_fit import BatchFit
from bb_edge.components.class_targets import mean_scale
from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import FunctionProto
from bb_edge.roles.errors import ComponentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bb_edge.ir.tensors import Array
    from bb_edge.roles.component import ComponentEnv
    from bb_edge.roles.programs import BackendProgram

__all__ = ["ModelGraphs", "prepare_graphs"]


class ModelGraphs(NamedTuple):
    """Programs over parameters that are resident; None for a graph that the artifact does not have.

    `infer` gives the output alone, `forward` the output and the activations that `train` takes behind the
    input, with the output's gradient last; it gives the parameters' gradients, and behind them the input's
    where `gives_input_gradient` says so. `loss` maps (output, target) to one number. `fit` is a batch's
    forward pass, loss and gradient in one. `class_count` is how many classes targets may name, 0 where they
    are not numbers of classes.
    """

    infer: BackendProgram
    forward: BackendProgram | None = None
    train: BackendProgram | None = None
    loss: BackendProgram | None = None
    fit: BatchFit | None = None
    gives_input_gradient: bool = False
    class_count: int = 0

    @property
    def learns(self) -> bool:
        """Whether a graph of them gives gradients."""
        return self.train is not None or self.fit is not None

    def mean_scale(self, x: Array, target: Array, ignored: int, where: str) -> float:
        """Returns `class_targets.mean_scale` of a batch.

        ComponentError for what that refuses, and for results and targets of different numbers: a single one
        would be that of each of the others, as ONNX's operators broadcast, and the loss that of so many.
        """
        if target.ndim and x.shape[:1] not in ((), (0,), target.shape[:1]):
            made, rows = self.infer.run((x,))[0], len(target)
            comparable = rows == 1 or self.class_count > 0 or target.ndim == made.ndim
            if made.ndim and comparable and len(made) != rows:
                targets = "one target" if rows == 1 else f"{rows} targets"
                what = f"a batch {list(x.shape)} has {len(made)} results, and {targets} {list(target.shape)}"
                raise ComponentError(what, where, "give a target per row")
        return mean_scale(target, self.class_count, ignored, where)


def prepare_graphs(
    env: ComponentEnv, parameters: Sequence[Array], counts: tuple[int, int], factor: float = 1.0
) -> ModelGraphs:
    """Prepares the graphs of the slot on its target's backend, reading `parameters` in place.

    `counts`: the first so many of them have gradients; of the last so many, statistics, `fit` gives the new
    values. `factor` is that of `BatchFit`. ComponentError where there is no `forward`, or one does not have
    the inputs and outputs that it must.
    """
    forward, train, loss, fit = map(env.graph, ("forward", "train", "loss", "fit"))
    if forward is None:
        raise env.error("the artifact has no graph 'forward' for it", hint="bind it with a trainable model")
    backend, functions = env.require_backend(), env.functions
    count, (learned, statistics) = len(parameters), counts
    if len(forward.input) != 1 + count or not forward.output:
        raise env.error(
            f"graph {forward.name!r} has {len(forward.input)} inputs and {len(forward.output)} outputs, "
            f"it needs the model's input and {count} parameters, and an output"
        )
    n_activations = len(forward.output) - 1
    declared, arity = _metadata(forward, keys.COMPONENT_ARITY_KEY), f"1,{count},{n_activations}"
    if declared is not None and declared != arity:
        raise env.error(f"graph {forward.name!r} says its arity is {declared}, its signature says {arity}")

    def prepared(graph: FunctionProto, first: int) -> BackendProgram:
        """With the parameters, which are its inputs from `first` on, as residents."""
        names = graph.input[first : first + count]
        return backend.prepare(graph, functions, dict(zip(names, parameters, strict=True)))

    found = ModelGraphs(prepared(env.once("infer", lambda: _with_output_alone(forward)), 1))
    if train is not None:
        wide = len(train.output) == learned + 1  # with the input's gradient
        _check(env, train, 2 + count + n_activations, learned + wide)
        with_activations = prepared(forward, 1) if n_activations else found.infer
        found = found._replace(forward=with_activations, train=prepared(train, 1), gives_input_gradient=wide)
    if loss is not None:
        if len(loss.input) != 2 or len(loss.output) != 1:
            raise env.error(f"graph {loss.name!r} must map (output, target) to the loss")
        found = found._replace(loss=backend.prepare(loss, functions))
    counts_of = (_count(env, graph, keys.CLASS_COUNT_KEY) for graph in (fit, loss) if graph is not None)
    class_count = max(counts_of, default=0)
    if fit is not None:
        _check(env, fit, 3 + count, 1 + learned + statistics)
        chunk = _count(env, fit, keys.CHUNK_KEY)
        fewest = _count(env, fit, keys.FEWEST_ROWS_KEY)
        whole, classes = statistics > 0, class_count > 0
        batches = BatchFit(
            prepared(fit, 3), chunk, whole=whole, fewest=fewest, classes=classes, factor=factor
        )
        found = found._replace(fit=batches)
    return found._replace(class_count=class_count)


def _with_output_alone(forward: FunctionProto) -> FunctionProto:
    alone = FunctionProto()
    alone.CopyFrom(forward)
    del alone.output[1:]
    return alone


def _check(env: ComponentEnv, graph: FunctionProto, inputs: int, outputs: int) -> None:
    if len(graph.input) != inputs or len(graph.output) != outputs:
        raise env.error(
            f"graph {graph.name!r} has {len(graph.input)} inputs and {len(graph.output)} outputs, "
            f"it needs {inputs} and {outputs}"
        )


def _count(env: ComponentEnv, graph: FunctionProto, key: str) -> int:
    """The number that the graph's metadata has under a key; 0 where it has none."""
    count = _metadata(graph, key) or "0"
    if not count.isdecimal():
        raise env.error(f"graph {graph.name!r}: {key} is {count!r}, which is not a whole number of 0 or more")
    return int(count)


def _metadata(graph: FunctionProto, key: str) -> str | None:
    return next((entry.value for entry in graph.metadata_props if entry.key == key), None)
