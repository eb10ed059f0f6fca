"""Ops of our own that make every type of the catalog usable: numbers, single peers, addresses."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.engine import steps
from bb_edge.engine.bus import KINDS, Bus
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.roles import TRIGGER

A, B, C = (PeerId.from_name(name) for name in "abc")


def emitted(bed, line, inputs, values, kind="x"):
    """What one op yields for these inputs."""
    b = bed.run(f'  {line}\n  syscall.AppEmit<name="x">({kind})', inputs, values)
    assert b.of(steps.OpFailed) == []
    (value,) = b.events("x")
    return value


def failure(bed, line, inputs, values):
    b = bed.run(f"  {line}", inputs, values)
    (failed,) = b.of(steps.OpFailed)
    return str(failed.error)


@pytest.mark.covers("syscall", "AsTensor")
@pytest.mark.parametrize(
    ("type_id", "to", "value", "dtype"),
    [
        ('"Scalar<F32>"', 1, 1.5, np.float32),
        ('"Scalar<F64>"', 11, 0.1, np.float64),
        ('"Scalar<F16>"', 10, 0.5, np.float16),
        ('"Scalar<U8>"', 2, 255, np.uint8),
        ('"Scalar<I32>"', 6, -7, np.int32),
        ("Timestamp", 7, 1_700_000_000_000_000_001, np.int64),
        ("EventKind", 7, Bus.PEER_UP, np.int64),
        ("CorrelationToken", 13, 2**64 - 1, np.uint64),
    ],
)
def test_as_tensor(bed, type_id, to, value, dtype):
    found = emitted(bed, f"x: Tensor = syscall.AsTensor<to={to}>(a)", f"a: {type_id}", {"a": value})
    assert (found.dtype, found.shape, found.item()) == (dtype, (), value)


@pytest.mark.covers("syscall", "AsScalar")
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8, np.int32])
def test_as_scalar(bed, shape, dtype):
    value = np.full(shape, 3, dtype)
    found = emitted(bed, 'x: "Scalar<F32>" = syscall.AsScalar(a)', "a: Tensor", {"a": value})
    assert found == 3 and type(found) is type(dtype(3).item())


def test_more_than_one_element_is_no_scalar(bed):
    line = 'x: "Scalar<F32>" = syscall.AsScalar(a)'
    text = failure(bed, line, "a: F32", {"a": np.zeros((2, 3), np.float32)})
    assert "expected one element, got 6 (shape [2, 3])" in text


@pytest.mark.covers("syscall", "Elapsed")
def test_elapsed(bed):
    body = """  start: Timestamp = syscall.Clock(go)
  slept: Trigger = syscall.Sleep<duration_ns=30>(go)
  end: Timestamp = syscall.Clock(slept)
  ns: I64[] = syscall.Elapsed(start, end)
  back: I64[] = syscall.Elapsed(end, start)
  syscall.AppEmit<name="ns">(ns)
  syscall.AppEmit<name="back">(back)"""
    b = bed.run(body, "go: Trigger", {"go": TRIGGER})
    (ns,), (back,) = b.events("ns"), b.events("back")
    assert (ns.dtype, ns.shape, int(ns), int(back)) == (np.int64, (), 30, -30)


@pytest.mark.covers("syscall", "PeerAt")
@pytest.mark.parametrize(("index", "peer"), [(0, A), (2, C), (-1, C), (-3, A)])
def test_peer_at(bed, index, peer):
    line = "x: PeerId = syscall.PeerAt(peers, i)"
    values = {"peers": (A, B, C), "i": np.asarray(index, np.int64)}
    assert emitted(bed, line, "peers: PeerIdVec, i: I64", values) == peer


@pytest.mark.parametrize(("peers", "index"), [((), 0), ((A,), 1), ((A,), -2)])
def test_a_peer_that_is_not_in_the_list_fails_the_op(bed, peers, index):
    values = {"peers": peers, "i": np.asarray(index, np.int64)}
    text = failure(bed, "x: PeerId = syscall.PeerAt(peers, i)", "peers: PeerIdVec, i: I64", values)
    assert f"no peer at {index}: the list has {len(peers)}" in text


@pytest.mark.covers("syscall", "PeerList", "PeerCount")
def test_lists_of_peers(bed):
    body = """  list: PeerIdVec = syscall.PeerList(a, b, a)
  n: I64[] = syscall.PeerCount(list)
  syscall.AppEmit<name="list">(list)
  syscall.AppEmit<name="n">(n)"""
    b = bed.run(body, "a: PeerId, b: PeerId", {"a": A, "b": B})
    assert b.events("list") == [(A, B, A)]
    assert [(v.dtype, v.shape, int(v)) for v in b.events("n")] == [(np.int64, (), 3)]


@pytest.mark.covers("address_book", "OwnPeer", "OwnAddresses", "AddressOf", "Drop")
def test_a_node_enters_itself_into_its_address_book(bed):
    body = """  me: PeerId = address_book.OwnPeer(go) {control_inputs=1}
  where: AddressVec = address_book.OwnAddresses()
  in: Trigger = address_book.InsertMany(me, where)
  known: PeerId = syscall.GateDispatch(me, in)
  found: AddressVec = address_book.Lookup(known)
  name: Multiaddress = address_book.AddressOf(me)
  syscall.AppEmit<name="found">(found)
  syscall.AppEmit<name="name">(name)
  gone: PeerId = syscall.GateDispatch(known, found)
  dropped: Trigger = address_book.Drop(gone)
  asked: PeerId = syscall.GateDispatch(me, dropped)
  nothing: AddressVec = address_book.Lookup(asked)"""
    b = bed.run(body, "go: Trigger", {"go": TRIGGER})
    own = Address.empty().with_peer(b.node.peer_id)
    assert b.events("found") == [(own,)], "where there is no other address, the one that names the node"
    assert b.events("name") == [own]
    (failed,) = b.of(steps.OpFailed)
    assert "no known address" in str(failed.error)


@pytest.mark.covers("address_book", "AddressAt", "AddressList")
def test_lists_of_addresses(bed):
    body = """  list: AddressVec = address_book.AddressList(a, b)
  last: Multiaddress = address_book.AddressAt(list, i)
  syscall.AppEmit<name="list">(list)
  syscall.AppEmit<name="last">(last)"""
    a, b = (Address.empty().with_peer(p) for p in (A, B))
    values = {"a": a.to_bytes(), "b": b.to_bytes(), "i": np.asarray(-1, np.int64)}
    found = bed.run(body, "a: Multiaddress, b: Multiaddress, i: I64", values)
    assert found.events("list") == [(a, b)]
    assert found.events("last") == [b]


def test_every_kind_of_framework_event_has_a_name():
    numbers = {n for name, n in vars(Bus).items() if name.isupper() and isinstance(n, int)}
    assert set(KINDS.values()) == numbers - {Bus.USER, Bus.CAPACITY}
