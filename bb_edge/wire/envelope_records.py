"""The parts of an envelope as Python values, and the reasons why one is refused."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from bb_edge.ir.address import Route
from bb_edge.ir.errors import BBError
from bb_edge.ir.varint import encoded as varint

NONE, REQUEST, RESPONSE = 0, 1, 2
"""Correlation kinds."""

SCHEMA_VERSION = 1


class EnvelopeErrorKind(enum.Enum):
    """Why an envelope is refused: always the sender's fault. Nothing of the envelope was stored."""

    TRUNCATED = "ends inside a field"
    MALFORMED = "is not protobuf, or says what cannot be"
    TOO_LARGE = "is too large"
    TOO_MANY_FILLS = "has too many fills"
    FILL_TOO_LARGE = "has too large a fill"
    SUFFIX_TOO_LARGE = "has too long a destination suffix"
    TOO_MANY_ADDRESSES = "has too many addresses"
    ADDRESS_TOO_LARGE = "has too long an address"
    SRC_PEER_TOO_LARGE = "has too long a source peer id"
    TOO_MANY_ACKS = "has too many acks"
    TOO_MANY_ACK_NUMBERS = "has an ack with too many numbers"
    TOO_MANY_RTT_REPORTS = "has too many round-trip reports"
    TOO_MANY_STRAY_FIELDS = "has too many unknown or repeated fields"
    FAILURE_TOO_LONG = "has a failure with too long a detail"
    UNKNOWN_CORRELATION = "has a correlation of an unknown kind"
    UNSUPPORTED_VERSION = "has a newer schema"


class EnvelopeError(BBError):
    """Bytes that are not an envelope, or exceed a cap."""

    def __init__(self, kind: EnvelopeErrorKind, detail: str = "") -> None:
        super().__init__(f"{kind.value}: {detail}" if detail else kind.value, "envelope")
        self.kind = kind
        self.detail = detail


_UNREAD = Route(error="not decoded")


@dataclass(slots=True)
class Fill:
    """A value for one site or one component op of the receiver; `payload` is empty where `trigger_only`.

    `route` is what `dest_suffix` names, in fills that `decode` gives.
    """

    dest_suffix: bytes = b""
    payload: bytes | memoryview = b""
    trigger_only: bool = False
    type_hash: int = 0
    route: Route = field(default=_UNREAD, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledges every number up to `up_to`, and those in `also`, of one epoch of the peer it goes to."""

    epoch: int
    up_to: int = 0
    also: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RttReport:
    """The round-trip time of one hop, in nanoseconds."""

    next_hop_site_id: int = 0
    chain_id: int = 0
    hop_index: int = 0
    srtt_ns: int = 0
    rttvar_ns: int = 0
    sample_count: int = 0


class FailureCode(enum.IntEnum):
    """Why a request gets no reply, as the asked node says. Peers may send codes of later versions."""

    OP_FAILED = 1
    """An op failed on the way to the reply."""
    STARVED = 2
    """The execution ended, and something that the reply needs had not come."""
    REFUSED = 3
    """The asked node does not take this request, now or later."""
    TOO_LARGE = 4
    """The reply is larger than the asker takes."""
    NOTHING = 5
    """The asked node has asked in turn, and nobody has answered it: it has nothing to reply with."""
    OUT_OF_TIME = 6
    """The time that the asker gave was over before the reply was there."""
    DECLINED = 7
    """The asked node does not train now, by its configuration; it may, later."""
    FAULT_HERE = 8
    """A component of this node, or its program, is at fault; nobody is sent that."""


FAILURE_DETAIL_BYTES = 200
"""The longest detail of a failure, in UTF-8: a line of a log."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The answer of a node that has no reply, and will have none. `code` is one of `FailureCode`'s."""

    code: int
    detail: str = ""

    @classmethod
    def of(cls, code: FailureCode, detail: str) -> Failure:
        """A failure with as much of the detail as it may hold."""
        cut = detail.encode(errors="replace")[:FAILURE_DETAIL_BYTES]
        return cls(code, cut.decode(errors="ignore"))

    def encoded(self) -> bytes:
        """The fields of the message."""
        detail = self.detail.encode()
        body = b"\x08" + varint(self.code) if self.code else b""
        return body + b"\x12" + varint(len(detail)) + detail if detail else body

    @staticmethod
    def read_detail(data: bytes) -> str:
        """The detail that these bytes are. EnvelopeError for more of them than there may be, or no UTF-8."""
        if len(data) > FAILURE_DETAIL_BYTES:
            most = f"{len(data)} bytes, {FAILURE_DETAIL_BYTES} at most"
            raise EnvelopeError(EnvelopeErrorKind.FAILURE_TOO_LONG, most)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise EnvelopeError(EnvelopeErrorKind.MALFORMED, "a failure that is not UTF-8") from error

    @property
    def name(self) -> str:
        """The name of the code; its number where this version has no name for it."""
        return FailureCode(self.code).name if self.code in _FAILURE_CODES else str(self.code)


_FAILURE_CODES = frozenset(FailureCode)

FURTHEST_NS = 1 << 62
"""The longest deadline that counts, 146 years: a longer one is cut, so that times stay within 64 bits."""


@dataclass(slots=True)
class Envelope:
    """What one node sends to another. Numbers are unsigned 64-bit; times relative nanoseconds, 0 for none.

    `seq` 0 means that the envelope has no number: it holds acks alone, or its sender neither wants acks nor
    minds repetition. `base` above 0 marks a durable envelope. `failure` stands in place of the fills of a
    reply. Empty byte strings and zeros are not written.
    """

    fills: Sequence[Fill] = field(default_factory=list)
    kind: int = NONE
    wire_req_id: int = 0
    remaining_deadline_ns: int = 0
    src_peer: bytes = b""
    src_addresses: tuple[bytes, ...] = ()
    dest_addresses: tuple[bytes, ...] = ()
    epoch: int = 0
    seq: int = 0
    acks: tuple[Ack, ...] = ()
    base: int = 0
    schema_version: int = SCHEMA_VERSION
    rtt_reports: tuple[RttReport, ...] = ()
    failure: Failure | None = None

    def deadline_after(self, now_ns: int) -> int:
        """Returns the deadline of an envelope that arrived at `now_ns`, in the same clock; 0 without one."""
        remaining = self.remaining_deadline_ns
        return now_ns + min(remaining, FURTHEST_NS) if remaining else 0
