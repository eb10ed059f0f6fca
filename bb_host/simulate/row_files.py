"""Files whose rows are dealt to the nodes of a worker, and how a node is given its own."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from bb_edge.array_files import NUMBERS, TooManyBytes
from bb_edge.components import ArrayDataSource
from bb_edge.components.class_targets import first_wrong, remedy
from bb_edge.components.stored_samples import hot
from bb_edge.syscalls.batches import classes_of
from bb_host.errors import ScenarioError
from bb_host.simulate.dealing import Dealer
from bb_host.simulate.scenario import Dealt, Member, Scenario

if TYPE_CHECKING:
    from bb_edge.engine.program.program import Program, Target
    from bb_edge.ir.tensors import Array
    from bb_edge.node import Node
    from bb_edge.roles.component import Component, ComponentEnv

Rows = dict[str, npt.NDArray[np.generic]]


class Hand(NamedTuple):
    """What a client was dealt: arrays of the file, which all clients share, and the numbers of its rows.

    `file` is what messages call it.
    """

    arrays: Rows
    numbers: npt.NDArray[np.integer]
    file: str = ""

    def rows(self) -> Rows:
        """A copy of its rows."""
        return {name: array[self.numbers] for name, array in self.arrays.items()}


class RowFile:
    """A file whose rows are dealt, in this worker: each node that has the slot gets a share.

    `takers` are the numbers of the groups whose nodes have it.
    """

    def __init__(self, dealt: Dealt, scenario: Scenario, takers: Sequence[int]) -> None:
        self.key = dealt.key
        self.path = str(dealt.path)
        self._arrays = read_rows(dealt.path)
        counts = [scenario.groups[group].count for group in takers]
        self._firsts = dict(zip(takers, accumulate(counts, initial=0)))  # noqa: B905 (the last is the sum)
        clients = sum(counts) or 1
        rows = len(next(iter(self._arrays.values())))
        self._last = rows - 1
        self._dealer = Dealer(
            dealt.rule, rows, self._arrays.get(dealt.labels), clients, scenario.seed, self._arrays
        )

    def hand_of(self, member: Member) -> Hand:
        """What one node of a class that has the slot is dealt."""
        numbers = self._dealer.rows_of(self._firsts[member.group] + member.number)
        return Hand(self._arrays, numbers.astype(np.min_scalar_type(self._last)), self.path)

    def check_labels(self, slot: str, node: Node, program: Program, target: Target) -> None:
        """ScenarioError for a label that is not a class of the model, whoever is dealt its row.

        Nodes that sleep would tell of theirs in mid-run. `node` is one of those that have the slot: its
        own rows have been looked at. What a source of the author's makes of its labels is not known.
        """
        source, y = node.component(slot), self._arrays.get("y")
        if not isinstance(source, DealtSource) or y is None or y.dtype.kind not in "iu":
            return
        numbers = self._dealer.dealt_rows()
        for classes, ignored, what, hint in _classes_of(slot, source, program, target):
            wrong = first_wrong(y.take(numbers, 0), classes, ignored)
            if wrong is not None:
                row = numbers[wrong]
                label = f"label {y[row]}" if y.ndim == 1 else f"labels {y[row].tolist()!r:.60}"
                raise ScenarioError(
                    f"row {row} of {self.path} has {label}, {what} {classes} classes, 0 to {classes - 1}",
                    f"slot {slot!r}",
                    hint,
                )


def _classes_of(
    slot: str, source: DealtSource, program: Program, target: Target
) -> Iterator[tuple[int, int, str, str]]:
    """How many classes each reader of a source's labels has, the label of none, and the words for it."""
    if hot_classes := source.one_hot_classes:
        yield hot_classes, 0, "one_hot is", "number the labels from 0, or raise one_hot"
        return
    for classes, ignored in classes_of(program, target, slot):
        yield classes, ignored, "the model has", remedy(ignored)


