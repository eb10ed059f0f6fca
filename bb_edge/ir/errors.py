"""The root of all typed errors, on host and device."""

from __future__ import annotations


class BBError(Exception):
    """A typed error that says what went wrong, where, and what to do.

    `what` is one clause; `where` names the place (node, value, target, file, slot); `hint` the way out.
    """

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.hint})" if self.hint else text


class AuthoringError(BBError):
    """A mistake in a program's text; `file` and `line` are the author's."""

    def __init__(self, what: str, where: str = "", hint: str = "", file: str = "", line: int = 0) -> None:
        super().__init__(what, where or (f"{file}:{line}" if file else ""), hint)
        self.file = file
        self.line = line
