from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir.address import (
    MAX_OP_NAME,
    SUFFIX_COMPONENT,
    SUFFIX_SITE,
    Address,
    AddressError,
    parse_suffix,
    peer_address,
    route_of,
    site_suffix,
)
from bb_edge.ir.ids import PeerId
from tests.aids.peers import numbered

PEER = PeerId.from_name("sensor-07")
names = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=40)
addresses = st.builds(
    Address,
    st.none() | st.builds(PeerId, st.integers(0, 2**64 - 1), st.binary(max_size=64)),
    st.none() | st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | names,
)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 64).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
)
def test_the_address_of_a_peer_is_one_without_other_segments(code, digest):
    peer = PeerId(code, digest)
    assert peer_address(peer) == Address(peer).to_bytes()
    assert Address.from_bytes(peer_address(peer)) == Address(peer)


@pytest.mark.parametrize("peer", [PEER, PeerId(0x1B, bytes(32)), PeerId(300, bytes(31)), numbered(3)])
def test_the_address_of_a_peer_of_another_hash(peer):
    assert peer_address(peer) == Address(peer).to_bytes()


def test_the_binary_form_is_that_of_semantics_1():
    address = Address(PEER, 17).with_component(3, "Backoff")
    peer = PEER.to_bytes()
    assert address.to_bytes() == b"".join(
        (
            *(b"\xa5\x03", bytes((len(peer),)), peer),
            *(b"\xe2\x01", (17).to_bytes(8, "big")),
            *(b"\xe3\x01", (3).to_bytes(4, "big")),
            *(b"\xe4\x01", b"\x07", b"Backoff"),
        )
    )
    assert address.to_text() == f"/p2p/{PEER}/site/17/component/3/op/Backoff"
    assert (Address.empty().to_bytes(), str(Address.empty())) == (b"", "/")


@given(addresses)
def test_round_trips(address):
    assert Address.from_bytes(address.to_bytes()) == address
    assert Address.from_bytes(memoryview(address.to_bytes())) == address
    assert Address.from_text(address.to_text()) == address


@given(addresses)
def test_every_truncation_is_an_error_or_a_shorter_address(address):
    data = address.to_bytes()
    for end in range(len(data)):
        try:
            shorter = Address.from_bytes(data[:end])
        except AddressError:
            continue
        assert shorter.to_bytes() == data[:end]


@given(st.binary(max_size=60) | st.builds(lambda a, b: a.to_bytes() + b, addresses, st.binary(max_size=8)))
def test_hostile_bytes_give_the_typed_error_or_the_same_bytes_again(data):
    for parse in (Address.from_bytes, parse_suffix):
        try:
            found = parse(data)
        except AddressError:
            continue
        if isinstance(found, Address):
            assert found.to_bytes() == data


@given(st.text(max_size=40) | st.builds(lambda a, b: str(a) + b, addresses, st.text(max_size=6)))
def test_hostile_texts_give_the_typed_error_or_an_address(text):
    try:
        address = Address.from_text(text)
    except AddressError:
        return
    assert Address.from_text(str(address)) == address


SITE = "e201" + "00" * 7 + "11"
COMPONENT = "e301" + "00000003"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("9901", r"byte 0: code 0x99"),
        (SITE + "04", r"byte 10: code 0x4"),
        (SITE + SITE, r"byte 10: /site/ \(code 0xe2\) out of order"),
        (COMPONENT + SITE, r"byte 6: /site/ \(code 0xe2\) out of order"),
        ("e201" + "00" * 7, "8 bytes announced, 7 are there"),
        ("e401" + "05" + "61", "5 bytes announced, 1 are there"),
        ("e401" + "ffffffff0f", "at most"),
        ("e401" + "00", "1 to 256 allowed"),
        ("e401" + "02" + "fffe", "not UTF-8"),
        ("e401" + "03" + "612f62", "slash"),
        ("a503" + "02" + "1220", "digest bytes announced"),
        ("e28100", "byte 0: overlong"),
        ("e2", "byte 0: truncated"),
    ],
)
def test_refusals_name_byte_and_code(data, says):
    with pytest.raises(AddressError, match=says):
        Address.from_bytes(bytes.fromhex(data))


