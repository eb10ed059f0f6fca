"""Lazy names: imported once, when they are first used, under the name that the module gives them."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from bb_edge.ir.lazy_exports import lazy_exports


def module(package: bool = False, **homes: str) -> Any:
    made = types.ModuleType("shelf")
    if package:
        made.__path__ = []
    paths = {name.replace("_dot_", "."): imports for name, imports in homes.items()}
    made.__getattr__, made.__dir__ = lazy_exports(vars(made), paths)  # type: ignore[method-assign]
    return made


def test_a_name_is_imported_when_it_is_first_used_and_kept() -> None:
    shelf = module(fractions="Fraction", json="loads as read, dumps")
    assert "Fraction" not in vars(shelf)
    import fractions
    import json

    assert shelf.Fraction is fractions.Fraction
    assert vars(shelf)["Fraction"] is fractions.Fraction
    assert (shelf.read, shelf.dumps) == (json.loads, json.dumps)
    assert {"Fraction", "read", "dumps"} <= set(dir(shelf))
    assert not hasattr(shelf, "loads"), "it has another name here"


def test_a_submodule_is_imported_too() -> None:
    code = "import bb_host.extend; print(bb_host.extend.keys.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "bb_edge.ir.keys\n"


def test_a_module_suggests_a_name() -> None:
    with pytest.raises(AttributeError) as caught:
        module(fractions="Fraction").Fractions  # noqa: B018
    assert str(caught.value) == "module 'shelf' has no attribute 'Fractions': did you mean 'Fraction'?"


def test_a_package_does_not_since_each_import_of_a_submodule_asks_first() -> None:
    with pytest.raises(AttributeError) as caught:
        module(package=True, fractions="Fraction").Fractions  # noqa: B018
    assert str(caught.value) == "module 'shelf' has no attribute 'Fractions'"


def test_a_class_without_a_module_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of protobuf are."""
    (tmp_path / "shelf_of_classes.py").write_text("Book = type('Book', (), {'__module__': None})\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert module(shelf_of_classes="Book").Book.__module__ == "shelf_of_classes"
