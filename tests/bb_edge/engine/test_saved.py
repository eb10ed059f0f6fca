"""Values as plain data and back, bit for bit (semantics §9)."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.engine.saved import UnsavableError, dump, load
from bb_edge.ir.address import Address
from bb_edge.ir.annotated import annotate, metadata_of
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER, Composite
from bb_edge.wire import cbor
from bb_edge.wire.outbox import Cause

PEER = PeerId.from_name("somebody")


def there_and_back(value: object) -> object:
    return load(cbor.loads(cbor.dumps(dump(value)), max_items=1000, max_depth=16))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -1,
        1.5,
        "text",
        b"bytes",
        1 << 80,
        -(1 << 63) - 1,
        (1, (2, "x")),
        [1, [2, ()]],
        {"a": 1, (1, 2): [3]},
        PEER,
        Address.empty().with_peer(PEER).with_site(7),
        Cause(PEER, 3, 4),
        Composite(((1, 5), (2, "x"))),
    ],
    ids=repr,
)
def test_a_value_comes_back(value):
    again = there_and_back(value)
    assert again == value
    assert type(again) is type(value)


def test_a_trigger_is_the_one_trigger():
    assert there_and_back(TRIGGER) is TRIGGER


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_buffers_come_back_as_bytes(kind):
    assert there_and_back(kind(b"abc")) == b"abc"


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "f8", "U3"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_come_back_bit_for_bit_writable_and_of_their_own(dtype, shape):
    array = np.zeros(shape, dtype)
    array[...] = 1
    again = there_and_back(array)
    assert isinstance(again, np.ndarray)
    assert again.dtype == array.dtype and again.shape == array.shape
    assert again.tobytes() == array.tobytes()
    assert again.flags.writeable and again.base is None


def test_not_a_number_keeps_its_bits():
    array = np.array([0x7FC01234, 0xFF800001], np.uint32).view(np.float32)
    again = there_and_back(array)
    assert isinstance(again, np.ndarray)
    assert again.tobytes() == array.tobytes()


def test_numpy_numbers_keep_their_type():
    again = there_and_back(np.float32(0.1))
    assert type(again) is np.float32 and again == np.float32(0.1)


def test_what_an_array_says_about_itself_comes_along():
    array = annotate(np.zeros(2, np.float32), {"quant": "7"})
    assert dict(metadata_of(there_and_back(array))) == {"quant": "7"}


def test_what_has_no_written_form_is_named():
    with pytest.raises(UnsavableError, match="a object cannot be written down"):
        dump(object())
    with pytest.raises(UnsavableError):
        dump(np.array([object()], dtype=object))


@pytest.mark.parametrize("plain", [["?"], [], [7, 1], ["a", "f4"], ["p", b"x"]])
def test_anything_else_is_refused(plain):
    from bb_edge.ir.errors import BBError

    with pytest.raises((ValueError, TypeError, LookupError, BBError)):
        load(plain)
