"""The order of passes, checks at the seams, telemetry, and the last two stages."""

# ruff: noqa: E501 - programs have one op per line
from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from program_text import parse

import bb_host.passes.program
from bb_edge.ir import keys
from bb_host import errors
from bb_host.compiler import CANONICAL_PASS_NAMES, Compiler, Options, Stats
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.proto import to_bytes
from bb_host.ir.spelling import written
from bb_host.passes.analysis.rx_chain import RX_GATES
from bb_host.passes.analysis.tx_chain import TX_GATES
from bb_host.passes.device.pipeline import DEVICE_PASSES, PORTABLE_PASSES
from bb_host.passes.one_pass import Promise
from bb_host.passes.pipeline import CANONICAL_PASSES, LEAVABLE_PASS_NAMES, STAMP
from tests.aids.passes import pass_named, unmet

FEDERATED = """
    program Fed {module=Fed}

    function program.Fed(x: F32[4]) -> () {home=Server}
      slot clients: peer_selector peer_class=Client
      slot shard: data_source at=Client
      p: PeerIdVec = role.peer_selector.Sample<n=2>(x) {slot=clients, slot_id=1, required_trait=peer_selector, control_inputs=1}
      r: WireReqId, v: F32[4], s: PeerIdVec = wire.SendReqBatched<deadline_ns=5>(x, p, p) {wire.wire_id=1, port=ask, wire.answer_mode=each}
      w: Tensor, l: Tensor = role.data_loader.NextBatch(v) {slot=shard, slot_id=2, required_trait=data_source, control_inputs=1}
      k: F32[] = Constant<value=F32[]{2}>()
      y: F32[4] = Mul(v, k)
      a: F32[4], t: PeerIdVec = wire.SendResp(y, s, r) {wire.wire_id=2, wire.request=1}
      c: Trigger, m: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1}
      e: F32[4] = Mul(a, k)
      syscall.AppEmit<name="answer">(e)
      syscall.AppEmit<name="missing">(m)
    """
ALL_NAMES = (*LEAVABLE_PASS_NAMES, STAMP.name)
GATE_PASSES = [name for name in CANONICAL_PASS_NAMES if name.endswith(("_gate_rx", "_gate_tx"))]
BOUND = Compiler().bind_peer_selector("clients", "a.Peers").bind_data_source("shard", "a.Source")


def test_the_names_are_the_specifications_in_order() -> None:
    assert len(CANONICAL_PASS_NAMES) == 17
    assert CANONICAL_PASS_NAMES[0] == "inline_for_partition"
    assert CANONICAL_PASS_NAMES[7:10] == ("partition_by_wire_ops", "resolve_slots", "analyze_wire_edges")
    assert CANONICAL_PASS_NAMES[-1] == "validate_runtime_complete"


def test_one_module_per_pass_named_as_it_is_but_for_gates() -> None:
    folder = Path(next(iter(bb_host.passes.program.__path__)))
    modules = {p.stem for p in folder.glob("*.py")} - {"__init__"}
    own = set(ALL_NAMES).difference(GATE_PASSES)
    assert modules == own | {"gates"}
    for name in own:
        assert getattr(bb_host.passes.program, name).run is pass_named(name).run


def test_every_pass_finds_what_it_needs() -> None:
    everything = tuple(map(pass_named, ALL_NAMES))
    assert unmet(everything) == {}
    assert unmet(CANONICAL_PASSES[5:6]) == {"infer_peer_classes": {Promise.TYPED}}
    compiled = {promise for one in everything for promise in one.gives}
    assert unmet(DEVICE_PASSES, compiled) == unmet(PORTABLE_PASSES, compiled) == {}


def test_the_whole_way_and_the_same_bytes_every_time(program: Callable[[str], Program]) -> None:
    given = program(FEDERATED)
    before = to_bytes(given)
    done = BOUND.compile_program(given)
    assert to_bytes(given) == before
    assert to_bytes(BOUND.compile_program(program(FEDERATED))) == to_bytes(done)
    assert [f.name for f in done.functions] == ["Server", "Client"]
    assert written(done.facts)[keys.COMPILED_KEY] == "v1"
    assert written(done.facts)[keys.TARGETS_KEY] == "Server,Client"


def test_every_pass_is_idempotent_at_its_place(program: Callable[[str], Program]) -> None:
    done = program(FEDERATED)
    options = Options(module="Fed", bindings=BOUND.bindings)
    for name in ALL_NAMES:
        done = pass_named(name).run(done, options, Stats())
        assert pass_named(name).run(done, options, Stats()) is done, name


def test_the_last_passes_find_nothing_to_do_on_their_own_result(program: Callable[[str], Program]) -> None:
    done = BOUND.compile_program(program(FEDERATED))
    options = Options(module="Fed", bindings=BOUND.bindings)
    for name in (*CANONICAL_PASS_NAMES[:9], *CANONICAL_PASS_NAMES[10:], STAMP.name):
        assert to_bytes(pass_named(name).run(done, options, Stats())) == to_bytes(done), name


