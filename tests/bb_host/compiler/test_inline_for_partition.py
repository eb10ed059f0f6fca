"""Pass 1, and the hoisting of what stays pure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bb_edge.ir import keys
from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.compiler.pipeline import pass_named
from bb_host.program import Program, Subgraph
from bb_host.text import parse

SENDING = """
    program P {module=P}

    function program.P(x: F32, p: PeerIdVec) -> () {home=self}
      a: F32 = program.Child(x, p) {module_instance=P, source=p.py:1, at_class=Client}
      b: F32 = program.Child(a, p) {module_instance=P, source=p.py:2}
      c = Relu(b)

    function program.Child(v: F32, q: PeerIdVec) -> (r)
      w: F32 = Neg(v) {module_instance=Child, source=c.py:1}
      r: F32, s: PeerIdVec = wire.Send(w, q) {wire.wire_id=1, port=out, module_instance=Child, source=c.py:2}
    """


def test_a_body_that_sends_surfaces_once_per_call(run_pass: Callable[..., Program]) -> None:
    stats = Stats()
    done = run_pass("inline_for_partition", SENDING, stats)
    assert [f.name for f in done.functions] == ["P"]
    ops = done.functions[0].ops
    assert [(op.op_type, op.inputs, op.outputs) for op in ops] == [
        ("Neg", ("x",), ("Child/w",)),
        ("Send", ("Child/w", "p"), ("a", "Child/s")),
        ("Neg", ("a",), ("Child2/w",)),
        ("Send", ("Child2/w", "p"), ("b", "Child2/s")),
        ("Relu", ("b",), ("c",)),
    ]
    assert [op.meta.get(keys.WIRE_ID_KEY) for op in ops] == [None, "1", None, "2", None]
    assert [op.meta.get(keys.PORT_KEY) for op in ops] == [None, "out", None, "Child2.out", None]
    assert ops[0].meta[keys.MODULE_INSTANCE_KEY] == "P_Child"
    assert (ops[0].meta[keys.AT_CLASS_KEY], keys.AT_CLASS_KEY in ops[2].meta) == ("Client", False)
    assert ops[0].meta[keys.SOURCE_LINE_KEY] == "c.py:1"
    assert "Child2/s" in done.functions[0].types
    assert stats.counters["surfaced_wire_ops"] == 2


def test_bodies_surface_from_any_depth(run_pass: Callable[..., Program]) -> None:
    done = run_pass(
        "inline_for_partition",
        """
        program P {module=P}

        function program.P(x: F32, p: PeerIdVec) -> ()
          a: F32 = program.Outer(x, p)

        function program.Outer(x: F32, p: PeerIdVec) -> (y)
          k: F32 = program.Inner(x, p)
          y: F32 = Abs(k)

        function program.Inner(x: F32, p: PeerIdVec) -> (y)
          y: F32, s: PeerIdVec = wire.Send(x, p) {wire.wire_id=1, port=o}
        """,
    )
    assert [(op.op_type, op.inputs) for op in done.functions[0].ops] == [
        ("Send", ("x", "p")),
        ("Abs", ("Outer/k",)),
    ]


def test_inputs_handed_through_and_inputs_left_out(run_pass: Callable[..., Program]) -> None:
    done = run_pass(
        "inline_for_partition",
        """
        program P {module=P}

        function program.P(x: F32) -> ()
          a: F32, b: F32, t: Trigger = program.Child(x)

        function program.Child(v: F32, absent: F32) -> (v, v, t)
          t: Trigger = syscall.Pulse()
          role.model.Step(absent) {slot=m, slot_id=1, required_trait=model}
        """,
    )
    assert [(op.op_type, op.inputs, op.outputs) for op in done.functions[0].ops] == [
        ("Pulse", (), ("t",)),
        ("Step", ("",), ()),
        ("Identity", ("x",), ("a",)),
        ("Identity", ("x",), ("b",)),
    ]


def test_captures_of_branches_are_renamed(run_pass: Callable[..., Program]) -> None:
    done = run_pass(
        "inline_for_partition",
        """
        program P {module=P}

        function program.P(x: F32, c: BOOL[]) -> ()
          a: F32 = program.Child(x, c)

        function program.Child(v: F32, c: BOOL[]) -> (y)
          t: Trigger = syscall.Pulse()
          w: F32 = Neg(v)
          y: F32 = If<then_branch=graph t() -> (w) {
          }, else_branch=graph e() -> (h) {
            h = Add(w, v)
          }>(c)
        """,
    )
    branches = [g for _, g in done.functions[0].ops[-1].subgraphs()]
    assert branches[0].outputs == ("Child/w",)
    assert branches[1].ops[0].inputs == ("Child/w", "x")
    assert all(isinstance(b, Subgraph) for b in branches)


PURE = """
    program P {module=P}

    function program.P(x: F32) -> ()
      a: F32 = program.One(x)
      b: F32 = program.Two(a)

    function program.One(v: F32) -> (r)
      w: F32 = Neg(v) {source=one.py:1}
      r: F32 = Abs(w)

    function program.Two(data: F32) -> (out)
      mid: F32 = Neg(data) {source=two.py:9}
      out: F32 = Abs(mid)

    function program.Unused(v: F32) -> (r)
      r: F32 = Neg(v)
    """


def test_pure_bodies_are_hoisted_under_the_hash_of_their_body(run_pass: Callable[..., Program]) -> None:
    done = run_pass("inline_for_partition", PURE)
    root, one, two = done.functions
    assert one.domain == two.domain == keys.MODULE_DOMAIN
    assert one.name.startswith("Hoist_One_")
    assert one.name.removeprefix("Hoist_One_") == two.name.removeprefix("Hoist_Two_")
    assert [(op.domain, op.op_type) for op in root.ops] == [one.key, two.key]
    assert (one.inputs, one.outputs) == (("__hoist_in_0",), ("__hoist_out_0",))
    assert [op.outputs for op in one.ops] == [("__hoist_v_0",), ("__hoist_out_0",)]
    assert root.opsets[keys.MODULE_DOMAIN] == 1


def test_equal_bodies_of_one_name_are_one_function(run_pass: Callable[..., Program]) -> None:
    text = PURE.replace("program.Two(a)", '"other"::One(a)').replace(
        "function program.Two", 'function "other"::One'
    )
    done = run_pass("inline_for_partition", text)
    assert len(done.functions) == 2
    assert len({(op.domain, op.op_type) for op in done.functions[0].ops}) == 1


def test_a_different_body_has_another_name(run_pass: Callable[..., Program]) -> None:
    first = run_pass("inline_for_partition", PURE).functions[1].name
    other = run_pass("inline_for_partition", PURE.replace("Abs(w)", "Exp(w)")).functions[1].name
    assert first != other


@pytest.mark.parametrize(
    "body",
    [
        "t: Trigger = syscall.Interval<period_ns=5>()\n  r: F32 = Neg(v)",
        "r: F32 = Neg(v) {at_class=Client}",
        "slot s: data_source at=Client\n  r: F32 = Neg(v)",
        "slot s: peer_selector peer_class=Client\n  r: F32 = Neg(v)",
    ],
)
def test_what_placement_must_see_is_inlined(body: str) -> None:
    text = f"""program P {{module=P}}

