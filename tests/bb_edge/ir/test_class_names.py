"""Names of peer classes: one level of a topic, and how the only class of a program is called."""

from __future__ import annotations

import pytest

from bb_edge.ir.class_names import class_of_module, is_class_name


@pytest.mark.parametrize("name", ["Client", "a", "9", "_", "-", "a-b_C9", "x" * 64])
def test_names_that_a_class_may_have(name: str) -> None:
    assert is_class_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "a+", "#", "a b", "a.b", "é", "a\n", "$SYS", "x" * 65, "a,b", "from", "chunk", None, 3],
)
def test_names_that_it_may_not(name: object) -> None:
    assert not is_class_name(name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("Gossip", "Gossip"),
        ("my.model", "my_model"),
        ("é/x", "__x"),
        ("x" * 99, "x" * 64),
        ("chunk", "chunk_"),
    ],
)
def test_the_only_class_of_a_program_is_called_after_its_module(module: str, name: str) -> None:
    assert class_of_module(module) == name
    assert is_class_name(name)
