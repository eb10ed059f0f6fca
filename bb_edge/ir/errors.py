"""The roots of all typed errors, on host and device; each room subclasses one of them."""

from __future__ import annotations

from collections.abc import Sequence


class BBError(Exception):
    """A typed error that says what went wrong, where, and what to do.

    `what` is one clause; `where` names the place (node, value, target, file, slot); `hint` says what to do.
    It is rendered as one line: ``where: what (hint)``. `slot` names the slot whose component, or data, is
    refused; whoever installs a node sets it.
    """

    slot: str = ""

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.hint:
            text = f"{text} ({self.hint})"
        return " ".join(text.splitlines())


class SeveralErrors(BBError):
    """Several errors at once; `errors` holds them, and each is told on a line of its own."""

    def __init__(self, errors: Sequence[BBError]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = tuple(errors)


class CompileError(BBError):
    """A program or a model that cannot be recorded or compiled: the root of what the host refuses."""


class AuthoringError(CompileError):
    """A mistake in a program's text; `file` and `line` are the author's."""

    def __init__(self, what: str, where: str = "", hint: str = "", file: str = "", line: int = 0) -> None:
        super().__init__(what, where or (f"{file}:{line}" if file else ""), hint)
        self.file = file
        self.line = line


class InstallError(BBError):
    """A program, its bindings or configuration that cannot be installed; nothing of the attempt is left."""


class WireError(BBError):
    """Bytes from a peer that are not what they claim to be; they never end the node."""
