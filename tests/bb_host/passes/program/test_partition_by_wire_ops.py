"""How a program is split into partitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from program_text import parse

from bb_edge.ir import keys
from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.ir.program import Program
from bb_host.ir.spelling import written
from bb_host.passes.analysis.wire_edges import wire_edges
from tests.aids.passes import pass_named

TWO = """
    program P {module=P}

    function program.P(x: F32[2], z: F32[2]) -> (out, home) {home=Server, input_class.z=Client}
      slot agg: aggregator at=Server
      slot shard: data_source at=Client
      slot fast: backend
      slot never: model
      k: F32[] = Constant<value=F32[]{2}>() {home_class="Server,Client"}
      p: PeerIdVec = syscall.PassThrough(q) {home_class=Server}
      __send_sentinel_1: Trigger = wire.Send(x, p) {wire.wire_id=1, home_class=Server}
      v: F32[2], s: PeerIdVec = wire.Recv() {wire.wire_id=1, home_class=Client}
      n: I64[] = role.data_loader.NumSamples() {slot=shard, home_class=Client}
      out: F32[2] = Mul(v, k) {home_class=Client}
      home: F32[2] = Mul(x, k) {home_class=Server}

    function program.P__bootstrap(seed: F32[2]) -> () {module_phase=bootstrap, input_class.seed=Client}
      slot shard: data_source at=Client
      r: Trigger = role.data_loader.Reset(seed) {slot=shard, home_class=Client}

    function module.Hoist_x(a) -> (a)
    """.replace("syscall.PassThrough(q)", "role.peer_selector.Sample<n=1>()")


def test_each_class_gets_its_ops_inputs_outputs_types_and_slots(run_pass: Callable[..., Program]) -> None:
    stats = Stats()
    done = run_pass("partition_by_wire_ops", TWO, stats)
    server, client, start, library = done.functions
    assert [f.name for f in done.functions] == ["Server", "Client", "Client__bootstrap", "Hoist_x"]
    assert [op.op_type for op in server.ops] == ["Constant", "Sample", "Send", "Mul"]
    assert [op.op_type for op in client.ops] == ["Constant", "Recv", "NumSamples", "Mul"]
    assert server.ops[0] is client.ops[0]
    assert (server.inputs, server.outputs) == (("x",), ("home",))
    assert (client.inputs, client.outputs) == (("z",), ("out",))
    assert set(server.types) == {"x", "k", "p", "__send_sentinel_1", "home"}
    assert list(server.slots) == ["fast"]
    assert list(client.slots) == ["shard", "fast"]
    assert written(server.facts)[keys.PARTITION_KEY] == "Server"
    assert written(server.facts)[keys.ENTRY_KEY] == written(client.facts)[keys.ENTRY_KEY] == "1"
    assert keys.HOME_KEY not in written(server.facts)
    assert not any(f.facts.input_classes for f in done.functions)
    assert start.inputs == ("seed",)
    assert written(start.facts)[keys.MODULE_PHASE_KEY] == "bootstrap"
    assert keys.ENTRY_KEY not in written(start.facts)
    assert set(client.opsets) == {"", keys.WIRE_DOMAIN, keys.ROLE_DATA_LOADER_DOMAIN}
    assert library.name == "Hoist_x"
    assert stats.counters == {"partition_count": 2, "wire_ops": 2}


@pytest.mark.parametrize(
    ("has", "gives"), [("Server,Client", "Server"), ("Client,Server", "Server"), ("Client", "Client")]
)
def test_a_constant_output_is_of_one_partition_of_home_where_it_is_there(
    run_pass: Callable[..., Program], has: str, gives: str
) -> None:
    text = TWO.replace("-> (out, home)", "-> (k, out, home)").replace("Server,Client", has)
    text = text.replace("home: F32[2] = Mul(x, k)", "home: F32[2] = Mul(x, x)")
    done = run_pass("partition_by_wire_ops", text)
    assert [f.name for f in done.functions if "k" in f.outputs] == [gives]


def test_wire_edges_join_the_halves(run_pass: Callable[..., Program]) -> None:
    (edge,) = wire_edges(run_pass("partition_by_wire_ops", TWO))
    assert (edge.sender_target, edge.receiver_target) == ("Server", "Client")
    assert (edge.send.op_type, edge.recv.op_type) == ("Send", "Recv")


@pytest.mark.parametrize(("home", "name"), [("", "P"), (" {home=self}", "P"), (" {home=Edge}", "Edge")])
def test_the_only_class_is_one_partition_and_shares_the_body(home: str, name: str) -> None:
    given = parse(f"program P {{module=P}}\n\nfunction program.P(x: F32) -> (y){home}\n  y: F32 = Relu(x)")
    done = pass_named("partition_by_wire_ops").run(given, Options(module="P"), Stats())
    (main,) = done.functions
    assert main.name == name
    assert main.ops is given.functions[0].ops


def test_an_empty_program_is_one_empty_partition() -> None:
    given = parse("program P {module=P}\n\nfunction program.P() -> ()")
    done = pass_named("partition_by_wire_ops").run(given, Options(module="P"), Stats())
    assert [f.name for f in done.functions] == ["P"]


def test_a_bootstrap_of_the_only_class_is_named_after_the_module() -> None:
    given = parse(
        "program P {module=P}\n\nfunction program.P() -> ()\n\n"
        "function program.P__bootstrap() -> () {module_phase=bootstrap}\n  t: Trigger = syscall.Pulse()"
    )
    done = pass_named("partition_by_wire_ops").run(given, Options(module="P"), Stats())
    assert [f.name for f in done.functions] == ["P", "P__bootstrap"]


def test_a_class_named_as_a_function_of_the_program_is_refused() -> None:
    given = parse(
        "program P {module=P}\n\nfunction program.P(x: F32) -> () {home=Child}\n  y: F32 = Relu(x)\n\n"
        "function program.Child() -> ()"
    )
    with pytest.raises(errors.InvalidClassName, match="'Child' names a class and a module"):
        pass_named("partition_by_wire_ops").run(given, Options(module="P"), Stats())
