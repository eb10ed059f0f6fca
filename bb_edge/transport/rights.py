"""Asks a broker what its access rules let a node do, and what they should not, for `bb-edge doctor`.

A peer's class is believed by the topic of its presence, so what one client may publish decides what a whole
federation believes. Each question is a message that changes nothing, whatever the answer is: envelopes go to
a peer that is nobody, presences are not retained, those of the node say down in an epoch that it never had,
and those of others are empty and of a peer that is nobody.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from bb_edge.ir.ids import PeerId
from bb_edge.transport.broker import Broker
from bb_edge.transport.topics import Topics
from bb_edge.transport.visitor import VisitError, Visitor, visit
from bb_edge.wire.envelope import Envelope, encode
from bb_edge.wire.presence import Presence, encode_presence

FAILURE = 0x80
"""The lowest reason code of a refused publish."""
ECHO_S = 2.0
"""Seconds in which a message to oneself comes back; the broker has answered what was published behind it."""
UNUSED_CLASS = "Doctor"
"""A class that no node is of: rules for any class grant it, rules for named ones do not."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What a broker lets a client do that logs in as one node.

    `lacking` is what the node needs and is refused, `excess` what it may and should not, `kept` what it is
    rightly refused. `unseen` are classes that it deals with and of which no presence came: nobody of them is
    there, or the rules keep theirs from the node. `told` is False over MQTT 3.1.1, which says no publisher
    that it is refused: `lacking` has the inbox alone then, and the others nothing.
    """

    lacking: tuple[str, ...]
    excess: tuple[str, ...]
    kept: tuple[str, ...]
    told: bool = True
    unseen: tuple[str, ...] = ()

    @property
    def any_rules(self) -> bool:
        """Whether the broker refuses anything at all."""
        return bool(self.lacking or self.kept)


def rights(
    broker: Broker,
    peer: PeerId,
    federation: str,
    classes: Iterable[str],
    others: Iterable[str] = (),
    version: str = "auto",
) -> Rights:
    """Tries what the peer may do, as a peer of `classes`; `others` are classes that it deals with.

    Raises VisitError where the broker cannot be reached or does not answer, BrokerFileError for certificates
    that are unfit.
    """
    own, others = sorted(set(classes)), sorted(set(others))
    foreign = sorted({*others, UNUSED_CLASS} - set(own))
    nobody, somebody = (PeerId.from_name(f"doctor-{secrets.token_hex(8)}") for _ in range(2))
    mine, theirs = Topics(federation, peer), Topics(federation, nobody)
    down = encode_presence(Presence(False, secrets.randbits(56) or 1))
    envelope = encode(Envelope(src_peer=peer.to_bytes()))
    to_nobody = mine.names(nobody)
    needs = {
        "send envelopes": (to_nobody.envelope.decode(), envelope),
        "send large envelopes in chunks": (to_nobody.chunk.decode(), b""),
        **{f"say that it is a {name}": (mine.presence(name, peer), down) for name in own},
    }
    must_not = {
        "send envelopes as another peer": (theirs.names(somebody).envelope.decode(), b""),
        **{f"say that it is a {name}": (mine.presence(name, peer), down) for name in foreign},
        **{
            f"say that another peer is a {name}": (mine.presence(name, nobody), b"")
            for name in (*own, *foreign)
        },
    }
    got: set[str] = set()
    seen: set[str] = set()
    to_itself = mine.names(peer).envelope.decode()

    def take(topic: str, _payload: bytes) -> None:
        got.add(topic)
        if not topic.endswith((f"/{peer}", f"/{nobody}")):  # those come of this visit
            seen.update(name for name in others if topic.startswith(mine.presence(name)[:-1]))

    with visit(broker, version, take) as visitor:
        for topic in (to_itself, to_nobody.envelope.decode(), *map(mine.presence, others)):
            _listen(visitor, topic)
        refused = _refused(visitor, {**needs, "": (to_itself, envelope)})
        lacking = [text for text in needs if text in refused]
        refused = _refused(visitor, must_not)
        visitor.until(lambda: to_itself in got, ECHO_S)
        told = visitor.protocol == "5"
    if to_itself not in got:
        lacking.append("read its inbox")
    if not told:
        return Rights(tuple(lacking), (), (), told=False)
    excess = [text for text in must_not if text not in refused]
    kept = [text for text in must_not if text in refused]
    (excess if to_nobody.envelope.decode() in got else kept).append("read the inboxes of others")
    unseen = tuple(name for name in others if name not in seen)
    return Rights(tuple(lacking), tuple(excess), tuple(kept), unseen=unseen)


def _listen(visitor: Visitor, topic: str) -> None:
    try:
        visitor.subscribe(topic)
    except VisitError:
        return  # a broker may refuse the subscription itself: nothing comes then, which says the same


def _refused(visitor: Visitor, questions: dict[str, tuple[str, bytes]]) -> set[str]:
    """Which of these publishes the broker refuses."""
    sent = {text: visitor.publish(topic, payload) for text, (topic, payload) in questions.items()}
    if not visitor.until(lambda: all(visitor.reason_of(mid) is not None for mid in sent.values())):
        raise VisitError("no answer to a publish", str(visitor.broker))
    return {text for text, mid in sent.items() if visitor.reason_of(mid).value >= FAILURE}
