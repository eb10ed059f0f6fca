"""What authors import, and what that costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bb_host
import bb_host.dsl


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, bb_host; print(sorted({'onnx', 'numpy', 'google.protobuf', 'paho'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_of_the_recorder_is_there() -> None:
    for name in bb_host.dsl.__all__:
        assert getattr(bb_host.dsl, name).__name__ == name
        if name not in ("ComponentSlot",):
            assert getattr(bb_host, name) is getattr(bb_host.dsl, name)
    assert (bb_host.S, bb_host.MS, bb_host.US) == (10**9, 10**6, 10**3)
    assert bb_host.S // bb_host.MS == bb_host.MS // bb_host.US == 1000


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        bb_host.nothing  # noqa: B018
