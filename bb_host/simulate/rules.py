"""By which rule the rows of a file are dealt. `dealing.py` deals them, in the workers.

Who starts workers imports this and has no use for NumPy, some 10 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

from bb_host.errors import ScenarioError

FORMS = "iid, dirichlet:ALPHA, label:COUNT, column:NAME, draw:ROWS, same"
"""How a rule is written on the command line."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Who gets which rows.

    `iid`: shuffled, in shares whose sizes differ by one at most. `dirichlet`: each label is divided among
    the clients in proportions drawn from a symmetric Dirichlet(`amount`); 100 is nearly even, 0.1 leaves
    most clients with a few labels. `label`: each client has rows of `amount` labels alone. `column`: those
    with one value of the array `column` belong to one client. `draw`: each client draws `amount` rows with
    replacement, so that any number of clients can be had. `same`: all rows for everybody.
    """

    kind: str
    amount: float = 0.0
    column: str = ""

    @property
    def by_label(self) -> bool:
        """Whether it reads the labels of the rows."""
        return self.kind in ("dirichlet", "label")

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Reads `iid`, `dirichlet:0.3`, `label:2`, `column:writer`, `draw:64` or `same`. ScenarioError."""
        kind, colon, rest = text.partition(":")
        if kind in ("iid", "same") and not colon:
            return cls(kind)
        if kind == "column" and rest:
            return cls(kind, column=rest)
        if kind in ("dirichlet", "label", "draw"):
            try:
                amount = float(rest) if kind == "dirichlet" else int(rest)
            except ValueError:
                amount = 0
            if 0 < amount < float("inf"):
                return cls(kind, amount)
            least = "a number above 0" if kind == "dirichlet" else "a whole number, 1 or more"
            example = {"dirichlet": "0.3", "label": "2", "draw": "64"}[kind]
            raise ScenarioError(f"{text!r}: {kind} takes {least}", "--deal", f"write {kind}:{example}")
        raise ScenarioError(f"{text!r} is not a way to deal data", "--deal", f"write one of: {FORMS}")
