"""Phrases that make readers stop stay out of pages, docstrings and messages; plain ones replace them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PLAIN = {
    r"sent too late is not sent": "drops sends whose deadline has passed",
    r", and <[^>]*> is none": "expects a …, got …",
    r"nothing starts from these rounds": "no op in this `with` block depends on the round",
    r"hang the first ops": "pass `after=start` to its first op",
    r"says so twice": "you never annotate placement twice",
    r"inputs and outputs hang together": "type constraints between an op's inputs and outputs",
    r"whose type nothing says": "whose type could not be inferred",
    r"several passes ask of": "queries that passes share",
    r"leaves all of it away": "turns all of it off",
    r"for want of (?:room|space)": "no space left",
    r"stands? twice": "is declared twice",
    r"its how manieth": "the frame's index",
}

NEGATED = re.compile(
    r"\b(?:is|are|was|were)\s+no\s+(?!(?:longer|more|less|different|larger|smaller|older|faster|slower)\b)[a-z`]\w*"
    r"|\bthat\s+(?:is|are)\s+(?-i:none)\b(?!\s+of\b)",
    re.IGNORECASE,
)
"""`x is no number` and `a line that is none`; "there is no number" and "is no longer" are plain."""


def stumbles(text: str) -> list[str]:
    """`line: phrase; write: …` for each such phrase, also where a line ends within it."""
    found = []
    for phrase, plain in PLAIN.items():
        for match in re.finditer(phrase.replace(" ", r"\s+"), text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{line}: {' '.join(match[0].split())}; write: {plain}")
    for match in NEGATED.finditer(text):
        if not re.search(r"\bthere\s+$", text[: match.start()], re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{line}: {' '.join(match[0].split())}; write: is not a …")
    return found


def test_phrases_are_plain(root: Path, tracked_files: list[Path]) -> None:
    found = []
    for path in tracked_files:
        if path.suffix in {".md", ".py", ".pyi"} and path != Path(__file__).resolve():
            text = path.read_text(encoding="utf-8")
            found += [f"{path.relative_to(root)}:{stumble}" for stumble in stumbles(text)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a port that stands\ntwice", 1),
        ("Refused for want of room.", 1),
        ("X is a Tensor, and <pulse: Trigger> is none", 1),
        ("a port that is declared twice", 0),
        ("a text that is no\n    number", 1),
        ("names that are none, or none of ours", 1),
        ("there is\n    no number, and there are no names", 0),
        ("it is no longer refused, is no faster, and is none of ours", 0),
    ],
)
def test_phrases_are_found_across_lines(text: str, count: int) -> None:
    assert len(stumbles(text)) == count
