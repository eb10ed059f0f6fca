"""Tries out an author's `Combiner` when a node starts: what is wrong with it would show late, or never.

The rule gets a few contributions of numbers that are made up. A `clear` that leaves them, a `save` that gives
nothing, or an `add` that keeps an array which is not its own make wrong models without a word otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from bb_edge.components.combiner import Combiner, misfit_of
from bb_edge.ir.errors import BBError
from bb_edge.ir.fault_lines import fault_line, line_of
from bb_edge.ir.quiet import hush, unhush
from bb_edge.ir.tensors import decode_tensor, encode_tensor
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import ContractError
from bb_edge.roles.method_check import not_taking

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["check_combiner"]

_METHODS = {
    "reserve": (),
    "add": ("values", "weight"),
    "result": ("total",),
    "clear": (),
    "save": (),
    "restore": ("arrays",),
}
_LARGEST = 65_536
"""Numbers of a contribution that it is tried with: the work and the memory of a start stay small."""

_MADE_UP = 4
"""Numbers where a contribution's size is not known, or too large. A rule may refuse a size: see `_SLIPS`."""

_COUNT = 5
"""Contributions, enough for a median and for a mean without the ends."""

_SLIPS = (TypeError, AttributeError, NameError)
"""What only faulty code raises. Other errors may be a rule's own: too few contributions, another size."""

_REMEDIES = {
    "add": "let it take any float32 vector of its size, and change nothing but the combiner",
    "result": "return one vector, such as np.asarray(mean, np.float32)",
    "clear": "set back what __init__ sets and add changes",
    "save": "return a list of the arrays that it holds, such as [self.sum]",
    "restore": "take the list of arrays that save gave",
}


def check_combiner(make: Callable[[int], object], type_name: str, where: str, size: int | None) -> None:
    """Raises ContractError where the combiners of `make` do not keep what `Combiner` promises.

    `size` is that of the contributions, where it is known. The error names slot, method and line.
    """
    token = hush()
    try:
        _Trial(make, type_name, where, size).run()
    except _NoVerdict:
        pass
    finally:
        unhush(token)


class _NoVerdict(Exception):
    """The rule has refused what it was tried with."""


