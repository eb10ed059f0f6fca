"""Which nodes of a function run once per answer, and which with the execution itself."""

from __future__ import annotations

from typing import NamedTuple

from bb_edge.engine.errors import LoadError
from bb_edge.engine.program.nodes import Function
from bb_edge.ir import keys
from bb_edge.ir.opsets.wire import OP_RECV_RESP, OP_SEND_REQ


class Opener(NamedTuple):
    """What opens a region: the index of the `RecvResp` node, and that of its request's node."""

    entry: int
    request: int


def node_regions(function: Function, lazy: set[int]) -> tuple[list[int], list[Opener]]:
    """The region of each node, and what opens region 1, 2, …

    `lazy` are the sites that stem from sources alone. LoadError for a `RecvResp` without its request, and
    where an op joins answers of different requests.
    """
    openers = _openers(function)
    region = [0] * len(function.nodes)
    for number, opener in enumerate(openers, 1):
        region[opener.entry] = number
    if openers:
        _spread(function, lazy, openers, region)
        _place_sources(function, lazy, region)
    return region, openers


def _openers(function: Function) -> list[Opener]:
    requests: dict[str, int] = {}
    answers: list[tuple[int, str]] = []
    for index, node in enumerate(function.nodes):
        if node.proto.domain == keys.WIRE_DOMAIN and node.proto.op_type == OP_SEND_REQ:
            requests[node.meta.get(keys.WIRE_ID_KEY, "")] = index
        elif node.proto.domain == keys.WIRE_DOMAIN and node.proto.op_type == OP_RECV_RESP:
            answers.append((index, node.meta.get(keys.WIRE_REQUEST_KEY, "?")))
    openers: list[Opener] = []
    for index, wire_id in answers:
        if wire_id not in requests:
            where = function.where_of(function.nodes[index].proto)
            raise LoadError("RecvResp without its request", where=where)
        openers.append(Opener(index, requests[wire_id]))
    return openers


def _spread(function: Function, lazy: set[int], openers: list[Opener], region: list[int]) -> None:
    """Moves every node to the innermost region that it reads from."""

    def depth(inner: int) -> int:
        depth = 0
        while inner:
            depth += 1
            if depth > len(openers):
                raise LoadError("requests nest in a cycle", where=function.where)
            inner = region[openers[inner - 1].request]
        return depth

    def inside(inner: int, outer: int) -> bool:
        while inner and inner != outer:
            inner = region[openers[inner - 1].request]
        return inner == outer

    for _ in range(len(openers) + 1):
        before = list(region)
        for index, node in enumerate(function.nodes):
            deepest = region[index]
            for site in node.reads:
                producer = function.producer[site]
                if producer < 0 or site in lazy:
                    continue
                other = region[producer]
                if depth(other) > depth(deepest):
                    deepest = other
                if not inside(deepest, other):
                    raise LoadError(
                        "an op joins answers of different requests", where=function.where_of(node.proto)
                    )
            region[index] = deepest
        if region == before:
            return


def _place_sources(function: Function, lazy: set[int], region: list[int]) -> None:
    """Has what stems from sources run where it is read: in the one region that reads it, else in region 0."""
    readers: dict[int, set[int]] = {}
    for index in range(len(function.nodes) - 1, -1, -1):
        node = function.nodes[index]
        if node.writes and lazy.issuperset(node.writes):
            regions = {number for site in node.writes for number in readers.get(site, ())}
            region[index] = regions.pop() if len(regions) == 1 else 0
        for site in node.reads:
            readers.setdefault(site, set()).add(region[index])
