"""Peers whose presence was lost on the way are found by calling the roll. No IO.

A broker hands a new subscriber all that is retained at once, and drops what its queue does not hold; asking
again brings the same part. So a node that was told of many peers publishes a call to each class that it
hears: all share the queue, so what was dropped may be of any of them. The peers of a called class say their
presence again, each at a moment of its own within the time that the call names: as long as it takes at
`PER_S` a second for twice as many as were heard. While a call brings somebody new, more may be there, and the
next one comes after a wait that doubles; two calls without news end it, for a minute at first, and ever
longer, up to an hour. Nodes that were told of few begin with that rest.

Who is new is told by what was heard in this connection, not by what the node's table of peers holds: that may
be full, and who finds no place in it has come all the same.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import Table
from bb_edge.wire import cbor

FEW = 20
"""Presences below which nothing is lost: mosquitto sends as many before it waits for an answer."""
PER_S = 400
"""Peers that answer in a second: mosquitto's queue holds 1,000 messages for a node that reads none."""
SPREAD_S = (1.0, 600.0)
"""Seconds over which the answers to a call may be spread. The longest is that of 120,000 peers."""
QUIET_S = 1.0
"""Seconds without a presence after which the broker has told what it holds, or all have answered."""
UNECHOED_S = 5.0
"""The same while the broker has not told what the node says of itself, which it does behind what it holds: a
slow link may pause, and a full queue drops that, too."""
WAIT_S = (5.0, 600.0)
"""Seconds between two calls while there are news: the first wait, doubling up to the longest."""
REST_S = (60.0, 3600.0)
"""Seconds after which the roll is called again, the first time and the longest: doubling in between.

A presence may have been lost while the node was connected, or hidden: what somebody else retains in its
place, and is larger than a node takes, is told to nobody, and its peer cannot know."""
ANSWER_S = 10.0
"""Seconds between two answers of one peer: whoever calls again and again is not answered more often."""
MAX_CALLED = 64
"""Classes that are counted apart; a program has a handful."""
MAX_CALL_BYTES = 64
HEARD_BITS = 1 << 19
"""Bits that count who was heard, 64 KiB: of the 120,000 peers of the longest spread, nine in ten are told
apart, and whether somebody new has come is seen long beyond that."""


class RollCallError(BBError):
    """Bytes that are not a call; the fault is the caller's."""


class State(enum.Enum):
    """Where a node is in finding out who is there."""

    RESTING = "resting"
    LISTENING = "listening"  # the broker tells what it holds
    CALLING = "calling"  # the peers of a class answer
    WAITING = "waiting"  # more may be there


class Event(enum.Enum):
    """What happens to it."""

    CONNECTED = "connected"
    TOLD_FEW = "told few"  # less than `FEW`
    TOLD_MANY = "told many"
    NEWS = "news"  # a call has brought somebody new, or is the first
    NO_NEWS = "no news"
    DUE = "due"


ROLL_CALL = Table(
    "roll call",
    State.RESTING,
    {
        (State.RESTING, Event.CONNECTED): State.LISTENING,
        (State.RESTING, Event.DUE): State.CALLING,
        (State.LISTENING, Event.CONNECTED): State.LISTENING,
        (State.LISTENING, Event.TOLD_FEW): State.RESTING,
        (State.LISTENING, Event.TOLD_MANY): State.CALLING,
        (State.CALLING, Event.CONNECTED): State.LISTENING,
        (State.CALLING, Event.NEWS): State.WAITING,
        (State.CALLING, Event.NO_NEWS): State.RESTING,
        (State.WAITING, Event.CONNECTED): State.LISTENING,
        (State.WAITING, Event.DUE): State.CALLING,
    },
)


