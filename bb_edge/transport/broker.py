"""The address of a broker, how to log in, and the limits of a connection."""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass, fields
from urllib.parse import unquote, urlsplit

from bb_edge.input_files import refuse_special
from bb_edge.ir.errors import BBError

KIB = 1024
MIB = 1024 * KIB
MAX_PACKET_BYTES = 268_435_455
"""The largest body of an MQTT packet, in bytes: its length is four digits of base 128."""


class BrokerUrlError(BBError):
    """The text is not a broker URL: ``mqtt://[user:password@]host[:port]`` or ``mqtts://…``."""


class BrokerFileError(BBError):
    """A certificate, key or authority file cannot be used; the message names the file."""


class MqttOptionError(BBError):
    """A field of MqttOptions is out of range; the message names the field and its range."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The address of a broker, and the credentials for it. Files are in PEM format."""

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def from_url(cls, url: str, **files: str | None) -> Broker:
        """Parses a URL; `files` are `ca_file`, `cert_file` and `key_file`.

        Raises BrokerUrlError for any other text, and for files that do not fit the URL.
        """
        hint = "for example mqtt://192.168.1.10:1883"
        if "?" in url or "#" in url:  # in a password, perhaps: nothing of it is shown
            raise BrokerUrlError(
                "a broker URL has no ? and no #", "broker", f"{hint}; in a password write %3F and %23"
            )
        try:
            parts = urlsplit(url)
        except ValueError as error:  # its text may quote the URL, with the password
            raise BrokerUrlError("its host is not well formed", "broker", hint) from error
        # A URL may hold a password, so no message repeats it whole.
        if "://" not in url:  # host:port, which would be split as scheme:path
            shown = url.rpartition("@")[2]
            raise BrokerUrlError(f"{shown!r} is not a broker URL", "broker", _with_scheme(shown) or hint)
        shown = f"{parts.netloc.rpartition('@')[2]}{parts.path.rpartition('@')[2]}"
        if parts.scheme:
            shown = f"{parts.scheme}://{shown}"
        try:
            port = parts.port
        except ValueError as error:
            raise BrokerUrlError(f"{shown!r}: {error}", "broker", hint) from error
        host = parts.hostname or ""
        bracketed = parts.netloc.rpartition("@")[2].startswith("[")
        sound = (_is_ipv6(host) if bracketed else _is_host(host)) and parts.path in ("", "/") and port != 0
        if parts.scheme not in ("mqtt", "mqtts") or not host or not sound:
            raise BrokerUrlError(f"{shown!r} is not a broker URL", "broker", hint)
        tls = parts.scheme == "mqtts"
        named = [name.removesuffix("_file") for name, value in files.items() if value is not None]
        if named and not tls:
            raise BrokerUrlError(
                f"{', '.join(named)} given for {shown!r}, which is not encrypted",
                "broker",
                "write mqtts://…",
            )
        if files.get("key_file") is not None and files.get("cert_file") is None:
            raise BrokerUrlError(
                "a key without a certificate", "broker", "give the certificate of the key as cert"
            )
        return cls(
            host,
            port or (8883 if tls else 1883),
            tls,
            _unquoted("user name", parts.username, hint),
            _unquoted("password", parts.password, hint),
            **files,
        )

    def __str__(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """The context that checks the broker's certificate and presents ours; None without TLS.

        TLS 1.2 is the oldest version that is accepted. Raises BrokerFileError where a file cannot be read or
        is not PEM, and FileRefused for a FIFO or device.
        """
        if not self.tls:
            return None
        for file in (self.ca_file, self.cert_file, self.key_file):
            if file is not None:
                refuse_special(file)
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        except (OSError, ssl.SSLError) as error:
            raise _unfit(str(self.ca_file), error, "give a readable file of certificates in PEM") from error
        if self.cert_file is not None:
            self._load_key(context, self.cert_file, self.key_file or self.cert_file)
        return context

    def _load_key(self, context: ssl.SSLContext, certificate: str, key: str) -> None:
        """Takes our certificate and its key. BrokerFileError; nobody is asked for the password of a key."""

        def no_password() -> str:
            raise BrokerFileError(
                f"the key {key} has a password, which nobody could enter here",
                "broker",
                f"write it without: openssl pkey -in {key} -out NEW.key, readable by the node alone",
            )

        names = certificate if key == certificate else f"{certificate}, {key}"
        try:
            context.load_cert_chain(certificate, key, no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                hint = "give the key with which this certificate was made as broker.key (--key)"
                raise BrokerFileError(f"{key} is not the key of {certificate}", "broker", hint) from error
            if key == certificate:
                hint = "give its key as broker.key (--key), or a file that holds both, in PEM"
                raise BrokerFileError(f"{certificate} holds no key that fits", "broker", hint) from error
            raise _unfit(names, error, "give readable PEM files") from error
        except OSError as error:
            raise _unfit(names, error, "give readable PEM files") from error


def _unfit(names: str, error: OSError, hint: str) -> BrokerFileError:
    return BrokerFileError(f"{names}: {error.strerror or error}", "broker", hint)


_HEX = re.compile("%(?![0-9A-Fa-f]{2})")
_MOST_HOST = 253
"""Characters of the longest name of a host: RFC 1035, section 2.3.4, without the length bytes."""


def _with_scheme(text: str) -> str:
    """What to write for a host, or a host and a port, that have no scheme; "" for any other text."""
    try:
        Broker.from_url(f"mqtt://{text}")
    except BrokerUrlError:
        return ""
    return f"write mqtt://{text}"


def _is_host(host: str) -> bool:
    """Whether a name could be looked up."""
    if not host.isprintable() or any(character.isspace() for character in host):
        return False
    try:
        return len(host.encode("idna")) <= _MOST_HOST and "%" not in host
    except UnicodeError:  # an empty label, or one of more than 63 characters
        return False


def _is_ipv6(host: str) -> bool:
    """Whether it is an IPv6 address, with a zone or without; in Python 3.10 `urlsplit` does not look."""
    try:
        socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except (OSError, ValueError):  # a NUL, or characters beyond ASCII
        return False
    return host.isprintable()


def _unquoted(what: str, text: str | None, hint: str) -> str | None:
    """Returns the text of a URL's part. BrokerUrlError, without the text, where a % means no character."""
    if not text:
        return None
    try:
        if _HEX.search(text) is None:
            return unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass
    raise BrokerUrlError(
        f"a % in the {what} is not followed by the two hex digits of a character in UTF-8",
        "broker",
        f"{hint}; write %25 for a %",
    )


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """Limits and times of one connection. Sizes are bytes, times seconds; all are at least 1.

    Limits that MQTT 5 knows are sent to the broker at CONNECT: it keeps to them, so that messages above them
    never reach this node.
    """

    # Silence after which a ping is sent; the broker gives the node up after 1.5 times as long. 30 s keeps the
    # entry of a home router's address translation alive (minutes at most), at two bytes per ping.
    keepalive_s: int = 30
    # How long the broker keeps the session (subscriptions, queued envelopes) of a node that is gone. An hour
    # is longer than a reboot or a lost uplink, and frees the broker of devices that never come back. MQTT 5.
    session_expiry_s: int = 3600
    # Envelopes that the broker may send to this node before one is acknowledged. 64 fill a link of 100 ms
    # round trip with 600 envelopes a second. MQTT 5.
    receive_maximum: int = 64
    # The largest envelope that is taken in, whole or in chunks. 16 MiB hold four million float32 parameters;
    # `bb-edge run` takes the limit of its node instead.
    max_envelope_bytes: int = 16 * MIB
    # The largest packet that is sent if the broker names no limit of its own; larger envelopes go in chunks.
    # The protocol's own maximum: a smaller one costs chunks for nothing.
    max_packet_bytes: int = MAX_PACKET_BYTES
    # Envelopes, and their bytes, that wait for the broker or for its acknowledgement; above it the oldest is
    # dropped. As many envelopes as the engine's own queue holds, and bytes for four of the largest.
    max_waiting: int = 10_000
    max_waiting_bytes: int = 64 * MIB
    # Envelopes that arrive in chunks at the same time, their bytes together, and how long one may make no
    # progress. Two of the largest envelopes fit at once; a sender that is silent for a minute has gone, and
    # sends the envelope from its start when it comes back.
    chunked_at_once: int = 8
    chunked_bytes: int = 32 * MIB
    chunked_age_s: int = 60

    def __post_init__(self) -> None:
        for spec in fields(self):
            value, most = getattr(self, spec.name), _HIGHEST.get(spec.name)
            low = 1024 if spec.name == "max_packet_bytes" else 1
            if type(value) is not int or value < low or (most is not None and value > most):
                upper = f" to {most}" if most is not None else " or more"
                raise MqttOptionError(
                    f"{spec.name} = {value!r} is out of range",
                    "MqttOptions",
                    f"give a whole number, {low}{upper}",
                )


_HIGHEST = {
    "keepalive_s": 65_535,
    "receive_maximum": 65_535,
    "session_expiry_s": 0xFFFFFFFE,
    "max_packet_bytes": MAX_PACKET_BYTES,
}
