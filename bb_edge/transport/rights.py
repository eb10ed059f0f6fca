"""Asks a broker what its access rules let a node do, and what they should not, for `bb-edge doctor`.

A peer's class is believed by the topic of its presence, so what one client may publish decides what a whole
federation believes. Each question is a message that changes nothing, whatever the answer is: envelopes go to
a peer that is nobody, or are empty and from the node to itself; presences are not retained, those of the node
say down in an epoch that it never had, and those of others are empty and of a peer that is nobody. A roll is
called as nodes do it every hour: its peers say their presence once more, within ten minutes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from bb_edge.ir.ids import PeerId
from bb_edge.transport.broker import Broker
from bb_edge.transport.echo import in_one_chunk, to_itself
from bb_edge.transport.rollcall import SPREAD_S, encode_call
from bb_edge.transport.topics import Topics
from bb_edge.transport.visitor import VisitError, Visitor, visit
from bb_edge.wire.presence import Presence, encode_presence

FAILURE = 0x80
"""The lowest reason code of a refused publish."""
ECHO_S = 2.0
"""Seconds in which a message to oneself comes back; the broker has answered what was published behind it."""
SEND, SEND_CHUNKS = "send envelopes", "send large envelopes in chunks"
READ, READ_CHUNKS = "read its inbox", "read large envelopes that come in chunks"
HEAR_ITSELF = "hear its own presence"
UNUSED_CLASS = "Doctor"
"""A class that no node is of: rules for any class grant it, rules for named ones do not."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What a broker lets a client do that logs in as one node.

    `lacking` is what the node needs and is refused, `hampered` what it is refused and can do without for a
    while, `excess` what it may and should not, `kept` what it is rightly refused. `rules` are those that
    are missing, as mosquitto has them, in the order of `lacking` and `hampered`. `unheard` are its classes
    whose calls only others may make: whether it reads them was not tried. `told` is False over MQTT 3.1.1,
    which says no publisher that it is refused: `lacking` has what it does not read alone then.
    """

    lacking: tuple[str, ...]
    excess: tuple[str, ...]
    kept: tuple[str, ...]
    told: bool = True
    hampered: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()

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
    call = encode_call(SPREAD_S[1])
    empty = to_itself(peer)
    to_nobody, to_me = mine.names(nobody), mine.names(peer)
    inbox, chunks = to_me.envelope.decode(), to_me.chunk.decode()
    rolls = {name: mine.roll_call(name) for name in own}
    prefix = f"bb/{federation}"
    one_of = f"user {peer}: topic"
    needs = {
        SEND: (to_nobody.envelope.decode(), empty),
        SEND_CHUNKS: (to_nobody.chunk.decode(), b""),
        **{f"say that it is a {name}": (mine.presence(name, peer), down) for name in own},
    }
    wants = {f"call the roll of a {name}": (mine.roll_call(name), call) for name in others}
    calls_itself = {name: (rolls[name], call) for name in own if name not in others}
    must_not = {
        "send envelopes as another peer": (theirs.names(somebody).envelope.decode(), b""),
        **{f"say that it is a {name}": (mine.presence(name, peer), down) for name in foreign},
        **{
            f"say that another peer is a {name}": (mine.presence(name, nobody), b"")
            for name in (*own, *foreign)
        },
    }
    rules = {
        SEND: f"pattern write {prefix}/+/from/%u",
        SEND_CHUNKS: f"pattern write {prefix}/+/chunk/%u",
        READ: f"pattern read {prefix}/%u/from/+",
        READ_CHUNKS: f"pattern read {prefix}/%u/chunk/+",
        HEAR_ITSELF: f"pattern read {prefix}/presence/+/%u",
        **{f"say that it is a {name}": f"{one_of} write {mine.presence(name, peer)}" for name in own},
        **{f"call the roll of a {name}": f"{one_of} write {mine.roll_call(name)}" for name in others},
        **{_hears(name): f"{one_of} read {rolls[name]}" for name in own},
    }
    presences = {mine.presence(name, peer) for name in own}
    got: set[str] = set()
    with visit(broker, version, lambda topic, _payload: got.add(topic)) as visitor:
        for topic in (inbox, chunks, to_nobody.envelope.decode(), mine.own_presences, *rolls.values()):
            _listen(visitor, topic)
        got -= presences  # what was retained there
        to_self = {"": (inbox, empty), " ": (chunks, in_one_chunk(empty))}
        refused = _refused(visitor, {**needs, **wants, **calls_itself, **to_self})
        forbidden = _refused(visitor, must_not)
        told = visitor.protocol == "5"
        passed = {
            topic for text, (topic, _) in {**needs, **wants, **calls_itself}.items() if text not in refused
        }
        said, called = presences & passed, set(rolls.values()) & passed
        visitor.until(lambda: {inbox, chunks, *said, *called} <= got, ECHO_S)
    lacking = [text for text in needs if text in refused]
    lacking += [text for text, topic in ((READ, inbox), (READ_CHUNKS, chunks)) if topic not in got]
    hampered = [text for text in wants if text in refused]
    hampered += [HEAR_ITSELF] if told and said - got else []
    hampered += [_hears(name) for name in own if told and rolls[name] in called - got]
    missing = tuple(rules[text] for text in (*lacking, *hampered))
    if not told:
        return Rights(tuple(lacking), (), (), told=False, hampered=tuple(hampered), rules=missing)
    excess = [text for text in must_not if text not in forbidden]
    kept = [text for text in must_not if text in forbidden]
    (excess if to_nobody.envelope.decode() in got else kept).append("read the inboxes of others")
    unheard = tuple(name for name in own if rolls[name] not in called)
    return Rights(tuple(lacking), tuple(excess), tuple(kept), True, tuple(hampered), missing, unheard)


def _hears(name: str) -> str:
    return f"hear when the roll of a {name} is called"


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
