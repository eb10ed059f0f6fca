"""TYPE_NAME → class: built-ins, users' own, entry points; and nothing imported before it is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bb_edge.ir import keys
from bb_edge.registry import BUILT_IN, Registry, RegistryError, UnregisteredConcreteError, default_registry
from bb_edge.roles import Codec, Component, ComponentEnv


def component(name: str, type_name: str, role: str = keys.ROLE_CODEC) -> Any:
    methods = {
        "construct": classmethod(lambda cls, env: cls()),
        "compress": lambda self, ctx, t: t,
        "decompress": lambda self, ctx, code: code,
    }
    return type(name, (Component,), {"TYPE_NAME": type_name, "ROLE": role, "__module__": "test", **methods})


CODEC = """
    @classmethod
    def construct(cls, env):
        return cls()
    def compress(self, ctx, t):
        return t
    def decompress(self, ctx, code):
        return code
"""


@pytest.mark.parametrize("type_name", BUILT_IN)
def test_every_built_in_is_there(type_name: str) -> None:
    cls = default_registry().lookup(type_name)
    assert type_name == cls.TYPE_NAME
    assert cls.ROLE in keys.ROLES
    assert default_registry().lookup(type_name) is cls


def test_a_users_class_is_registered_by_decorator() -> None:
    registry = Registry(entry_points=False)

    @registry.register
    class Mine(Codec):
        TYPE_NAME = "acme.Mine"

        @classmethod
        def construct(cls, env: ComponentEnv) -> Mine:
            return cls()

        def compress(self, ctx: Any, t: Any) -> Any:
            return t

        def decompress(self, ctx: Any, code: Any) -> Any:
            return code

    assert registry.lookup("acme.Mine") is Mine
    assert "acme.Mine" in registry.type_names()
    assert registry.register(Mine) is Mine  # again is fine


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (component("A", ""), "no TYPE_NAME"),
        (component("A", "a|b"), "separates bindings"),
        (component("A", "acme.A", "wizard"), "ROLE 'wizard'"),
        (component("A", "bb.FedAvg"), "built-in"),
        (component("Other", "acme.Taken"), r"taken by test\.First"),
    ],
)
def test_what_cannot_be_registered_says_why(cls: Any, message: str) -> None:
    registry = Registry(entry_points=False)
    registry.register(component("First", "acme.Taken"))
    with pytest.raises(RegistryError, match=message):
        registry.register(cls)


def test_an_unknown_name() -> None:
    with pytest.raises(UnregisteredConcreteError, match=r"acme\.None") as caught:
        default_registry().lookup("acme.None", "slot 'model'")
    assert caught.value.type_name == "acme.None"
    assert "slot 'model'" in str(caught.value)


def test_a_module_given_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_components_by_load.py").write_text(
        "from bb_edge.registry import register\n"
        "from bb_edge.roles import Component\n"
        "@register\n"
        "class Loaded(Component):\n"
        "    TYPE_NAME, ROLE = 'acme.Loaded', 'codec'\n" + CODEC
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    default_registry().load_module("acme_components_by_load")
    assert default_registry().lookup("acme.Loaded").__name__ == "Loaded"
    with pytest.raises(RegistryError, match="--load"):
        default_registry().load_module("there_is_no_such_module")


def test_an_installed_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real distribution on the path: metadata, entry points and module."""
    info = tmp_path / "acme_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{keys.COMPONENT_ENTRY_POINTS}]\n"
        "acme.Part = acme_parts_module:Part\n"
        "acme.Wrong = acme_parts_module:Part\n"
        "acme.NotOne = acme_parts_module:number\n"
        "acme.Missing = acme_parts_module:missing\n"
    )
    (tmp_path / "acme_parts_module.py").write_text(
        "from bb_edge.roles import Component\n"
        "class Part(Component):\n"
        "    TYPE_NAME, ROLE = 'acme.Part', 'codec'\n" + CODEC + "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry()
    assert registry.lookup("acme.Part").__name__ == "Part"
    for name, message in (
        ("Wrong", "its entry point is named"),
        ("NotOne", "not a subclass"),
        ("Missing", "cannot be loaded"),
    ):
        with pytest.raises(RegistryError, match=message):
            registry.lookup(f"acme.{name}")


def test_importing_the_registry_imports_no_component() -> None:
    program = (
        "import sys, bb_edge.registry as r\n"
        "assert r.default_registry().type_names()\n"
        "heavy = ('bb_edge.components.', 'bb_edge.backends.', 'bb_kernels', 'paho')\n"
        "bad = [m for m in sys.modules if m.startswith(heavy)]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
