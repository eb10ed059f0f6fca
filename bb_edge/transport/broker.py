"""Where a broker is, how a node is let in, and what the connection is allowed to cost."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, fields
from urllib.parse import unquote, urlsplit

from bb_edge.ir.errors import BBError

KIB = 1024
MIB = 1024 * KIB
MAX_PACKET_BYTES = 268_435_455
"""The largest body of an MQTT control packet: a length of four digits to the base 128."""


class BrokerUrlError(BBError):
    """Not a broker address: ``mqtt://[user:password@]host[:port]`` or ``mqtts://…``."""


class BrokerFileError(BBError):
    """A certificate, key or authority that cannot be read; names the file."""


class MqttOptionError(BBError):
    """A limit of the connection that cannot be: names the field and its range."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the broker is and how to be let in. Files are PEM."""

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
        """Parses a URL; `files` are ca_file, cert_file and key_file. BrokerUrlError otherwise."""
        parts = urlsplit(url)
        hint = "for example mqtt://192.168.1.10:1883"
        # A URL may hold a password, so no message repeats it whole.
        shown = f"{parts.netloc.rpartition('@')[2]}{parts.path.rpartition('@')[2]}"
        if parts.scheme:
            shown = f"{parts.scheme}://{shown}"
        try:
            port = parts.port
        except ValueError as error:
            raise BrokerUrlError(f"{shown!r}: {error}", "broker", hint) from error
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path not in ("", "/"):
            raise BrokerUrlError(f"{shown!r}", "broker", hint)
        tls = parts.scheme == "mqtts"
        given = [name for name, value in files.items() if value is not None]
        if given and not tls:
            raise BrokerUrlError(
                f"{', '.join(name.removesuffix('_file') for name in given)} given for {shown!r}, which is not"
                " encrypted",
                "broker",
                "write mqtts://…",
            )
        if files.get("key_file") is not None and files.get("cert_file") is None:
            raise BrokerUrlError("a key without a cert", "broker", "give the certificate that it belongs to")
        return cls(
            parts.hostname,
            port or (8883 if tls else 1883),
            tls,
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else None,
            **files,
        )

    def __str__(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """What checks the broker's certificate and shows our own; None without TLS.

        Raises BrokerFileError where a file is missing or is not what it should be.
        """
        if not self.tls:
            return None
        name = self.ca_file
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert_file is not None:
                name = self.cert_file if self.key_file is None else f"{self.cert_file}, {self.key_file}"
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise BrokerFileError(
                f"{name}: {getattr(error, 'strerror', None) or error}",
                "broker",
                "PEM files, key without password",
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """Limits and times of one connection. Sizes are bytes, times seconds; all are at least 1.

    What MQTT 5 can say to the broker is said there as well: then it keeps to the limit, and messages above it
    cost this node nothing.
    """

    # Silence after which a ping is sent; the broker gives the node up after one and a half of it.
    keepalive_s: int = 30
    # How long the broker keeps the session (subscriptions, queued envelopes) of a node that is gone. MQTT 5.
    session_expiry_s: int = 3600
    # Envelopes that the broker may have under way to this node, unacknowledged. MQTT 5.
    receive_maximum: int = 64
    # The largest envelope that is taken in, whole or in chunks.
    max_envelope_bytes: int = 16 * MIB
    # The largest packet sent where the broker names no limit of its own; larger envelopes go in chunks.
    max_packet_bytes: int = MAX_PACKET_BYTES
    # Envelopes, and their bytes, that wait for the broker or its acknowledgement; beyond it the oldest goes.
    max_waiting: int = 10_000
    max_waiting_bytes: int = 64 * MIB
    # Envelopes that arrive in chunks, at once; their bytes together; and how long one may stand still.
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
                    f"{spec.name} = {value!r}", "MqttOptions", f"a whole number, {low}{upper}"
                )


_HIGHEST = {
    "keepalive_s": 65_535,
    "receive_maximum": 65_535,
    "session_expiry_s": 0xFFFFFFFE,
    "max_packet_bytes": MAX_PACKET_BYTES,
}
