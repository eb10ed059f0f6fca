"""Who a broker takes this client for, and why a TLS connection fails, in words that say what to change."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator

from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.transport.broker import Broker
from bb_edge.transport.certificate import Certificate

_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's codes (X509_V_ERR_…) for a certificate whose authority is not among those that are trusted."""
_NOT_YET, _EXPIRED = 9, 10
_OTHER_HOST = frozenset({62, 64})

EXPIRES_SOON_S = 30 * 86400
"""Seconds before a certificate's end from which on a node says so."""

REPEAT_S = 600.0
"""Seconds between two lines about a broker that refuses a node for the same reason."""


_NO_TLS = (
    "does the broker run, where a proxy answers for it? is that a port for TLS? without TLS, write mqtt://"
)


def dial_fault(error: BaseException, broker: Broker) -> str:
    """Why a broker is not reachable, with what to change where its certificate is refused."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        broken = isinstance(error, ssl.SSLError | ConnectionResetError | EOFError)
        hint = alert_hint(broker, str(error)) or _NO_TLS
        return f"{error} ({hint})" if broker.tls and broken else str(error)
    code = error.verify_code
    hint = ""
    if code in _UNKNOWN_AUTHORITY:
        named = "is it the authority that signed the broker's certificate?"
        hint = f"broker.ca (--ca) is {broker.ca_file}: {named}" if broker.ca_file else ""
        hint = hint or "name the authority that signed the broker's certificate as broker.ca (--ca)"
    elif code in _OTHER_HOST:
        hint = f"name the broker by a host that its certificate lists, {broker.host} is not one"
    elif code == _EXPIRED:
        hint = "renew the broker's certificate, or set this machine's clock"
    elif code == _NOT_YET:
        hint = "set this machine's clock: the broker's certificate begins later"
    return f"certificate verify failed: {error.verify_message}{f' ({hint})' if hint else ''}"


def dial_hint(error: BaseException, broker: Broker) -> str:
    """What to look at where a broker is not reachable; empty where `dial_fault` says it."""
    at = f"{broker.host}, port {broker.port}"
    if isinstance(error, ssl.SSLError):
        return ""
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {at}: does the broker run, and is that its port?"
    if isinstance(error, socket.gaierror):
        return f"is {broker.host} the broker's name, and does this machine ask a DNS that knows it?"
    if isinstance(error, ConnectionResetError | EOFError):
        return ""
    return f"is this machine in a network from which {at} is reached, and does a firewall let it through?"


def expiry(broker: Broker, client: Certificate, authority: Certificate, now_s: float) -> list[str]:
    """What to say where the client's certificate or the authority's has ended, ends soon or begins later.

    Both are as in the files of `broker`; `now_s` is this machine's clock, in seconds since 1970.
    """
    own = f"the certificate {broker.cert_file} (broker.cert)"
    root = f"the authority {broker.ca_file} (broker.ca)"
    return [
        *_expiry(
            own,
            client,
            now_s,
            "brokers let nobody in with it (renew it, or set this machine's clock)",
            "renew it before, or the broker lets this node in no more",
        ),
        *_expiry(
            root,
            authority,
            now_s,
            "no broker passes as genuine (renew it, or set this machine's clock)",
            "add its successor to the file before, or no broker passes as genuine",
        ),
    ]


def _expiry(what: str, certificate: Certificate, now_s: float, ended: str, soon: str) -> Iterator[str]:
    begins_s, ends_s = certificate.begins_s, certificate.ends_s
    if ends_s is not None and ends_s <= now_s:
        yield f"{what} has ended on {_date(ends_s)}: {ended}"
    elif begins_s is not None and begins_s > now_s:
        yield f"{what} begins on {_date(begins_s)}: set this machine's clock"
    elif ends_s is not None and ends_s - now_s < EXPIRES_SOON_S:
        yield f"{what} ends on {_date(ends_s)}: {soon}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def alert_hint(broker: Broker, fault: str) -> str:
    """What to change where the broker ended TLS because of this client's certificate; else empty.

    `fault` is what the TLS library says, with the alert that came (RFC 8446, section 6.2).
    """
    fault = fault.lower()
    if broker.cert_file is None:
        wanted = "certificate required" in fault or "handshake failure" in fault
        return NO_CERTIFICATE if wanted else ""
    if "certificate expired" in fault:
        return f"renew {broker.cert_file} (broker.cert), or set the broker's clock"
    if "certificate revoked" in fault:
        return f"the broker has {broker.cert_file} (broker.cert) on its list of revoked ones"
    if any(alert in fault for alert in _REFUSED_CERTIFICATE):
        return f"does the broker trust the authority that signed {broker.cert_file} (broker.cert)?"
    return ""


NO_CERTIFICATE = "it wants a certificate of this client: give broker.cert and broker.key (--cert, --key)"
_REFUSED_CERTIFICATE = ("unknown ca", "bad certificate", "certificate unknown", "unsupported certificate")


_SMALL = "or is its limit for packets below a CONNECT with a will, some 300 bytes? mosquitto: max_packet_size"


def hang_up_hint(broker: Broker) -> str:
    """What may be wrong where a broker ends connections before it lets a node in, and says nothing."""
    if not broker.tls:
        return f" (is that a port for TLS? then write mqtts://; {_SMALL})"
    wants = "" if broker.cert_file is not None else "does it want a certificate? --cert and --key; "
    return f" ({wants}{_SMALL})"


class Refusals:
    """What is said of a broker that does not let a node in: at once, and then seldom.

    A node tries again for ever, and nothing changes before somebody gives it another password.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reason = ""
        self._count = 0  # refusals since the last line
        self._next_s = 0.0

    def line(self, reason: str, now_s: float) -> str:
        """What to log of one more refusal, with what to change; empty where it was said lately."""
        if reason != self._reason:
            self._reason, self._count, self._next_s = reason, 0, now_s
        self._count += 1
        if now_s < self._next_s:
            return ""
        told = f" ({self._count} times since it was last said)" if self._count > 1 else ""
        self._count, self._next_s = 0, now_s + REPEAT_S
        hint = login_hint(
            self._broker, reason, "broker.username, which is the peer id, and broker.password_file"
        )
        return f"broker {self._broker} refuses the connection: {reason}{told}{f' ({hint})' if hint else ''}"

    def over(self) -> None:
        """Forgets all: the broker has let the node in."""
        self._reason = ""


