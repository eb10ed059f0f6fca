"""What passes make of programs, text in, text out: each file of `cases/` belongs to the pass of its name.

A case is a title behind `===`, options behind `with` if it needs any, a program, and what the pass does with
it: `--- becomes`, with the counters of the run, and the program that comes out; `--- stays` where the pass
returns the very same object; `--- is refused`, and the error as an author reads it. `pytest --update` on this
file writes anew what is behind `---`; read the difference before you commit it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from program_text import parse

from bb_edge.ir.errors import BBError
from bb_host.compiler import Options, Stats
from bb_host.ir.program import Program
from bb_host.ir.text import print_program
from tests.aids.passes import pass_named

FILES = sorted((Path(__file__).parent / "cases").glob("*.txt"))
STAYS = "--- stays\n"


class Case(NamedTuple):
    """One case; `head` is its title, with its options."""

    name: str
    head: str
    given: str
    found: str

    @property
    def options(self) -> dict[str, int]:
        """What stands behind `with`."""
        words = self.head.partition("\nwith ")[2].split()
        return {name: int(value) for name, _, value in (word.partition("=") for word in words)}

    def __str__(self) -> str:
        return f"=== {self.head}\n{self.given}{self.found}"


def cases(path: Path) -> Iterator[Case]:
    """The cases of a file, in their order."""
    for text in re.split(r"^=== ", path.read_text(), flags=re.MULTILINE)[1:]:
        head, given, found = re.split(r"^(?=program |---)", text, maxsplit=2, flags=re.MULTILINE)
        head = head.rstrip("\n")
        yield Case(head.partition("\n")[0], head, given, found.rstrip("\n") + "\n")


def outcome(case: Case, run_pass: Callable[..., Program], name: str) -> str:
    """What the pass does, as a case says it."""
    stats = Stats()
    given = parse(case.given)
    options = Options(**{"module": given.name, **case.options})
    try:
        if pass_named(name).run(given, options, Stats()) is given:
            return STAYS
    except BBError as error:
        return f"--- is refused\n{type(error).__name__}: {error}\n"
    done = run_pass(name, given, stats, **case.options)  # checks that it is pure and idempotent
    counted = ", ".join(f"{key} {count}" for key, count in sorted(stats.counters.items()))
    return f"--- becomes {counted}".rstrip() + f"\n{print_program(done)}"


ALL = [(path, case) for path in FILES for case in cases(path)]


@pytest.mark.parametrize(("path", "case"), ALL, ids=[f"{path.stem}: {case.name}" for path, case in ALL])
def test_a_case(path: Path, case: Case, run_pass: Callable[..., Program], request) -> None:
    found = outcome(case, run_pass, path.stem)
    if request.config.getoption("--update") and found != case.found:
        text = path.read_text()
        assert text.count(str(case)) == 1, f"{path.name}: two cases are the same"
        path.write_text(text.replace(str(case), str(case._replace(found=found))))
        return
    assert found == case.found, "if that is meant: pytest --update, and read the difference"


def test_titles_differ() -> None:
    names = [(path.stem, case.name) for path, case in ALL]
    assert len(names) == len(set(names))
