"""Warnings about programs: what is legal and most likely not what its author means.

Recording, passes and the configurations of components each hand in `ProgramWarning`s; they travel with the
light form (`Program.warnings`), never into the model's bytes. `Compiler.compile` issues them as Python
warnings, `bb-host compile` prints them; `-W` is read here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from bb_edge.ir.errors import BBError
from bb_edge.ir.suggestions import suggestion

CODES: Final[Mapping[str, str]] = {
    "binding-replaces": "a binding of a slot whose declaration has a configuration, which is dropped",
    "body-returns-value": "a body returns a value, which nothing reads: outputs are declared with g.output",
    "component": "a component's configuration warns about itself",
    "constant-not-learned": "a tensor of a model that may have been a parameter, and that training leaves",
    "doubtful-setting": "a setting, or a default, that hardly anybody wants: a learning rate of 0",
    "early-aggregate": "an aggregate that does not wait for the answers that its slot sums",
    "empty-body": "a body records nothing",
    "empty-loop": "a loop of 0 iterations: what is recorded in it never runs",
    "empty-name": "an event, a metric or a record without a name",
    "enough-above-n": "a request waits for more answers than it asks peers",
    "event-like-output": "an event has the name of a declared output",
    "frozen-random": "random numbers that are drawn while a program is recorded: they are constants",
    "frozen-statistics": "a layer's running statistics are not updated by training",
    "late-minimum": "a sample whose `min` no round waits for, because other ops come before it",
    "layout-unknown": "peers' answers that are averaged or stacked, and whose shape nothing tells",
    "long-loop": "a loop whose literal number of iterations keeps a device busy for long",
    "missing-half": "one of two calls that work together, such as a stash without flush",
    "misspelt-name": "an attribute of a module that is nearly called as one that is read",
    "nested-limit": "a limit is acquired by an execution that holds permits of it",
    "never-started": "a flow that no entry, port or input of its partition starts",
    "no-order": "two calls of a model or a kept value without an order, on which the result depends",
    "one-operand": "`g.onnx.mean`, `max`, `min` or `sum` of one value, which is that value",
    "other-codec-accepted": "a codec with other settings than in a program that --accepts names",
    "outer-deadline-first": "a request whose deadline ends after that of the request it serves",
    "parameter-without-gradient": "a parameter that training does not change",
    "personal-untrained": "a model is run where nothing trains its personal parameters",
    "probabilities-as-output": "a cross-entropy of a model that ends in its own softmax or sigmoid",
    "round-not-attempt": "`bb.OncePerRound` is given the number of a round, which a repeated round has, too",
    "scope-places-nothing": "a scope `with g.at(…)` that no op follows",
    "second-contribution": "two contributions of one peer to one sum: only one of them counts",
    "setting-without-effect": "a configuration key that nothing reads beside the others",
    "shared-parameter": "a parameter that several layers read: it is trained as one",
    "short-deadline": "a deadline below a millisecond",
    "short-period": "an interval or a delay below a millisecond",
    "spent-aggregate": "a second aggregate of a sum that another one has taken: its result is empty",
    "state-not-saved": "a component keeps state and has no `serialize`: a restart loses it",
    "too-few-rows": "batches with fewer rows than the normalizations of a trained model need",
    "training-unread": "a model is trained, and nothing reads it before other parameters replace it",
    "two-event-types": "events of one name whose values have different types on different classes",
    "unknown-class": "a selector of peers of a class that the program does not have, but for a letter or two",
    "unknown-component": "a component type that this host does not know",
    "unread-aggregate": "an aggregate of which the total alone is used: nothing takes the mean",
    "unread-answer": "a part of an answer that nothing reads, and that every peer sends",
    "unread-request": "what a request sends and the asked peer does not use, or waits for and no more",
    "unread-result": "a result that has no effect and that nothing reads",
    "unused-binding": "a binding that no op of the program uses",
    "unused-compiler": "what a method of a compiler returns, which nothing is compiled with",
    "unused-slot": "a slot that no op uses",
    "weights-in-loop": "weights that only a branch or a loop of a model reads: they are not learned",
}
"""Every code with its one-line meaning. Codes are stable: programs and build scripts name them."""

_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")

Action: TypeAlias = Literal["error", "ignore"]


class UnknownWarningCode(BBError):
    """A code that `CODES` does not list."""

    def __init__(self, code: str, where: str = "") -> None:
        super().__init__(f"there is no warning {code!r}", where, suggestion(code, CODES, "codes: "))


class ProgramWarning(UserWarning):
    """One warning about a program; also the Python category under which `Compiler.compile` issues it.

    `where` is the author's `file.py:12`. Two warnings that say the same are equal. Raises
    UnknownWarningCode for a code that is not in `CODES`.
    """

    def __init__(self, code: str, what: str, where: str = "", hint: str = "") -> None:
        if code not in CODES:
            raise UnknownWarningCode(code, where)
        super().__init__(code, what, where, hint)
        self.code: Final = code
        self.what: Final = what
        self.where: Final = where
        self.hint: Final = hint

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return " ".join(f"{self.what}{hint} [{self.code}]".split("\n"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramWarning) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)

    @property
    def file(self) -> str:
        """The author's file, or `where` as it is when it names no line."""
        match = _LINE.fullmatch(self.where)
        return self.where if match is None else match["file"]

    @property
    def line(self) -> int:
        """The author's line, 0 when `where` names none."""
        match = _LINE.fullmatch(self.where)
        return 0 if match is None else int(match["line"])

    def render(self, kind: str = "warning") -> str:
        """The warning as the command line prints it: `file.py:12: warning: … (…) [code]`."""
        return f"{self.where or 'bb-host'}: {kind}: {self}"

    def at(self, where: str) -> ProgramWarning:
        """The same warning; at `where` if it has no place of its own."""
        return self if self.where else ProgramWarning(self.code, self.what, where, self.hint)

    def to_dict(self) -> dict[str, str]:
        """The warning as `--json` holds it."""
        return {"code": self.code, "what": self.what, "where": self.where, "hint": self.hint}


