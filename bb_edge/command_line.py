"""The parser of both commands: what is wrong with a command line is all that it prints of it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from bb_edge.ir.suggestions import suggestion


class _Once(argparse.Action):
    """Stores a value. A flag that is given twice is refused: which of both is meant cannot be known."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        given: set[str] = vars(namespace).setdefault(_GIVEN, set())
        if option_string is not None and self.dest in given:
            parser.error(f"argument {option_string}: it is given twice")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


_GIVEN = "flags given"
"""Where a namespace keeps them while it is filled."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that refuses in two lines, with exit code 2; verbs of it are of this class, too.

    Flags are written out: a short form that is one today may be that of two tomorrow, and means one that its
    author had not in mind.
    """

    def __init__(self, **how: Any) -> None:
        """`how` is as in argparse."""
        super().__init__(allow_abbrev=False, **how)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, and where the flags are listed."""
        self.exit(2, f"{self.prog}: error: {message}\n(`{self.prog} --help` lists what it takes)\n")

    def parse_known_args(  # type: ignore[override]  # argparse overloads it by the namespace's type
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Refuses a flag that it does not have, and names the one that may be meant.

        A verb does so itself: the command above it knows none of the verb's flags.
        """
        found, rest = super().parse_known_args(args, namespace)
        if hasattr(found, _GIVEN):
            delattr(found, _GIVEN)
        strange = next((each for each in rest if each.startswith("-")), None)
        if strange is not None:
            near = self._meant(strange.partition("=")[0])
            hint = f"; did you mean {near}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return found, rest

    def _meant(self, strange: str) -> str:
        """The flag that somebody may have meant, or "": by its first letter, or by likeness."""
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        if len(strange) == 2:
            return next((flag for flag in flags if flag[2] == strange[1].lower()), "")
        near = suggestion(strange, flags).partition("did you mean ")[2]
        return near.strip("'?")