class _Trial:
    def __init__(self, make: Callable[[int], object], type_name: str, where: str, size: int | None) -> None:
        self._make = make
        self._type_name = type_name
        self._where = where
        self._size = size if size is not None and size <= _LARGEST else _MADE_UP

    def run(self) -> None:
        first = self._fresh()
        for name, arguments in _METHODS.items():
            for what, hint in not_taking(type(first), name, arguments):
                self._refuse(type(first), name, what, hint)
        blank = _tried(lambda: _forms(first.save()))
        some, others = self._contributions(large=True), self._contributions(large=False)
        total = self._add(first, some)
        saved = self._saved(first)
        new = self._fresh()
        # A rule may refuse to save nothing: it is not asked to where nothing was contributed.
        if blank[1] is None and blank != _tried(lambda: _forms(new.save())):
            what = "a new combiner holds what another one was given"
            self._refuse(type(first), "add", what, "make what it holds in __init__: self.rows = []")
        self._try_restore(first, saved, some, total)
        self._try_clear(first, others)

    def _try_restore(self, first: Combiner, saved: list[Array], some: Sequence[Array], total: float) -> None:
        """What `save` gave makes another combiner that has the same result."""
        packed = [encode_tensor(array) for array in saved]  # ahead of results, which may use it up
        again = self._fresh()
        expected = self._expected(some, first, total)
        _, error = _tried(again.restore, [decode_tensor(data).copy() for data in packed])
        if error is not None:
            self._fails(again, "restore", error, "of what save gave")
        if expected is None:
            return
        given, _ = _tried(again.result, total)
        if not _alike(given, expected):
            what = "save and restore lose contributions: a combiner restored from what save gave has "
            what += "another result" if isinstance(given, np.ndarray) else "no result"
            self._refuse(type(first), "save", what, _REMEDIES["save"])

    def _try_clear(self, first: Combiner, others: Sequence[Array]) -> None:
        """After `clear` a combiner is as a new one."""
        _, error = _tried(first.clear)
        if error is not None:
            self._fails(first, "clear", error)
        total = self._add(first, others)
        expected = self._expected(others, self._added(others), total)
        if expected is None:
            return
        given, _ = _tried(first.result, total)
        if not _alike(given, expected):
            what = "clear leaves contributions in the combiner: they would count in the next round again"
            self._refuse(type(first), "clear", what, _REMEDIES["clear"])

    # --- steps -----------------------------------------------------------------------------------------

    def _fresh(self) -> Combiner:
        made, error = _tried(self._make, self._size)
        if isinstance(error, _SLIPS):
            place = fault_line(error) or line_of(self._make)
            hint = "correct the combiner's __init__, and define all methods of Combiner"
            self._raise(f"combiner of {self._type_name} fails: {_said(error)}", place, hint)
        if error is not None:
            raise _NoVerdict from error
        if not isinstance(made, Combiner):
            came = "nothing" if made is None else f"a {type(made).__name__}"
            hint = "return the rule, an object of a class that derives from Combiner"
            what = f"combiner of {self._type_name} gives {came}, a Combiner is expected"
            self._raise(what, line_of(self._make), hint)
        size: object = getattr(made, "size", None)
        if size != self._size:
            what = f"its size is {size!r:.40}, and {self._size} was asked for"
            self._refuse(type(made), "__init__", what, "call super().__init__(size) in it")
        return made

    def _contributions(self, *, large: bool) -> list[Array]:
        """Numbers that no usual rule takes for others: no mean, sum, median, smallest or largest of them."""
        ramp = np.arange(self._size, dtype=np.float32) % 7
        sign = np.where(np.arange(self._size) % 2, -1, 1).astype(np.float32)
        factor = np.float32(1.0 if large else 0.125)
        return [
            ((ramp + 9 + np.float32(number)) * sign * factor).astype(np.float32) for number in range(_COUNT)
        ]

    def _add(self, combiner: Combiner, contributions: Sequence[Array]) -> float:
        """Adds them, each with a weight of its own; returns the sum of the weights."""
        total, given = 0.0, []
        for number, values in enumerate(contributions):
            lent = values.copy()
            lent.setflags(write=False)  # as those that come over the wire
            weight = 1.0 + 0.5 * number
            _, error = _tried(combiner.add, lent, weight)
            if error is not None:
                if isinstance(error, _SLIPS) or "read-only" in str(error):
                    self._fails(combiner, "add", error)
                raise _NoVerdict from error
            given.append(lent)
            total += weight
        if any(np.may_share_memory(array, lent) for array in self._saved(combiner) for lent in given):
            what = "add keeps the array that it is given, which may be overwritten afterwards"
            self._refuse(type(combiner), "add", what, "keep a copy: np.array(values, np.float32)")
        return total

    def _added(self, contributions: Sequence[Array]) -> Combiner:
        combiner = self._fresh()
        self._add(combiner, contributions)
        return combiner

    def _saved(self, combiner: Combiner) -> list[Array]:
        saved, error = _tried(combiner.save)
        if error is not None:
            self._fails(combiner, "save", error)
        came = ""
        if saved is None:
            came = "nothing"
        elif not isinstance(saved, (list, tuple)):
            came = f"a {type(saved).__name__}"
        else:
            wrong = [entry for entry in saved if not isinstance(entry, np.ndarray)]
            if wrong:
                came = f"a list with a {type(wrong[0]).__name__}"
        if came:
            what = f"save gives {came}, a list of arrays is expected"
            self._refuse(type(combiner), "save", what, _REMEDIES["save"])
        for array in saved:
            try:
                encode_tensor(array)
            except BBError as refusal:
                what = f"save gives an array that no snapshot holds: {refusal.what}"
                self._refuse(type(combiner), "save", what, refusal.hint or _REMEDIES["save"])
        return list(saved)

    def _expected(self, contributions: Sequence[Array], combiner: Combiner, total: float) -> Array | None:
        """The result of `combiner`, if another one of the same contributions has it too; else None.

        A rule with random numbers has no result that others could be compared with.
        """
        results: list[object] = []
        for each in (combiner, self._added(contributions)):
            given, error = _tried(each.result, total)
            if isinstance(error, _SLIPS):
                self._fails(each, "result", error)
            if error is not None:
                return None
            if (wrong := misfit_of(given, self._size)) is not None:
                came, hint = wrong
                what = f"result gives {came}, float32[{self._size}] is expected"
                self._refuse(type(each), "result", what, hint)
            results.append(given)
        return np.array(results[0]) if _alike(*results) else None

    # --- refusals --------------------------------------------------------------------------------------

    def _fails(self, combiner: Combiner, method: str, error: Exception, of: str = "") -> NoReturn:
        what = f"{method} fails{f' {of}' if of else ''}: {_said(error)}"
        line = fault_line(error)
        self._refuse(type(combiner), method, what, _REMEDIES[method], line)

    def _refuse(self, kind: type, method: str, what: str, hint: str, line: str = "") -> NoReturn:
        place = line or line_of(getattr(kind, method, None))
        self._raise(f"{kind.__name__}, the combiner of {self._type_name}: {what}", place, hint)

    def _raise(self, what: str, place: str, hint: str) -> NoReturn:
        raise ContractError(what, ", ".join(filter(None, (place, self._where))), hint)


def _forms(saved: Sequence[Array]) -> list[tuple[int, ...]]:
    return [array.shape for array in saved]


def _tried(call: Callable[..., object], *arguments: object) -> tuple[Any, Exception | None]:
    """Returns what a call of the author's code gives, and what it raises."""
    try:
        return call(*arguments), None
    except BaseException as error:  # noqa: BLE001 (the author's code; contained raises what ends the process)
        return None, contained(error)


def _alike(first: object, second: object) -> bool:
    return (
        isinstance(first, np.ndarray)
        and isinstance(second, np.ndarray)
        and first.shape == second.shape
        and np.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)
    )


def _said(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
