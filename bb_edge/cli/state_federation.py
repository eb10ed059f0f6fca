"""For which federation a state folder is.

What waits there is for peers, and a peer is known by its name: in another federation that is another machine.
Folders of before say nothing, until a node has run in them.

Rule D14 of the specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from bb_edge.ir.errors import BBError
from bb_edge.transport.topics import TopicError, check_federation
from bb_shims.single_file import write_whole

FILE: Final = "federation"
"""The file of the folder that has its name, as text."""


class StateRefused(BBError):
    """The state folder is of another node, or cannot be read; the message says what to do with it."""


class Files(Protocol):
    """The files of a folder."""

    def list(self) -> Sequence[str]:
        """The names of the files."""

    def read(self, name: str) -> bytes:
        """The bytes of a file."""


def mark(folder: Path, federation: str) -> None:
    """Has the folder say for which federation it is. OSError where it cannot be written."""
    path = folder / FILE
    if not path.exists():
        write_whole(path, f"{federation}\n".encode())


def refuse_another(files: Files, federation: str, where: str, remedy: str) -> None:
    """StateRefused where the folder says that it is of another federation; of before, it says nothing.

    Raises what `files` raise where it cannot be read.
    """
    if FILE not in files.list():
        return
    try:
        theirs = check_federation(files.read(FILE).decode().strip())
    except (UnicodeDecodeError, TopicError):
        raise StateRefused(
            f"its file {FILE!r}, which says of which federation it is, is damaged",
            where,
            f"if the folder is one of {federation!r}, remove that file alone; the node writes it anew",
        ) from None
    if theirs != federation:
        raise StateRefused(
            f"it is of federation {theirs!r:.80}, and this node is to join {federation!r}: what waits there"
            " would go to others who have the same names",
            where,
            remedy,
        )
