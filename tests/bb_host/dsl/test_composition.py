"""Modules within modules, bootstraps, and models used as modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import cbor2
import onnx
import pytest
from program_text import parse

from bb_edge.ir import keys, types
from bb_edge.ir.types import ValueType
from bb_host import Compiler, Graph, IndexSlot, ModelModule, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.errors import (
    ModuleError,
    PortNameError,
    UnknownPortError,
    ValueTypeError,
    WireInBootstrap,
    WireInSubgraph,
)
from bb_host.ir.facts import OpFacts, ProgramFacts
from bb_host.ir.program import Function, Op, Program, Slot
from bb_host.ir.proto import to_proto
from bb_host.ir.spelling import written

Record = Callable[..., Program]


class Cell(Module):
    model = ModelSlot("model")

    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale

    def body(self, g: Graph) -> None:
        y = self.model.forward(g, g.input("query")) * self.scale
        g.output("response", y)
        g.output("double", y + y)


def names(program: Program) -> list[str]:
    return [f.name for f in program.functions]


def test_a_call_is_a_node_of_the_childs_function(record: Record) -> None:
    cell = Cell()

    def body(g: Graph) -> None:
        out = cell.call().input("query", g.input("q", "F32", (3,))).build(g)
        g.output("y", out.output("response"))
        g.output("z", out["double"])
        assert len(out) == len(list(out)) == 2

    program = record(body)
    assert names(program) == ["Main", "Cell"]
    root, child = program.functions
    (call,) = root.ops
    assert (call.domain, call.op_type) == (keys.PROGRAM_DOMAIN, "Cell")
    assert (call.inputs, call.outputs) == (("q",), ("y", "z"))
    assert child.types["query"] == ValueType(types.TENSOR_F32, (3,))
    assert list(child.slots) == ["model"]
    assert keys.HOME_KEY not in written(child.facts)


def test_equal_modules_share_a_function_and_different_ones_do_not(record: Record) -> None:
    cells = [Cell(), Cell(), Cell(3.0)]

    def body(g: Graph) -> None:
        x = g.input("x", "F32")
        for cell in (*cells, cells[0]):
            g.call(cell, query=x)

    program = record(body)
    assert names(program) == ["Main", "Cell", "Cell_2"]
    assert [op.op_type for op in program.functions[0].ops] == ["Cell", "Cell", "Cell_2", "Cell"]


def test_a_module_is_recorded_anew_for_other_input_types(record: Record) -> None:
    class Same(Module):
        def body(self, g: Graph) -> None:
            g.output("y", g.onnx.relu(g.input("x")))

    same = Same()

    def body(g: Graph) -> None:
        g.output("a", g.call(same, x=g.input("x", "F32")).output("y"))
        g.output("b", g.call(same, x=g.input("i", "I32")).output("y"))
        assert g.lookup_output("b").node is types.TENSOR_I32

    assert names(record(body)) == ["Main", "Same", "Same_2"]


def test_modules_nest_and_grandchildren_come_too(record: Record) -> None:
    class Middle(Module):
        cell = Cell()

        def body(self, g: Graph) -> None:
            g.output("y", g.call(self.cell, "inner", query=g.input("x")).output("response"))

    program = record(lambda g: g.output("y", g.call(Middle(), x=g.input("x", "F32"))["y"]))
    assert set(names(program)) == {"Main", "Middle", "Cell"}
    middle = next(f for f in program.functions if f.name == "Middle")
    assert middle.ops[0].name == "inner"


def test_a_body_may_also_be_nested_plainly(record: Record) -> None:
    cell = Cell()

    def body(g: Graph) -> None:
        with g.with_module("cell"):
            cell.body(g)

    program = record(body)
    (root,) = program.functions
    assert root.inputs == ("query",)
    assert {op.facts.scope for op in root.ops} == {"Main_cell"}
    assert list(root.slots) == ["model"]


def test_a_child_that_sends_has_wire_ids_of_its_own_per_instance(record: Record) -> None:
    class Ask(Module):
        peers = PeerSelectorSlot("peers")

        def body(self, g: Graph) -> None:
            r = g.request("ask", self.peers.current_view(g), g.input("x", "F32"), deadline_ns=S)
            r.reply(r.value)
            g.output("all", r.responses)

    def body(g: Graph) -> None:
        x = g.input("x", "F32")
        for _ in range(2):
            x = g.call(Ask(), x=x)["all"]
        g.output("y", x)

    program = record(body)
    assert names(program) == ["Main", "Ask", "Ask_2"]
    ids = [op.facts.wire_id for f in program.functions for op in f.ops if op.domain == keys.WIRE_DOMAIN]
    assert ids == ["1", "2", "2", "3", "4", "4"]


class VectorStore(Module):
    index = IndexSlot("index")

    def bootstrap(self, g: Graph) -> None:
        self.index.add(g, g.input("seed_corpus", "F32"))

    def body(self, g: Graph) -> None:
        ids, _ = self.index.search(g, g.input("query", "F32"), 10)
        g.output("ids", ids)


def test_a_bootstrap_is_a_sibling_function(record: Record) -> None:
    program = record(VectorStore())
    body, start = program.functions
    assert start.name == "VectorStore__bootstrap"
    assert start.domain == body.domain
    assert written(start.facts) == {keys.MODULE_PHASE_KEY: keys.MODULE_PHASE_BOOTSTRAP}
    assert start.inputs == ("seed_corpus",)
    assert [op.op_type for op in start.ops] == ["Add"]
    assert list(start.slots) == ["index"]
    assert start.ops[0].facts.slot_id == body.ops[0].facts.slot_id == 1


def test_no_bootstrap_function_without_ops(record: Record) -> None:
    assert names(record(Cell())) == ["Cell"]


def test_a_childs_bootstrap_with_inputs_is_called_by_its_parent(record: Record) -> None:
    class Shop(Module):
        store = VectorStore()

        def bootstrap(self, g: Graph) -> None:
            self.store.bootstrap_call().input("seed_corpus", g.input("corpus", "F32")).build(g)

        def body(self, g: Graph) -> None:
            g.output("ids", g.call(self.store, query=g.input("q", "F32"))["ids"])

    program = record(Shop())
    assert names(program) == ["Shop", "VectorStore", "Shop__bootstrap", "VectorStore__bootstrap"]
    (call,) = program.functions[2].ops
    assert (call.op_type, call.inputs) == ("VectorStore__bootstrap", ("corpus",))


class Warm(Module):
    model = ModelSlot("model")

    def bootstrap(self, g: Graph) -> None:
        self.model.load_parameters(g, g.onnx.zeros((0,)))

    def body(self, g: Graph) -> None:
        g.output("p", self.model.params(g))


def test_a_childs_bootstrap_without_inputs_is_called_by_itself_once(record: Record) -> None:
    warm = Warm()

    def body(g: Graph) -> None:
        g.output("a", g.call(warm)["p"])
        g.output("b", g.call(warm)["p"])

    program = record(body)
    assert names(program) == ["Main", "Warm", "Main__bootstrap", "Warm__bootstrap"]
    (call,) = program.functions[2].ops
    assert (call.op_type, call.inputs, call.outputs) == ("Warm__bootstrap", (), ("",))


def test_a_recorded_model_is_a_module(record: Record) -> None:
    model = Cell().build()

    def body(g: Graph) -> None:
        g.output("y", g.call(model, query=g.input("x", "F32"))["response"])

    program = record(body)
    assert names(program) == ["Main", "Cell"]
    assert program.functions[1].slots["model"].role == keys.ROLE_MODEL


COMPILED = """\
program Scorer {module=Scorer, compiled=v1, targets=Scorer, binding.Scorer.model="model|bb.GraphModel|1", \
binding.Scorer.backend="backend|bb.NumPyBackend|2"}

