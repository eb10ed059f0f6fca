"""A socket that paho and this package share: paho for handshakes, we for packets that carry envelopes.

paho makes the connection (TCP, TLS), sends CONNECT, SUBSCRIBE and DISCONNECT, and keeps the connection alive.
For one message, however, it makes a dozen system calls and takes as many locks, and it stores whatever a
broker sends before anybody can refuse it. So paho gets a SharedSocket instead of its socket: it reads the
packets that it is granted, whole, and what it writes goes into the same queue as our packets.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable
from itertools import islice

import paho.mqtt.client as paho

PIECES_AT_ONCE = 64
"""Buffers per system call. Linux takes 1024, but the broker's window rarely lets more than 64 wait."""
TLS_RECORD = 16 * 1024
"""Bytes of the largest TLS record (RFC 8446, section 5.1)."""


class SharedSocket:
    """A connected, non-blocking stream socket with a queue of what is to be written."""

    __slots__ = ("_granted", "_pieces", "_sock", "_tls", "ended", "fault", "queued_bytes")

    def __init__(self, sock: socket.socket) -> None:
        # Without it a QoS 1 round trip takes 88 ms instead of 0.25 ms (Nagle against delayed
        # acknowledgements).
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._pieces: deque[bytes | memoryview] = deque()
        self._granted = b""
        self.queued_bytes = 0
        self.ended = False
        """Whether the other side has closed the connection, or it broke."""
        self.fault = ""
        """How it broke, in the system's words; empty where the other side closed it."""

    # --- paho's side: the methods of its SocketLike ------------------------------------------------------

    def recv(self, buffer_size: int) -> bytes:
        granted = self._granted
        if granted:
            self._granted = granted[buffer_size:]
            return granted[:buffer_size]
        if self.ended:
            return b""
        raise BlockingIOError

    def send(self, buffer: bytes | bytearray) -> int:
        self.queue(bytes(buffer))
        self.flush()
        return len(buffer)

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(flag)

    # --- our side --------------------------------------------------------------------------------------

    def grant(self, packet: bytes) -> None:
        """Lets paho read one packet."""
        self._granted += packet

    def read_into(self, room: memoryview) -> int:
        """Reads into `room`, and returns the number of bytes: 0 if there are none or the connection ended."""
        try:
            count = self._sock.recv_into(room)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            self._broke(error)
            return 0
        if not count:
            self.ended = True
        return count

    @property
    def pending(self) -> bool:
        """Whether TLS holds decrypted bytes, which `poll` does not report."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.fileno() >= 0 and self._sock.pending() > 0

    def queue(self, piece: bytes | memoryview) -> None:
        """Queues bytes for writing; the caller bounds the queue by `queued_bytes`."""
        self._pieces.append(piece)
        self.queued_bytes += len(piece)

    def flush(self) -> None:
        """Writes as much as the socket takes now."""
        pieces = self._pieces
        try:
            while pieces:
                if self._tls:
                    sent = self._sock.send(self._record())
                elif len(pieces) == 1:
                    sent = self._sock.send(pieces[0])
                else:
                    sent = self._sock.sendmsg(list(islice(pieces, PIECES_AT_ONCE)))
                self._sent(sent)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._broke(self._alert() or error)
            pieces.clear()
            self.queued_bytes = 0

    def _broke(self, error: OSError) -> None:
        self.ended = True
        self.fault = self.fault or error.strerror or str(error)

    def _alert(self) -> OSError | None:
        """Why the other side has ended TLS, where it said so before writing failed."""
        try:
            if self._tls:
                self._sock.recv(1)
        except ssl.SSLError as error:
            return error if "ALERT" in (error.reason or "") else None
        except OSError:
            pass
        return None

    def _record(self) -> bytes | memoryview:
        """Joins small pieces to one TLS record: each record costs a header and a run of the cipher."""
        first = self._pieces[0]
        if len(first) >= TLS_RECORD or len(self._pieces) == 1:
            return first
        return b"".join(islice(self._pieces, PIECES_AT_ONCE))[:TLS_RECORD]

    def _sent(self, count: int) -> None:
        self.queued_bytes -= count
        pieces = self._pieces
        while count:
            first = pieces[0]
            if count < len(first):
                pieces[0] = memoryview(first)[count:]
                return
            count -= len(first)
            pieces.popleft()


class EnvelopeClient(paho.Client):
    """paho's client on a SharedSocket.

    `connector` makes the connected socket; `shared` is None until it has.
    """

    connector: Callable[[], socket.socket]
    shared: SharedSocket | None = None

    def _create_socket(self) -> paho.SocketLike:
        # paho calls this between its connecting and its protocol. All of 2.x have it; a test checks that.
        self.shared = SharedSocket(self.connector())
        return self.shared


def connect(
    host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None, patience: int = 1
) -> socket.socket:
    """Connects a socket, TLS handshake included, which may take `patience` times as long.

    Raises OSError, of which ssl.SSLError is a subclass; TimeoutError where one of them took too long.
    """
    sock = socket.create_connection((host, port), timeout_s)
    if tls is None:
        return sock
    try:
        secure = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except (OSError, ValueError):
        sock.close()
        raise
    try:
        secure.settimeout(timeout_s * patience)
        secure.do_handshake()
    except OSError:
        secure.close()
        raise
    return secure
