"""Values as plain data and back, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.engine.plain import LEAF_BYTES, UnsavableError, dump, load, payload_bytes
from bb_edge.ir.address import Address
from bb_edge.ir.annotated import annotate, metadata_of
from bb_edge.ir.ids import PeerId
from bb_edge.ir.types import register_type
from bb_edge.ir.values import TRIGGER, Composite
from bb_edge.wire import cbor
from bb_edge.wire.codecs import forget_codec, register_codec
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
        Address(PEER, 7),
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


class Celsius:
    """A user's value."""

    def __init__(self, degrees: int) -> None:
        self.degrees = degrees


@pytest.fixture
def celsius():
    node = register_type("test.saved.Celsius")
    register_codec(node, lambda value: bytes((value.degrees,)), lambda data: Celsius(data[0]), Celsius)
    yield
    forget_codec(node)


def test_values_of_a_registered_type_come_back(celsius):
    again = there_and_back([Celsius(21)])
    assert isinstance(again, list) and type(again[0]) is Celsius and again[0].degrees == 21


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**200])
def test_integers_of_any_size_come_back(number):
    assert there_and_back(number) == number
    assert isinstance(dump(number), int) == (-(2**63) <= number < 2**64)


@pytest.mark.parametrize("dtype", [">f4", "<i2", "m8[s]", "S3"])
def test_arrays_keep_their_dtype_and_numbers_too(dtype):
    array = np.zeros((2, 2), dtype)
    again = there_and_back(array.T)
    assert isinstance(again, np.ndarray) and again.dtype.str == array.dtype.str
    if not dtype.startswith("S"):
        number = there_and_back(array[0, 0])
        assert isinstance(number, np.generic) and number.dtype == array[0, 0].dtype


def test_an_array_that_is_a_view_of_another_is_written_in_its_own_order():
    array = np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2].T
    np.testing.assert_array_equal(there_and_back(array), array)  # type: ignore[arg-type]


def test_what_says_nothing_about_itself_comes_back_without():
    assert len(dump(np.zeros(1))) == 4
    assert not metadata_of(there_and_back(np.zeros(1)))


def test_the_plain_forms():
    assert dump((1, None)) == ["t", 1, None]
    assert dump([True, "x"]) == ["l", True, "x"]
    assert dump({1: b"x"}) == ["d", [1, b"x"]]
    assert dump(PEER) == ["p", PEER.to_bytes()]
    assert dump(TRIGGER) == ["!"]
    assert dump(Cause(PEER, 1, 2)) == ["C", PEER.to_bytes(), 1, 2]
    assert dump(Composite(((1, 5),))) == ["c", [1, 5]]
    assert dump(np.float32(1)) == ["g", "<f4", b"\x00\x00\x80\x3f"]
    assert dump(np.ones(1, np.uint8)) == ["a", "|u1", [1], b"\x01"]
    assert dump(1 << 64) == ["i", "18446744073709551616"]


def test_errors_say_what_and_what_to_do():
    with pytest.raises(UnsavableError) as caught:
        dump((object(),))
    assert str(caught.value) == "snapshot: a object cannot be written down (register a codec for its type)"
    with pytest.raises(ValueError, match=r"^no value of kind '\?'$"):
        load(["?"])


@pytest.mark.parametrize(
    ("value", "charge"),
    [
        (np.zeros((2, 3), np.float32), 24),
        (b"abc", 3),
        (bytearray(4), 4),
        (memoryview(b"ab"), 2),
        ("text", 4),
        (7, LEAF_BYTES),
        (None, LEAF_BYTES),
        ((b"a", ("bc", 7)), 3 + LEAF_BYTES),
        (Composite(((1, b"abc"), (2, (np.zeros(1, np.int64), "x")))), 12),
    ],
)
def test_what_a_byte_budget_charges(value, charge):
    assert payload_bytes(value) == charge
