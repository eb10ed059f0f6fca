"""Placement, rule by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from program_text import parse

from bb_edge.ir import keys
from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.ir.program import Program
from bb_host.ir.spelling import written
from tests.aids.passes import pass_named

HEAD = """program P {module=P}

function program.P(%s) -> () {home=Server%s}
  slot model: model
  slot shard: data_source at=Client
  slot test: data_source at=Server
  slot clients: peer_selector peer_class=Client at=Server
  slot gossip: peer_selector at=Server
"""
MODEL = "{slot=model}"
SHARD = "{slot=shard}"
TEST = "{slot=test}"


def program_of(*lines: str, inputs: str = "", meta: str = "") -> Program:
    return parse(HEAD % (inputs, meta) + "\n".join("  " + line for line in lines))


def placed(*lines: str, inputs: str = "", meta: str = "") -> dict[str, str]:
    """First output, or op type, → class."""
    given = program_of(*lines, inputs=inputs, meta=meta)
    done = pass_named("infer_peer_classes").run(given, Options(), Stats())
    assert pass_named("infer_peer_classes").run(done, Options(), Stats()) is done
    return {
        (op.outputs[0] if op.outputs else op.op_type): written(op.facts)[keys.HOME_CLASS_KEY]
        for op in done.functions[0].ops
    }


def peers(*lines: str, inputs: str = "") -> Mapping[str, str]:
    done = pass_named("infer_peer_classes").run(program_of(*lines, inputs=inputs), Options(), Stats())
    found = {}
    for op in done.functions[0].ops:
        for entry in filter(None, written(op.facts).get(keys.PEER_CLASS_KEY, "").split(",")):
            name, _, where = entry.partition("=")
            found[name] = where
    return found


def refused(error: type[errors.PassError], *lines: str, inputs: str = "") -> errors.PassError:
    with pytest.raises(error) as caught:
        pass_named("infer_peer_classes").run(program_of(*lines, inputs=inputs), Options(), Stats())
    return caught.value


SAMPLE = "p: PeerIdVec = role.peer_selector.Sample<n=2>() {slot=clients}"
SEND = "v, s = wire.Send(x, p) {wire.wire_id=1}"


def test_a_slot_that_lives_somewhere_comes_first() -> None:
    found = placed(
        f"b, l = role.data_loader.NextBatch() {SHARD}", f"c, d = role.data_loader.NextBatch() {TEST}"
    )
    assert found == {"b": "Client", "c": "Server"}


def test_then_the_class_of_the_inputs_and_of_control_inputs() -> None:
    found = placed(
        f"b, l = role.data_loader.NextBatch() {SHARD}",
        f"y = role.model.Forward(b) {MODEL}",
        "z = Relu(y) {at_class=Server}",
        "w = role.model.Params(z) {slot=model, control_inputs=1}",
    )
    assert found == dict.fromkeys(["b", "y", "z", "w"], "Client")


def test_then_the_scope() -> None:
    found = placed(
        "y = role.model.Params() {slot=model, at_class=Client}",
        "z = Relu(y)",
        "u = RandomNormal<shape=[1]>() {at_class=Client}",
        "w = Add(u, z) {at_class=Server}",
    )
    assert found == {"y": "Client", "z": "Client", "u": "Client", "w": "Client"}


def test_then_the_class_of_the_readers_sends_not_counted() -> None:
    found = placed(
        SAMPLE,
        f"y = role.model.Params() {MODEL}",
        "z = Relu(y)",
        f"b, l = role.data_loader.NextBatch() {SHARD}",
        "w = Add(z, b)",
        inputs="x: F32",
    )
    assert found == {"p": "Server", "y": "Client", "z": "Client", "b": "Client", "w": "Client"}


def test_what_readers_place_is_followed_forward_before_other_readers_count() -> None:
    found = placed(
        f"y = role.model.Params() {MODEL}",
        "k = RandomNormal<shape=[1]>()",
        "z = Add(y, k)",
        f"b, l = role.data_loader.NextBatch() {SHARD}",
        "w = Add(y, b)",
    )
    assert found == dict.fromkeys(["y", "k", "z", "b", "w"], "Client")


def test_inputs_and_entries_belong_to_their_scope_else_to_home() -> None:
    found = placed(
        "a = Relu(x)",
        "b = Relu(z)",
        "t = syscall.Pulse()",
        "u = syscall.Interval<period_ns=5>() {at_class=Client}",
        inputs="x: F32, z: F32",
        meta=", input_class.z=Client",
    )
    assert found == {"a": "Server", "b": "Client", "t": "Server", "u": "Client"}


def test_what_is_sent_is_on_the_class_of_the_peers_on_the_other_side() -> None:
    lines = (SAMPLE, SEND, "y = Relu(v)", "w, q = wire.Send(y, s) {wire.wire_id=2}", "z = Abs(w)")
    assert placed(*lines, inputs="x: F32") == {
        "p": "Server",
        "v": "Server",
        "y": "Client",
        "w": "Client",
        "z": "Server",
    }
    assert peers(*lines, inputs="x: F32") == {"p": "Client", "s": "Server", "q": "Client"}


REQUEST = (
    "r, v, s = wire.SendReqBatched(x, p, p) {wire.wire_id=1}",
    "y = Relu(v)",
    "a, t = wire.SendResp(y, s, r) {wire.wire_id=2, wire.request=1}",
    "c, m = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1}",
    "e = Abs(a)",
)


def test_a_request_its_reply_and_what_comes_home() -> None:
    found = placed(SAMPLE, *REQUEST, inputs="x: F32")
    assert found == {"p": "Server", "r": "Server", "y": "Client", "a": "Client", "c": "Server", "e": "Server"}
    assert peers(SAMPLE, *REQUEST, inputs="x: F32") == {
        "p": "Client",
        "s": "Server",
        "t": "Client",
        "m": "Client",
    }


def test_lists_of_peers_keep_their_class_through_ops_that_pick_and_join() -> None:
    found = peers(
        SAMPLE,
        "i = Constant<value=I64[1]{0}>()",
        "a: PeerIdVec = Gather(p, i)",
        "b: PeerIdVec = Concat<axis=0>(a, p)",
        "c: PeerIdVec = syscall.GateDispatch(b, x)",
        "d: PeerIdVec = Unsqueeze(c, i)",
        "e: PeerIdVec = Squeeze(d, i)",
        "f: PeerIdVec = Slice(e, i, i)",
        "g: PeerIdVec = Identity(f)",
        "h: PeerIdVec = role.peer_selector.CurrentView() {slot=gossip}",
        inputs="x: F32",
    )
    assert found == {**dict.fromkeys("pabcdefg", "Client"), "h": "Server"}


def test_an_input_of_peers_is_a_class_of_its_own_name() -> None:
    found = placed(
        "v, s = wire.Send(x, workers) {wire.wire_id=1}", "y = Relu(v)", inputs="x: F32, workers: PeerIdVec"
    )
    assert found == {"v": "Server", "y": "workers"}


def test_ops_over_constants_are_copied_to_every_class_that_reads_them() -> None:
    found = placed(
        SAMPLE,
        SEND,
        "k = Constant<value=F32[]{2}>() {at_class=Client}",
        "k2 = Neg(k)",
        "unread = Constant<value=F32[]{3}>()",
        "here = Mul(x, k2)",
        "there = Mul(v, k2)",
        "also = Add(v, k)",
        inputs="x: F32",
    )
    assert (found["k"], found["k2"], found["unread"]) == ("Server,Client", "Server,Client", "Server")


def test_two_classes_among_the_inputs_are_refused_and_both_lines_named() -> None:
    error = refused(
        errors.CrossClassDataflow,
        SAMPLE,
        SEND,
        "a = Relu(v) {source=a.py:1}",
        "b = Relu(x) {source=a.py:2}",
        "y = Add(a, b) {source=a.py:3}",
        inputs="x: F32",
    )
    assert error.where == "a.py:3"
    assert "'a' of Relu → a (a.py:1) on Client" in error.what
    assert "'b' of Relu → b (a.py:2) on Server" in error.what


def test_a_slot_against_the_class_of_its_input_is_refused() -> None:
    error = refused(
        errors.CrossClassDataflow,
        "y = role.data_loader.Reset(t) {slot=shard, source=a.py:4}",
        inputs="t: Trigger",
    )
    assert "input 't' on Server, and runs on Client" in error.what


def test_control_edges_do_not_cross_classes() -> None:
    error = refused(
        errors.CrossClassDataflow,
        SAMPLE,
        SEND,
        "y = role.model.Params(v, x) {slot=model, control_inputs=2, source=a.py:5}",
        inputs="x: F32",
    )
    assert error.where == "a.py:5"


def test_values_that_branches_capture_count_too() -> None:
    refused(
        errors.CrossClassDataflow,
        SAMPLE,
        SEND,
        "y = If<then_branch=graph t() -> (h) {\n    h = Neg(v)\n  }, "
        "else_branch=graph e() -> (h) {\n    h = Neg(x)\n  }>(c)",
        inputs="x: F32, c: BOOL[]",
    )


def test_nothing_that_places_an_op_is_refused() -> None:
    error = refused(errors.AmbiguousPlacement, "y = role.model.Params() {slot=model, source=a.py:6}")
    assert error.where == "a.py:6"
    assert "nothing says" in error.what


def test_readers_on_several_classes_are_no_answer() -> None:
    error = refused(
        errors.AmbiguousPlacement,
        SAMPLE,
        SEND,
        "y = role.model.Params() {slot=model}",
        "a = Add(y, v)",
        "b = Add(y, x)",
        inputs="x: F32",
    )
    assert "Client: Add → a" in error.what
    assert "Server: Add → b" in error.what


def test_sends_do_not_place_what_they_send() -> None:
    refused(
        errors.AmbiguousPlacement,
        SAMPLE,
        "y = role.model.Params() {slot=model}",
        "v, s = wire.Send(y, q)",
        "q: PeerIdVec = Identity(p)",
    )


def test_peers_that_lead_nowhere_are_refused() -> None:
    error = refused(
        errors.AmbiguousPlacement,
        "c: PeerIdVec = composite.Unbundle(b)",
        "v, s = wire.Send(x, c) {wire.wire_id=1, source=a.py:8}",
        inputs="x: F32, b: Composite",
    )
    assert "which class its peers 'c'" in error.what


def test_peers_of_two_classes_in_one_list_are_refused() -> None:
    refused(
        errors.CrossClassDataflow,
        SAMPLE,
        "g: PeerIdVec = role.peer_selector.CurrentView() {slot=gossip}",
        "b: PeerIdVec = Concat<axis=0>(p, g)",
    )


def test_names_of_classes_stand_in_keys() -> None:
    given = parse(
        'program P {module=P}\n\nfunction program.P(x: F32) -> () {home=self}\n  y = Relu(x) {at_class="a,b"}'
    )
    with pytest.raises(errors.InvalidClassName):
        pass_named("infer_peer_classes").run(given, Options(), Stats())


def test_a_program_that_speaks_of_home_alone_is_left_as_it_is(program: Callable[[str], Program]) -> None:
    given = program("program P {module=P}\n\nfunction program.P(x: F32) -> (y) {home=self}\n  y = Relu(x)")
    assert pass_named("infer_peer_classes").run(given, Options(), Stats()) is given


def test_gossip_among_the_only_class_places_everything_there() -> None:
    given = parse(
        """program P {module=P}

function program.P(x: F32, c: Composite) -> ()
  slot gossip: peer_selector
  p: PeerIdVec = role.peer_selector.Sample<n=2>() {slot=gossip}
  q: PeerIdVec = composite.Unbundle(c)
  v, s = wire.Send(x, p) {wire.wire_id=1}
  w, t = wire.Send(x, q) {wire.wire_id=2}
  y = Add(v, x)
"""
    )
    done = pass_named("infer_peer_classes").run(given, Options(), Stats())
    assert {written(op.facts)[keys.HOME_CLASS_KEY] for op in done.functions[0].ops} == {"self"}


def test_a_bootstrap_is_placed_by_the_same_rules() -> None:
    given = parse(
        HEAD % ("x: F32", "")
        + "  y = Relu(x)\n\n"
        + """function program.P__bootstrap(seed: F32) -> () {module_phase=bootstrap, input_class.seed=Client}
  slot model: model
  c = role.model.LoadParameters(seed) {slot=model}
"""
    )
    done = pass_named("infer_peer_classes").run(given, Options(), Stats())
    assert written(done.functions[1].ops[0].facts)[keys.HOME_CLASS_KEY] == "Client"