function program.P(x: F32) -> ()
  a: F32 = program.Child(x)

function program.Child(v: F32) -> (r)
  {body}
"""
    done = pass_named("inline_for_partition").run(parse(text), Options(), Stats())
    assert [f.name for f in done.functions] == ["P"]


def test_bootstraps_of_sub_modules_are_in_the_roots(run_pass: Callable[..., Program]) -> None:
    done = run_pass(
        "inline_for_partition",
        """
        program P {module=P}

        function program.P(x: F32) -> ()
          a: F32 = Relu(x)

        function program.P__bootstrap(seed: F32) -> () {module_phase=bootstrap}
          program.Child__bootstrap(seed)

        function program.Child__bootstrap(v: F32) -> () {module_phase=bootstrap}
          slot index: index
          c: CommandId = role.index.Add(v) {slot=index, slot_id=1, required_trait=index}

        function component."index.forward"(v) -> (v)
        """.replace('component."index.forward"', "component.index.forward"),
    )
    assert [f.name for f in done.functions] == ["P", "P__bootstrap", "index.forward"]
    assert [(op.op_type, op.inputs) for op in done.functions[1].ops] == [("Add", ("seed",))]
    assert list(done.functions[1].slots) == ["index"]


def test_modules_that_call_each_other_in_a_circle_are_refused() -> None:
    text = """program P {module=P}

function program.P(x: F32) -> ()
  a = program.A(x)

function program.A(x: F32) -> (y)
  y = program.B(x)

function program.B(x: F32) -> (y)
  y = program.A(x)
"""
    with pytest.raises(errors.CyclicGraph, match="A → B → A"):
        pass_named("inline_for_partition").run(parse(text), Options(), Stats())


def test_a_program_of_one_function_is_left_as_it_is() -> None:
    given = parse("function program.P(x: F32) -> (y)\n  y = Relu(x)")
    assert pass_named("inline_for_partition").run(given, Options(), Stats()) is given
