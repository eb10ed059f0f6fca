"""A node per call, for ops tried one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bb_edge.engine.config import NodeConfig
from bb_edge.registry import Registry


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "covers(domain, *ops): the ops of the catalog that a test is about")


class Bed:
    """One node per call, fed by invokes."""

    def __init__(self, bench: Any) -> None:
        self._bench = bench

    def run(
        self,
        body: str,
        inputs: str,
        *invokes: Mapping[str, object],
        slots: Mapping[str, str] | None = None,
        config: NodeConfig | None = None,
        components: Mapping[str, Mapping[str, object]] | None = None,
        registry: Registry | None = None,
        settle: bool = True,
    ) -> Any:
        """Installs `body` and invokes it once per mapping; settles unless told otherwise."""
        bindings = "".join(
            f', binding.Main.{slot}="{bound}|{number}"'
            for number, (slot, bound) in enumerate((slots or {}).items(), 1)
        )
        declared = "".join(f"  slot {s}: {bound.split('|')[0]}\n" for s, bound in (slots or {}).items())
        text = (
            f"program Demo {{module=Demo{bindings}}}\n"
            f"function program.Main({inputs}) -> () {{entry=1, partition=self}}\n{declared}{body}\n"
        )
        b = self._bench(text, config=config, components=components, registry=registry)
        for values in invokes:
            b.node.invoke("Main", values)
        if settle:
            b.settle()
        return b


@pytest.fixture
def bed(bench):
    return Bed(bench)
