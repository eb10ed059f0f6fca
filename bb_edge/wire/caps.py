"""The limits of one inbound envelope, which a decoder checks before it stores anything.

Rule W8 of the specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from bb_edge.ir.errors import BBError
from bb_edge.wire.envelope_records import EnvelopeError, EnvelopeErrorKind, Fill

KIB = 1024
MIB = 1024 * KIB


HEAD_BYTES = 4 * KIB
"""Of an envelope, beside its payloads: addresses, acknowledgements, and some 40 per fill."""


CONTROL_FILL_BYTES = 256
"""Of what nodes tell each other's component 0, whatever the cap of a fill: marks have 129 at most."""


class CapsError(BBError):
    """A cap below 1; it names the field."""


@dataclass(frozen=True, slots=True)
class RaisedSite:
    """A site whose planned size lies above the cap of a fill, in bytes.

    `planned` is the size that the compiler computed, `granted` what the node lets in. Less than planned means
    that the node's ceiling cut it, and that fills of the planned size will be refused.
    """

    site: int
    planned: int
    granted: int


@dataclass(frozen=True, slots=True)
class EnvelopeCaps:
    """Limits of one inbound envelope: sizes in bytes, the others counts; all inclusive, and at least 1."""

    # The envelope as it arrives; checked before its first byte is read.
    total_bytes: int
    # Fills in one envelope.
    fills: int
    # One fill's payload, unless `site_fill_bytes` says more for its site.
    fill_bytes: int
    # One fill's destination suffix.
    suffix_bytes: int
    # Addresses of the source, and of the destination: as many as the address book holds per peer.
    addresses: int = 8
    # One address: a host name has 255 letters at most.
    address_bytes: int = 256
    # The peer id in the envelope: 64 digest bytes, a code and a length of at most 10 bytes each.
    src_peer_bytes: int = 84
    # Acks in one envelope: a link keeps five windows at most, and one window's acks may come in two pieces.
    acks: int = 10
    # Single numbers in one ack: as many as may be unacknowledged in a durable window.
    ack_numbers: int = 64
    # Round-trip reports in one envelope: one per hop of a chain, and chains are short.
    rtt_reports: int = 16
    # Fields that this version does not know, and repetitions of a scalar: skipping them costs time. A later
    # version may add some; hundreds come only from somebody who wants to keep the node busy.
    stray_fields: int = 32
    # The most to which planned sizes may raise `total_bytes` and a site's cap.
    ceiling_bytes: int = 16 * MIB
    # site id -> cap of a fill's payload for this site.
    site_fill_bytes: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, int) and value < 1:
                raise CapsError(f"{spec.name} = {value}", "EnvelopeCaps", "give at least 1")

    def with_sites(
        self, planned: Mapping[int, int], envelope: int = 0
    ) -> tuple[EnvelopeCaps, tuple[RaisedSite, ...]]:
        """Returns caps that let the sites' planned payload sizes in, and the sites that this raised.

        A site is raised to its planned size, never above `ceiling_bytes`; `total_bytes` grows with the raised
        sites, so that an envelope with all of them passes, and to the largest planned `envelope` of small
        payloads, under the same ceiling.
        """
        sites = dict(self.site_fill_bytes)
        raised = []
        for site, size in sorted(planned.items()):
            if size > max(self.fill_bytes, sites.get(site, 0)):
                sites[site] = min(size, self.ceiling_bytes)
                raised.append(RaisedSite(site, size, sites[site]))
        grown = self.total_bytes + sum(site.granted for site in raised)
        if envelope > self.total_bytes:
            grown = max(grown, envelope + HEAD_BYTES)
        if grown == self.total_bytes:
            return self, ()
        total = max(self.total_bytes, min(grown, self.ceiling_bytes))
        return replace(self, total_bytes=total, site_fill_bytes=sites), tuple(raised)


def beyond(caps: EnvelopeCaps, cap: str, kind: EnvelopeErrorKind, size: int | None = None) -> EnvelopeError:
    """Returns the refusal of an envelope that is beyond a cap, which it names as a configuration does.

    `size` is in bytes; None where the cap bounds a count.
    """
    came = "" if size is None else f"{size} bytes, "
    return EnvelopeError(kind, f"{came}{getattr(caps, cap)} at most (limits.caps.{cap})")


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What a peer accepts of one envelope, as its presence says; larger envelopes are not sent to it.

    A fill may have `fill_bytes` bytes, or the planned size of its site, up to `ceiling_bytes`.
    """

    total_bytes: int
    fills: int
    fill_bytes: int
    ceiling_bytes: int

    @classmethod
    def of(cls, caps: EnvelopeCaps) -> PeerLimits:
        """Returns the limits that a node with these caps tells its peers."""
        return cls(caps.total_bytes, caps.fills, caps.fill_bytes, caps.ceiling_bytes)

    @classmethod
    def from_meta(cls, told: object) -> PeerLimits | None:
        """Reads what `meta` returns; None for anything else: nothing is known of the peer then."""
        if not isinstance(told, list) or len(told) != 4:
            return None
        return cls(*told) if all(type(n) is int and n >= 1 for n in told) else None

    def meta(self) -> list[int]:
        """Returns the limits as plain data, for presence."""
        return [self.total_bytes, self.fills, self.fill_bytes, self.ceiling_bytes]

    def too_large(self, envelope_bytes: int) -> str:
        """Why an envelope of more than `total_bytes` is refused, for messages."""
        return (
            f"an envelope of {envelope_bytes} bytes, the peer takes {self.total_bytes}:"
            " raise limits.caps.total_bytes on both sides"
        )

    def refuse(self, fills: Sequence[Fill], planned: Mapping[bytes, int]) -> str:
        """Returns why the peer would refuse the fills; "" where it takes them.

        `planned` maps destination suffixes to the planned sizes of their sites, in bytes.
        """
        if len(fills) > self.fills:
            return f"{len(fills)} fills, the peer takes {self.fills}"
        usual = self.fill_bytes
        for fill in fills:
            size = len(fill.payload)
            if size > usual:
                limit = max(usual, min(planned.get(fill.dest_suffix, 0), self.ceiling_bytes))
                if size > limit:
                    return (
                        f"a payload of {size} bytes, the peer takes {limit}:"
                        " raise limits.caps.fill_bytes on both sides"
                    )
        return ""


HOST_CAPS = EnvelopeCaps(total_bytes=16 * MIB, fills=256, fill_bytes=4 * MIB, suffix_bytes=4 * KIB)

# The ceiling is half of an edge node's ingress budget: the next envelope of planned size can arrive while one
# is worked on.
EDGE_CAPS = EnvelopeCaps(
    total_bytes=256 * KIB, fills=16, fill_bytes=64 * KIB, suffix_bytes=512, ceiling_bytes=4 * MIB
)

# Of bytes whose number was checked before: reads from a refused envelope whose answer it was to be.
UNBOUNDED_CAPS = EnvelopeCaps(*4 * (1 << 62,))

# For a peer that tells no limits: refuse only what no node would take.
UNTOLD_LIMITS = PeerLimits(
    HOST_CAPS.total_bytes, HOST_CAPS.fills, HOST_CAPS.ceiling_bytes, HOST_CAPS.ceiling_bytes
)
