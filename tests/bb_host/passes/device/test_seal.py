"""Artifacts carry the digest of their bytes: what was damaged or written again is refused, however it was."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bb_edge import load, open_model
from bb_edge.cli import main
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.seals import DIGEST_SIZE, SealError, check_seal, is_sealed, seal, sums
from bb_edge.loading import DamagedArtifact, IncompatibleRuntime
from bb_host import Compiler, Module
from bb_host.build import compile_edge
from tests.aids.seals import changed, resealed, unsealed


class Tiny(Module):
    name = "Tiny"

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, [2])
        g.output("y", g.onnx.relu(x * np.array([0.5, -3], np.float32)))


class Emits(Module):
    """A target that needs the engine."""

    name = "Emits"

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, [2])
        g.app_emit("seen", x + 1.0)
        g.output("y", x * 2.0)


def artifact(module: Module) -> bytes:
    (found,) = compile_edge(module, Compiler()).artifacts
    return found.data


@pytest.fixture(scope="module")
def tiny() -> bytes:
    return artifact(Tiny())


X = np.array([1, 2], np.float32)


def test_what_is_compiled_is_sealed_and_runs(tiny: bytes) -> None:
    assert is_sealed(tiny)
    zeroed = tiny[:-DIGEST_SIZE] + b"0" * DIGEST_SIZE
    assert tiny[-DIGEST_SIZE:].decode() == hashlib.sha256(zeroed).hexdigest()
    assert check_seal(tiny) == sums(tiny)
    assert load(tiny).digest == hashlib.sha256(tiny).hexdigest()
    model = onnx.load_from_string(tiny)
    onnx.checker.check_model(model)
    meta = {entry.key: entry.value for entry in model.metadata_props}
    assert meta[keys.COMPILED_KEY] == keys.SEALED_VERSION
    assert meta[keys.DIGEST_KEY] == tiny[-DIGEST_SIZE:].decode()
    np.testing.assert_array_equal(open_model(tiny)(X), [0.5, 0])


@pytest.mark.parametrize("module", [Tiny, Emits])
def test_no_flipped_bit_is_taken(module: type[Module]) -> None:
    data = artifact(module())
    right = open_model(data)(X)
    for at in range(len(data)):
        for bit in (0, 4, 7):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                found = open_model(bytes(damaged))(X)
            except BBError:
                continue
            np.testing.assert_array_equal(found, right, err_msg=f"byte {at}, bit {bit}")


def test_no_cut_and_no_tail_is_taken(tiny: bytes) -> None:
    for size in range(len(tiny)):
        with pytest.raises(BBError):
            load(tiny[:size])
    for tail in (b"\0", b"\x0a\x00", tiny[-200:]):
        with pytest.raises(BBError):
            load(tiny + tail)
        with pytest.raises(BBError):
            open_model(tiny + tail)


def test_damage_is_said_with_both_digests(tiny: bytes) -> None:
    damaged = bytearray(tiny)
    damaged[len(tiny) // 2] ^= 1
    with pytest.raises(DamagedArtifact, match=r"SHA-256 is .*…, and .*… was written") as caught:
        load(bytes(damaged))
    assert tiny[-DIGEST_SIZE:][:16].decode() in str(caught.value)
    assert "copy the file again" in caught.value.hint
    with pytest.raises(SealError):
        check_seal(bytes(damaged))


def test_another_tool_that_saves_it_breaks_it(tiny: bytes, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "again.onnx"
    onnx.save(onnx.load_from_string(tiny), path)
    for opened in (load, open_model):
        with pytest.raises(DamagedArtifact, match="another ONNX tool has written it again") as caught:
            opened(path)
        assert "compile it again" in caught.value.hint
    assert main(["inspect", str(path)]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "another ONNX tool" in line


def test_a_digest_is_needed_from_v2_on_only(tiny: bytes) -> None:
    np.testing.assert_array_equal(open_model(unsealed(tiny))(X), [0.5, 0])
    assert not is_sealed(unsealed(tiny))
    model = onnx.load_from_string(tiny)
    model.metadata_props.pop()
    with pytest.raises(DamagedArtifact, match="digest is missing"):
        load(model.SerializeToString())
    assert resealed(model) == tiny


def test_a_digest_out_of_place_is_refused_in_v1_too(tiny: bytes) -> None:
    model = onnx.load_from_string(unsealed(tiny))
    model.metadata_props.add(key=keys.DIGEST_KEY, value="0" * DIGEST_SIZE)
    for opened in (load, open_model):
        with pytest.raises(DamagedArtifact, match="digest is missing, or not at its end"):
            opened(model.SerializeToString())


def test_a_later_version_is_refused_as_such(tiny: bytes) -> None:
    def later(model: Any) -> None:
        for entry in model.metadata_props:
            if entry.key == keys.COMPILED_KEY:
                entry.value = "v3"

    with pytest.raises(IncompatibleRuntime, match="'v3', this runtime takes 'v1' and 'v2'"):
        load(seal(changed(tiny, later)))


def test_a_small_file_and_a_large_one_have_the_digest_of_sha256() -> None:
    """Both implementations of SHA-256 that are used."""
    for size in (0, 1, 1000, 3_000_000):
        data = seal(bytes(size))
        assert data[-DIGEST_SIZE:].decode() == hashlib.sha256(data[:-64] + b"0" * 64).hexdigest()
        assert check_seal(data).whole == hashlib.sha256(data).hexdigest()
