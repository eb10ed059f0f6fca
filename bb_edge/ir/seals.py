"""The digest of an artifact: SHA-256 over its bytes, in its last entry of metadata, read as zeros.

The entry stands at the end of the file: protobuf takes fields in any order, and so the digest is found, and
checked, without reading the rest. A tool that writes the model again puts its fields in their usual order.
It tells damage (storage that wears out, a copy that was cut off) and is not a signature: whoever changes an
artifact on purpose can seal it again.
"""

from __future__ import annotations

from typing import NamedTuple

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.sha256 import fresh_sha256

__all__ = ["DIGEST_SIZE", "SealError", "Sums", "check_seal", "is_sealed", "seal", "sums"]

DIGEST_SIZE = 64
"""Characters of the digest: SHA-256 in hex."""


class SealError(BBError):
    """The bytes of an artifact are not those that were compiled."""


class Sums(NamedTuple):
    """Digests in hex: `sealed`, with the digest in it read as zeros, and `whole`, of all bytes."""

    sealed: str
    whole: str


def _entry_head() -> bytes:
    key = keys.DIGEST_KEY.encode()
    inner = b"\x0a" + bytes((len(key),)) + key + b"\x12" + bytes((DIGEST_SIZE,))
    return b"\x72" + bytes((len(inner) + DIGEST_SIZE,)) + inner  # field 14 of ModelProto: metadata_props


_HEAD = _entry_head()
_ZEROS = b"0" * DIGEST_SIZE


def seal(data: bytes) -> bytes:
    """Returns a serialized ModelProto without a digest, with its digest appended."""
    open_ended = data + _HEAD + _ZEROS
    return open_ended[:-DIGEST_SIZE] + sums(open_ended).sealed.encode()


def is_sealed(data: bytes) -> bool:
    """Whether the bytes end with a digest, right or wrong."""
    start = len(data) - len(_HEAD) - DIGEST_SIZE
    return start >= 0 and data.startswith(_HEAD, start)


def sums(data: bytes) -> Sums:
    """Returns the digests of bytes that end with a digest; reads them once and copies nothing."""
    content = memoryview(data)
    sealed = fresh_sha256(len(content))
    sealed.update(content[:-DIGEST_SIZE])
    whole = sealed.copy()
    sealed.update(_ZEROS)
    whole.update(content[-DIGEST_SIZE:])
    return Sums(sealed.hexdigest(), whole.hexdigest())


def check_seal(data: bytes) -> Sums:
    """Returns the digests of an artifact. Raises SealError where its bytes are not those that were sealed."""
    if not is_sealed(data):
        raise SealError(
            "its digest is missing, or not at its end",
            "artifact",
            "another ONNX tool has written it again, or it was cut off: copy the file that bb-host wrote; to"
            " change an artifact, compile it again",
        )
    found, written = sums(data), data[-DIGEST_SIZE:]
    if found.sealed.encode() != written:
        raise SealError(
            f"it is damaged: its SHA-256 is {found.sealed[:16]}…, and"
            f" {written[:16].decode('ascii', 'replace')}… was written into it",
            "artifact",
            "copy the file again; if another tool has changed it, compile it again",
        )
    return found
