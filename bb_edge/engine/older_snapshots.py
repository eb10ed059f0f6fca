"""Bodies of snapshots of earlier versions, in the shape of today's.

3 -> 4   Durable numbers left the links for flows with an epoch each, and records got ids.
"""

from __future__ import annotations

from typing import Any, Final

OLDEST: Final = 3
"""The first version that is still read."""


def upgraded(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a snapshot of `version`, from `OLDEST` on, as the present version has it.

    Raises LookupError, TypeError or ValueError where it is not of that version's shape.
    """
    return _with_protocol(body) if version == 3 else body


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
    return {**body, "links": links, "outbound": outbound}
