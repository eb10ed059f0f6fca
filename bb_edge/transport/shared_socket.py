"""One socket, two users: paho for the protocol's handshakes, ourselves for the packets that carry envelopes.

paho makes the connection (TCP, TLS), says CONNECT, SUBSCRIBE and goodbye and keeps it alive. Its way of one
message, however, is a dozen system calls and as many locks, and it keeps whatever a broker sends before
anyone may refuse it. So paho is handed this object in the place of its socket: it reads the packets that it
is *granted*, whole, and what it writes goes into one queue with ours.
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
"""Pieces handed to one system call; Linux takes 1024, but nobody waits for so many."""
TLS_RECORD = 16 * 1024


class SharedSocket:
    """A connected, non-blocking stream socket with a queue of what is to be written."""

    __slots__ = ("_granted", "_pieces", "_sock", "_tls", "ended", "queued_bytes")

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
        """Whether the other side has closed, or the connection broke."""

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
        """Bytes read; 0 where there are none now, or the connection has ended."""
        try:
            count = self._sock.recv_into(room)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError:
            count = 0
        if not count:
            self.ended = True
        return count

    @property
    def pending(self) -> bool:
        """Whether TLS holds bytes that no poll will tell of."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.fileno() >= 0 and self._sock.pending() > 0

    def queue(self, piece: bytes | memoryview) -> None:
        """Bytes to be written; the caller looks at `queued_bytes` before it queues many."""
        self._pieces.append(piece)
        self.queued_bytes += len(piece)

    def flush(self) -> None:
        """Writes what the socket takes now."""
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
        except OSError:
            self.ended = True
            pieces.clear()
            self.queued_bytes = 0

    def _record(self) -> bytes | memoryview:
        """Small pieces joined to what one TLS record holds: each record costs a header and a cipher run."""
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
    """paho's client on a SharedSocket that `connector` makes; `shared` is there once it has."""

    connector: Callable[[], socket.socket]
    shared: SharedSocket | None = None

    def _create_socket(self) -> paho.SocketLike:
        # The one seam between paho's connecting and its protocol; the same in all of 2.x, and held by a test.
        self.shared = SharedSocket(self.connector())
        return self.shared


def connect(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    """A connected socket, its TLS handshake done. OSError (and ssl.SSLError, which is one) otherwise."""
    sock = socket.create_connection((host, port), timeout_s)
    if tls is None:
        return sock
    try:
        secure = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except (OSError, ValueError):
        sock.close()
        raise
    try:
        secure.do_handshake()
    except OSError:
        secure.close()
        raise
    return secure
