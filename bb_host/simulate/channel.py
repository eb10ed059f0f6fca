"""Values between processes, whose long bytes are written and read as they are.

A round of many clients is some hundred bodies of parameters. As part of a pickle each of them would be there
three times on its way, in each process that it goes through.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.connection import Connection
from typing import Any

ASIDE = 1 << 14
"""Bytes from which an object of bytes goes beside the pickle: below, a message of its own costs more."""


class Channel:
    """One end of a pipe. Raises what `Connection` raises where the other end is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, value: object) -> None:
        """Sends a value; each of its long bytes once, wherever it is part of it."""
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        pickler.dump(value)
        self._connection.send_bytes(len(pickler.aside).to_bytes(8, "little") + buffer.getbuffer())
        for data in pickler.aside:
            self._connection.send_bytes(data)

    def recv(self) -> Any:
        """Waits for a value, and returns it."""
        message = self._connection.recv_bytes()
        aside = [self._connection.recv_bytes() for _ in range(int.from_bytes(message[:8], "little"))]
        return _Unpickler(io.BytesIO(memoryview(message)[8:]), aside).load()

    def close(self) -> None:
        """Closes this end."""
        self._connection.close()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.aside: list[bytes] = []
        self._places: dict[int, int] = {}  # by identity: `aside` keeps the objects, and so their numbers

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not bytes or len(obj) < ASIDE:
            return None
        place = self._places.setdefault(id(obj), len(self.aside))
        if place == len(self.aside):
            self.aside.append(obj)
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, aside: list[bytes]) -> None:
        super().__init__(file)
        self._aside = aside

    def persistent_load(self, pid: int) -> bytes:
        return self._aside[pid]
