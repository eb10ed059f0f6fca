"""What a page of the documentation has a reader do: its blocks, in their order.

A block of `python`, `sh` or `console` is run. So is what `<!-- run: sh` … `-->` hides: what a reader has
already, such as data. `<!-- no-run: reason -->` before a block says why a test cannot run it. Before a block
of any language, `<!-- file: NAME -->` makes a file of it, as a first line `# NAME.py` does in one of Python.

A `console` block has commands behind `$ `, each with what it prints. One without any `$ ` is what the block
before it prints. In expected output `…` stands for part of a line, and a line that is `…` for any lines. A
command ends with status 0, unless a comment behind it says `# exit code N`.

Of a notebook each cell of code is run, and compared with the output that is stored with it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

RUN = ("python", "sh", "console")
SHOWN = ("text", "json", "toml", "ini", "proto", "mermaid", "{toctree}", "{code-block}", "{raw}")
"""Languages that are shown and not run."""

EXIT_CODE = re.compile(r"# exit code (\d+)$")
PIECE = re.compile(
    r"^<!-- run: (?P<hidden>python|sh)\n(?P<script>.*?)^-->$"
    r"|^(?P<before><!-- (?:no-run|file): [^\n]*-->\n+)?"
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


class PageError(Exception):
    """A page that cannot be read as one, with its line."""


@dataclass
class Step:
    """A file to write, or Python or a shell's text to run, with what it prints where the page shows that."""

    kind: str  # "file", "python" or "sh"
    text: str
    line: int
    name: str = ""  # of a file
    expected: str | None = None
    exit_code: int = 0


@dataclass
class Page:
    """What is done, what is not run (line and reason), and the languages of its blocks with their lines."""

    name: str
    steps: list[Step] = field(default_factory=list)
    not_run: list[tuple[int, str]] = field(default_factory=list)
    languages: list[tuple[int, str]] = field(default_factory=list)


def read_page(path: Path) -> Page:
    """The page's steps. Raises PageError where it shows output of nothing, or output that says nothing."""
    page = Page(path.name)
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        return _notebook(page, text)
    for piece in PIECE.finditer(text):
        line = text.count("\n", 0, piece.start("text" if piece["hidden"] is None else "script")) + 1
        if piece["hidden"] is not None:
            page.steps.append(Step(piece["hidden"], piece["script"], line))
            continue
        language, block = piece["language"].split(" ")[0], _dedented(piece["text"], len(piece["indent"]))
        page.languages.append((line, language))
        marker, _, words = (
            (piece["before"] or "").strip().removeprefix("<!-- ").removesuffix("-->").partition(": ")
        )
        if marker == "no-run":
            page.not_run.append((line, words.strip()))
        elif marker == "file":
            page.steps.append(Step("file", block, line, words.strip()))
        elif language == "console":
            _add_console(page, block, line)
        elif language in RUN:
            named = re.match(r"# (\S+\.py)\n", block) if language == "python" else None
            page.steps.append(Step("file", block, line, named[1]) if named else Step(language, block, line))
    return page


def _notebook(page: Page, text: str) -> Page:
    """The cells of code, in their order, with what they print; a line is the number of a cell."""
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        if cell["cell_type"] == "code":
            shown = "".join(line for output in cell["outputs"] for line in output["text"])
            expected = _telling(page, shown, number) if shown else None
            page.steps.append(Step("python", "".join(cell["source"]) + "\n", number, expected=expected))
    return page


def _dedented(text: str, spaces: int) -> str:
    return re.sub(rf"^ {{{spaces}}}", "", text, flags=re.MULTILINE) if spaces else text


def _add_console(page: Page, block: str, line: int) -> None:
    if not re.search(r"^\$ ", block, re.MULTILINE):
        if not page.steps or page.steps[-1].kind == "file" or page.steps[-1].expected is not None:
            raise PageError(f"{page.name}, line {line}: the block is the output of nothing")
        page.steps[-1].expected = _telling(page, block, line)
        return
    if not block.startswith("$ "):
        raise PageError(f"{page.name}, line {line}: the block begins with output, and has commands behind it")
    for command in re.finditer(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", block, re.MULTILINE):
        at = line + block.count("\n", 0, command.start())
        expected = _telling(page, command[2], at) if command[2].strip() else None
        code = EXIT_CODE.search(command[1])
        page.steps.append(
            Step("sh", command[1] + "\n", at, expected=expected, exit_code=int(code[1]) if code else 0)
        )


def _telling(page: Page, expected: str, line: int) -> str:
    if not expected.replace("…", "").strip():
        raise PageError(f"{page.name}, line {line}: the expected output is `…` alone, which anything is")
    return expected


def matches(expected: str, printed: str) -> bool:
    """Whether that was printed, and nothing else: `…` as the module says, blanks at line ends aside."""
    return re.fullmatch(_pattern(expected), _trimmed(printed)) is not None


def appears(expected: str, printed: str) -> bool:
    """The same for whole lines anywhere in what a process in the background has printed so far."""
    return re.search(rf"(?:^|\n){_pattern(expected)}", _trimmed(printed)) is not None


def _trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def _pattern(expected: str) -> str:
    found = []
    for line in _trimmed(expected).splitlines():
        if line.strip() == "…":
            found.append(r"(?:[^\n]*\n)*")
        else:
            found.append(r"[^\n]*".join(map(re.escape, line.split("…"))) + r"\n")
    return "".join(found)
