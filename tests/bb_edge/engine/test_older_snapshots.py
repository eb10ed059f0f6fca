"""Bodies of snapshots of earlier versions: which rows become which."""

from __future__ import annotations

from typing import Any

from peers import A, B

from bb_edge.engine.older_snapshots import OLDEST, upgraded


def of_version_3(**outbound: object) -> dict[str, Any]:
    durable, other = [7, 1, 0, True, b"d", 0, 5, 0], [9, 2, 0, False, b"b", 0, 5, 0]
    links = [
        [A.to_bytes(), 4, 3, 77, [["best"]], [["window"]], [durable, other]],
        [B.to_bytes(), 5, 0, None, [], [], []],
    ]
    return {
        "links": {"epochs": [9, 7], "first": [4, 3], "links": links},
        "outbound": {"units": [], **outbound},
    }


def test_durable_numbers_leave_the_links_and_what_was_being_written_gets_ids() -> None:
    body = upgraded(3, of_version_3(waiting=[], writing=[[8, b"record", True, 1, 0]], next_token=9))
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


def test_a_node_that_kept_nothing_has_no_flows() -> None:
    body = of_version_3()
    assert upgraded(3, body)["outbound"] == {"units": []}
    assert upgraded(OLDEST + 1, body) is body
