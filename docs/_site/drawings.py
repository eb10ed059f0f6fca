"""Mermaid blocks of the pages as pictures inside the site's pages, laid out by Graphviz.

Forges draw Mermaid by themselves, and browsers do not. What the pages use of it is read here: state diagrams,
and flowcharts of nodes, arrows and subgraphs. The pictures take the colours of the text around them, so they
are readable in light and in dark.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape

BLOCK = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
ARROW = re.compile(r"\s*--(?: (?P<label>[^>]+?) --)?>\s*")
NODE = re.compile(r"(?P<name>\w+)(?:\(?\[(?P<label>[^\]]+)\]\)?)?")
WIDEST_LABEL = 18
"""In letters: events that share an arrow are written below each other beyond it."""


class DrawingError(ValueError):
    """A line of a Mermaid block that is not read here."""


def drawn(page: str) -> str:
    """The page with a picture in place of each Mermaid block; without Graphviz the page as it is.

    Raises DrawingError for a block that is neither a state diagram nor a flowchart, or has other lines.
    """
    if shutil.which("dot") is None:
        return page
    return BLOCK.sub(lambda block: f"```{{raw}} html\n{picture(block[1])}```\n", page)


def picture(mermaid: str) -> str:
    """The block as HTML with an SVG inside, which says in words what it shows."""
    kind, *lines = mermaid.splitlines()
    if kind == "stateDiagram-v2":
        graph, words = _states(lines), "States and the events between them"
    elif kind == "flowchart LR":
        graph, words = _flow(lines), "Parts and what they hand to each other"
    else:
        raise DrawingError(f"{kind!r} is not drawn; use stateDiagram-v2 or flowchart LR")
    done = subprocess.run(["dot", "-Tsvg"], input=graph, capture_output=True, text=True, check=True)
    svg = done.stdout[done.stdout.index("<svg") :]
    svg = re.sub(r"<!--.*?-->\n?|<title>.*?</title>\n?", "", svg, flags=re.DOTALL)
    svg = svg.replace('"black"', '"currentColor"').replace("<text ", '<text fill="currentColor" ')
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)
    return f'<div class="drawing">\n{svg}</div>\n'


def _graph(*lines: str, direction: str = "TB") -> str:
    text = 'fontname="sans-serif" fontsize=12'
    return "\n".join(
        (
            "digraph {",
            f'rankdir={direction} bgcolor="transparent" compound=true ranksep=0.45 {text}',
            f'node [shape=box style=rounded height=0.3 margin="0.12,0.05" {text}]',
            f"edge [arrowsize=0.7 {text}]",
            *lines,
            "}",
        )
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _label(events: str) -> str:
    """The events of an arrow, in lines; blanks keep them off the line that they stand at."""
    lines = [""]
    for event in events.split(", "):
        if lines[-1] and len(lines[-1]) + len(event) > WIDEST_LABEL:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{event}"
    return _quoted(",\n".join(f" {line} " for line in lines)).replace(" ,\n", ", \\n")


def _states(lines: list[str]) -> str:
    drawn = [
        'begin [shape=circle style=filled fillcolor="black" label="" width=0.14 height=0.14]',
    ]
    if any(line.endswith("--> [*]") for line in lines):
        drawn.append('end [shape=doublecircle style=filled fillcolor="black" label="" width=0.1 height=0.1]')
    for line in lines:
        row = re.fullmatch(r"\s*(\[\*\]|\w+) --> (\[\*\]|\w+)(?:: (.+))?", line)
        if row is None:
            raise DrawingError(f"the line {line!r} of a state diagram is not read")
        before = "begin" if row[1] == "[*]" else _quoted(row[1])
        after = "end" if row[2] == "[*]" else _quoted(row[2])
        drawn.append(f"{before} -> {after} [label={_label(row[3] or '')}]")
    return _graph(*drawn)


def _flow(lines: list[str]) -> str:
    """Arrows from and to a subgraph begin and end at its border, through one of its nodes."""
    drawn: list[str] = []
    arrows: list[tuple[str, str, str]] = []
    members: dict[str, list[str]] = {}
    inside = ""
    for line in map(str.strip, lines):
        if line.startswith("subgraph "):
            inside = line.removeprefix("subgraph ")
            members[inside] = []
            drawn.append(f"subgraph {_quoted(f'cluster_{inside}')} {{ label={_quoted(inside)} style=rounded")
        elif line == "end":
            drawn.append("}")
            inside = ""
        else:
            # Split by arrows: node, label, node, label, node.
            parts = ARROW.split(line)
            for text in parts[::2]:
                node = NODE.fullmatch(text)
                if node is None:
                    raise DrawingError(f"{text!r} of the flowchart's line {line!r} is not read")
                if node["label"]:
                    drawn.append(f"{node['name']} [label={_quoted(node['label'])}]")
                elif inside:
                    drawn.append(node["name"])
                if inside:
                    members[inside].append(node["name"])
            names = [str(NODE.match(text)["name"]) for text in parts[::2]]  # type: ignore[index]
            arrows += zip(names[:-1], names[1:], [label or "" for label in parts[1::2]], strict=True)
    for before, after, label in arrows:
        ends = [f"label={_label(label)}"]
        ends += [f"ltail={_quoted(f'cluster_{before}')}"] if before in members else []
        ends += [f"lhead={_quoted(f'cluster_{after}')}"] if after in members else []
        tail, head = (members[name][0] if name in members else name for name in (before, after))
        drawn.append(f"{tail} -> {head} [{' '.join(ends)}]")
    return _graph(*drawn, direction="LR")
