"""Which program it is (`program`), and what its classes say to each other (`contract`)."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector, ScalarQuantizer
from bb_edge.ir import keys
from bb_edge.loading import DamagedArtifact, load
from bb_host import MS, CodecSlot, Compiler, DataSourceSlot, Graph, Module, PeerSelectorSlot
from bb_host.build import build_edge
from bb_host.cli import main
from bb_host.compiler.driver import as_program
from bb_host.errors import IdentityError
from bb_host.ir.facts import OpFacts
from bb_host.ir.proto import to_proto
from bb_host.ir.spelling import written
from bb_host.learn import mlp, trainable
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.identity import accepting
from federated_digits.federation import FederatedDigits
from tests.aids.seals import resealed

# One change leaves the question unused: that is what it is about.
pytestmark = pytest.mark.filterwarnings("ignore:no asked peer uses")


class Hub(Module):
    """One class asks, another answers; settings change one thing each."""

    name, home = "Hub", "Hub"
    leaves = PeerSelectorSlot("leaves", peer_class="Leaf")
    data = DataSourceSlot("data", at="Leaf")

    def __init__(self, **changed):
        self.changed = changed
        super().__init__()

    def body(self, g: Graph) -> None:
        tick = g.interval(self.changed.get("period", 500) * MS)
        peers = self.leaves.sample(g, n=self.changed.get("n", 2), after=tick)
        weights = np.full(8, self.changed.get("weight", 1.0), np.float32)
        scale = np.float32(self.changed.get("scale", 2.0))
        value = g.onnx.mul(g.constant(weights), g.constant(scale))
        r = g.request(self.changed.get("port", "ask"), peers, value, deadline_ns=100 * MS)
        samples = self.data.num_samples(g, after=r.value)
        r.reply(samples if "reply" in self.changed else [r.value, samples])
        if "bundled" in self.changed:
            sent = g.net_out("beside", peers, g.bundle([g.onnx.reshape(value, self.changed["bundled"])]))
            g.app_emit("beside", g.unbundle(sent)[0])
        g.app_emit("missing", r.missing)


def bound(path="a.npz"):
    compiler = Compiler().bind_peer_selector("leaves", PresenceSelector)
    return compiler.bind_data_source("data", ArrayDataSource, {"path": path})


def compiled(**changed):
    return bound().compile_program(Hub(**changed))


def digest(program):
    return written(program.facts)[keys.PROGRAM_KEY]


def contract(program):
    return written(program.facts)[f"{keys.CONTRACT_PREFIX}Hub.Leaf"]


@pytest.fixture(scope="module")
def base():
    return compiled()


def test_recording_again_gives_the_same_digests(base):
    again = compiled()
    assert (digest(again), contract(again)) == (digest(base), contract(base))
    assert len(digest(base)) == 64


def test_other_weights_are_the_same_program(base):
    assert digest(compiled(weight=3.0)) == digest(base)


@pytest.mark.parametrize("change", [{"n": 3}, {"period": 200}, {"scale": 3.0}])
def test_what_a_class_does_by_itself_changes_the_program_and_no_contract(base, change):
    other = compiled(**change)
    assert digest(other) != digest(base)
    assert contract(other) == contract(base)


@pytest.mark.parametrize("change", [{"port": "question"}, {"reply": "samples"}])
def test_what_travels_changes_the_contract(base, change):
    other = compiled(**change)
    assert digest(other) != digest(base)
    assert contract(other) != contract(base)


def test_the_shape_of_what_lies_in_a_bundle_is_in_the_contract():
    flat, square = compiled(bundled=[8]), compiled(bundled=[2, 4])
    assert contract(flat) == contract(compiled(bundled=[8]))
    assert contract(flat) != contract(square)


def test_another_configuration_is_another_program(base):
    other = bound("b.npz").compile_program(Hub())
    assert digest(other) != digest(base)


def relabelled(program, facts):
    """The program with that said by every op."""
    functions = [replace(f, ops=tuple(op.saying(facts) for op in f.ops)) for f in program.functions]
    return replace(program, functions=tuple(functions))


@pytest.mark.parametrize("name", [name for name in flow.LABELS if name != "slot_id"])
def test_where_an_op_was_written_is_no_part_of_the_program(base, name):
    elsewhere = OpFacts(**{name: "elsewhere_7"})
    assert digest(bound().compile_program(relabelled(Hub().record(), elsewhere))) == digest(base)


def test_metadata_that_says_what_an_op_does_is(base):
    other = relabelled(Hub().record(), OpFacts(foreign={f"{keys.PREFIX}.added": "1"}))
    assert digest(bound().compile_program(other)) != digest(base)


def test_every_way_to_a_compiled_program_gives_the_same_digest(base):
    ran = bound().run(Hub())
    assert digest(ran.program) == digest(base)
    assert ran.program is ran.program, "it is taken once"


# --- accepting ---------------------------------------------------------------------------------------


def test_another_program_with_the_same_contract_is_accepted(base):
    newer = accepting(compiled(n=3), [base])
    assert written(newer.facts)[keys.ACCEPTS_KEY] == digest(base)
    assert keys.ACCEPTS_KEY not in written(accepting(base, [base]).facts), "it needs no list for itself"


def test_another_contract_is_never_accepted(base):
    with pytest.raises(IdentityError, match="travel between Hub and Leaf") as refused:
        accepting(compiled(port="question"), [base])
    assert "whole federation" in refused.value.hint
    assert refused.value.where == f"program Hub ({digest(base)[:12]}…)"


@pytest.mark.parametrize(
    ("change", "told", "answer"),
    [
        ({"port": "question"}, "the question 'ask' is gone", "the answer to 'question' is new"),
        (
            {"reply": "samples"},
            "the question 'ask' was Tensor<F32>, and is Trigger",
            "the answer to 'ask' was Tensor<F32>, Tensor<I64>, and is Tensor<I64>",
        ),
    ],
)
def test_what_no_longer_travels_is_told_port_by_port(base, change, told, answer):
    """Of a whole program, and of what one class of it runs: the hub takes its answers as they come."""
    (hub,) = [each.data for each in build_edge(base).artifacts if each.target == "Hub"]
    for old in (base, as_program(onnx.load_from_string(hub))):
        with pytest.raises(IdentityError) as refused:
            accepting(compiled(**change), [old])
        assert told in refused.value.what
        assert (answer in refused.value.what) == (old is base), refused.value.what


def test_a_program_without_a_digest_is_none_to_accept(base):
    old = replace(base, facts=base.facts.without("program"))
    with pytest.raises(IdentityError, match="no digest"):
        accepting(base, [old])
    with pytest.raises(IdentityError, match="no peers"):
        accepting(old, [base])


class Coded(Module):
    """Codes travel from one class to the other."""

    name, home = "Coded", "Hub"
    leaves = PeerSelectorSlot("leaves", PresenceSelector, peer_class="Leaf")
    codec = CodecSlot("codec")

    def body(self, g: Graph) -> None:
        peers = self.leaves.sample(g, n=1, after=g.interval(500 * MS))
        code = self.codec.compress(g, g.constant(np.zeros(4, np.float32)), after=peers)
        g.app_emit("seen", self.codec.decompress(g, g.net_out("code", peers, code)))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"low": -4}, {"low": -4.0}, None),
        ({}, {"low": -1.0, "high": 1.0}, None),
        ({"high": 4.0}, {}, "slot 'codec', key 'high' is 1.0 here, and 4.0 in the program that is accepted"),
        ({}, {"low": -2.0}, "slot 'codec', key 'low' is -2.0 here, and -1.0 in the program that is accepted"),
    ],
)
def test_a_codec_with_other_settings_is_warned_of(old, new, told, tmp_path, capsys):
    def program(settings):
        return Compiler().bind_codec("codec", ScalarQuantizer, settings).compile_program(Coded())

    before, after = program(old), program(new)
    artifacts = [as_program(onnx.load_from_string(each.data)) for each in build_edge(before).artifacts]
    for others in ([before], artifacts):
        found = [w for w in build_edge(after, accepts=others).warnings if w.code == "other-codec-accepted"]
        assert len(found) == (told is not None)
        assert all(told in str(warning) for warning in found)


def test_a_codec_of_another_type_whose_codes_have_the_same_is_warned_of():
    class Halved(ScalarQuantizer):
        TYPE_NAME = "acme.Halved"

    old, new = (
        Compiler().bind_codec("codec", kind).compile_program(Coded()) for kind in (ScalarQuantizer, Halved)
    )
    (warning,) = (w for w in accepting(new, [old]).warnings if w.code == "other-codec-accepted")
    assert "key 'type' is 'acme.Halved' here, and 'bb.ScalarQuantizer'" in str(warning)


# --- in artifacts ------------------------------------------------------------------------------------


def test_an_artifact_holds_the_contracts_of_its_own_class(base):
    build = build_edge(compiled(n=3), accepts=[base])
    for artifact in build.artifacts:
        identity = load(artifact.data).identity
        assert identity.program.hex() == digest(build.program)
        assert identity.accepts == {bytes.fromhex(digest(base))}
        assert identity.contracts == {"Hub.Leaf": bytes.fromhex(contract(base))}


def test_a_digest_that_is_none_is_damage(base):
    model = onnx.load_from_string(build_edge(base).artifacts[0].data)
    entry = next(e for e in model.metadata_props if e.key == keys.PROGRAM_KEY)
    entry.value = "no digest"
    with pytest.raises(DamagedArtifact, match="not a digest"):
        load(resealed(model))


def test_the_command_line_accepts_and_inspects(base, tmp_path, capsys):
    onnx.save(to_proto(base), tmp_path / "old.onnx")
    onnx.save(to_proto(compiled(n=3)), tmp_path / "new.onnx")
    code = main(
        [
            "compile",
            str(tmp_path / "new.onnx"),
            "--accepts",
            str(tmp_path / "old.onnx"),
            "-o",
            str(tmp_path / "out"),
            "--json",
        ]
    )
    report = json.loads(capsys.readouterr().out)
    assert (code, report["program"]) == (0, digest(compiled(n=3)))
    main(["inspect", str(tmp_path / "out" / "Hub.Leaf.edge.onnx"), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["program"], shown["accepts"]) == (report["program"], [digest(base)])


# --- models ------------------------------------------------------------------------------------------


def learner(layers):
    bound = Compiler().bind_peer_selector("clients", PresenceSelector).bind_aggregator("agg", FedAvg)
    source = bound.bind_data_source("shard", ArrayDataSource, {"path": "a.npz"})
    source = source.bind_data_source("test", ArrayDataSource, {"path": "a.npz"})
    return source.bind_model(
        "model", GraphModel, trainable(mlp(layers), loss="softmax_cross_entropy")
    ).compile_program(FederatedDigits())


def test_another_model_with_as_many_parameters_is_another_contract():
    """Parameters travel as one vector: a sum over two layouts would be of no model."""
    wide, deep = learner([64, 10]), learner([64, 10])
    key = f"{keys.CONTRACT_PREFIX}Client.Server"
    assert written(wide.facts)[key] == written(deep.facts)[key]
    other = learner([64, 9, 10])
    assert written(other.facts)[key] != written(wide.facts)[key]
    with pytest.raises(IdentityError, match=r"Client and Server.*of model 'model', .*, and 3 more"):
        accepting(other, [wide])
