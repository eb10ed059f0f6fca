"""Bodies of snapshots of earlier versions, in the shape of today's.

2 -> 3   Executions know whom they owe, requests until when and why somebody is missing; bodies, slots.
3 -> 4   Durable numbers left the links for flows with an epoch each, and records got ids.

Rows grew while the version stayed the same. So a step looks at what a body has, and not at its number alone.
What an older version did not write down begins anew, and `ANEW` of the body names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

OLDEST: Final = 2
"""The first version that is still read."""
ANEW: Final = "anew"
"""Of a body that was upgraded: the version that it had, and what begins anew, for each such thing."""
_UNIT_COLUMNS, _PENDING_COLUMNS, _ANSWER_COLUMNS, _ROUNDS_COLUMNS = 11, 8, 4, 7
_RAW_COLUMNS, _ENTRY_COLUMNS = 4, 9
_HEARD: Final = (
    "what peers have acknowledged: that a peer's state is older than the world is noticed from now on"
)


def upgraded(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a snapshot of `version`, from `OLDEST` on, as the present version has it.

    Raises LookupError, TypeError or ValueError where it is not of that version's shape.
    """
    if version > 3:
        return body
    body = _with_protocol(_completed(body))
    return {**body, ANEW: [(version, text) for text in body[ANEW]]}


# --- 2 -> 3 -----------------------------------------------------------------------------------------------


def _completed(body: dict[str, Any]) -> dict[str, Any]:
    """Gives rows the columns that they got in versions 2 and 3."""
    anew: list[str] = []
    next_token, timers = body["timers"]
    due = {token: when_ns for token, when_ns, *_ in timers}
    next_request, requests, children = body["requests"]
    requests = [_request(row, due) for row in requests]
    next_id, peak, executions, runnable = body["executions"]
    untold = sum("owes" not in row and row["source"] is not None for row in executions)
    if untold:
        anew.append(f"whom {untold} executions answer: where one fails, its asker waits for its deadline")
    cycle = body["cycle"]
    return {
        **body,
        "cycle": {**cycle, "rounds": [_wide(row, _ROUNDS_COLUMNS, 0) for row in cycle["rounds"]]},
        "executions": [next_id, peak, [_execution(row, requests) for row in executions], runnable],
        "requests": [next_request, requests, children],
        "ingress": _ingress(body["ingress"]),
        "neighbours": {"answers": [[], []], "unheard": False, **body["neighbours"]},
        "links": {**body["links"], "links": [_link(row) for row in body["links"]["links"]]},
        "outbound": _outbound(body["outbound"]),
        "timers": [next_token, [_timer(row) for row in timers]],
        "bodies": body.get("bodies", []),
        ANEW: anew,
    }


def _wide(row: Sequence[Any], columns: int, value: object) -> list[Any]:
    return [*row, *[value] * (columns - len(row))]


def _ingress(ingress: Mapping[str, Any]) -> dict[str, Any]:
    """What waits had no causes: what it sends durably may be sent once more."""
    return {
        **ingress,
        "raw": [_wide(row, _RAW_COLUMNS, None) for row in ingress["raw"]],
        "entries": [_wide(row, _ENTRY_COLUMNS, None) for row in ingress["entries"]],
    }


def _unit(row: Sequence[Any]) -> list[Any]:
    return _wide(row, _UNIT_COLUMNS, None)


def _request(row: Mapping[str, Any], due: Mapping[int, int]) -> dict[str, Any]:
    """Who is missing had no reasons, and the deadline stood in the timer alone."""
    return {
        "final": [],
        "tried": [],
        "reasons": [],
        "cut": False,
        "until_ns": due.get(row["timer"], 0),
        **row,
        "waiting": [_wide(answer, _ANSWER_COLUMNS, 0) for answer in row["waiting"]],
        "ask": None if row["ask"] is None else _unit(row["ask"]),
    }


def _execution(row: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether it told anybody was not written: it counts as one that sends nothing. It has heard somebody,
    unless all that it asks is open and without answers.
    """
    own = [request for request in requests if request["frame"][0] == row["id"]]
    *_, asked = row["numbers"][:4]
    heard = asked > len(own) or any(request["accepted"] for request in own)
    flags = row["flags"]
    return {
        "owes": None,
        "until_ns": 0,
        **row,
        "flags": flags if len(flags) > 9 else [*flags, None, heard],
        "numbers": _wide(row["numbers"], 5, 0),
    }


def _link(row: Sequence[Any]) -> list[Any]:
    return [*row[:6], [_wide(pending, _PENDING_COLUMNS, 0) for pending in row[6]]]


def _outbound(outbound: Mapping[str, Any]) -> dict[str, Any]:
    found = {**outbound, "units": [_unit(row) for row in outbound["units"]]}
    if "writing" in outbound:
        found["waiting"] = [_unit(row) for row in outbound["waiting"]]
        found["writing"] = [_wide(row, 5, 0) for row in outbound["writing"]]
    return found


def _timer(row: Sequence[Any]) -> list[Any]:
    token, when_ns, name, plain = row
    return [token, when_ns, name, [_unit(plain[0])] if name == "reply.put_off" else plain]


# --- 3 -> 4 -----------------------------------------------------------------------------------------------


def _with_protocol(body: dict[str, Any]) -> dict[str, Any]:
    links, outbound = body["links"], body["outbound"]
    epoch, durable_epoch = links["epochs"]
    first, _ = links["first"]
    rows, flows, sources = [], [], []
    for peer, last, last_durable, peer_epoch, best_effort, durable, pending in links["links"]:
        kept = [[*row[:3], *row[4:]] for row in pending if not row[3]]  # the durable ones are in the outbox
        rows.append([peer, last, peer_epoch, best_effort, kept])
        if durable:
            sources.append([peer, durable])
        if last_durable:
            flows.append([peer, durable_epoch, last_durable, [0, 0, 0]])
    outbound = dict(outbound)
    if "writing" in outbound:
        writing = outbound.pop("writing")
        outbound.pop("next_token", None)
        outbound["unwritten"] = [
            [number, record, shelf, 0] for number, (_, record, _, _, shelf) in enumerate(writing, 1)
        ]
        outbound["flows"] = [len(writing) + 1, flows, [*range(1, len(writing) + 1)]]
    links = {"epoch": epoch, "first": first, "links": rows, "sources": sources}
    anew = [*body[ANEW], _HEARD] if flows else body[ANEW]
    return {**body, "links": links, "outbound": outbound, ANEW: anew}
