"""What a simulation's trace is made of: digests of bodies, and of what went between all pairs of nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from bb_edge.wire.bodies import Body

_OF_NOTHING = hashlib.sha256().digest()


class BodyDigests:
    """The SHA-256 of each body; of one that goes to many peers, one after the other, it is computed once."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Body, bytes] = b"", _OF_NOTHING

    def of(self, body: Body) -> bytes:
        """Returns the 32 bytes of a body."""
        if not body:
            return _OF_NOTHING
        last, digest = self._last
        if last is not body:
            digest = hashlib.sha256(body).digest()
            if type(body) is bytes:  # another may be written to, or hold what is to be let go of
                self._last = body, digest
        return digest


def combined_trace(digests: Mapping[tuple[bytes, bytes], bytes]) -> str:
    """A SHA-256 in hex over the digests of all pairs, in the order of their ids."""
    combined = hashlib.sha256()
    for (source, target), digest in sorted(digests.items()):
        combined.update(source + target + digest)
    return combined.hexdigest()
