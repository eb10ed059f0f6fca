"""Addresses of peers, sites and component ops, as multiaddrs of up to four segments.

Binary form: `varint(code) ++ payload` per segment, in the order peer, site, component, op. Text form:
`/p2p/<base58>/site/<n>/component/<n>/op/<name>`; the empty address is `/`. Both forms are read
strictly: known segments, each at most once, in this order. So an address has one spelling, and its bytes can
be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from bb_edge.ir import varint
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError

P2P, SITE, COMPONENT, OP = 421, 0xE2, 0xE3, 0xE4
_NAMES = {P2P: "p2p", SITE: "site", COMPONENT: "component", OP: "op"}
_RANKS = {code: rank for rank, code in enumerate(_NAMES)}
_P2P, _SITE, _COMPONENT, _OP = (varint.encode(code) for code in (P2P, SITE, COMPONENT, OP))
_USUAL_PEER = _P2P + varint.encode(34)
"""What an address begins with that names a peer by a SHA-256, and alone if it has `PEER_ADDRESS_BYTES`."""
PEER_ADDRESS_BYTES = len(_USUAL_PEER) + 34
"""The length of an address that names a peer and nothing else."""
MAX_OP_NAME = 256
"""Longest op name in bytes; an address of all segments stays below a node's cap of a suffix (512 bytes)."""
_MAX_DIGITS = 20  # digits of 2^64-1; longer texts are refused before they are converted
SUFFIX_SITE, SUFFIX_COMPONENT = 0, 1
SITE_PREFIX = _SITE
"""What the binary form of `/site/<n>` begins with."""
SITE_SUFFIX_BYTES = len(SITE_PREFIX) + 8
"""Its length: the number has 64 bits."""


class AddressError(BBError):
    """Bytes or a text that are not an address; the error names the place."""


@dataclass(frozen=True, slots=True)
class Address:
    """What an envelope or a fill is addressed to; absent segments are None.

    `site` is a number of 64 bits, `component` of 32, `op` a name of 1 to 256 bytes without a slash. Raises
    AddressError for others.
    """

    peer: PeerId | None = None
    site: int | None = None
    component: int | None = None
    op: str | None = None

    def __post_init__(self) -> None:
        if self.site is not None and not 0 <= self.site < 1 << 64:
            raise AddressError(f"{self.site} is not in 0..2^64-1", "segment /site/ (0xe2)")
        if self.component is not None and not 0 <= self.component < 1 << 32:
            raise AddressError(f"{self.component} is not in 0..2^32-1", "segment /component/ (0xe3)")
        if self.op is not None:
            _check_op(self.op)

    @classmethod
    def empty(cls) -> Address:
        """Returns the address without segments."""
        return _EMPTY

    def with_peer(self, peer: PeerId) -> Address:
        """Returns this address with another peer."""
        return replace(self, peer=peer)

    def with_component(self, component: int, op: str | None = None) -> Address:
        """Returns this address with another component and op."""
        return replace(self, component=component, op=op)

    def to_bytes(self) -> bytes:
        """Returns the binary form."""
        out = b""
        if self.peer is not None:
            peer = self.peer.to_bytes()
            out += _P2P + varint.encode(len(peer)) + peer
        if self.site is not None:
            out += _SITE + self.site.to_bytes(8, "big")
        if self.component is not None:
            out += _COMPONENT + self.component.to_bytes(4, "big")
        if self.op is not None:
            name = self.op.encode()
            out += _OP + varint.encode(len(name)) + name
        return out

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Address:
        """Parses the binary form. AddressError for anything else."""
        if len(data) == PEER_ADDRESS_BYTES and data[: len(_USUAL_PEER)] == _USUAL_PEER:
            return cls(_peer_or_name(P2P, data[len(_USUAL_PEER) :], 0))  # type: ignore[arg-type]
        segments: dict[int, object] = {}
        offset, last = 0, -1
        while offset < len(data):
            start = offset
            code, offset = _varint(data, offset)
            if code not in _NAMES:
                raise AddressError(f"code {code:#x} is not a known segment", f"address, byte {start}")
            rank = _RANKS[code]
            if rank <= last:
                what = f"/{_NAMES[code]}/ (code {code:#x}) out of order"
                raise AddressError(what, f"address, byte {start}")
            last = rank
            if code in (SITE, COMPONENT):
                size = 8 if code == SITE else 4
                segments[code] = int.from_bytes(_take(data, offset, size), "big")
            else:
                size, offset = _varint(data, offset)
                if size > MAX_OP_NAME:
                    what = f"/{_NAMES[code]}/ (code {code:#x}) of {size} bytes, {MAX_OP_NAME} at most"
                    raise AddressError(what, f"address, byte {start}")
                segments[code] = _peer_or_name(code, _take(data, offset, size), start)
            offset += size
        return cls(segments.get(P2P), segments.get(SITE), segments.get(COMPONENT), segments.get(OP))  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = (("p2p", self.peer), ("site", self.site), ("component", self.component), ("op", self.op))
        return "".join(f"/{name}/{value}" for name, value in parts if value is not None) or "/"

    def to_text(self) -> str:
        """Returns the text form."""
        return str(self)

    @classmethod
    def from_text(cls, text: str) -> Address:
        """Parses the text form. AddressError for anything else."""
        if text in ("", "/"):
            return _EMPTY
        pieces = text.split("/")
        if pieces[0] or len(pieces) % 2 == 0:
            raise AddressError("segments come in pairs: /name/value", f"address {text[:80]!r}")
        segments: dict[str, object] = {}
        order = list(_NAMES.values())
        last = -1
        for name, value in zip(pieces[1::2], pieces[2::2]):  # noqa: B905 (paired above)
            if name not in order or order.index(name) <= last:
                raise AddressError(f"/{name}/ is unknown or out of order", f"address {text[:80]!r}")
            last = order.index(name)
            if name == "p2p":
                try:
                    segments[name] = PeerId.from_text(value)
                except PeerIdError as error:
                    raise AddressError(error.what, f"address {text[:80]!r}") from error
            elif name == "op":
                segments[name] = value
            elif len(value) <= _MAX_DIGITS and value.isascii() and value.isdigit():
                segments[name] = int(value)
            else:
                raise AddressError(f"{value[:40]!r} is not a number for /{name}/", f"address {text[:80]!r}")
        return cls(segments.get("p2p"), segments.get("site"), segments.get("component"), segments.get("op"))  # type: ignore[arg-type]


