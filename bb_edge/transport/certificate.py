"""What a file of a certificate says: whose it is, and from when to when (X.509, RFC 5280 section 4.1).

The standard library reads certificates of connections, not of files; three fields need no more than this.
"""

from __future__ import annotations

import ssl
from calendar import timegm
from collections.abc import Iterator
from time import strptime
from typing import NamedTuple

from bb_edge.input_files import FileRefused, read_regular

_COMMON_NAME = b"\x55\x04\x03"  # the object identifier 2.5.4.3
_EXPLICIT_VERSION = 0xA0
_UTC_TIME = 0x17
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

_MAX_CERTIFICATES = 1 << 20
"""Bytes of a file of certificates; bundles of all public authorities have a quarter of that."""


class Certificate(NamedTuple):
    """The common name of a certificate's subject, and its validity in seconds since 1970; None: not known."""

    name: str | None = None
    begins_s: int | None = None
    ends_s: int | None = None

    @classmethod
    def of(cls, path: str) -> Certificate:
        """The first certificate in a PEM file; all fields are None where it cannot be read."""
        return next(cls._all(path), cls())

    @classmethod
    def last_of(cls, path: str) -> Certificate:
        """The certificate in a PEM file that ends last: a file of authorities serves until then.

        All fields are None where none can be read.
        """
        return max(cls._all(path), key=lambda found: found.ends_s or 0, default=cls())

    @classmethod
    def _all(cls, path: str) -> Iterator[Certificate]:
        """The certificates of a PEM file up to the first that cannot be read."""
        try:
            text = read_regular(path, _MAX_CERTIFICATES).decode("ascii", "replace")
            at = text.find(_BEGIN)
            while at >= 0:
                end = text.index(_END, at) + len(_END)
                yield cls._of_pem(text[at:end])
                at = text.find(_BEGIN, end)
        except (FileRefused, OSError, ValueError, IndexError):
            return

    @classmethod
    def _of_pem(cls, pem: str) -> Certificate:
        _, certificate, _ = _value(ssl.PEM_cert_to_DER_cert(pem), 0)
        _, signed, _ = _value(certificate, 0)
        fields = list(_values(signed))
        if fields[0][0] == _EXPLICIT_VERSION:
            del fields[0]
        # Serial number, signature, issuer, validity, subject.
        begins, ends = (_seconds(*when) for when in _values(fields[3][1]))
        return cls(_common_name(fields[4][1]), begins, ends)


def _common_name(subject: bytes) -> str | None:
    for _, names in _values(subject):
        for _, pair in _values(names):
            (_, kind), (_, name) = _values(pair)
            if kind == _COMMON_NAME:
                return name.decode()
    return None


def _seconds(tag: int, text: bytes) -> int:
    """A UTCTime (years 1950 to 2049) or a GeneralizedTime. Raises ValueError for others."""
    written = text.decode("ascii")
    if tag == _UTC_TIME:
        written = ("19" if written[:2] >= "50" else "20") + written
    return timegm(strptime(written, "%Y%m%d%H%M%SZ"))


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The values of a DER sequence or set: tag and content."""
    at = 0
    while at < len(data):
        tag, content, at = _value(data, at)
        yield tag, content


def _value(data: bytes, at: int) -> tuple[int, bytes, int]:
    """One DER value: tag, content, and where the next begins."""
    tag, length = data[at], data[at + 1]
    at += 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[at : at + count], "big")
        at += count
    return tag, data[at : at + length], at + length