def test_a_compiled_program_is_taken_as_it_is(program: Callable[[str], Program]) -> None:
    done = BOUND.compile_program(program(FEDERATED))
    assert Compiler().compile_program(done) is done
    with pytest.raises(errors.BindingError, match="compiled already"):
        BOUND.compile_program(done)


def test_a_span_per_pass_with_time_and_counters(
    program: Callable[[str], Program], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="bb_host.compiler"):
        run = BOUND.run(program(FEDERATED))
    assert [r.name for r in run.passes] == list(ALL_NAMES)
    counted = {name: value for r in run.passes for name, value in r.counters.items()}
    for name in (
        *("surfaced_wire_ops", "deadlines_stamped", "validation_errors", "expansion_count", "types_resolved"),
        *("types_unresolved", "peer_classes_stamped", "wire_recvs_synthesized", "partition_count"),
        *("slots_resolved", "slots_unbound", "wire_edges_data", "wire_edges_trigger_only", "gates_inserted"),
        *("async_deadlines_stamped", "preflight_errors"),
    ):
        assert name in counted
    assert run.duration_ns > 0
    assert "compiler.partition_by_wire_ops { partition_count: 2, wire_ops: 5 } took" in caplog.text
    assert written(run.program.facts)[keys.TELEMETRY_PREFIX + "gates_inserted"] == "8"
    assert written(run.program.facts)[keys.TELEMETRY_PREFIX + "partition_count"] == "2"


@pytest.mark.parametrize(
    ("name", "missed"),
    [
        *zip(GATE_PASSES, (*RX_GATES, *TX_GATES), strict=True),
        ("insert_async_deadlines", "DeadlineCheck"),
        ("analyze_wire_edges", "was not analyzed"),
    ],
)
def test_what_a_left_out_pass_would_have_done_is_missed_at_the_end(
    name: str, missed: str, program: Callable[[str], Program]
) -> None:
    with pytest.raises(errors.RuntimeIncomplete) as caught:
        BOUND.without_stage(name).compile_program(program(FEDERATED))
    assert missed in caught.value.what
    BOUND.without_stage(name).without_stage("validate_runtime_complete").compile_program(program(FEDERATED))


def test_receiving_halves_that_are_missing_are_missed(program: Callable[[str], Program]) -> None:
    given = program(
        """
        program P {module=P}

        function program.P(x: F32, p: PeerIdVec) -> ()
          v: F32, s: PeerIdVec = wire.Send(x, p) {wire.wire_id=1}
        """
    )
    compiler = Compiler().without_stage("synthesize_wire_recvs").without_stage("analyze_wire_edges")
    with pytest.raises(errors.RuntimeIncomplete, match="no receiving half"):
        compiler.compile_program(given)


def test_an_unbound_slot_is_refused_with_the_call_that_binds_it(program: Callable[[str], Program]) -> None:
    text = FEDERATED.replace("slot_id=2", "slot_id=2, source=a.py:6")
    with pytest.raises(errors.UnboundSlot) as caught:
        Compiler().bind_peer_selector("clients", "a.Peers").compile_program(program(text))
    assert caught.value.where == "a.py:6"
    assert "slot 'shard' of Client" in caught.value.what
    assert "bind_data_source('shard', …)" in caught.value.hint


# --- stages of one's own ----------------------------------------------------------------------------------


class Renamer:
    """A stage that gives the program another first op's name."""

    NAME = "renamer"

    def __init__(self, change: Callable[[Function], Function] = lambda f: f) -> None:
        self.change = change

    def run(self, program: Program, options: Options, stats: Stats) -> Program:
        stats.count("seen", len(program.functions))
        return dataclasses.replace(program, functions=tuple(self.change(f) for f in program.functions))


def test_a_stage_of_ones_own_runs_behind_the_one_it_names(program: Callable[[str], Program]) -> None:
    run = BOUND.with_stage(Renamer(), after="type_solver").run(program(FEDERATED))
    names = [r.name for r in run.passes]
    assert names[names.index("type_solver") + 1] == "renamer"
    assert run.passes[names.index("renamer")].counters == {"seen": 1}


def test_stages_behind_stages_of_ones_own(program: Callable[[str], Program]) -> None:
    class Second(Renamer):
        NAME = "second"

    compiler = BOUND.with_stage(Renamer(), after="validate").with_stage(Second(), after="renamer")
    names = [r.name for r in compiler.without_stage("validate").run(program(FEDERATED)).passes]
    assert names[names.index("renamer") + 1] == "second"
    assert "validate" not in names


def _with_ops(*ops: Op) -> Callable[[Function], Function]:
    return lambda f: dataclasses.replace(f, ops=(*f.ops, *ops))


