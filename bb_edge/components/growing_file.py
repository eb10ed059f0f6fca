"""Reads the lines of a file that somebody else appends to, and goes on after a restart, rotation, truncation.

Nothing is kept open between two reads. That the file is still the same is seen by its number on disk and by
the bytes before the position, so that one that was written anew is noticed, however long it is by now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from bb_edge.input_files import FileRefused, open_regular

if TYPE_CHECKING:
    from bb_edge.components.state import StateReader

__all__ = ["GrowingFile", "Line"]

_COMPARED = 64
"""Bytes before the position by which a file is known again."""

_MOST_NEIGHBOURS = 10_000
"""Names of the file's folder that are looked through for a rotated file."""


class Line(NamedTuple):
    """A line with its end, its number from 1 in its file, and whether it is whole: no piece of a long one."""

    text: bytes
    number: int
    whole: bool


class GrowingFile:
    """The lines of `path`, in order, each once.

    A last line without a line end waits until the rest of it has been written. Where the path leads to
    another file (rotation), the rest of the former one is looked for in the same folder and read first; a
    file that is shorter, or other, than it was (truncation) begins anew. `breaks` says where lines may be
    lost; the reader takes them out.
    """

    def __init__(self, path: str, longest: int, file: BinaryIO) -> None:
        """`file` is what the path leads to now. A line of more than `longest` bytes comes in pieces."""
        self.path = path
        self._longest = longest
        self._file = _identity(file)  # device and number on disk
        self._offset = 0
        self._number = 0  # of the last line that was read
        self._before = b""
        self.breaks: list[str] = []

    def read(self, most: int) -> list[Line]:
        """Returns the next whole lines, `most` at most. FileRefused, OSError; a missing file has no lines."""
        lines: list[Line] = []
        try:
            with open_regular(self.path) as file:
                now = _identity(file)
                if now != self._file:
                    rest = self._rest_of_former(most)
                    if rest is not None and len(rest) >= most:
                        return rest
                    lines = rest or []
                    self._begin(now)
                elif not self._goes_on(file):
                    self.breaks.append(
                        f"{self.path} was truncated or written anew: it is read from its beginning"
                    )
                    self._begin(now)
                self._file = now
                lines += self._lines(file, most - len(lines))
        except FileNotFoundError:
            pass  # between a rotation and the logger's next line
        return lines

    def _goes_on(self, file: BinaryIO) -> bool:
        """Whether the bytes before the position are those that were read."""
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before

    def _begin(self, identity: tuple[int, int]) -> None:
        self._file, self._offset, self._number, self._before = identity, 0, 0, b""

    def _rest_of_former(self, most: int) -> list[Line] | None:
        """Returns what is left of the file that the path led to before; its last line ends with the file.

        None where that file is gone, which `breaks` says then.
        """
        for place in self._neighbours():
            try:
                with open_regular(place) as file:
                    if _identity(file) == self._file and self._goes_on(file):
                        return self._lines(file, most, ended=True)
            except (OSError, FileRefused):
                continue
        what = f"{self.path} was rotated, and the former file is gone: what came after its line"
        self.breaks.append(f"{what} {self._number} is lost")
        return None

    def _neighbours(self) -> list[str]:
        folder = os.path.dirname(os.path.realpath(self.path)) or "."
        found = []
        try:
            with os.scandir(folder) as entries:
                for seen, entry in enumerate(entries):
                    if seen >= _MOST_NEIGHBOURS:
                        break
                    if entry.inode() == self._file[1]:
                        found.append(entry.path)
        except OSError:
            pass
        return found

    def _lines(self, file: BinaryIO, most: int, ended: bool = False) -> list[Line]:
        file.seek(self._offset)
        lines: list[Line] = []
        while len(lines) < most and (text := file.readline(self._longest + 1)):
            ends, fits = text.endswith(b"\n"), len(text) <= self._longest
            if not ends and fits and not ended:
                break
            goes_on = bool(self._before) and not self._before.endswith(b"\n")
            self._number += not goes_on
            self._offset += len(text)
            self._before = (self._before + text)[-_COMPARED:]
            lines.append(Line(text, self._number, fits and not goes_on))
        return lines

    # --- state ----------------------------------------------------------------------------------------

    def save(self) -> dict[str, object]:
        """Returns the position as plain values, for a state."""
        return {
            "device": self._file[0],
            "inode": self._file[1],
            "offset": self._offset,
            "number": self._number,
            "before": self._before,
        }

    def load(self, saved: Mapping[object, object], reader: StateReader) -> None:
        """Takes what `save` gave. ComponentStateError."""
        try:
            self.go_to(saved)
        except ValueError as error:
            raise reader.error(f"its position in the file is damaged: {error}") from error

    def go_to(self, position: Mapping[Any, object]) -> None:
        """Goes to a position that `save` gave. ValueError for anything else."""
        numbers = [position.get(key) for key in ("device", "inode", "offset", "number")]
        whole = [n for n in numbers if isinstance(n, int) and 0 <= n < 2**64]
        before = position.get("before")
        if (
            len(whole) < len(numbers)
            or not isinstance(before, bytes)
            or len(before) > min(_COMPARED, whole[2])
        ):
            raise ValueError("it is not a position")
        device, inode, self._offset, self._number = whole
        self._file, self._before = (device, inode), before


def _identity(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino
