"""How fills of envelopes are read. What stands around a payload comes again with each message of a port."""

from __future__ import annotations

from typing import Final, TypeAlias

from bb_edge.ir.address import SITE_SUFFIX_BYTES, Route, route_of
from bb_edge.wire.caps import CONTROL_FILL_BYTES, EnvelopeCaps, beyond
from bb_edge.wire.envelope_fields import Strays, one_stray, recurring, skip, span, varint
from bb_edge.wire.envelope_records import EnvelopeError, EnvelopeErrorKind

Said: TypeAlias = tuple[bytes, bool, int, Route]
"""Suffix, trigger or not, hash of the type, route."""

_MAX_FORMS: Final = 128
_MAX_AROUND: Final = 64
_FORMS: Final[dict[int, tuple[bytes, bytes, Said]]] = {}
"""What stood before the payloads of fills that were read, what stood behind them, and what both say.

By the bytes of the whole fill and the last of the site's number: those of a program come again and again, and
so do not collide as a rule.
"""
form_of: Final = _FORMS.get
"""What is known of a fill: `form_of(its bytes << 8 | the last of its site's number)`."""
SITE_ENDS: Final = 1 + SITE_SUFFIX_BYTES
"""Where the number of the site ends in a fill that begins with its suffix."""


def parse_fill(
    data: bytes | memoryview, pos: int, end: int, caps: EnvelopeCaps, strays: Strays
) -> tuple[int, int, Said]:
    """Reads one field after the other; returns where the payload is, and what stands around it.

    That is kept for the next one, unless it is longer than what senders of ours write, or has stray fields.
    """
    began, stray = pos, strays[0]
    suffix: bytes = b""
    type_hash = start = stop = fields = 0
    trigger_only = False
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag >= 0x80:
            tag, pos = varint(data, pos - 1, end)
        fields += 1
        if fields > 4:
            one_stray(strays)
        if tag == 0x12:
            start, stop = span(data, pos, end)
            pos = stop
        elif tag == 0x0A:
            pos, after = span(data, pos, end)
            if after - pos > caps.suffix_bytes:
                raise beyond(caps, "suffix_bytes", EnvelopeErrorKind.SUFFIX_TOO_LARGE, after - pos)
            suffix = bytes(data[pos:after])
            pos = after
        elif tag == 0x20:
            if pos + 1 < end and data[pos] >= 0x80 > data[pos + 1]:  # tensors' have two bytes
                type_hash = data[pos] + (data[pos + 1] - 1 << 7)
                pos += 2
            else:
                type_hash, pos = recurring(data, pos, end)
        elif tag == 0x18:
            value, pos = recurring(data, pos, end)
            trigger_only = value != 0
        else:
            one_stray(strays)
            pos = skip(data, pos, end, tag)
    said = suffix, trigger_only, type_hash, route_of(suffix)
    head, tail = data[began:start], data[stop:end]
    if SITE_ENDS < len(head) <= _MAX_AROUND >= len(tail) and strays[0] == stray:
        if len(_FORMS) >= _MAX_FORMS:
            _FORMS.clear()
        _FORMS[end - began << 8 | head[SITE_ENDS]] = bytes(head), bytes(tail), said
    return start, stop, said


def check_site_cap(route: Route, size: int, caps: EnvelopeCaps) -> None:
    """Raises EnvelopeError for a payload above the cap of its site, or of a fill where the site has none.

    What nodes tell each other without a program, such as marks, has a plan of its own.
    """
    allowed = caps.fill_bytes
    if route.site >= 0:
        allowed = max(allowed, caps.site_fill_bytes.get(route.site, 0))
    elif route.op and not route.component:
        allowed = max(allowed, CONTROL_FILL_BYTES)
    if size > allowed:
        cap = " (limits.caps.fill_bytes)" if allowed == caps.fill_bytes else ""
        raise EnvelopeError(EnvelopeErrorKind.FILL_TOO_LARGE, f"{size} bytes, {allowed} at most{cap}")