@pytest.mark.parametrize(
    ("after", "change", "what"),
    [
        ("validate", _with_ops(Op("Relu", "", ("ghost",), ("q",))), "reads 'ghost'"),
        ("validate", _with_ops(Op("Relu", "", ("x",), ("x",))), "'x' is yielded twice"),
        ("type_solver", _with_ops(Op("Relu", "", ("x",), ("q",))), "'q' has no type"),
        ("validate", _with_ops(Op("Nowhere", keys.MODULE_DOMAIN, ("x",), ())), "calls 'Nowhere'"),
        ("validate", lambda f: dataclasses.replace(f, outputs=("lost",)), "output 'lost'"),
        ("synthesize_wire_recvs", _with_ops(Op("Recv", keys.WIRE_DOMAIN, (), ())), "has no wire id"),
        (
            "synthesize_wire_recvs",
            _with_ops(Op("Recv", keys.WIRE_DOMAIN, (), (), {}, OpFacts(wire_id="1"))),
            "are not a pair",
        ),
        (
            "synthesize_wire_recvs",
            _with_ops(Op("Send", keys.WIRE_DOMAIN, ("x", "p"), (), {}, OpFacts(wire_id="1"))),
            "share wire id 1",
        ),
        (
            "synthesize_wire_recvs",
            _with_ops(Op("RecvReq", keys.WIRE_DOMAIN, (), (), {}, OpFacts(wire_id="1", sites=(255,)))),
            "different sites",
        ),
    ],
)
def test_a_stage_that_leaves_nonsense_behind_is_named(
    after: str, change: Callable[[Function], Function], what: str, program: Callable[[str], Program]
) -> None:
    with pytest.raises(errors.SeamError) as caught:
        BOUND.with_stage(Renamer(change), after=after).compile_program(program(FEDERATED))
    assert what in caught.value.what
    assert "after renamer" in caught.value.what


def test_stages_that_do_not_exist_or_stand_twice_are_refused() -> None:
    with pytest.raises(errors.UnknownStage):
        Compiler().without_stage("polish")
    with pytest.raises(errors.UnknownStage):
        Compiler().with_stage(Renamer(), after="polish")
    with pytest.raises(errors.UnknownStage):
        Compiler().with_stage(Renamer(), after="validate").with_stage(Renamer(), after="validate")


# --- the stamp --------------------------------------------------------------------------------------------


def test_inbound_payloads_name_the_slot_that_they_feed() -> None:
    text = """program P {module=P}

function program.A() -> () {partition=A, entry=1}
  slot m: model = a.M(0xa0)
  slot backend: backend = bb.NumPyBackend(0xa0)
  u: F32, s: PeerIdVec = wire.Recv() {wire.wire_id=1}
  v: F32, t: PeerIdVec = gate.DedupGateRx(u, s) {wire.wire_id=1}
  w: F32 = syscall.GateDispatch(v, t)
  c: CommandId = role.model.ApplyDelta(w) {slot=m, slot_id=4, concrete_type=a.M, instance=0}
  u2: F32, s2: PeerIdVec = wire.Recv() {wire.wire_id=2}
  y: F32 = Relu(u2)
  u3: F32, s3: PeerIdVec = wire.Recv() {wire.wire_id=3}
  syscall.AppEmit<name="n">(u3)
"""
    done = STAMP.run(parse(text), Options(module="Mod"), Stats())
    recvs = [
        written(op.facts).get(keys.RECV_SLOT_ID_KEY) for op in done.functions[0].ops if op.op_type == "Recv"
    ]
    assert recvs == ["4", "5", None]
    assert written(done.facts)[keys.MODULE_KEY] == "Mod"
    bindings = {k: v for k, v in written(done.facts).items() if k.startswith(keys.BINDING_PREFIX)}
    assert bindings == {
        keys.BINDING_PREFIX + "A.m": "model|a.M|4",
        keys.BINDING_PREFIX + "A.backend": "backend|bb.NumPyBackend|5",
    }
    assert done.opsets[keys.WIRE_DOMAIN] == done.opsets[keys.PROGRAM_DOMAIN] == 1


def test_the_garbage_collector_is_as_it_was(program: Callable[[str], Program]) -> None:
    import gc

    class Look:
        NAME = "look"
        seen: list[bool] = []  # noqa: RUF012

        def run(self, given: Program, options: Options, stats: Stats) -> Program:
            self.seen.append(gc.isenabled())
            raise errors.UnknownOp("enough")

    text = "program P {module=P}\n\nfunction program.P(x: F32[2]) -> (y)\n  y: F32[2] = Relu(x)"
    compiler = Compiler().with_stage(Look(), after="validate")
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with pytest.raises(errors.UnknownOp):
                compiler.compile_program(program(text))
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
    assert Look.seen == [False, False]