@pytest.mark.parametrize(
    "text",
    [
        "p2p/x",
        "/site",
        "/site/",
        "/site/-1",
        "/site/x",
        "/site/²",
        f"/site/{2**64}",
        "/site/" + "9" * 5000,
        f"/component/{2**32}",
        "/component/1/site/1",
        "/site/1/site/1",
        "/dns/x",
        "/p2p/0",
        "/op/",
        "/op/a/b",
    ],
)
def test_texts_that_are_no_address(text):
    with pytest.raises(AddressError):
        Address.from_text(text)


@pytest.mark.parametrize(
    "parts",
    [
        {"site": -1},
        {"site": 2**64},
        {"component": -1},
        {"component": 2**32},
        {"op": ""},
        {"op": "a/b"},
        {"op": "\ud800"},
        {"op": "x" * (MAX_OP_NAME + 1)},
        {"op": "é" * (MAX_OP_NAME // 2) + "x"},
    ],
)
def test_parts_that_do_not_fit_their_segment(parts):
    with pytest.raises(AddressError):
        Address(**parts)


def test_bounds_that_fit():
    address = Address(site=2**64 - 1, component=2**32 - 1, op="x" * MAX_OP_NAME)
    assert Address.from_bytes(address.to_bytes()) == address


@given(st.integers(0, 2**64 - 1))
def test_site_suffixes_are_addresses(site):
    assert site_suffix(site) == Address(site=site).to_bytes()
    assert parse_suffix(site_suffix(site)) == (SUFFIX_SITE, site, None)
    assert parse_suffix(memoryview(site_suffix(site))) == (SUFFIX_SITE, site, None)


def test_a_component_suffix_names_its_op():
    assert parse_suffix(Address(component=0, op="Backoff").to_bytes()) == (SUFFIX_COMPONENT, 0, "Backoff")


@pytest.mark.parametrize(
    "address",
    [
        Address(),
        Address(PEER),
        Address(PEER, 17),
        Address(component=3),
        Address(op="x"),
        Address(site=1, component=1, op="x"),
    ],
)
def test_other_addresses_are_no_suffix(address):
    with pytest.raises(AddressError, match="suffix"):
        parse_suffix(address.to_bytes())


@pytest.mark.parametrize("site", [-1, 2**64])
def test_sites_beyond_64_bits(site):
    with pytest.raises(AddressError):
        site_suffix(site)


def test_a_route_says_where_a_suffix_leads_or_why_it_leads_nowhere():
    site = route_of(site_suffix(7))
    assert (site.site, site.component, site.op, site.error, site.for_site) == (7, 0, "", "", True)
    call = route_of(Address.empty().with_component(3, "Join").to_bytes())
    assert (call.site, call.component, call.op, call.error, call.for_site) == (-1, 3, "Join", "", False)
    cut = route_of(site_suffix(7)[:-1])
    assert (cut.site, cut.component, cut.op, cut.for_site) == (-1, 0, "", True)
    assert "8 bytes announced" in cut.error
    empty = route_of(b"")
    assert empty.site == -1 and not empty.for_site and "a suffix is" in empty.error


@given(st.binary(max_size=40))
def test_a_route_and_the_parsed_suffix_agree(suffix):
    route = route_of(suffix)
    try:
        kind, number, op = parse_suffix(suffix)
    except AddressError as error:
        assert (route.site, route.op, route.error) == (-1, "", str(error))
    else:
        expected = (number, 0, "") if kind == SUFFIX_SITE else (-1, number, op)
        assert (route.site, route.component, route.op) == expected and not route.error
