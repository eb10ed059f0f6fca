"""Files whose rows are dealt to the nodes of a worker."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bb_host.errors import ScenarioError
from bb_host.simulate.dealing import Dealer
from bb_host.simulate.scenario import Dealt, Scenario


class RowFile:
    """A file whose rows are dealt, in this worker."""

    def __init__(self, dealt: Dealt, scenario: Scenario) -> None:
        self.key = dealt.key
        self._arrays = read_rows(dealt.path)
        clients = max((group.count for group in scenario.groups if group.count > 1), default=1)
        rows = len(next(iter(self._arrays.values())))
        self._dealer = Dealer(
            dealt.rule, rows, self._arrays.get(dealt.labels), clients, scenario.seed, self._arrays
        )

    def write(self, client: int, path: Path) -> Path:
        """Writes the rows of one client to a file for its node."""
        rows = self._dealer.rows_of(client)
        np.savez(path, **{name: array[rows] for name, array in self._arrays.items()})  # type: ignore[arg-type]
        return path


def read_rows(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """Reads arrays [rows, …] of one length from a .npz file. ScenarioError for another file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        why = error.strerror or error if isinstance(error, OSError) else "numpy.savez did not write it"
        hint = "write it with numpy.savez(path, x=…, y=…)"
        if path.suffix.lower() == ".csv":
            hint = "read the CSV file with numpy.loadtxt, and write numpy.savez(path, x=…, y=…)"
        raise ScenarioError(f"it cannot be read as .npz: {why}", str(path), hint) from error
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1 or lengths == {0}:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "nothing"
        raise ScenarioError(
            f"its arrays have no rows in common: {shapes}", str(path), "one row per sample in each"
        )
    return arrays
