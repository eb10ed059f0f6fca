"""Watchdogs restart what no longer answers: systemd restarts the process, the hardware the board."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from typing import Final, Protocol

from .errors import WatchdogError

_MAGIC_CLOSE: Final = b"V"
_WDIOC_SETTIMEOUT: Final = 0xC0045706
"""linux/watchdog.h: _IOWR('W', 6, int); the same number on x86 and ARM."""
MAX_STATUS_BYTES: Final = 256


class Watchdog(Protocol):
    """Something that acts unless it is petted in time.

    Pet it where work is done, never from a timer beside it.
    """

    @property
    def timeout_ns(self) -> int:
        """Return the nanoseconds after which it acts, 0 if unknown; pet at least twice in that time."""
        ...

    def pet(self) -> None:
        """Say that all is well. Raises :class:`WatchdogError`."""
        ...

    def close(self) -> None:
        """Stop watching, as far as the watchdog allows; once is enough."""
        ...


class SystemdNotifier:
    """The service manager's socket: readiness, status and, where the unit has WatchdogSec=, its watchdog.

    The messages are those of sd_notify(3). Nothing waits: a message that the socket does not accept now is an
    error.
    """

    __slots__ = ("_address", "_socket", "_timeout_ns")

    def __init__(self, address: str, timeout_ns: int = 0) -> None:
        """Open a socket for ``address``. Raises :class:`WatchdogError` for an impossible address."""
        if not address.startswith(("/", "@")):
            raise WatchdogError(
                f"NOTIFY_SOCKET={address!r} must be a path or an abstract name that starts with @"
            )
        # '@' stands for the NUL byte that begins an abstract name.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._timeout_ns = timeout_ns
        self._socket: socket.socket | None = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], pid: int | None = None) -> SystemdNotifier | None:
        """Return the notifier that the service manager offers this process, or None if there is none.

        ``WATCHDOG_PID`` names the process that should pet: a child that inherits the variables must not.
        Raises :class:`WatchdogError` where the variables make no sense.
        """
        address = environ.get("NOTIFY_SOCKET")
        if not address:
            return None
        micros = environ.get("WATCHDOG_USEC", "0")
        addressee = environ.get("WATCHDOG_PID", "")
        if not micros.isdecimal() or not (addressee.isdecimal() or not addressee):
            raise WatchdogError(
                f"WATCHDOG_USEC={micros!r}, WATCHDOG_PID={addressee!r}: expected decimal numbers"
            )
        if addressee and int(addressee) != (os.getpid() if pid is None else pid):
            micros = "0"
        return cls(address, int(micros) * 1000)

    @property
    def timeout_ns(self) -> int:
        """Return the unit's WatchdogSec=, 0 where it has none."""
        return self._timeout_ns

    def ready(self) -> None:
        """Tell that the service has started (Type=notify waits for this)."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Show a line in ``systemctl status``; longer than ``MAX_STATUS_BYTES`` it is cut."""
        line = " ".join(text.split()).encode()[:MAX_STATUS_BYTES].decode("utf-8", "ignore")
        self._send(f"STATUS={line}")

    def stopping(self) -> None:
        """Tell that the service is shutting down."""
        self._send("STOPPING=1")

    def pet(self) -> None:
        """Send WATCHDOG=1."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket; the unit's watchdog goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is None:
            raise WatchdogError(f"{message}: the notifier is closed")
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError as error:
            address = self._address.replace("\0", "@", 1)
            raise WatchdogError(
                f"{message} could not be sent to the service manager at {address}: {error}"
            ) from error


class HardwareWatchdog:
    """``/dev/watchdog``, which restarts the whole *board* when nobody pets it in time. Opening it starts it.

    ``timeout_s`` asks for another timeout (the driver may round it); without it the board's own stays.
    ``close`` asks it to stop; drivers with "nowayout" do not, and restart the board.
    """

    __slots__ = ("_fd", "_path", "_timeout_ns")

    def __init__(self, path: str | os.PathLike[str] = "/dev/watchdog", timeout_s: int | None = None) -> None:
        """Open and start the device. Raises :class:`WatchdogError`."""
        self._path = os.fspath(path)
        self._timeout_ns = 0
        self._fd = -1
        if timeout_s is not None and not 1 <= timeout_s <= 3600:
            raise WatchdogError(f"the watchdog timeout must be between 1 and 3600 s, got {timeout_s}")
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            advice = (
                "another process has it open (often systemd, with RuntimeWatchdogSec=)"
                if error.errno == errno.EBUSY
                else ""
            )
            raise WatchdogError(
                f"{self._path} cannot be opened: {error.strerror}. {advice}".rstrip(". ")
            ) from error
        if timeout_s is not None:
            self._set_timeout(timeout_s)

    def _set_timeout(self, timeout_s: int) -> None:
        try:
            answer = fcntl.ioctl(self._fd, _WDIOC_SETTIMEOUT, struct.pack("i", timeout_s))
        except OSError as error:
            self.close()
            raise WatchdogError(
                f"{self._path} does not accept a timeout of {timeout_s} s: {error.strerror}"
            ) from error
        self._timeout_ns = int(struct.unpack("i", answer)[0]) * 1_000_000_000

    @property
    def timeout_ns(self) -> int:
        """Return the timeout that the driver confirmed, 0 where nobody asked for one."""
        return self._timeout_ns

    def pet(self) -> None:
        """Write a byte to the device."""
        self._write(b"\0")

    def close(self) -> None:
        """Write the character that asks the driver to stop, and close the device."""
        if self._fd < 0:
            return
        try:
            self._write(_MAGIC_CLOSE)
        finally:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            raise WatchdogError(f"{self._path} is closed")
        try:
            os.write(self._fd, data)
        except OSError as error:
            raise WatchdogError(f"{self._path} cannot be petted: {error.strerror}") from error
