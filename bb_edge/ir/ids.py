"""Peer ids, and the hash from which site ids and wire hashes are made."""

from __future__ import annotations

from functools import total_ordering
from operator import attrgetter
from threading import Lock
from weakref import WeakValueDictionary

from bb_edge.ir import base58, varint
from bb_edge.ir.errors import BBError

SHA2_256 = 0x12
IDENTITY = 0x00
_SHA2_256_HEAD = varint.encode(SHA2_256) + varint.encode(32)
MAX_DIGEST = 64
"""Longest digest in bytes: that of SHA-512, the longest hash in use for peer ids."""


class PeerIdError(BBError):
    """Bytes or a text that are not a multihash, or one with more than 64 digest bytes."""


@total_ordering
class PeerId:
    """A peer's id, a multihash `varint(code) ++ varint(length) ++ digest` whose text form is base58btc.

    Both forms are those of libp2p. Immutable. There is one object per id: two ids are equal where they are
    the same object, so that tables of peers are searched without a call of Python code. Order is that of the
    bytes. Ids are made and looked up from any thread.
    """

    __slots__ = ("__weakref__", "_bytes", "_text")
    _bytes: bytes
    _text: str | None

    def __new__(cls, code: int, digest: bytes) -> PeerId:
        """Returns the id of a multihash code and digest. PeerIdError where there can be no such id."""
        if len(digest) > MAX_DIGEST:
            raise PeerIdError(f"{len(digest)} digest bytes, {MAX_DIGEST} at most", "peer id")
        if not 0 <= code < 1 << 64:
            raise PeerIdError(f"multihash code {code} is not in 0..2^64-1", "peer id")
        return cls._of(varint.encode(code) + varint.encode(len(digest)) + digest)

    @classmethod
    def _of(cls, data: bytes) -> PeerId:
        with _LOCK:
            peer = _IDS.get(data)
            if peer is None:
                peer = object.__new__(cls)
                object.__setattr__(peer, "_bytes", data)
                object.__setattr__(peer, "_text", None)
                _IDS[data] = peer
        return peer

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> PeerId:
        """Parses a multihash, with nothing after it. PeerIdError for anything else."""
        with _LOCK:
            # Of a number, as damaged files have them, `bytes` would make so many zeros.
            known = _IDS.get(data if type(data) is bytes else bytes(memoryview(data)))
        if known is not None:
            return known
        try:
            code, offset = varint.decode(data, 0)
            length, offset = varint.decode(data, offset)
        except varint.VarintError as error:
            raise PeerIdError(error.what, "peer id") from error
        if length > MAX_DIGEST:
            raise PeerIdError(f"{length} digest bytes, {MAX_DIGEST} at most", "peer id")
        if len(data) - offset != length:
            raise PeerIdError(f"{length} digest bytes announced, {len(data) - offset} are there", "peer id")
        return cls(code, bytes(data[offset:]))

    @classmethod
    def from_name(cls, name: str) -> PeerId:
        """Returns the sha2-256 multihash of a name."""
        import hashlib  # here: it loads OpenSSL, 4 MB, which what only infers never needs

        return cls._of(_SHA2_256_HEAD + hashlib.sha256(name.encode()).digest())

    @classmethod
    def from_text(cls, text: str) -> PeerId:
        """Parses base58btc. PeerIdError for another text, or one that is not a multihash."""
        try:
            data = base58.decode(text)
        except base58.Base58Error as error:
            raise PeerIdError(error.what, f"peer id {text[:64]!r}", error.hint) from error
        return cls.from_bytes(data)

    def to_bytes(self) -> bytes:
        """Returns the multihash."""
        return self._bytes

    def to_text(self) -> str:
        """Returns the multihash in base58btc."""
        text = self._text
        if text is None:
            text = base58.encode(self._bytes)
            object.__setattr__(self, "_text", text)
        return text

    def short(self) -> str:
        """Returns the last 8 characters of the text form, for logs."""
        return self.to_text()[-8:]

    def __lt__(self, other: object) -> bool:
        return self._bytes < other._bytes if isinstance(other, PeerId) else NotImplemented

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a PeerId does not change (set {name})")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a PeerId does not change (delete {name})")

    def __copy__(self) -> PeerId:
        return self

    def __deepcopy__(self, memo: object) -> PeerId:
        return self

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"PeerId({self.to_text()})"

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return _unpickled, (self._bytes,)


def _unpickled(data: bytes) -> PeerId:
    """The id of a pickle: a function of the module, which every pickler names instead of copying it."""
    return PeerId.from_bytes(data)


BY_BYTES = attrgetter("_bytes")
"""The key of the order of ids, for tables that are searched often: no code of Python's is called."""

_IDS: WeakValueDictionary[bytes, PeerId] = WeakValueDictionary()
_LOCK = Lock()

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF


def fnv1a_64(data: bytes, value: int = _FNV_OFFSET) -> int:
    """Returns FNV-1a of some bytes, 64 bits (offset basis 0xCBF29CE484222325, prime 0x100000001B3).

    `value` is that of the bytes before them.
    """
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def site_id(module: str, port: str, direction: str, index: int) -> int:
    """Returns the id of a site that travels: FNV-1a-64 of `{module}/{port}/{ask|reply}/{index}`."""
    return fnv1a_64(f"{module}/{port}/{direction}/{index}".encode())


def site_beside(first: int, index: int) -> int:
    """Returns the id of the site `index` of a port, by the id of its site 0 alone.

    An odd prime can be divided by modulo 2⁶⁴: the last step of FNV-1a, over the digit 0, is taken back.
    """
    before = first * pow(_FNV_PRIME, -1, _MASK + 1) & _MASK ^ ord("0")
    return fnv1a_64(str(index).encode(), before)
