"""Which component each slot is resolved to."""

# ruff: noqa: E501 - programs have one op per line
from __future__ import annotations

from collections.abc import Callable

import cbor2
import pytest
from program_text import parse

from bb_edge.ir import keys
from bb_host import errors
from bb_host.compiler import Compiler, Options, Stats
from bb_host.ir.program import Function, Program
from bb_host.ir.spelling import written
from tests.aids.passes import pass_named

TEXT = """
    program P {module=P}

    function program.Server() -> () {partition=Server, entry=1}
      slot model: model
      slot peers: peer_selector
      p: PeerIdVec = role.peer_selector.Sample<n=1>() {slot=peers, slot_id=2, required_trait=peer_selector, peer_class="p=Client"}
      w: F32 = role.model.Params() {slot=model, slot_id=1, required_trait=model}

    function program.Client() -> () {partition=Client, entry=1}
      slot model: model
      slot shard: data_source = bb.ArrayDataSource(0xa0)
      w: F32 = role.model.Params() {slot=model, slot_id=1, required_trait=model}
      n: I64 = role.data_loader.NumSamples() {slot=shard, concrete_type=bb.ArrayDataSource, instance=0}
    """


class Made:
    """A config that brings a graph."""

    def __init__(self, name: str) -> None:
        self.attribute = cbor2.dumps({"name": name})
        self.functions = (Function("model.forward", keys.COMPONENT_DOMAIN, ("x",), ("x",)),)

    def construct(self, slot: str) -> Made:
        return self


def test_bindings_states_numbers_and_the_default_backend(run_pass: Callable[..., Program]) -> None:
    compiler = Compiler().bind_model("model", "a.Model", {"rate": 1}).bind_peer_selector("peers", "a.Peers")
    stats = Stats()
    done = run_pass("resolve_slots", TEXT, stats, bindings=compiler.bindings)
    server, client = done.functions
    assert list(server.slots) == ["model", "peers", "backend"]
    assert server.slots["model"].concrete_type == "a.Model"
    assert server.slots["model"].state == cbor2.dumps({"rate": 1})
    assert server.slots["peers"].state == b"\xa0"
    assert server.slots["peers"].peer_class == "Client"
    assert server.slots["backend"].concrete_type == "bb.NumPyBackend"
    assert client.slots["shard"].concrete_type == "bb.ArrayDataSource"
    assert written(client.ops[1].facts)[keys.SLOT_ID_KEY] == "3"
    assert client.ops[0] is not None
    assert stats.counters == {"slots_resolved": 6, "slots_unbound": 0}


def test_a_targets_own_binding_comes_first_and_its_graphs_carry_its_name(
    run_pass: Callable[..., Program],
) -> None:
    compiler = (
        Compiler()
        .bind_model("model", "a.Model", Made("g"))
        .bind_model("model", "b.Model", Made("c"), target="Client")
    )
    done = run_pass("resolve_slots", TEXT, bindings=compiler.bindings)
    assert [f.slots["model"].concrete_type for f in done.functions[:2]] == ["a.Model", "b.Model"]
    assert [f.name for f in done.functions[2:]] == ["model.forward#Server", "model.forward#Client"]


def test_one_binding_brings_its_graphs_once(run_pass: Callable[..., Program]) -> None:
    compiler = Compiler().bind_model("model", "a.Model", Made("g"))
    done = run_pass("resolve_slots", TEXT, bindings=compiler.bindings)
    assert [f.key for f in done.functions[2:]] == [(keys.COMPONENT_DOMAIN, "model.forward")]


def test_a_binding_outranks_what_the_author_gave(run_pass: Callable[..., Program]) -> None:
    compiler = Compiler().bind_data_source("shard", "c.Source", {"path": "x"})
    done = run_pass("resolve_slots", TEXT, bindings=compiler.bindings)
    assert done.functions[1].slots["shard"].concrete_type == "c.Source"


def test_unbound_slots_are_counted_and_stay_generic(run_pass: Callable[..., Program]) -> None:
    stats = Stats()
    done = run_pass("resolve_slots", TEXT, stats)
    assert stats.counters["slots_unbound"] == 3
    assert not done.functions[0].slots["model"].is_concrete


def test_backends_are_there_where_they_are_bound_or_named() -> None:
    given = parse(
        "program P {module=P}\n\nfunction program.P(x: F32) -> () {partition=self, entry=1}\n"
        "  slot fast: backend\n  slot idle: backend\n  slot other: backend\n"
        "  y: F32 = Relu(x) {slot=fast, slot_id=1, required_trait=backend}"
    )
    compiler = (
        Compiler()
        .bind_backend("fast", "a.Fast")
        .bind_backend("other", "a.Other")
        .bind_backend("backend", "a.B")
    )
    done = pass_named("resolve_slots").run(given, Options(bindings=compiler.bindings), Stats())
    slots = done.functions[0].slots
    assert {name: slot.concrete_type for name, slot in slots.items()} == {
        "fast": "a.Fast",
        "other": "a.Other",
        "backend": "a.B",
    }


def test_two_slots_never_share_a_number(run_pass: Callable[..., Program]) -> None:
    done = run_pass(
        "resolve_slots",
        """
        program P {module=P}

        function program.P() -> () {partition=self, entry=1}
          slot a: model
          w: F32 = role.model.Params() {slot=a, slot_id=1, required_trait=model}
          v: F32 = module.Hoist_x()

        function module.Hoist_x() -> (w)
          slot b: model
          w: F32 = role.model.Params() {slot=b, slot_id=1, required_trait=model}
        """,
    )
    assert written(done.functions[0].ops[0].facts)[keys.SLOT_ID_KEY] == "1"
    assert written(done.functions[1].ops[0].facts)[keys.SLOT_ID_KEY] == "2"
    assert list(done.functions[0].slots) == ["a", "b", "backend"]


def test_one_role_is_concrete_or_generic() -> None:
    given = parse(
        "program P {module=P}\n\nfunction program.P() -> () {partition=self, entry=1}\n"
        "  slot a: model\n  slot b: model = x.M(0xa0)\n"
        "  w: F32 = role.model.Params() {slot=a, slot_id=1, required_trait=model}\n"
        "  v: F32 = role.model.Params() {slot=b, concrete_type=x.M, instance=0, source=a.py:3}"
    )
    with pytest.raises(errors.AmbiguousRole) as caught:
        pass_named("resolve_slots").run(given, Options(), Stats())
    assert caught.value.where == "a.py:3"
    assert "role model both concrete ('b', x.M) and generic ('a')" in caught.value.what


def test_a_binding_for_a_partition_that_is_not_there_is_refused(program: Callable[[str], Program]) -> None:
    compiler = Compiler().bind_model("model", "a.Model", target="Cliemt")
    with pytest.raises(errors.BindingError) as caught:
        pass_named("resolve_slots").run(program(TEXT), Options(bindings=compiler.bindings), Stats())
    assert "no partition 'Cliemt'" in caught.value.what
    assert caught.value.hint == "did you mean 'Client'?"
