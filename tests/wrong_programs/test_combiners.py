"""An author's own rule of aggregation: what is wrong with its `Combiner` is said when a node starts."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from bb_edge import PeerId, install
from bb_edge.extend import Combiner, CombiningAggregator, ContractError
from bb_edge.registry import Registry
from bb_host import AggregatorSlot, Compiler, Module
from bb_host.ir.proto import to_bytes
from tests.aids.refusals import refused


class Rows(Combiner):
    """A rule as it should be."""

    def __init__(self, size):
        super().__init__(size)
        self.rows = []

    def add(self, values, weight):
        self.rows.append(np.array(values, np.float32))

    def result(self, total):
        return np.median(np.stack(self.rows), axis=0).astype(np.float32)

    def clear(self):
        self.rows = []

    def save(self):
        return self.rows

    def restore(self, arrays):
        self.rows = list(arrays)


def install_with(rule, shape=(3,)):
    """Installs a program whose aggregator has this rule; `shape` is that of contributions, None: unknown."""

    class Own(CombiningAggregator):
        TYPE_NAME = "acme.Own"

        def combiner(self, size):  # <-
            return rule(size)  # <-

    class Main(Module):
        average = AggregatorSlot("average")

        def body(self, g):
            x = g.input("x", "F32", shape)
            mean, _ = self.average.aggregate(g, after=self.average.contribute(g, x))
            g.output("y", mean)

    registry = Registry()
    registry.register(Own)
    data = to_bytes(Compiler().bind_aggregator("average", Own).compile_program(Main()))
    return install(PeerId.from_name("n"), (), data, ["Main"], registry=registry)


SHAPES = pytest.mark.parametrize("shape", [(3,), (1,), None, (100_000,)], ids=["3", "1", "unknown", "large"])


@SHAPES
def test_a_rule_that_keeps_its_promises_is_taken(shape):
    assert install_with(Rows, shape).component("average").TYPE_NAME == "acme.Own"


@SHAPES
def test_a_combiner_that_returns_nothing(shape):
    words = "slot 'average'", "combiner of acme.Own gives nothing, a Combiner is expected", "return the rule"
    with refused(ContractError, *words):
        install_with(lambda size: None, shape)


def test_a_combiner_of_another_class():
    with refused(ContractError, "combiner of acme.Own gives a list"):
        install_with(lambda size: [size])


def test_a_combiner_that_lacks_a_method():
    class Lacks(Combiner):
        def add(self, values, weight): ...

    with refused(
        ContractError, "combiner of acme.Own fails: TypeError: Can't instantiate abstract class Lacks"
    ):
        install_with(Lacks)


def test_a_combiner_whose_init_forgets_its_base():
    class Sizeless(Rows):
        def __init__(self, size):  # <-
            self.rows = []

    with refused(
        ContractError, "Sizeless, the combiner of acme.Own: its size is None", "super().__init__(size)"
    ):
        install_with(Sizeless)


def test_an_add_with_another_signature():
    class Narrow(Rows):
        def add(self, values):  # <-
            self.rows.append(values.copy())

    words = "add(self, values) cannot be called as add(values, weight)", "def add(self, values, weight)"
    with refused(ContractError, "Narrow, the combiner of acme.Own", *words):
        install_with(Narrow)


def test_an_add_that_keeps_what_is_not_its_own():
    class Keeps(Rows):
        def add(self, values, weight):  # <-
            self.rows.append(values)

    with refused(ContractError, "add keeps the array that it is given", "np.array(values, np.float32)"):
        install_with(Keeps)


def test_an_add_that_changes_what_is_not_its_own():
    class Changes(Rows):
        def add(self, values, weight):
            values *= weight  # <-
            self.rows.append(values.copy())

    with refused(ContractError, "add fails: ValueError: output array is read-only", "change nothing but"):
        install_with(Changes)


@SHAPES
def test_a_clear_that_clears_nothing(shape):
    class Full(Rows):
        def clear(self):  # <-
            pass

    words = "clear leaves contributions in the combiner", "set back what __init__ sets and add changes"
    with refused(ContractError, "slot 'average'", "Full, the combiner of acme.Own", *words):
        install_with(Full, shape)


@pytest.mark.parametrize("best", [np.min, np.max, np.sum])
def test_a_clear_that_clears_nothing_of_other_rules(best):
    class Full(Rows):
        def result(self, total):
            return best(np.stack(self.rows), axis=0).astype(np.float32)

        def clear(self):  # <-
            pass

    with refused(ContractError, "clear leaves contributions"):
        install_with(Full)


def test_a_clear_that_fails():
    class Breaks(Rows):
        def clear(self):
            self.row.clear()  # <-

    with refused(ContractError, "clear fails: AttributeError: 'Breaks' object has no attribute 'row'"):
        install_with(Breaks)


SAVED = {
    "nothing": (lambda rows: None, "save gives nothing, a list of arrays is expected"),
    "an array": (lambda rows: np.zeros(3), "save gives a ndarray, a list of arrays is expected"),
    "a list of numbers": (lambda rows: [1.0], "save gives a list with a float"),
    "objects": (lambda rows: [np.array([{}])], "save gives an array that no snapshot holds"),
    "too little": (lambda rows: rows[1:], "save and restore lose contributions"),
    "an empty list": (lambda rows: [], "save and restore lose contributions"),
}


@pytest.mark.parametrize("case", SAVED)
def test_a_save_that_gives_something_else(case):
    saved, words = SAVED[case]

    class Saves(Rows):
        def save(self):  # <-
            return saved(self.rows)

    with refused(ContractError, "Saves, the combiner of acme.Own", words):
        install_with(Saves)


def test_a_restore_that_does_not_take_what_save_gave():
    class Unfit(Rows):
        def restore(self, arrays):
            (self.rows,) = arrays  # <-

    with refused(ContractError, "restore fails of what save gave: ValueError", "that save gave"):
        install_with(Unfit)


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda rows: None, "result gives NoneType, float32[3] is expected"),
        (lambda rows: rows[0].astype(np.float64), "result gives float64[3], float32[3] is expected"),
        (lambda rows: rows[0][:2], "result gives float32[2], float32[3] is expected"),
    ],
)
def test_a_result_that_is_no_vector(give, words):
    class Gives(Rows):
        def result(self, total):  # <-
            return give(self.rows)

    with refused(ContractError, "Gives, the combiner of acme.Own", words):
        install_with(Gives)


def test_a_result_that_is_a_slip_of_the_pen():
    class Slips(Rows):
        def result(self, total):
            return np.stack(self.row)  # <-

    with refused(ContractError, "result fails: AttributeError"):
        install_with(Slips)


def test_contributions_on_the_class():
    class Shared(Rows):
        rows: ClassVar[list[np.ndarray]] = []

        def __init__(self, size):
            Combiner.__init__(self, size)

        def add(self, values, weight):  # <-
            self.rows.append(values.copy())

    with refused(ContractError, "a new combiner holds what another one was given", "self.rows = []"):
        install_with(Shared)


def test_a_rule_may_refuse_what_it_is_tried_with():
    class Picky(Rows):
        def __init__(self, size):
            super().__init__(size)
            if size != 12:
                raise ValueError("it is a rule for 12 numbers")

    class Many(Rows):
        def result(self, total):
            if len(self.rows) < 10:
                raise ValueError("too few contributions")
            return super().result(total)

    class Positive(Rows):
        def add(self, values, weight):
            if values.min() < 0:
                raise ValueError("counts are not below 0")
            super().add(values, weight)

    class Stacked(Rows):
        def save(self):
            return [np.stack(self.rows)]  # fails where there are none

        def restore(self, arrays):
            self.rows = list(arrays[0])

    for rule in (Picky, Many, Positive, Stacked):
        assert install_with(rule, None)


def test_a_rule_may_have_random_numbers():
    class Noisy(Rows):
        def result(self, total):
            return super().result(total) + np.random.default_rng().normal(size=self.size).astype(np.float32)

    assert install_with(Noisy)
