"""Which peers run a program that goes with this node's."""

from __future__ import annotations

import pytest

from bb_edge.wire.peers import Presence, decode_presence, encode_presence
from bb_edge.wire.programs import MAX_ACCEPTED, MAX_CONTRACTS, Kinship, ProgramClaim, pair

OLD, NEW, THIRD = b"o" * 32, b"n" * 32, b"t" * 32
TALK = {pair("Server", "Client"): b"c" * 16}
SERVER = ProgramClaim(NEW, frozenset(), TALK)


def kinship(server, client):
    return server.kinship(("Server",), client, ("Client",))


@pytest.mark.parametrize(
    "client, expected",
    [
        (ProgramClaim(NEW, frozenset(), TALK), Kinship.SAME),
        (None, Kinship.UNTOLD),
        (ProgramClaim(), Kinship.UNTOLD),
        (ProgramClaim(OLD, frozenset(), TALK), Kinship.OTHER_PROGRAM),
        (ProgramClaim(OLD, frozenset([NEW]), TALK), Kinship.ACCEPTED),
        (ProgramClaim(OLD, frozenset([THIRD]), TALK), Kinship.OTHER_PROGRAM),
        (ProgramClaim(OLD, frozenset([NEW]), {pair("Client", "Server"): b"x" * 16}), Kinship.OTHER_CONTRACT),
        (ProgramClaim(OLD, frozenset([NEW]), {}), Kinship.OTHER_CONTRACT),
    ],
)
def test_a_peer_is_judged_by_program_and_contract(client, expected):
    assert kinship(SERVER, client) is expected


def test_either_side_may_list_the_other():
    assert kinship(ProgramClaim(NEW, frozenset([OLD]), TALK), ProgramClaim(OLD, frozenset(), TALK)).talks
    assert not kinship(SERVER, ProgramClaim(OLD, frozenset(), TALK)).talks


def test_classes_that_never_talk_need_no_contract():
    assert SERVER.kinship(("Server",), ProgramClaim(OLD, frozenset([NEW]), {}), ("Monitor",)).talks


def test_a_claim_travels_in_a_presence():
    claim = ProgramClaim(NEW, frozenset([OLD, THIRD]), TALK)
    sent = encode_presence(Presence(True, 7, ("Server",), (), {**claim.meta(), "name": "hub"}))
    assert ProgramClaim.from_meta(decode_presence(sent).meta) == claim


def test_an_artifact_without_a_program_claims_nothing():
    assert ProgramClaim().meta() == {}
    assert ProgramClaim.from_meta({}) is None


@pytest.mark.parametrize(
    "meta",
    [
        {"program": "text"},
        {"program": NEW, "accepts": "all"},
        {"program": NEW, "accepts": [b"x"] * (MAX_ACCEPTED + 1)},
        {"program": NEW, "accepts": ["text"]},
        {"program": NEW, "contracts": [b"x"]},
        {"program": NEW, "contracts": {"a.b": 1}},
        {"program": NEW, "contracts": {str(n): b"x" for n in range(MAX_CONTRACTS + 1)}},
    ],
)
def test_nonsense_is_no_claim(meta):
    assert ProgramClaim.from_meta(meta) is None