function program.Scorer(x: F32[n,4]) -> (y) {entry=1, partition=self}
  slot model: model = bb.GraphModel(0xa0)
  h: F32 = role.model.Forward(x) {slot=model, slot_id=1, required_trait=model}
  y: F32 = backend.subgraph_ab(h)

function backend.subgraph_ab(h) -> (y) {backend_slot=backend}
  y: F32 = Relu(h)

function program.Scorer__bootstrap() -> () {module_phase=bootstrap}
  slot model: model = bb.GraphModel(0xa0)
  p: F32 = Constant<value=F32[0]{}>()
  c: CommandId = role.model.LoadParameters(p) {slot=model, slot_id=1, required_trait=model}

function component.model.forward(x: F32, w: F32) -> (y)
  y: F32 = MatMul(x, w)
"""


def test_a_compiled_model_is_a_module_with_components_of_its_own(record: Record) -> None:
    scorer = ModelModule(to_proto(parse(COMPILED)))
    assert scorer.is_compiled
    own = ModelSlot("model")

    def body(g: Graph) -> None:
        x = own.forward(g, g.input("x", "F32"))
        g.output("y", scorer.call().input("x", x).build(g)["y"])

    program = record(body)
    by_name = {f.name: f for f in program.functions}
    assert list(by_name) == [
        "Main",
        "subgraph_ab",
        "Scorer",
        "Main__bootstrap",
        "Scorer__bootstrap",
        "Scorer_model.forward",
    ]
    inner = by_name["Scorer"]
    assert written(inner.facts) == {}
    assert inner.slots["Scorer_model"].concrete_type == "bb.GraphModel"
    assert inner.slots["Scorer_model"].state == b"\xa0"
    assert inner.ops[0].facts == OpFacts(slot="Scorer_model", concrete_type="bb.GraphModel", instance=0)
    assert written(by_name["subgraph_ab"].facts) == {}
    assert by_name["Main"].slots["model"].role == keys.ROLE_MODEL
    assert written(by_name["Main"].ops[0].facts)[keys.SLOT_ID_KEY] == "1"


def test_a_compiled_model_is_compiled_again_within_another() -> None:
    class Scorer(Module):
        model = ModelSlot("model")

        def bootstrap(self, g: Graph) -> None:
            self.model.load_parameters(g, g.onnx.zeros((0,)))

        def body(self, g: Graph) -> None:
            g.output("y", g.onnx.relu(self.model.forward(g, g.input("x", "F32", ("n", 4)))))

    inner = Compiler().bind_model("model", "acme.Net", {"seed": 1}).compile(Scorer())

    class Outer(Module):
        model = ModelSlot("model", "acme.Net", {"seed": 2})
        scorer = ModelModule(inner)

        def body(self, g: Graph) -> None:
            x = self.model.forward(g, g.input("x", "F32", ("n", 4)))
            g.output("z", g.call(self.scorer, x=x)["y"])

    compiled = Compiler().compile_program(Outer())
    main = compiled.functions[0]
    states = {name: slot.state for name, slot in main.slots.items() if slot.role == keys.ROLE_MODEL}
    assert states == {
        "model": cbor2.dumps({"seed": 2}),
        "Scorer_model": cbor2.dumps({"seed": 1}),
    }
    assert "Outer__bootstrap" in names(compiled)


def _compiled(**changes: Any) -> onnx.ModelProto:
    program = parse(COMPILED)
    return to_proto(dataclasses.replace(program, **changes))


def test_models_that_cannot_be_modules() -> None:
    program = parse(COMPILED)
    two = dataclasses.replace(program.functions[0], name="Other")
    send = Op("Send", keys.WIRE_DOMAIN, ("x", "p"), ("handle",))
    sends = dataclasses.replace(program.functions[0], ops=(send,))
    cases = [
        (_compiled(functions=()), "holds no functions"),
        (
            _compiled(
                functions=(program.functions[0], two),
                facts=program.facts | ProgramFacts(targets=("Scorer", "Other")),
            ),
            "has 2 partitions",
        ),
        (_compiled(functions=(sends,)), "the compiled program sends"),
    ]
    for model, what in cases:
        with pytest.raises(ModuleError, match=what):
            ModelModule(model)


def _call_unknown_input(g: Graph) -> None:
    g.call(Cell(), query=1.0, other=2.0)


def _call_without_input(g: Graph) -> None:
    g.call(Cell())


def _input_twice(g: Graph) -> None:
    Cell().call().input("query", 1.0).input("query", 1.0).build(g)


def _unknown_output(g: Graph) -> None:
    g.call(Cell(), query=1.0).output("nothing")


def _wrong_type(g: Graph) -> None:
    g.call(VectorStore(), query=g.pulse())


def _not_a_module(g: Graph) -> None:
    g.call(3)  # type: ignore[arg-type]


def _bootstrap_in_a_body(g: Graph) -> None:
    Warm().bootstrap_call().build(g)


def _bootstrap_with_inputs(g: Graph) -> None:
    g.call(VectorStore(), query=1.0)


class Sends(Module):
    peers = PeerSelectorSlot("peers")

    def body(self, g: Graph) -> None:
        g.net_out("p", self.peers.current_view(g), 1.0)
        g.output("y", g.onnx.constant(1.0))


def _sends_in_a_branch(g: Graph) -> None:
    g.onnx.if_(g.input("c", "BOOL"), lambda h: h.call(Sends())["y"], lambda h: h.onnx.constant(1.0))


@pytest.mark.parametrize(
    ("kind", "what", "body"),
    [
        (UnknownPortError, "module 'Cell' has no input 'other'", _call_unknown_input),
        (UnknownPortError, "input 'query' is not given", _call_without_input),
        (PortNameError, "input 'query' of 'Cell' is given twice", _input_twice),
        (UnknownPortError, "module 'Cell' has no output 'nothing'", _unknown_output),
        (ValueTypeError, "module 'VectorStore': input query expects a Tensor<F32>", _wrong_type),
        (ModuleError, "3 is not a module", _not_a_module),
        (ModuleError, "the bootstrap of 'Warm' is called in a body", _bootstrap_in_a_body),
        (ModuleError, "the bootstrap of 'VectorStore' has inputs: seed_corpus", _bootstrap_with_inputs),
        (WireInSubgraph, "module 'Sends' sends, and is called in a branch", _sends_in_a_branch),
    ],
)
def test_refusals(
    module: Callable[..., Any], kind: type[Exception], what: str, body: Callable[[Graph], None]
) -> None:
    with pytest.raises(kind) as caught:
        module(body).record()
    assert what in str(caught.value)


def test_a_module_that_sends_is_not_called_in_a_bootstrap(module: Callable[..., Any]) -> None:
    made = module(lambda g: None, bootstrap=lambda g: g.call(Sends()))
    with pytest.raises(WireInBootstrap, match="module 'Sends' sends"):
        made.record()


def test_modules_that_cannot_be_recorded(module: Callable[..., Any]) -> None:
    class Ouroboros(Module):
        def body(self, g: Graph) -> None:
            g.call(self)

    class Empty(Module):
        pass

    for made, what in (
        (Ouroboros(), "module 'Ouroboros' calls itself"),
        (Empty(), "module 'Empty' has no body"),
        (module(lambda g: None, name="a/b"), "'a/b' is not a valid name for a module"),
        (module(lambda g: None, home=""), "'' is not a valid name for a home class"),
        (module(lambda g: None, bootstrap=lambda g: g.output("y", 1.0)), "has no outputs"),
    ):
        with pytest.raises(ModuleError) as caught:
            made.record()
        assert what in caught.value.what


def test_a_child_with_the_roots_name_gets_another(record: Record) -> None:
    class Main(Module):
        def body(self, g: Graph) -> None:
            g.output("y", g.input("x", "F32"))

    program = record(lambda g: g.output("y", g.call(Main(), x=1.0)["y"]))
    assert names(program) == ["Main", "Main_2"]
    assert written(program.facts)[keys.MODULE_KEY] == "Main"


def test_functions_and_slots_are_records() -> None:
    program = Cell().record()
    assert isinstance(program.functions[0], Function)
    assert isinstance(program.functions[0].slots["model"], Slot)


class Scaled(Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def body(self, g):
        g.output("y", g.input("x", "F32", [1]) * self.factor)


def test_a_module_that_lives_for_one_call_is_not_taken_for_a_later_one():
    """Both modules of a round may get the same address in memory."""

    class Parent(Module):
        def body(self, g):
            x = g.input("x", "F32", [1])
            for number in range(50):
                for factor in (2.0, 3.0):
                    g.output(f"y{factor}_{number}", g.call(Scaled(factor), x=x)["y"])

    program = Parent().record()
    assert [f.name for f in program.functions] == ["Parent", "Scaled", "Scaled_2"]
    calls = [op.op_type for op in program.functions[0].ops]
    assert calls == ["Scaled", "Scaled_2"] * 50
