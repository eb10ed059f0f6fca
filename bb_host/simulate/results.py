"""The files of `--out`: events are written as they come, so that a run that ends early leaves what it had."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from bb_host.errors import ScenarioError
from bb_host.simulate.accounts import Event
from bb_host.simulate.report import Columns, draw, event_record

_SUMMARY, _PICTURE = _OTHERS = ("summary.json", "picture.png")


class Results:
    """A folder with `summary.json`, the events of each run, and a picture; no files where it is None.

    What earlier runs have left there goes when the first event comes: a run that is refused before keeps it.
    A run is in `summary.json` when it has ended: of one that was interrupted there are events alone. Raises
    ScenarioError where the folder cannot be made or a file cannot be written, with its name.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._summaries: list[Mapping[str, Any]] = []
        if folder is not None:
            with _refused(folder):
                folder.mkdir(parents=True, exist_ok=True)
                probe = folder / ".writable"
                probe.touch()
                probe.unlink()
        self._cleared = folder is None

    @contextlib.contextmanager
    def events_of(self, run: str) -> Iterator[Callable[[Event], None]]:
        """In the block, what it gives writes an event of that run as a line of JSON."""
        if self._folder is None:
            yield lambda event: None
            return
        path = self._folder / (f"events.{run}.jsonl" if run else "events.jsonl")
        lines: TextIO | None = None

        def write(event: Event | None) -> None:
            nonlocal lines
            with _refused(path):
                if lines is None:
                    self._clear()
                    lines = path.open("w", encoding="utf-8", buffering=1)
                if event is not None:
                    lines.write(json.dumps(event_record(event)) + "\n")

        try:
            yield write
            write(None)  # a file for a run without events, too
        finally:
            if lines is not None:
                with contextlib.suppress(OSError):  # of a line that was refused before
                    lines.close()

    def _clear(self) -> None:
        """Removes what earlier runs have left, once."""
        if not self._cleared:
            self._cleared = True
            assert self._folder is not None
            for path in (*self._folder.glob("events*.jsonl"), *map(self._folder.joinpath, _OTHERS)):
                if path.is_file() and not path.is_symlink():
                    path.unlink()

    def add(self, summary: Mapping[str, Any]) -> None:
        """Writes what came of one more run that has ended."""
        self._summaries.append(summary)
        if self._folder is not None:
            path = self._folder / _SUMMARY
            with _refused(path):
                self._clear()
                path.write_text(json.dumps(self._summaries, indent=1) + "\n", encoding="utf-8")

    def draw(self, columns: Columns | None, runs: Mapping[str, Sequence[Event]]) -> bool:
        """Draws the columns of all runs; False without matplotlib. Nothing to draw is fine."""
        if self._folder is None or columns is None:
            return True
        path = self._folder / _PICTURE
        with _refused(path):
            return draw(path, columns, runs)


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = (
            "it is not a folder"
            if isinstance(error, FileExistsError | NotADirectoryError)
            else str(error.strerror)
        )
        hint = "give --out a folder that can be written to, with room for all events"
        raise ScenarioError(f"cannot be written: {what}", str(path), hint) from error
