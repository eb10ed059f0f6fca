"""How the rows of one file are dealt to many clients.

Every rule is a function of rows, seed and client, so that each worker finds the same rows for a client
without asking another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bb_edge.transport.in_process import keyed_number
from bb_host.errors import ScenarioError
from bb_host.simulate.rules import Rule

Indices = npt.NDArray[np.int64]


class Dealer:
    """The rows of each of `clients` clients, by a rule.

    `labels` are int64 [rows], or None where the data have none; `columns` are the arrays of the file by name.
    Raises ScenarioError where the rule does not fit the data: no labels, no such column, too few rows.
    """

    def __init__(
        self,
        rule: Rule,
        rows: int,
        labels: npt.NDArray[np.generic] | None,
        clients: int,
        seed: int,
        columns: Mapping[str, npt.NDArray[np.generic]] | None = None,
    ) -> None:
        self._rule, self._rows, self._clients, self._seed = rule, rows, clients, seed
        self._columns = columns or {}
        self._labels = _classes(labels) if rule.by_label and labels is not None else None
        if rows < 1:
            raise ScenarioError("the file has no rows to deal", "--data")
        if rule.by_label and self._labels is None:
            raise ScenarioError(
                f"it deals by label, and the file has no array of labels, only {', '.join(self._columns)}",
                f"--deal {rule.kind}",
                "name the array that has them: --labels NAME, or add it to the file as y",
            )
        if rule.kind == "iid" and rows < clients:
            raise ScenarioError(
                f"{rows} rows are not enough for {clients} clients",
                "--deal iid",
                "draw:ROWS gives each client rows of its own choice, with replacement",
            )
        if rule.kind not in ("draw", "same"):
            self._checked(self._dealt)

    def rows_of(self, client: int) -> Indices:
        """Returns the row numbers of one client, int64 [its rows]."""
        rule = self._rule
        if rule.kind == "same":
            return np.arange(self._rows, dtype=np.int64)
        if rule.kind == "draw":
            rng = np.random.default_rng(keyed_number(self._seed, "draw", client))
            return rng.integers(0, self._rows, int(rule.amount), dtype=np.int64)
        return self._dealt[client]

    def dealt_rows(self) -> Indices:
        """Returns the numbers of all rows that somebody may get, in order."""
        if self._rule.kind in ("same", "draw"):
            return np.arange(self._rows, dtype=np.int64)
        return np.sort(np.concatenate(self._dealt))

    def _checked(self, dealt: Sequence[Indices]) -> None:
        empty = [client for client, rows in enumerate(dealt) if not len(rows)]
        if empty:
            raise ScenarioError(
                f"{len(empty)} of {len(dealt)} clients get no rows, client {empty[0]} first",
                f"--deal {self._rule.kind}",
                "ask for fewer clients, a larger alpha, or another seed; draw:ROWS serves any number",
            )

    @cached_property
    def _dealt(self) -> Sequence[Indices]:
        rule, clients = self._rule, self._clients
        rng = np.random.default_rng(keyed_number(self._seed, f"deal {rule.kind}"))
        if rule.kind == "iid":
            return [np.sort(part) for part in np.array_split(rng.permutation(self._rows), clients)]
        if rule.kind == "column":
            return self._by_column()
        assert self._labels is not None
        hands: list[list[Indices]] = [[] for _ in range(clients)]
        owners: Sequence[npt.NDArray[np.int64]] = ()
        kinds = np.unique(self._labels)
        if rule.kind == "label":
            if rule.amount > len(kinds):
                raise ScenarioError(
                    f"label:{rule.amount:g} asks for more labels than the data have, {len(kinds)}",
                    "--deal",
                    f"write label:1 to label:{len(kinds)}",
                )
            owners = _owners(len(kinds), clients, int(rule.amount), rng)
        for place, label in enumerate(kinds):
            members = rng.permutation(np.flatnonzero(self._labels == label)).astype(np.int64)
            if rule.kind == "label":
                takers = owners[place]
                parts = np.array_split(members, len(takers)) if len(takers) else []
            else:
                takers = np.arange(clients)
                shares = rng.dirichlet(np.full(clients, rule.amount))
                parts = np.split(members, np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64))
            for client, part in zip(takers, parts, strict=True):
                hands[int(client)].append(part)
        nothing = np.empty(0, np.int64)
        return [np.sort(np.concatenate(hand)) if hand else nothing for hand in hands]

    def _by_column(self) -> Sequence[Indices]:
        name = self._rule.column
        column = self._columns.get(name)
        if column is None or column.shape != (self._rows,):
            found = ", ".join(sorted(self._columns)) or "none"
            raise ScenarioError(
                f"the file has no array {name!r} with one value per row",
                f"--deal column:{name}",
                f"it has: {found}",
            )
        values, owner = np.unique(column, return_inverse=True)
        if len(values) < self._clients:
            raise ScenarioError(
                f"{name!r} has {len(values)} different values, for {self._clients} clients",
                f"--deal column:{name}",
                f"ask for at most {len(values)} clients",
            )
        order = np.argsort(owner, kind="stable").astype(np.int64)
        ends = np.cumsum(np.bincount(owner, minlength=len(values)))
        return np.split(order, ends[:-1])[: self._clients]


def _classes(labels: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Labels as one number per row: class numbers as they are, one-hot rows by their largest entry.

    ScenarioError for anything else, such as an array of samples.
    """
    one_hot = labels.ndim == 2 and labels.shape[1] > 1
    if one_hot and labels.dtype.kind in "biuf":
        numbers = np.asarray(labels, np.float64)
        if bool(((numbers == 0) | (numbers == 1)).all() and (numbers.sum(axis=1) == 1).all()):
            return np.asarray(numbers.argmax(axis=1), np.int64)
    flat = labels.reshape(len(labels), -1)
    whole = labels.dtype.kind in "biuSU" or (
        labels.dtype.kind == "f" and bool((flat == np.floor(flat)).all())
    )
    if flat.shape[1] != 1 or not whole:
        raise ScenarioError(
            f"the labels are {labels.dtype}{list(labels.shape)}, neither a class per row nor one-hot rows",
            "--labels",
            "name the array that has the classes: --labels y",
        )
    _, classes = np.unique(labels.reshape(len(labels), -1)[:, 0], return_inverse=True)
    return np.asarray(classes, np.int64)


def _owners(labels: int, clients: int, each: int, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """Which clients have each label, where every client has `each` of them and labels are used evenly."""
    each = min(each, labels)
    order = np.concatenate([rng.permutation(labels) for _ in range(-(-clients * each // labels) + each)])
    found: list[set[int]] = [set() for _ in range(labels)]
    at = 0
    for client in range(clients):
        mine: set[int] = set()
        while len(mine) < each:
            mine.add(int(order[at % len(order)]))
            at += 1
        for label in mine:
            found[label].add(client)
    return [np.array(sorted(takers), np.int64) for takers in found]
