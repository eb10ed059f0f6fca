"""Bodies of snapshots of earlier versions: which rows become which.

Whole folders are in `tests/bb_edge/state/test_older_folders.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from peers import A, B

from bb_edge.engine.older_snapshots import ANEW, OLDEST, upgraded

UNIT = [b"peer", [], 0, 0, 0, True, None, 3, None]  # 9 columns, as version 2 had them
WIDE_UNIT = [*UNIT, None, None]


def execution(number: int, asked: int, **more: object) -> dict[str, Any]:
    flags = [False, False, False, False, False, False, True, True, False]
    return {"id": number, "source": b"peer", "flags": flags, "numbers": [0, 9, 0, asked], **more}


def request(number: int, frame: int, **more: object) -> dict[str, Any]:
    row = {"id": number, "frame": [frame, 0], "timer": 0, "accepted": [], "waiting": [], "ask": None}
    return {**row, **more}


def of_version(version: int, **parts: Any) -> dict[str, Any]:
    """A body with two links, of which one has been used durably."""
    tail = [0] if version == 3 else []  # the place of a body
    durable, other = [7, 1, 0, True, b"d", 0, 5, *tail], [9, 2, 0, False, b"b", 0, 5, *tail]
    links = [
        [A.to_bytes(), 4, 3, 77, [["best"]], [["window"]], [durable, other]],
        [B.to_bytes(), 5, 0, None, [], [], []],
    ]
    return {
        "links": {"epochs": [9, 7], "first": [4, 3], "links": links},
        "outbound": {"units": []},
        "timers": [5, []],
        "requests": [2, [], []],
        "executions": [3, 1, [], []],
        "neighbours": {"peers": []},
        "cycle": {"rounds": []},
        "ingress": {"raw": [], "entries": []},
        **parts,
    }


@pytest.mark.parametrize("version", [2, 3])
def test_durable_numbers_leave_the_links_and_what_was_being_written_gets_ids(version: int) -> None:
    tail = [0] if version == 3 else []
    writing = {"units": [], "waiting": [], "writing": [[8, b"record", True, 1, *tail]], "next_token": 9}
    body = upgraded(version, of_version(version, outbound=writing))
    assert body["links"] == {
        "epoch": 9,
        "first": 4,
        "links": [
            [A.to_bytes(), 4, 77, [["best"]], [[9, 2, 0, b"b", 0, 5, 0]]],
            [B.to_bytes(), 5, None, [], []],
        ],
        "sources": [[A.to_bytes(), [["window"]]]],
    }
    flows = [[A.to_bytes(), 7, 3, [0, 0, 0]]]
    assert body["outbound"] == {
        "units": [],
        "waiting": [],
        "unwritten": [[1, b"record", 0, 0]],
        "flows": [2, flows, [1]],
    }
    ((said, anew),) = body[ANEW]
    assert said == version and "what peers have acknowledged" in anew


def test_a_node_that_kept_nothing_has_no_flows() -> None:
    assert upgraded(3, of_version(3))["outbound"] == {"units": []}
    present = of_version(3)
    assert upgraded(4, present) is present and OLDEST == 2


def test_units_that_wait_have_the_columns_that_came_later() -> None:
    timers = [5, [[3, 700, "reply.put_off", [UNIT]], [4, 800, "request.deadline", ["t", 10]]]]
    outbound = {"units": [UNIT], "waiting": [UNIT], "writing": [], "next_token": 1}
    body = upgraded(2, of_version(2, timers=timers, outbound=outbound))
    assert body["outbound"]["units"] == body["outbound"]["waiting"] == [WIDE_UNIT]
    assert body["timers"][1] == [[3, 700, "reply.put_off", [WIDE_UNIT]], timers[1][1]]


def test_what_waited_had_no_causes() -> None:
    raw, entry = [b"data", b"peer", None], ["Main", "fill", ["t"], None, 0, None, 0, False]
    ingress = {"raw": [raw], "entries": [entry], "notices": ["kept"]}
    body = upgraded(3, of_version(3, ingress=ingress))
    assert body["ingress"] == {"raw": [[*raw, None]], "entries": [[*entry, None]], "notices": ["kept"]}


def test_requests_have_the_deadline_of_their_timers_and_no_reasons() -> None:
    rows = [
        request(1, 5, timer=4, ask=UNIT, waiting=[[b"peer", ["t", 1], None]]),
        request(2, 5),
        request(3, 5, until_ns=7, cut=True, timer=4),
    ]
    timers = [5, [[4, 800, "request.deadline", ["t", 1]]]]
    _, (first, second, third), _ = upgraded(2, of_version(2, timers=timers, requests=[4, rows, []]))[
        "requests"
    ]
    assert first["until_ns"] == 800 and second["until_ns"] == 0
    assert first["waiting"] == [[b"peer", ["t", 1], None, 0]] and first["ask"] == WIDE_UNIT
    assert first["final"] == first["tried"] == first["reasons"] == [] and first["cut"] is False
    assert (third["until_ns"], third["cut"]) == (7, True), "what a row has it keeps"


def test_executions_have_heard_somebody_unless_all_that_they_ask_is_open() -> None:
    rows = [
        execution(5, 1),  # its one request is open, and nobody has answered
        execution(6, 2),  # one of two is closed
        execution(7, 1),  # open, with an answer
        execution(8, 0, source=None),
        execution(9, 0, owes=None, until_ns=3, flags=[False] * 10 + [True], numbers=[1, 2, 3, 4, 5]),
    ]
    requests = [4, [request(1, 5), request(2, 6), request(3, 7, accepted=[b"peer"])], []]
    body = upgraded(2, of_version(2, executions=[9, 4, rows, []], requests=requests))
    found = body["executions"][2]
    assert [row["flags"][9:] for row in found[:4]] == [
        [None, False],
        [None, True],
        [None, True],
        [None, False],
    ]
    assert all(row["owes"] is None for row in found)
    assert found[0]["numbers"] == [0, 9, 0, 1, 0] and found[0]["until_ns"] == 0
    assert found[4] == rows[4], "what a row has it keeps"
    told = [anew for _, anew in body[ANEW]]
    assert any("whom 3 executions answer" in anew for anew in told)


def test_rounds_and_neighbours_get_what_they_did_not_have() -> None:
    body = upgraded(2, of_version(2, cycle={"rounds": [[10, 1, True, False, 0, 0]], "ticks": []}))
    assert body["cycle"] == {"rounds": [[10, 1, True, False, 0, 0, 0]], "ticks": []}
    assert body["neighbours"] == {"answers": [[], []], "unheard": False, "peers": []}
    assert body["bodies"] == []


@pytest.mark.parametrize("part", ["links", "outbound", "timers", "requests", "executions", "cycle"])
def test_a_body_of_no_version_is_damage(part: str) -> None:
    body = of_version(2)
    body[part] = {"7": 7}
    with pytest.raises((LookupError, TypeError, ValueError)):
        upgraded(2, body)