def in_order(found: Iterable[ProgramWarning]) -> tuple[ProgramWarning, ...]:
    """Each warning once, by file and line; those of one line in the order in which they came."""
    return tuple(sorted(dict.fromkeys(found), key=lambda w: (w.file, w.line)))


def issue(found: Iterable[ProgramWarning]) -> None:
    """Issues each as a Python warning at the author's line, so that Python's filters and pytest see it."""
    for warning in found:
        # Without a registry Python keeps no record of what was shown, and each compilation shows its own.
        warnings.warn_explicit(warning, ProgramWarning, warning.file or "program", warning.line)


@dataclass(frozen=True, slots=True)
class Policy:
    """What `-W` asks for: an action for all warnings, and actions for single codes, which come first."""

    general: Action | None = None
    codes: Mapping[str, Action] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Sequence[str]) -> Policy:
        """Reads `error`, `ignore`, `error=CODE` and `ignore=CODE`; a later one replaces an earlier one.

        Raises UnknownWarningCode, and BBError for an action that is neither of the two.
        """
        general: Action | None = None
        codes: dict[str, Action] = {}
        for option in options:
            action, equals, code = option.partition("=")
            if action not in ("error", "ignore"):
                raise BBError(
                    f"{option!r} is not an action",
                    "-W",
                    "error, ignore, error=CODE or ignore=CODE",
                )
            known: Action = "error" if action == "error" else "ignore"
            if not equals:
                general = known
            elif code in CODES:
                codes[code] = known
            else:
                raise UnknownWarningCode(code, "-W")
        return cls(general, codes)

    def action(self, warning: ProgramWarning) -> Action | None:
        """What is asked for a warning; None where it is shown as what it is."""
        return self.codes.get(warning.code, self.general)