_EMPTY = Address()


def _varint(data: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    try:
        return varint.decode(data, offset)
    except varint.VarintError as error:
        raise AddressError(error.what, f"address, byte {offset}") from error


def _check_op(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise AddressError("a name has no UTF-8 form", "segment /op/ (0xe4)") from error
    if not 0 < size <= MAX_OP_NAME:
        raise AddressError(f"a name of {size} bytes, 1 to {MAX_OP_NAME} allowed", "segment /op/ (0xe4)")
    if "/" in name:
        raise AddressError("a name has a slash, which separates segments", "segment /op/ (0xe4)")


def _take(data: bytes | bytearray | memoryview, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise AddressError(
            f"{size} bytes announced, {len(data) - offset} are there", f"address, byte {offset}"
        )
    return bytes(data[offset : offset + size])


def _peer_or_name(code: int, payload: bytes, start: int) -> object:
    try:
        if code == P2P:
            return PeerId.from_bytes(payload)
        name = payload.decode()
        _check_op(name)
        return name
    except PeerIdError as error:
        raise AddressError(error.what, f"address, byte {start}") from error
    except UnicodeDecodeError as error:
        raise AddressError("an op name is not UTF-8", f"address, byte {start}") from error


def peer_address(peer: PeerId) -> bytes:
    """Returns the binary form of the address that names a peer alone."""
    data = peer.to_bytes()
    usual = len(data) == PEER_ADDRESS_BYTES - len(_USUAL_PEER)
    return _USUAL_PEER + data if usual else Address(peer).to_bytes()


def site_suffix(site: int) -> bytes:
    """Returns `/site/<site>` in binary, 10 bytes. AddressError beyond 64 bits."""
    if not 0 <= site < 1 << 64:
        raise AddressError(f"{site} is not in 0..2^64-1", "segment /site/ (0xe2)")
    return _SITE + site.to_bytes(8, "big")


def parse_suffix(data: bytes | bytearray | memoryview) -> tuple[int, int, str | None]:
    """Returns (SUFFIX_SITE, site, None) or (SUFFIX_COMPONENT, ref, op name).

    Raises AddressError for anything else.
    """
    if len(data) == SITE_SUFFIX_BYTES and data[0] == _SITE[0] and data[1] == _SITE[1]:
        return SUFFIX_SITE, int.from_bytes(data[2:], "big"), None
    address = Address.from_bytes(data)
    if address.peer is not None:
        raise AddressError("a suffix cannot name a peer", "suffix")
    if address.site is not None and address.component is None and address.op is None:
        return SUFFIX_SITE, address.site, None
    if address.component is not None and address.op is not None and address.site is None:
        return SUFFIX_COMPONENT, address.component, address.op
    raise AddressError("a suffix is /site/<id> or /component/<ref>/op/<name>", f"suffix {address}")


@dataclass(frozen=True, slots=True)
class Route:
    """Where a fill goes, as its destination suffix says: to a site, or to an op of a component.

    `site` is -1 where the suffix names none; `op` is empty where it names none. `error` says why the suffix
    is not a suffix. `for_site` is True for every suffix that begins as a site's does, broken ones among them.
    """

    site: int = -1
    component: int = 0
    op: str = ""
    error: str = ""
    for_site: bool = False


@lru_cache(maxsize=1024)
def route_of(suffix: bytes) -> Route:
    """The route that a suffix names. The ones of a program come again and again, and are parsed once."""
    for_site = suffix.startswith(SITE_PREFIX)
    try:
        kind, number, op = parse_suffix(suffix)
    except AddressError as error:
        return Route(error=str(error), for_site=for_site)
    if kind == SUFFIX_SITE:
        return Route(site=number, for_site=for_site)
    return Route(component=number, op=op or "", for_site=for_site)