class Heard:
    """Counts peers, each once, in memory that does not grow: two whose ids end alike count as one."""

    def __init__(self) -> None:
        self.count = 0
        self._bits = bytearray(HEARD_BITS // 8)

    def add(self, peer: PeerId) -> None:
        """Counts a peer, unless it was counted before."""
        number = int.from_bytes(peer.to_bytes()[-4:], "big") % HEARD_BITS
        at, bit = number >> 3, 1 << (number & 7)
        if not self._bits[at] & bit:
            self._bits[at] |= bit
            self.count += 1


class RollCall:
    """One node's calls, over the classes that it hears."""

    def __init__(self, call: Callable[[str, bytes], object], hears: Iterable[str] = ()) -> None:
        """`call(peer_class, payload)` publishes a call.

        `hears` are the classes that are called, together with those of which the node is told.
        """
        self._call = call
        self._hears = frozenset(hears)
        self.state = ROLL_CALL.start
        self._told: dict[str, int] = {}  # presences by class since the last call, or since the connection
        self._classes: tuple[str, ...] = ()
        self._at = 0.0  # when the state is over, in monotonic seconds
        self._quiet_s = QUIET_S
        self._wait_s = WAIT_S[0]
        self._rest_s = REST_S[0]
        self._heard = Heard()  # in this connection
        self._before = 0  # peers that were heard before the last call
        self._quiet_calls = 0

    def connected(self) -> None:
        """The broker begins to tell what it holds."""
        self.state = ROLL_CALL.next(self.state, Event.CONNECTED)
        self._told.clear()
        self._heard = Heard()
        # A broker that has told nothing has not begun: it tells a node at least of itself.
        self._at, self._wait_s, self._quiet_calls = math.inf, WAIT_S[0], 0
        self._quiet_s, self._rest_s = UNECHOED_S, REST_S[0]

    def echoed(self, now: float) -> None:
        """The broker has told what the node says of itself in this connection; `now` as below."""
        self._quiet_s = QUIET_S
        if self.state is State.LISTENING:
            self._at = now + QUIET_S

    def told(self, peer: PeerId, peer_class: str, now: float) -> None:
        """A peer's presence has come; `now` is in monotonic seconds, as below."""
        self._heard.add(peer)
        if peer_class in self._told or len(self._told) < MAX_CALLED:
            self._told[peer_class] = self._told.get(peer_class, 0) + 1
        if self.state is State.LISTENING:
            self._at = now + self._quiet_s
        elif self.state is State.CALLING and now > self._at - QUIET_S:
            self._at = now + QUIET_S  # they still come

    def tick(self, now: float) -> None:
        """Goes on where a state is over; once a second or so."""
        if now < self._at:
            return
        if self.state is State.LISTENING:
            self._classes = self._called()
            self._enter(Event.TOLD_MANY if self._classes else Event.TOLD_FEW, now)
        elif self.state is State.CALLING:
            self._quiet_calls = 0 if self._heard.count > self._before else self._quiet_calls + 1
            self._enter(Event.NO_NEWS if self._quiet_calls >= 2 else Event.NEWS, now)
        else:
            self._classes = tuple(sorted({*self._classes, *self._hears, *self._told}))
            if self._classes:
                self._enter(Event.DUE, now)
            else:
                self._rest(now)

    def _called(self) -> tuple[str, ...]:
        """The classes that are to be called, by what was told; none where it was few."""
        return tuple(sorted({*self._hears, *self._told})) if sum(self._told.values()) >= FEW else ()

    def _enter(self, event: Event, now: float) -> None:
        self.state = ROLL_CALL.next(self.state, event)
        if self.state is State.CALLING:
            self._before = self._heard.count
            spread_s = spread_of(self._before)
            self._at = now + spread_s + 2 * QUIET_S
            self._told.clear()
            for name in self._classes:
                self._call(name, encode_call(spread_s))
        elif self.state is State.WAITING:
            self._at = now + self._wait_s
            self._wait_s = min(self._wait_s * 2, WAIT_S[1])
        else:
            self._wait_s, self._quiet_calls = WAIT_S[0], 0
            self._rest(now)

    def _rest(self, now: float) -> None:
        self._at = now + self._rest_s
        self._rest_s = min(self._rest_s * 2, REST_S[1])


def spread_of(heard: int) -> float:
    """Seconds over which a call spreads the answers, for twice as many peers as were heard."""
    return min(max(2 * heard / PER_S, SPREAD_S[0]), SPREAD_S[1])


def encode_call(spread_s: float) -> bytes:
    """A call whose answers are spread over so many seconds."""
    return cbor.dumps({"spread_ms": round(spread_s * 1000)})


def decode_call(data: bytes) -> float:
    """The seconds over which the answers to a call are spread, within `SPREAD_S`; or RollCallError."""
    try:
        fields = cbor.loads(data, max_items=16, max_depth=2) if len(data) <= MAX_CALL_BYTES else None
    except cbor.CborError as error:
        raise RollCallError(error.what, "call") from error
    spread_ms = fields.get("spread_ms") if isinstance(fields, dict) else None
    if type(spread_ms) is not int or spread_ms < 0:
        raise RollCallError("expected a map with an unsigned integer `spread_ms`", "call")
    return min(max(spread_ms / 1000, SPREAD_S[0]), SPREAD_S[1])
