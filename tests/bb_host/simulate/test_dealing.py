"""Who gets which rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_host.errors import ScenarioError
from bb_host.simulate.dealing import Dealer
from bb_host.simulate.rules import Rule

LABELS = np.repeat(np.arange(5), 40)


def dealt(rule: str, clients: int, seed: int = 0, **more: object) -> list[np.ndarray]:
    dealer = Dealer(Rule.parse(rule), len(LABELS), LABELS, clients, seed, **more)
    return [dealer.rows_of(client) for client in range(clients)]


@given(clients=st.integers(1, 40), seed=st.integers(0, 5))
def test_iid_deals_each_row_once_in_shares_that_differ_by_one(clients, seed):
    parts = dealt("iid", clients, seed)
    assert sorted(np.concatenate(parts)) == list(range(200))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_dirichlet_deals_each_row_once_and_a_small_alpha_unevenly():
    even, uneven = dealt("dirichlet:100", 4), dealt("dirichlet:0.2", 4)
    for parts in (even, uneven):
        assert sorted(np.concatenate(parts)) == list(range(200))
    spread = [np.std([np.bincount(LABELS[p], minlength=5) for p in parts]) for parts in (even, uneven)]
    assert spread[1] > 3 * spread[0]


def test_label_gives_each_client_so_many_labels_and_every_row_to_one():
    parts = dealt("label:2", 5)
    assert all(len(set(LABELS[part])) == 2 for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(200))


def test_column_gives_a_client_the_rows_of_one_value():
    writer = np.array(["b", "a", "c", "d"] * 50)
    parts = dealt("column:writer", 3, columns={"writer": writer})
    assert [set(writer[part]) for part in parts] == [{"a"}, {"b"}, {"c"}]
    assert [len(part) for part in parts] == [50, 50, 50]


def test_draw_serves_any_number_of_clients_and_knows_none_of_the_others():
    many, few = dealt("draw:16", 1000, 3), dealt("draw:16", 2, 3)
    assert all(len(part) == 16 for part in many)
    assert all((a == b).all() for a, b in zip(few, many, strict=False))
    assert not (many[0] == many[1]).all()


def test_the_same_seed_deals_alike_and_another_one_otherwise():
    assert all((a == b).all() for a, b in zip(dealt("iid", 4, 1), dealt("iid", 4, 1), strict=True))
    assert not all((a == b).all() for a, b in zip(dealt("iid", 4, 1), dealt("iid", 4, 2), strict=True))


def test_labels_may_be_one_hot():
    dealer = Dealer(Rule.parse("label:1"), len(LABELS), np.eye(5)[LABELS], 5, 0)
    assert [len(set(LABELS[dealer.rows_of(client)])) for client in range(5)] == [1] * 5


@pytest.mark.parametrize(
    ("rule", "clients", "labels", "words"),
    [
        ("iid", 201, True, "200 rows are not enough for 201 clients"),
        ("dirichlet:0.01", 150, True, "get no rows"),
        ("label:2", 4, False, "no array of labels, only .*--labels NAME"),
        ("label:6", 4, True, "label:6 asks for more labels than the data have, 5.*label:1 to label:5"),
        ("column:writer", 2, True, "no array 'writer'"),
    ],
)
def test_a_rule_that_does_not_fit_the_data_is_refused(rule, clients, labels, words):
    with pytest.raises(ScenarioError, match=words):
        Dealer(Rule.parse(rule), len(LABELS), LABELS if labels else None, clients, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dirichlet", r"takes a number above 0 .write dirichlet:0\.3"),
        ("dirichlet:0", r"'dirichlet:0': dirichlet takes a number above 0 .write dirichlet:0\.3"),
        ("draw:1.5", "takes a whole number, 1 or more .write draw:64"),
        ("label:x", "takes a whole number, 1 or more .write label:2"),
    ],
)
def test_a_rule_without_its_number_is_refused_with_what_it_takes(text, words):
    with pytest.raises(ScenarioError, match=words):
        Rule.parse(text)


@pytest.mark.parametrize("text", ["", "iid:3", "column:", "even"])
def test_what_is_no_rule_is_refused_with_those_that_are(text):
    with pytest.raises(ScenarioError, match=r"write one of: iid, dirichlet:ALPHA"):
        Rule.parse(text)