class DealtSource(ArrayDataSource):
    """A data source that is given its rows: a file of its own would be a tenth of what its node costs.

    It keeps their numbers, and takes each batch from the arrays that all clients share: its own copy of
    them would be a tenth of what its node holds.
    """

    given: ClassVar[dict[str, Hand]] = {}
    """What the next node to be installed finds under a path, in this process."""

    _hand: Hand | None = None
    _classes = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> ArrayDataSource:
        made = super().construct(env)  # with a copy of the rows, and all that is checked of them
        path = env.config.get("path")
        hand = cls.given.get(path) if isinstance(path, str) else None
        if isinstance(made, DealtSource) and hand is not None:
            made._hand, made._classes = hand, env.integer("one_hot", 0)
            made._x, made._y = _NOTHING, None if made._y is None else _NOTHING
            made.notes = [note.replace(str(path), hand.file or str(path)) for note in made.notes]
        return made

    def _chosen(self, numbers: Array | None) -> tuple[Array, Array | None]:
        hand = self._hand
        if hand is None:
            return super()._chosen(numbers)
        rows = hand.numbers if numbers is None else hand.numbers.take(numbers)
        x = hand.arrays["x"].take(rows, 0)
        if self._y is None:
            return x, None
        y = hand.arrays["y"].take(rows, 0)
        return x, hot(y, self._classes) if self._classes else y

    @property
    def one_hot_classes(self) -> int:
        """How many classes its labels are made one-hot rows of, 0 where they stay as they are."""
        return self._classes

    def _labels(self) -> Array | None:
        if self._hand is None or self._y is None or self._classes:  # one-hot rows were looked at when made
            return super()._labels()
        return self._hand.arrays["y"].take(self._hand.numbers, 0)

    def _place_of(self, sample: int) -> str:
        if self._hand is None:
            return super()._place_of(sample)
        return f"row {self._hand.numbers[sample]} of {self._hand.file}"

    @classmethod
    def read_file(cls, path: Path, max_bytes: int) -> Mapping[str, Array]:
        hand = cls.given.get(str(path))
        if hand is None:
            return super().read_file(path, max_bytes)
        arrays: dict[str, Array] = {
            name: hand.arrays[name].take(hand.numbers, 0) for name in ("x", "y") if name in hand.arrays
        }
        if (nbytes := sum(array.nbytes for array in arrays.values())) > max_bytes:
            raise TooManyBytes(nbytes, max_bytes, str(path))
        return arrays


_NOTHING: Array = np.empty(0, np.float32)
"""In place of rows that lie in the shared arrays."""


def check_takes_rows(kind: type[Component], slot: str) -> None:
    """ScenarioError for a shipped component that reads files of another kind than rows are dealt in."""
    if kind.__module__.startswith("bb_edge.") and not issubclass(kind, ArrayDataSource):
        raise ScenarioError(
            f"slot {slot!r} is a {kind.TYPE_NAME}, and rows are dealt as .npz",
            "--data",
            "bind bb.ArrayDataSource for the simulation: devices may read theirs in another way",
        )


@contextlib.contextmanager
def handed_over(kind: type[Component], path: str, hand: Hand) -> Iterator[None]:
    """In the block, a component of that kind finds its rows where it is told that they are."""
    if kind is DealtSource and all(array.dtype.kind in NUMBERS for array in hand.arrays.values()):
        DealtSource.given[path] = hand
        try:
            yield
        finally:
            del DealtSource.given[path]
        return
    np.savez(path, **hand.rows())  # type: ignore[arg-type]
    try:
        yield
    finally:
        Path(path).unlink()


def read_rows(path: Path) -> Rows:
    """Reads arrays [rows, …] of one length from a .npz file. ScenarioError for another file."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            hint = "write it with numpy.savez(path, x=…, y=…), which names each array"
            raise ScenarioError("it is one array without a name (.npy)", str(path), hint)
        with loaded as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        why = error.strerror or error if isinstance(error, OSError) else "numpy.savez did not write it"
        if "Object arrays" in str(error):
            why = "it holds Python objects, which are not read (an array of rows of one length and dtype is)"
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
