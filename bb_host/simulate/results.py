"""The files of `--out`: made before the first run, and written as things come, so that a run that ends early
leaves what it had.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bb_host.errors import ScenarioError
from bb_host.simulate.accounts import Event
from bb_host.simulate.report import Columns, draw, event_record


class Results:
    """A folder with `summary.json`, the events of each run, and a picture; no files where it is None.

    Raises ScenarioError where the folder cannot be made or a file cannot be written, with its name.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._summaries: list[Mapping[str, Any]] = []
        if folder is not None:
            with _refused(folder):
                folder.mkdir(parents=True, exist_ok=True)
            self._write_summary()

    @contextlib.contextmanager
    def events_of(self, run: str) -> Iterator[Callable[[Event], None]]:
        """In the block, what it gives writes an event of that run as a line of JSON."""
        if self._folder is None:
            yield lambda event: None
            return
        path = self._folder / (f"events.{run}.jsonl" if run else "events.jsonl")
        with _refused(path):
            lines = path.open("w", encoding="utf-8", buffering=1)

        def write(event: Event) -> None:
            with _refused(path):
                lines.write(json.dumps(event_record(event)) + "\n")

        try:
            yield write
        finally:
            with contextlib.suppress(OSError):  # of a line that was refused before
                lines.close()

    def add(self, summary: Mapping[str, Any]) -> None:
        """Writes what came of one more run."""
        self._summaries.append(summary)
        self._write_summary()

    def _write_summary(self) -> None:
        if self._folder is not None:
            path = self._folder / "summary.json"
            with _refused(path):
                path.write_text(json.dumps(self._summaries, indent=1) + "\n", encoding="utf-8")

    def draw(self, columns: Columns | None, runs: Mapping[str, Sequence[Event]]) -> bool:
        """Draws the columns of all runs; False without matplotlib. Nothing to draw is fine."""
        if self._folder is None or columns is None:
            return True
        path = self._folder / "picture.png"
        with _refused(path):
            return draw(path, columns, runs)


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = (
            "it is no folder"
            if isinstance(error, FileExistsError | NotADirectoryError)
            else str(error.strerror)
        )
        hint = "give --out a folder that can be written to, with room for all events"
        raise ScenarioError(f"cannot be written: {what}", str(path), hint) from error
