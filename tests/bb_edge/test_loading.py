"""`load` and `install`: what is refused, and that nothing but typed errors comes out."""

from __future__ import annotations

import random

import numpy as np
import pytest
from program_text import parse

from bb_edge import NodeConfig, PeerId, install, load
from bb_edge.installer import SlotBindingConflict, UnsupportedOps
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_edge.loading import DamagedArtifact, IncompatibleRuntime, MissingPassport
from bb_edge.registry import UnregisteredConcreteError
from bb_edge.roles import ComponentError
from bb_edge.targets import InstallError, UnknownTargetError
from bb_host.ir.proto import to_bytes

BODY = """
function program.Main(x: F32[2]) -> (y) {entry=1, partition=self}
  slot model: peer_selector
  y: F32[2] = Relu(x)
  v: PeerIdVec = role.peer_selector.CurrentView(y) {slot=model, control_inputs=1}
"""
HEAD = 'program Demo {module=Demo, BINDINGS compiled=v1, binding.Main.backend="backend|bb.NumPyBackend|9"}'
VIEW = 'binding.Main.model="peer_selector|bb.ConstantView|1",'


def artifact(body: str = BODY, bindings: str = VIEW) -> bytes:
    return to_bytes(parse(HEAD.replace("BINDINGS", bindings) + body))


def put(data: bytes, **options) -> object:
    return install(PeerId.from_name("a"), (), data, options.pop("targets", ["Main"]), seed=1, **options)


def test_a_good_artifact_installs():
    program = load(artifact())
    assert list(program.targets) == ["Main"]
    assert program.module == "Demo"
    node = put(artifact())
    assert node.targets == ("Main",)


def test_a_loaded_program_with_one_target_is_a_function(tmp_path):
    path = tmp_path / "relu.onnx"
    body = "\nfunction program.Main(x: F32[2]) -> (y) {entry=1, partition=self}\n  y: F32[2] = Relu(x)\n"
    path.write_bytes(artifact(body, bindings=""))
    model = load(path)
    for _ in range(2):
        assert model(np.array([-1, 2], np.float32)).tolist() == [0.0, 2.0]
    with pytest.raises(BBError, match="shape"):
        model(np.zeros(3, np.float32))


def test_many_nodes_share_a_program():
    program = load(artifact())
    first, second = (install(PeerId.from_name(n), (), program, ["Main"], seed=1) for n in "ab")
    assert first.program is second.program


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"not a model at all", artifact()[:-7], artifact()[: len(artifact()) // 2]]
)
def test_damage_is_told(data):
    with pytest.raises((DamagedArtifact, MissingPassport)):
        load(data)


def test_an_uncompiled_model_has_no_passport():
    model = ModelProto.FromString(artifact())
    kept = [p for p in model.metadata_props if p.key != keys.COMPILED_KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    with pytest.raises(MissingPassport, match="bb-host compile"):
        load(model.SerializeToString())


def test_a_passport_of_another_version_is_refused():
    data = artifact().replace(b"\x12\x02v1", b"\x12\x02v9")
    with pytest.raises(IncompatibleRuntime, match="v9"):
        load(data)


def test_an_unknown_target_names_those_there_are():
    with pytest.raises(UnknownTargetError, match="Main"):
        put(artifact(), targets=["Other"])
    with pytest.raises(InstallError, match="no targets"):
        put(artifact(), targets=[])


def hashed(name: str) -> bytes:
    """The artifact with its target renamed, bindings and all."""
    model = ModelProto.FromString(artifact())
    model.functions[0].name = name
    for entry in model.metadata_props:
        entry.key = entry.key.replace(".Main.", f".{name}.")
    data: bytes = model.SerializeToString()
    return data


def test_a_target_is_found_by_its_name_without_the_hash():
    node = put(hashed("Main#ab12"))
    assert node.targets == ("Main#ab12",)


def test_an_unregistered_component_is_named():
    with pytest.raises(UnregisteredConcreteError, match=r"nobody\.Knows"):
        put(artifact(bindings='binding.Main.model="peer_selector|nobody.Knows|1",'))


def test_a_slot_without_binding_is_named():
    with pytest.raises(BBError, match="model"):
        put(artifact(bindings=""))


def test_configuration_for_no_slot_is_refused():
    with pytest.raises(InstallError, match="ghost"):
        put(artifact(), components={"ghost": {"x": 1}})


def test_a_component_refuses_a_bad_configuration():
    with pytest.raises(ComponentError, match="model"):
        put(artifact(), components={"model": {"no_such_key": 1}})


def test_ops_that_nothing_serves_are_all_named():
    body = BODY + "  a: Tensor = Conv3DMagic(y)\n  b: Tensor = syscall.Nonsense(y)\n"
    with pytest.raises(UnsupportedOps) as caught:
        put(artifact(body))
    assert "Conv3DMagic" in str(caught.value) and "Nonsense" in str(caught.value)


def test_targets_that_disagree_about_a_slot_conflict():
    second = BODY.replace("program.Main", "program.Other")
    bindings = VIEW + 'binding.Other.model="peer_selector|bb.PresenceSelector|1",'
    with pytest.raises(SlotBindingConflict, match=r"Main.*Other"):
        put(artifact(BODY + second, bindings), targets=["Main", "Other"])


def test_durable_sends_need_a_state_folder():
    body = (
        BODY + "  h: Trigger = wire.Send(y, v) {wire.wire_id=1, wire.site_ids=00000000000000aa, durable=1}\n"
    )
    with pytest.raises(InstallError, match="kept on disk"):
        put(artifact(body))


def test_mutations_give_typed_errors_only():
    """Thousands of byte mutations: each is loaded and installed, or refused by name."""
    good = artifact()
    rng = random.Random(11)
    refused = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            kind, at = rng.randrange(3), rng.randrange(len(data))
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randint(1, 8)]
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
        try:
            install(PeerId.from_name("a"), (), bytes(data), ["Main"], NodeConfig.edge(), seed=1)
        except BBError:
            refused += 1
    assert refused > 1000


def test_a_restart_with_the_same_seed_is_another_incarnation():
    """Else its numbers, which begin anew, would be taken for repetitions of those before the restart."""
    first, again, other = (put(artifact(), incarnation=n) for n in (b"1", b"1", b"2"))
    assert first.epoch == again.epoch != other.epoch
    assert put(artifact()).epoch == put(artifact()).epoch, "a simulation repeats itself"
