"""From a device's log back to the author: which op, in which line of the program, a message is about.

A device knows ops by what the artifact calls them (`subgraph_1175af8756232f3f_0`, `Add → d`). The source map
that was written beside the artifact knows which of the author's ops these are (`source_map.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bb_edge.ir.plain_values import from_json
from bb_host.errors import SourceMapError
from bb_host.report.source_map import VERSION

_STEP = re.compile(r"(\w+) → (\w+)")
"""How an error in the body of a subgraph names its op: type and first output."""


@dataclass(frozen=True, slots=True)
class Source:
    """An op of the author's. `name` and `source` (`file.py:line`) are empty where nobody gave them."""

    op: str
    name: str = ""
    source: str = ""
    value: str = ""

    def __str__(self) -> str:
        what = f"{self.op} {self.name!r}" if self.name else self.op
        return f"{self.source}: {what}" if self.source else what


class SourceMap:
    """A source map, ready for look-ups. `artifact` is the SHA-256 of the artifact that it belongs to."""

    def __init__(self, data: bytes, where: str = "source map") -> None:
        """SourceMapError where the bytes are not a source map that this version reads."""
        try:
            content: Any = from_json(data)
            version = content["version"]
            if version != VERSION:
                raise SourceMapError(f"version {version}, {VERSION} is read here", where, "update bb-host")
            self.module = str(content["module"])
            self.target = str(content["target"])
            self.artifact = str(content["artifact"])
            functions: Mapping[str, Any] = content["functions"]
            self._ops: dict[str, list[Source]] = {}
            for function in functions.values():
                for name, entries in function["ops"].items():
                    self._ops.setdefault(name, []).extend(Source(**entry) for entry in entries)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SourceMapError("it is not a source map", where, "give the artifact's .map.json") from error
        longest_first = sorted(self._ops, key=lambda name: (-len(name), name))
        # A name is found as a whole, not within a longer one; names have dots in them ("Hold.Stash_3").
        self._names = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})(?!\w)")

    def find(self, message: str) -> tuple[Source, ...]:
        """The author's ops that a message is about, in the program's order; none where it names no op.

        A message that names a step inside a subgraph is about that step alone.
        """
        named = [s for word in dict.fromkeys(self._names.findall(message)) for s in self._ops.get(word, ())]
        steps = set(_STEP.findall(message))
        every = (s for sources in self._ops.values() for s in sources)
        exact = [s for s in (named or every) if (s.op, s.value) in steps] if steps else []
        return tuple(dict.fromkeys(exact or named))

    def lines_of(self, *op_types: str) -> tuple[str, ...]:
        """The author's lines of all ops of these types, in the program's order; each once."""
        every = (source for sources in self._ops.values() for source in sources)
        return tuple(dict.fromkeys(s.source for s in every if s.op in op_types and s.source))

    def annotated(self, lines: Iterator[str]) -> Iterator[tuple[str, tuple[Source, ...]]]:
        """Each line of a log, and the author's ops that it is about."""
        for line in lines:
            text = line.rstrip("\n")
            yield text, self.find(message_of(text))


def message_of(line: str) -> str:
    """What a line of a log says: of one in JSON the values, with their escapes undone."""
    if line.startswith("{"):
        try:
            record: Any = from_json(line)
        except ValueError:
            return line
        return " ".join(str(value) for value in record.values())
    return line
