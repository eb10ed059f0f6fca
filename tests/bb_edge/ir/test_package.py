"""The package is light, and its lazy names are those of its modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bb_edge.ir


@pytest.mark.parametrize("name", bb_edge.ir.__all__)
def test_every_exported_name_is_there(name):
    value = getattr(bb_edge.ir, name)
    assert value.__name__ == name
    assert value.__module__.startswith("bb_edge.ir.")
    assert name in dir(bb_edge.ir)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = bb_edge.ir.Nothing


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return set(out.split())


@pytest.mark.parametrize("statement", ["import bb_edge.ir", "from bb_edge.ir import PeerId, Address, keys"])
def test_ids_and_addresses_need_neither_numpy_nor_protobuf(statement):
    assert not loaded_by(f"sys.path[:0] = {sys.path!r}; {statement}") & {"numpy", "google.protobuf", "paho"}


def test_nothing_loads_the_onnx_package():
    imports = "; ".join(f"import bb_edge.ir.{m}" for m in ("tensors", "type_protos", "opsets"))
    assert "onnx" not in loaded_by(f"sys.path[:0] = {sys.path!r}; {imports}")
