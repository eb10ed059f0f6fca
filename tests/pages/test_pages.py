"""README and docs hold: each page's blocks are run in their order, in one folder of the page's own.

tests/aids/page_steps.py says how a page is read. What stands here beside it is what blocks that are not run
have to hold all the same: parsers take their commands, and configuration files load.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, free_port
from page_steps import RUN, SHOWN, Page, PageError, appears, matches, read_page

pytest.importorskip("onnx", reason="the pages' programs are compiled, which needs the host extra")

from bb_edge.cli import parser as edge_parser
from bb_edge.config_file import load_config
from bb_host.cli import parser as host_parser

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
KINDS = ("tutorials", "how-to", "reference", "explanation")
PAGES = [
    ROOT / "README.md",
    DOCS / "tour.md",
    *sorted(path for kind in KINDS for end in ("md", "ipynb") for path in (DOCS / kind).rglob(f"*.{end}")),
]
EVERY_PAGE = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
MOST_NOT_RUN = 15
ROOM_S = 300


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUNNING = [page for page in PAGES if read_page(page).steps]


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(ROOM_S)
@pytest.mark.parametrize("page", RUNNING, ids=named)
def test_what_a_page_shows_works(
    page: Path,
    tmp_path: Path,
    tools: dict[str, str],
    start_broker: Callable[..., Broker],
    patience: float,
) -> None:
    text = "".join(step.text for step in read_page(page).steps)
    port = 0
    if "mosquitto -p 1883" in text:
        if shutil.which("mosquitto", path=tools["PATH"]) is None:
            pytest.skip("the page starts mosquitto, which is not installed")
        port = free_port()
    elif "mqtt://localhost" in text:
        port = start_broker("mosquitto").port
    if "openssl " in text and shutil.which("openssl", path=tools["PATH"]) is None:
        pytest.skip("the page calls openssl, which is not installed")
    folder = tmp_path / "page"
    folder.mkdir()
    command = [
        str(shutil.which("python", path=tools["PATH"])),
        "-W",
        "error",
        str(ROOT / "tests" / "aids" / "run_page.py"),
        str(page),
        str(port),
    ]
    with (tmp_path / "done").open("w") as done, (tmp_path / "wrong").open("w") as wrong:
        reader = subprocess.Popen(
            command, cwd=folder, env=tools, text=True, start_new_session=True, stdout=done, stderr=wrong
        )
        try:
            code = reader.wait(ROOM_S * patience)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(reader.pid, signal.SIGKILL)
    print((tmp_path / "done").read_text())
    assert code == 0, (tmp_path / "wrong").read_text()


def test_few_blocks_are_not_run() -> None:
    """Each has a reason; the list is what this test prints."""
    listed = [(named(page), *entry) for page in PAGES for entry in read_page(page).not_run]
    print("\n".join(f"{page}:{line}: {reason}" for page, line, reason in listed))
    assert all(reason for _, _, reason in listed), listed
    assert len(listed) <= MOST_NOT_RUN, listed


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_are_of_languages_that_are_run_or_shown(page: Path) -> None:
    allowed = {"", *RUN, *SHOWN}
    assert [(line, language) for line, language in read_page(page).languages if language not in allowed] == []


# ------------------------------------------------------------------------------ what is not run holds as well

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PARSERS = {"bb-host": host_parser, "bb-edge": edge_parser}


def blocks(page: Path, *kinds: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text("utf-8")) if kind in kinds]


def commands() -> list[Any]:
    """Every command line of ours on a page, `\\` at line ends joined, without what a shell does around it."""
    found = []
    for page in EVERY_PAGE:
        for block in blocks(page, "sh", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                own = line.strip().removeprefix("$ ").removeprefix("sudo ")
                words = re.sub(r"\$\w+", "", re.split(r"#|&|\||>|…|;", own)[0]).split()
                if words and words[0] in PARSERS:
                    text = " ".join(words)
                    found.append(pytest.param(shlex.split(text), id=f"{page.stem}: {text[:60]}"))
    return found


CONFIGURATIONS = [
    text for page in EVERY_PAGE for text in blocks(page, "json") if text.lstrip().startswith("{")
]


@pytest.mark.parametrize("words", commands())
def test_parsers_take_the_commands(words: list[str]) -> None:
    assert PARSERS[words[0]]().parse_args(words[1:]).verb == words[1]


def test_blocks_were_found() -> None:
    assert len(commands()) > 60 and len(CONFIGURATIONS) > 2 and len(RUNNING) > 10


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_configuration_files_are_taken(text: str, tmp_path: Path) -> None:
    config = json.loads(text)
    config.setdefault("artifact", "x.onnx")
    (tmp_path / "node.json").write_text(json.dumps(config))
    assert load_config(tmp_path / "node.json") is not None


# --------------------------------------------------------------------------------------- how a page is read


def page_of(tmp_path: Path, text: str) -> Page:
    (tmp_path / "page.md").write_text(text)
    return read_page(tmp_path / "page.md")


def test_a_page_is_read_in_its_order(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        "# A page\n\n<!-- run: sh\necho data > x\n-->\n\n```python\n# a.py\nprint(1)\n```\n\n"
        "```console\n$ python a.py\n1\n$ cat \\\n  y   # exit code 1\n```\n\n"
        "<!-- no-run: a board -->\n```sh\nreboot\n```\n\n<!-- file: c/d.json -->\n```json\n{}\n```\n\n"
        "- a list:\n\n  ```python\n  print(2)\n  ```\n\n"
        "```python\nprint(3)\n```\n\n```console\n3\n```\n",
    )
    assert [(step.kind, step.text, step.name, step.expected, step.exit_code) for step in page.steps] == [
        ("sh", "echo data > x\n", "", None, 0),
        ("file", "# a.py\nprint(1)\n", "a.py", None, 0),
        ("sh", "python a.py\n", "", "1\n", 0),
        ("sh", "cat \\\n  y   # exit code 1\n", "", None, 1),
        ("file", "{}\n", "c/d.json", None, 0),
        ("python", "print(2)\n", "", None, 0),
        ("python", "print(3)\n", "", "3\n", 0),
    ]
    assert page.not_run == [(21, "a board")]


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ ls\n…\n```\n",
        "```console\n$ ls\n  … …\n\n```\n",
        "```console\nshown\n```\n",
        "```console\nshown\n$ ls\n```\n",
    ],
)
def test_output_of_nothing_and_output_that_says_nothing_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(PageError):
        page_of(tmp_path, text)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a … c\n", "a b c\n", True),
        ("a … c\n", "a b\nc\n", False),
        ("a\n…\nc\n", "a\nb\nb\nc\n", True),
        ("a\n…\nc\n", "a\nc\n", True),
        ("a\n", "a\nb\n", False),
        ("b\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
        ("a  \n", "a\n", True),
    ],
)
def test_outputs_are_compared(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


def test_a_process_in_the_background_prints_more_than_is_shown() -> None:
    assert appears("b … d\n", "a\nb c d\ne\n")
    assert not appears("b\n", "ab\nbc\n")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```python\nassert 1 + 1 == 3\n```\n", "AssertionError"),
        ("```sh\nfalse\ntrue\n```\n", "exit code 1"),
        ("```console\n$ echo a\nb\n```\n", "expected:\nb"),
        ("```python\nprint(1)\n```\n\n```console\n2\n```\n", "expected:\n2"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n", ""),
        ("```console\n$ exit 3   # exit code 3\n```\n", ""),
        ("```console\n$ (echo a; sleep 9) &\na\n```\n", ""),
    ],
)
def test_what_fails_on_a_page_fails_the_test(
    tmp_path: Path, tools: dict[str, str], text: str, wrong: str
) -> None:
    (tmp_path / "page.md").write_text(text)
    (tmp_path / "page").mkdir()
    command = [sys.executable, str(ROOT / "tests" / "aids" / "run_page.py"), str(tmp_path / "page.md"), "0"]
    done = subprocess.run(command, cwd=tmp_path / "page", env=tools, capture_output=True, text=True)
    assert (done.returncode == 0) is (not wrong) and wrong in done.stderr, done.stderr
