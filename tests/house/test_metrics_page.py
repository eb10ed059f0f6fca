"""Every counter that the code counts is described in the catalogue of metrics, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

from bb_edge.engine.net.admission import Refusal
from bb_edge.observe.catalogue import METRICS
from bb_edge.transport.mqtt import COUNTERS

COUNTED = re.compile(r"""count\(\s*"([a-z_]+(?:\.[a-z_]+)+)\"""")
LITERAL = re.compile(r'"([a-z_]+(?:\.[a-z_]+)+)"')
CATALOGUE = "bb_edge/observe/catalogue.py"
TOLD_TOGETHER = {f"ingress.{refusal.value[0]}" for refusal in Refusal if refusal.value[0]}
TOLD_TOGETHER |= {f"mqtt.{name}" for name in COUNTERS}
"""Counters whose names the code puts together."""


def sources(root: Path) -> dict[str, str]:
    """The modules of the device by path."""
    paths = sorted((root / "bb_edge").rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def test_whoever_counts_something_says_what_it_is(root: Path) -> None:
    named = {name for text in sources(root).values() for name in COUNTED.findall(text)} | TOLD_TOGETHER
    assert len(named) > 60
    missing = sorted(named - set(METRICS))
    assert not missing, f"add to METRICS in {CATALOGUE}, then run tools/generate_drawings.py: {missing}"


def test_what_is_described_is_counted(root: Path) -> None:
    texts = {path: text for path, text in sources(root).items() if path != CATALOGUE}
    known = {name for text in texts.values() for name in LITERAL.findall(text)} | TOLD_TOGETHER
    known |= {f"bootstraps.{word}" for word in ("pending", "running", "failed", "done")}
    gone = sorted(set(METRICS) - known)
    assert not gone, f"nothing counts what METRICS in {CATALOGUE} describes: {gone}"
