"""Which envelopes of an old program the new one would send as well: to the same sites, of the same types.

A site is made of the module, the port and the place of the payload (`bb_edge.ir.ids.site_id`), so it means
the same to a peer whatever was compiled since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from bb_edge.engine.net.former_records import Part
from bb_edge.engine.program.program import OpSpec, Program, Target
from bb_edge.ir import keys, types
from bb_edge.ir.address import Address, parse_suffix, site_suffix
from bb_edge.ir.ids import site_beside
from bb_edge.ir.opsets.wire import OP_SEND, OP_SEND_REQ, OP_SEND_RESP
from bb_edge.ir.stamped_shapes import StampedShape, fits, read_shapes, shape_text
from bb_edge.wire.codecs import decode_value
from bb_edge.wire.envelope import NONE, REQUEST, RESPONSE, Envelope, Fill

_KINDS = {OP_SEND: NONE, OP_SEND_REQ: REQUEST, OP_SEND_RESP: RESPONSE}
NO_SUCH_PORT: Final = (
    "this program has no such port: keep its name, or run the old program until bb-edge outbox lists nothing"
)
_KIND_NAMES = {NONE: "a send", REQUEST: "a request", RESPONSE: "a reply"}


class Site(NamedTuple):
    """What the new program sends to a site: the kind of the envelope, the author's name of the op and all
    sites that it sends to, the wire hash of the payload (0: any), whether it is a trigger, the slots of the
    codecs that code it, the shape that its receivers take (None: any), and the component's output that it is
    (`values_of`), here and in the old program.
    """

    kind: int
    name: str
    together: tuple[bytes, ...]
    type_hash: int
    trigger_only: bool
    codecs: tuple[str, ...]
    shape: StampedShape | None = None
    value: str = ""
    was: str = ""


def sites_of(
    program: Program, targets: Iterable[Target], former: Mapping[bytes, str] | None = None
) -> dict[bytes, Site]:
    """The sites that the targets send to, by their address; `former` are the `values_of` the old program."""
    found = {}
    for graph in (program.graphs[target.main] for target in targets):
        makers, was = _makers(graph.ops), former or {}
        for op in filter(_sends, graph.ops):
            hashes = op.meta.get(keys.WIRE_TYPES_KEY, "").split(",")
            together = _sites(op)
            shapes = read_shapes(op.meta.get(keys.SHAPES_KEY, ""))
            for place, suffix in enumerate(together):
                found[suffix] = Site(
                    _KINDS[op.op_type],
                    op.meta.get(keys.PORT_KEY, op.name),
                    together,
                    int(hashes[place], 16) if place < len(hashes) and hashes[place] else 0,
                    op.meta.get(keys.WIRE_TRANSPORT_KEY) == keys.WIRE_TRANSPORT_TRIGGER_ONLY,
                    tuple(_codecs_of(op.inputs[place], makers)) if place < len(op.inputs) else (),
                    shapes[place] if place < len(shapes) else None,
                    _value(op.inputs[place], makers) if place < len(op.inputs) else "",
                    was.get(suffix, ""),
                )
    return found


def values_of(ops: Sequence[OpSpec]) -> dict[bytes, str]:
    """The outputs of components that a graph sends durably: by site, the slot, the op and its output.

    Values of no declared type are the same to everybody else, whatever order they stand in.
    """
    makers = _makers(ops)
    found = dict[bytes, str]()
    for op in ops:
        if _sends(op) and op.meta.get(keys.DURABLE_KEY) == "1":
            named = zip(_sites(op), (_value(site, makers) for site in op.inputs), strict=False)
            found.update((suffix, value) for suffix, value in named if value)
    return found


def _sends(op: OpSpec) -> bool:
    return op.domain == keys.WIRE_DOMAIN and op.op_type in _KINDS


def _sites(op: OpSpec) -> tuple[bytes, ...]:
    return tuple(site_suffix(int(text, 16)) for text in op.meta[keys.SITE_IDS_KEY].split(","))


def _makers(ops: Iterable[OpSpec]) -> dict[int, OpSpec]:
    return {site: op for op in ops for site in op.outputs if site >= 0}


def _value(site: int, makers: Mapping[int, OpSpec]) -> str:
    maker = makers.get(site)
    slot = None if maker is None else maker.meta.get(keys.SLOT_KEY)
    return "" if maker is None or slot is None else f"{slot}.{maker.op_type}.{maker.outputs.index(site)}"


def _codecs_of(site: int, makers: Mapping[int, OpSpec]) -> Iterator[str]:
    """The slots of the codecs that made a value, or a part of it, behind gates and bundles."""
    seen, todo = set[int](), [site]
    while todo:
        maker = makers.get(todo.pop())
        if maker is None or maker.index in seen:
            continue
        seen.add(maker.index)
        if maker.domain == keys.ROLE_COMPRESSOR_DOMAIN:
            yield maker.meta[keys.SLOT_KEY]
        elif maker.domain == keys.GATE_DOMAIN or maker.op_type == "Bundle":
            todo += maker.inputs


def parts_of(message: Envelope, sites: Mapping[bytes, Site], codecs: Mapping[str, str]) -> list[Part]:
    """What each op sent in an envelope, by its name, and why the new program would not send it.

    What goes to sites that the new program does not have is one part: it knows no names of them. Further
    values of a port that it has are of that port's part: a report is taken whole, or not at all.
    """
    kind = _KIND_NAMES.get(message.kind, "an envelope")
    groups: dict[tuple[bytes, ...], list[Fill]] = {}
    unknown: list[Fill] = []
    for fill in message.fills:
        site = sites.get(fill.dest_suffix)
        (unknown if site is None else groups.setdefault(site.together, [])).append(fill)
    parts = []
    for together, fills in groups.items():
        why = _reordered([sites[suffix] for suffix in together])
        beyond = {*_beside(together[0], len(message.fills))}
        if more := [fill for fill in unknown if fill.dest_suffix in beyond]:
            unknown = [fill for fill in unknown if fill.dest_suffix not in beyond]
            fills += more
            sends = many(len(together), "value")
            why = f"it was sent with {many(len(fills), 'value')}, this program sends {sends} there"
        for fill in fills:
            why = why or _misfit(fill, message.kind, sites[fill.dest_suffix], codecs)
        if not why and {fill.dest_suffix for fill in fills} != {*together}:
            why = f"this program sends {many(len(together), 'value')} together there"
        parts.append(Part(f"{kind} {sites[together[0]].name!r}", why, tuple(fills)))
    if unknown:
        where = str(Address.from_bytes(unknown[0].dest_suffix))
        what = f"{kind} of {many(len(unknown), 'value')} ({where})"
        parts.append(Part(what, NO_SUCH_PORT, tuple(unknown)))
    return parts or [Part(kind, "", ())]


def _reordered(sites: Sequence[Site]) -> str:
    """Why the report is another one though sites and types are the same: a value stands at another place.

    A name that only one program has is not a reason: a slot may have been renamed.
    """
    was, now = {site.was for site in sites}, {site.value for site in sites}
    moved = (
        site.was != site.value and ((site.was and site.was in now) or (site.value and site.value in was))
        for site in sites
    )
    return "this program sends its values in another order" if any(moved) else ""


def _beside(first: bytes, count: int) -> Iterator[bytes]:
    """The sites of a port that sends so many values, by the first of them."""
    for index in range(count):
        yield site_suffix(site_beside(parse_suffix(first)[1], index))


def _misfit(fill: Fill, kind: int, site: Site, codecs: Mapping[str, str]) -> str:
    """Why the new program would not send that; "" where it would."""
    if site.kind != kind:
        return f"{_KIND_NAMES[site.kind]} goes there here"
    if fill.trigger_only != site.trigger_only or (site.type_hash and fill.type_hash != site.type_hash):
        return f"it was sent as {_type(fill.type_hash)}, this program sends {_type(site.type_hash)}"
    if site.shape is not None and not fill.trigger_only:
        value = decode_value(fill.type_hash, fill.payload)
        if isinstance(value, np.ndarray) and value.shape != (0,) and not fits(value.shape, site.shape):
            came, wanted = shape_text(value.shape), shape_text(site.shape)
            return f"it was sent with shape {came}, this program sends {wanted}"
    return next((codecs[slot] for slot in site.codecs if slot in codecs), "")


def _type(wire_hash: int) -> str:
    node = types.by_wire_hash(wire_hash)
    return "a trigger" if not wire_hash else str(node or f"type {wire_hash:#x}")


def many(count: int, what: str) -> str:
    """`3 records`, `1 record`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
