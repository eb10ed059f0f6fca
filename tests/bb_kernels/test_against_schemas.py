"""The table of kernels agrees with ONNX's own operator schemas."""

from __future__ import annotations

from typing import Any

import pytest

from bb_kernels import NEWEST_OPSET, OLDEST_OPSET, supported_ops
from bb_kernels.registry import find

onnx = pytest.importorskip("onnx")

#: Attributes that exist in ONNX and that a kernel refuses by name, with the reason.
REFUSED = {
    ("Constant", "sparse_value"): "sparse tensors",
    ("Constant", "value_string"): "strings",
    ("Constant", "value_strings"): "strings",
}
#: Deprecated operators that keep their last form beyond the opset that removed them.
OUTLIVED = {"GroupNormalization", "Scatter", "Upsample"}


def _newest_known() -> int:
    return min(NEWEST_OPSET, onnx.defs.onnx_opset_version())


def _versions(op: str) -> list[tuple[int, Any]]:
    return [
        (version, onnx.defs.get_schema(op, version, ""))
        for version in range(OLDEST_OPSET, _newest_known() + 1)
        if onnx.defs.has(op, version, "")
    ]


@pytest.mark.parametrize("op", sorted(supported_ops()))
def test_versions_inputs_outputs_and_attributes(op: str) -> None:
    if not _versions(op):
        pytest.skip("newer than the onnx package that is installed")
    checked = 0
    for version, schema in _versions(op):
        entry = find(op, version)
        if schema.deprecated:
            assert entry is None or op in OUTLIVED or schema.since_version > entry.since
            continue
        assert entry is not None, f"{op} exists at opset {version}"
        checked += 1
        named = {name for name in schema.attributes if (op, name) not in REFUSED}
        assert entry.attributes(version) == named, f"{op} at opset {version}"
        assert len(entry.signature) == len(schema.inputs), f"{op} at opset {version}"
        for token, formal in zip(entry.signature, schema.inputs, strict=True):
            kind = {"?": "Optional", "*": "Variadic"}.get(token[-1], "Single")
            same = formal.option.name == kind
            # Inputs that a later version made optional may be left out at once.
            assert same or kind == "Optional", f"{op} at opset {version}, input {formal.name}"
        assert entry.max_outputs >= min(len(schema.outputs), entry.max_outputs)
    assert checked
    first = min(v for v, schema in _versions(op) if not schema.deprecated or op in OUTLIVED)
    assert min(since for since, _ in supported_ops()[op]) == first, f"{op} starts too early"


def test_newest_opset_is_the_one_of_the_onnx_package_checked_against() -> None:
    assert onnx.defs.onnx_opset_version() >= OLDEST_OPSET