def login_hint(broker: Broker, reason: str, wanted: str) -> str:
    """What to change where the broker refuses this login; empty where it refuses something else.

    `wanted` is what to give where there is no login.
    """
    if not any(word in reason.lower() for word in ("authori", "password", "authentication")):
        return ""
    if broker.username is not None:
        if broker.password is None:
            return f"user {broker.username} has no password: give broker.password_file"
        return f"is it the password of user {broker.username}? the broker's file of passwords must have both"
    if broker.cert_file is not None:
        return f"does the broker let {known_as(broker) or 'the name of the certificate'} in?"
    return f"it wants a login: give {wanted}"


def known_as(broker: Broker) -> str | None:
    """The name by which the broker knows this client: of its certificate, else the user; None for neither."""
    if broker.cert_file is not None:
        return Certificate.of(broker.cert_file).name
    return broker.username


def node_login(broker: Broker) -> str | None:
    """The user name or the certificate's common name where that is a peer id: such a login is a node's.

    A broker that takes the user name for the client id ends the session of the node that is there.
    """
    names = (broker.username, None if broker.cert_file is None else known_as(broker))
    for name in filter(None, names):
        try:
            PeerId.from_text(name)
        except PeerIdError:
            continue
        return name
    return None


def stranger(broker: Broker, peer: PeerId) -> str:
    """What to say where the broker knows this client by another name than its peer id; else empty."""
    name = known_as(broker)
    if name is None or name == str(peer):
        return ""
    what = "certificate's common name" if broker.cert_file is not None else "user name"
    return (
        f"the broker knows this client as {name}, this node is {peer}: rules that go by name, as those of"
        f" bb-host acl do, refuse what it sends (is --peer, or peer of the configuration, misspelt? Else make"
        f" the {what} the peer id)"
    )
