"""LSTM, GRU and RNN against onnxruntime: directions, states, results in any combination, both places of the
batch; what stays, and where `auto` sees a gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_host.tflite import recurrent

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
RESULTS = {"LSTM": "yhc", "GRU": "yh", "RNN": "yh"}
STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 5, 6
Feeds = dict[str, np.ndarray]


def normal(*shape: int, seed: int = 3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.6).astype(np.float32)


def whole(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray],
    opset: int = 17,
) -> tuple[onnx.ModelProto, Feeds]:
    """A dimension with a name is an open batch."""
    feeds = {
        name: normal(*(BATCH if isinstance(n, str) else n for n in shape), seed=seed)
        for seed, (name, shape) in enumerate(inputs.items())
    }
    graph = helper.make_graph(
        list(nodes),
        "recurrent",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model), feeds


def weights(kind: str, directions: int, inputs: int = INPUTS, hidden: int = HIDDEN) -> Feeds:
    rows = GATES[kind] * hidden
    return {
        "w": normal(directions, rows, inputs, seed=11),
        "r": normal(directions, rows, hidden, seed=12),
        "b": normal(directions, 2 * rows, seed=13),
    }


def layer(
    kind: str,
    asked: str = "y",
    given: Sequence[str] = ("x", "w", "r", "b"),
    *,
    steps: int = STEPS,
    batch: int = BATCH,
    states: Mapping[str, np.ndarray] | None = None,
    **said: Any,
) -> tuple[onnx.ModelProto, Feeds]:
    """One layer; `asked` are the results by their first letters, `states` those that are constants."""
    directions = 2 if said.get("direction") == "bidirectional" else 1
    state = (directions, batch, HIDDEN)
    shapes = {"x": (steps, batch, INPUTS), "h0": state, "c0": state}
    constants = {**weights(kind, directions), **(states or {})}
    results = [name if name in asked else "" for name in RESULTS[kind]]
    node = helper.make_node(kind, list(given), results, hidden_size=HIDDEN, **said)
    inputs = {name: shapes[name] for name in given if name in shapes and name not in constants}
    return whole([node], inputs, list(asked), {k: v for k, v in constants.items() if k in given})


def agree(found: tuple[onnx.ModelProto, Feeds], compiled, run_lowered, reference) -> None:
    model, feeds = found
    lowered = compiled(model)
    assert lowered.models
    assert not lowered.lowering.kept, lowered.lowering.explain()
    results, wanted = run_lowered(lowered, feeds), reference(model, feeds)
    assert len(results) == len(wanted)
    for got, want in zip(results, wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


KINDS = [
    ("LSTM", {}),
    ("GRU", {"linear_before_reset": 0}),
    ("GRU", {"linear_before_reset": 1}),
    ("RNN", {}),
    ("RNN", {"activations": ["Relu"]}),
]
EVERY_KIND = pytest.mark.parametrize(
    ("kind", "said"), KINDS, ids=["lstm", "gru", "gru-after", "rnn", "rnn-relu"]
)
EVERY_DIRECTION = pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])


def both(said: Mapping[str, Any], direction: str) -> dict[str, Any]:
    """Attributes with the direction; each direction has activations of its own."""
    found = {**said, "direction": direction}
    if "activations" in found and direction == "bidirectional":
        found["activations"] = [*found["activations"], "Tanh"]
    return found


def test_every_rule_has_cases():
    assert {kind for kind, _ in KINDS} == set(recurrent.RULES)


@pytest.mark.parametrize("batch", [1, BATCH])
@EVERY_DIRECTION
@EVERY_KIND
def test_all_results_agree(kind, said, direction, batch, compiled, run_lowered, reference):
    found = layer(kind, RESULTS[kind], batch=batch, **both(said, direction))
    agree(found, compiled, run_lowered, reference)


@pytest.mark.parametrize("asked", ["y", "h", "c", "yc", "hc"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_some_results_agree(direction, asked, compiled, run_lowered, reference):
    agree(layer("LSTM", asked, direction=direction), compiled, run_lowered, reference)


@pytest.mark.parametrize("steps", [1, 2])
@EVERY_KIND
def test_few_steps_agree(kind, said, steps, compiled, run_lowered, reference):
    agree(layer(kind, RESULTS[kind], steps=steps, **said), compiled, run_lowered, reference)


@EVERY_KIND
def test_without_biases_it_agrees(kind, said, compiled, run_lowered, reference):
    agree(layer(kind, "y", ["x", "w", "r"], **said), compiled, run_lowered, reference)


@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
@EVERY_DIRECTION
@EVERY_KIND
def test_given_states_agree(kind, said, direction, constant, compiled, run_lowered, reference):
    names = ["h0", "c0"] if kind == "LSTM" else ["h0"]
    shape = (2 if direction == "bidirectional" else 1, BATCH, HIDDEN)
    states = {name: normal(*shape, seed=21 + i) for i, name in enumerate(names)} if constant else {}
    given = ["x", "w", "r", "b", "", *names]
    found = layer(kind, RESULTS[kind], given, states=states, **both(said, direction))
    agree(found, compiled, run_lowered, reference)


def test_what_says_nothing_new_agrees(compiled, run_lowered, reference):
    """Lengths that are all of it, peepholes of zeros, and the activations that it has anyway."""
    more = {
        "lengths": np.full(BATCH, STEPS, np.int32),
        "zeros": np.zeros((1, BATCH, HIDDEN), np.float32),
        "holes": np.zeros((1, 3 * HIDDEN), np.float32),
    }
    given = ["x", "w", "r", "b", "lengths", "zeros", "zeros", "holes"]
    found = layer("LSTM", "yhc", given, states=more, activations=["Sigmoid", "Tanh", "Tanh"])
    agree(found, compiled, run_lowered, reference)


def exported(
    kind: str, said: Mapping[str, Any], batch: Any, *, layers: int = 2, last: bool = False, zeros: bool = True
) -> tuple[onnx.ModelProto, Feeds]:
    """As PyTorch's exporter writes layers on a batch that comes first: transposed before, states of zeros in
    the shape of the batch, directions joined between layers, transposed after.
    """
    node, directions = helper.make_node, 2 if said.get("direction") == "bidirectional" else 1
    constants: Feeds = {
        "one": np.array([1], np.int64),
        "zero": np.array(0, np.int64),
        "first": np.array([0], np.int64),
        "size": np.array([directions], np.int64),
        "hidden": np.array([HIDDEN], np.int64),
        "joined": np.array([0, 0, -1], np.int64),
        "nothing": np.zeros((directions, 1, HIDDEN), np.float32),
    }
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "first"], ["n"], axis=0),
        node("Concat", ["size", "n", "hidden"], ["state"], axis=0),
        node("Expand", ["nothing", "state"], ["begin"]),
    ]
    x, inputs = "t", INPUTS
    for i in range(layers):
        constants.update({f"{k}{i}": v for k, v in weights(kind, directions, inputs).items()})
        begin = ["", *["begin"] * (2 if kind == "LSTM" else 1)] if zeros else []
        given = [x, f"w{i}", f"r{i}", f"b{i}", *begin]
        nodes.append(node(kind, given, [f"y{i}", f"h{i}"], hidden_size=HIDDEN, **said))
        if directions == 1:
            nodes.append(node("Squeeze", [f"y{i}", "one"], [f"s{i}"]))
        else:
            nodes.append(node("Transpose", [f"y{i}"], [f"d{i}"], perm=[0, 2, 1, 3]))
            nodes.append(node("Reshape", [f"d{i}", "joined"], [f"s{i}"]))
        x, inputs = f"s{i}", directions * HIDDEN
    if last:
        nodes.append(node("Gather", [f"h{layers - 1}", "zero"], ["result"], axis=0))
    else:
        nodes.append(node("Transpose", [x], ["result"], perm=[1, 0, 2]))
    used = {name for one in nodes for name in one.input}
    constants = {name: value for name, value in constants.items() if name in used}
    return whole(nodes, {"x": (batch, STEPS, INPUTS)}, ["result"], constants)


@pytest.mark.parametrize("last", [False, True], ids=["all", "last"])
@pytest.mark.parametrize("batch", [BATCH, "N"], ids=["fixed", "open"])
@EVERY_DIRECTION
@EVERY_KIND
def test_a_batch_that_comes_first_agrees(
    kind, said, direction, batch, last, compiled, run_lowered, reference
):
    found = exported(kind, both(said, direction), batch, last=last)
    agree(found, compiled, run_lowered, reference)
    plain = run_lowered(compiled(found[0], "numpy"), found[1])
    np.testing.assert_allclose(plain, reference(*found), rtol=1e-4, atol=2e-5)
    (model,) = compiled(found[0]).models
    assert f"{kind}:2" in model.attrs["ops"].decode().split(",")


@pytest.mark.parametrize(
    ("kind", "given", "said", "reason"),
    [
        ("LSTM", "x w r b", {"clip": 1.5}, "it clips"),
        ("RNN", "x w r b", {"activations": ["Softsign"]}, "activations"),
        ("GRU", "x w r b", {"activations": ["Tanh", "Tanh"]}, "activations"),
        ("RNN", "x w r b", {"steps": 751}, "3004 operators"),
        ("LSTM", "x w r b", {"direction": "bidirectional", "steps": 101}, "3030 operators"),
        ("GRU", "x w r b lengths", {}, "lengths of their own"),
        ("LSTM", "x w r b _ _ _ holes", {}, "peepholes"),
    ],
)
def test_what_stays(kind, given, said, reason, compiled):
    lengths = np.array([STEPS] * (BATCH - 1) + [1], np.int32)
    states = {"lengths": lengths, "holes": normal(1, 3 * HIDDEN)}
    names = ["" if name == "_" else name for name in given.split()]
    model, _ = layer(kind, "y", names, states=states, **said)
    assert reason in compiled(model).lowering.explain()


def test_weights_that_would_be_held_once_per_step_stay(compiled):
    hidden, steps = 160, 21
    constants = weights("LSTM", 1, INPUTS, hidden)
    assert constants["r"].nbytes * (steps - 1) <= recurrent.MAX_PACKED < constants["r"].nbytes * steps

    def explained(steps: int) -> str:
        node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=hidden)
        model, _ = whole([node], {"x": (steps, 1, INPUTS)}, ["y"], constants)
        return compiled(model).lowering.explain()

    assert "stays" not in explained(steps - 1)
    assert "hold its weights 21 times" in explained(steps)


def test_an_open_number_of_steps_stays(compiled):
    node = helper.make_node("GRU", ["x", "w", "r", "b"], ["y"], hidden_size=HIDDEN)
    model, _ = whole([node], {"x": ("T", 1, INPUTS)}, ["y"], weights("GRU", 1))
    assert "number of steps is open" in compiled(model).lowering.explain()


@EVERY_KIND
def test_auto_takes_it(kind, said, compiled):
    model, _ = layer(kind, steps=20, batch=1, **said)
    assert compiled(model, "auto").models
