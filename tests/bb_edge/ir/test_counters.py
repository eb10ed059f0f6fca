"""Names of counters: the node's own are known by what they begin with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bb_edge.ir import counters
from bb_edge.observe.catalogue import METRICS

SOURCES = Path(counters.__file__).parents[1]
COUNTED = re.compile(r"""\.count\(\s*f?"([a-z_]+)\.""")


def test_every_counter_of_the_node_begins_with_a_name_of_its_own():
    found = {name for path in SOURCES.rglob("*.py") for name in COUNTED.findall(path.read_text())}
    assert len(found) > 10
    assert found | {name.partition(".")[0] for name in METRICS} <= set(counters.OWN)


@pytest.mark.parametrize(
    ("name", "own"),
    [("ops.failed", True), ("ops_failed", True), ("ops", False), ("app.ops.failed", False), ("seen", False)],
)
def test_what_would_be_taken_for_the_nodes_own(name, own):
    assert counters.is_own(name) is own


def test_spelling():
    assert counters.spelling("my.metric-é 1") == "my_metric___1"
