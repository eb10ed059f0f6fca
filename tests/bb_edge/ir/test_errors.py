from __future__ import annotations

import pickle

import pytest

from bb_edge.ir.address import AddressError
from bb_edge.ir.base58 import Base58Error
from bb_edge.ir.errors import AuthoringError, BBError, CompileError, InstallError, WireError
from bb_edge.ir.ids import PeerIdError
from bb_edge.ir.tensors import TensorError
from bb_edge.ir.type_protos import TypeProtoError
from bb_edge.ir.types import TypeRegistrationError
from bb_edge.ir.varint import VarintError


def test_an_error_says_what_where_and_what_to_do():
    error = BBError("slot is unbound", "Server/model", "bind it")
    assert (error.what, error.where, error.hint) == ("slot is unbound", "Server/model", "bind it")
    assert str(error) == "Server/model: slot is unbound (bind it)"
    assert str(BBError("slot is unbound")) == "slot is unbound"


def test_an_error_is_one_line():
    assert str(BBError("a\nb", "c\r\nd", "e\n")) == "c d: a b (e )"


def test_an_authoring_error_knows_the_author_s_line():
    error = AuthoringError("unknown port 'x'", file="digits.py", line=12)
    assert str(error) == "digits.py:12: unknown port 'x'"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.file, again.line) == (str(error), "digits.py", 12)


@pytest.mark.parametrize(
    "family",
    [
        *(AuthoringError, CompileError, InstallError, WireError, AddressError, Base58Error, PeerIdError),
        *(TensorError, TypeProtoError, TypeRegistrationError, VarintError),
    ],
)
def test_every_typed_error_has_one_root(family):
    assert issubclass(family, BBError)
    assert family.__name__.endswith("Error")
