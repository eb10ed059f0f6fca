"""What nodes keep until their next turn lies in a file: parameters, rows, and answers that may go again.

A worker's nodes run one after the other, and each holds all that a device holds. What of it is large is
mapped from a file without a name of its own in the process's memory: pages come back as they are looked at,
with the same bits, and once a node has had its turn they are let go of. They are the system's then: in its
page cache as long as there is room, else on disk.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_host.simulate.lying import Lying

if TYPE_CHECKING:
    from collections.abc import Callable

    from bb_edge.ir.tensors import Array
    from bb_edge.wire.bodies import Body

FROM = 1 << 13
"""Bytes from which something goes aside: two pages. Of less, what lies aside is hardly more than what the
tables about it take."""

SEGMENT = 1 << 24
"""Bytes by which the file grows at least: each piece is a mapping, and a process may have 65,530 of them."""

AROUND = 1 << 16
"""Bytes that Linux brings around one that is read (`fault_around_bytes`)."""

TAIL = 512
"""Bytes behind each body for what else its envelope says: some sixty, and more with acknowledgements."""

IN_MEMORY = 1 << 20
"""Bytes of bodies, and as many of parameters, that stay in a worker's memory before others go aside. To write
a body to the file, and to have pages come back, takes an eighth of a small client's round."""

_CAN = hasattr(os, "posix_fallocate") and hasattr(mmap, "MADV_DONTNEED")


class _Region(weakref.ref["Array"]):
    """Where an array lies, as long as it lives; with what is called with the region when it is gone.

    A `weakref.finalize` beside a tuple would be five times as large, and each client has two regions.
    """

    __slots__ = ("at", "begins", "ended", "name", "owner", "read", "segment", "size")

    def __new__(
        cls, array: Array, gone: Callable[[_Region], None], *_: object, owner: object = None
    ) -> _Region:
        return super().__new__(cls, array, gone)

    def __init__(
        self,
        array: Array,
        gone: Callable[[_Region], None],
        segment: mmap.mmap,
        begins: int,
        at: int,
        size: int,
        owner: object = None,
    ) -> None:
        """`owner` is kept as long as the array: what it is a part of."""
        super().__init__(array, gone)  # type: ignore[call-arg]
        self.name, self.segment, self.begins, self.at, self.size = id(array), segment, begins, at, size
        self.owner = owner
        self.ended = False  # something was written behind its body
        self.read = False  # a receiver has both of them

    def leave(self) -> None:
        """Its pages are let go of, and those of its neighbours that have come with them."""
        start, end = max(self.at - AROUND, 0), min(self.at + self.size + AROUND, len(self.segment))
        self.segment.madvise(mmap.MADV_DONTNEED, start, end - start)


class _Kept(weakref.ref["Array"]):
    """A body of `size` bytes that stays in memory, as long as its array lives; with what is called when that
    is gone.
    """

    __slots__ = ("size",)

    size: int


class Aside:
    """Memory of one worker that lies in a file of its own.

    What finds no room there stays in memory, because the disk is full or the system cannot let go of pages:
    `array` and `keep` return None then, and so they do for what is small.
    """

    REMEMBERED: ClassVar[int] = 4
    """Bodies that `keep` knows again: one is given to a node and to the network, one after the other."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # Without a name it is gone with its processes, however they end. Linux still opens it for others.
        held = Path(f"/proc/{os.getpid()}/fd/{self._file}")
        if held.exists():
            path.unlink()
            path = held
        self.path = path
        self._end = 0
        self._open: tuple[mmap.mmap, int, int] | None = (
            None  # the last segment, where it begins, what is taken
        )
        self._free: dict[int, list[tuple[mmap.mmap, int, int]]] = {}  # by size: segment, its beginning, place
        self._regions: dict[int, _Region] = {}  # by the identity of their arrays, as long as those live
        self._joined: dict[int, _Region] = {}  # the same of what `joined` has returned
        # Made once: each region has one.
        self._let_go, self._read, self._drop = self._give_back, self._was_read, self._dropped
        self._known: OrderedDict[int, tuple[bytes, memoryview]] = OrderedDict()
        self._kept: dict[int, _Kept] = {}  # by identity: a reference is as hashable as what it refers to
        self._kept_bytes = 0
        self._full = not _CAN

    def array(self, nbytes: int) -> Array | None:
        """Returns `nbytes` uint8 that may be written to, whose memory is free once nobody looks at them."""
        if nbytes < FROM or self._full:
            return None
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        place = self._taken(size)
        if place is None:
            return None
        segment, begins, at = place
        found: Array = np.frombuffer(segment, np.uint8, nbytes, at)
        self._regions[id(found)] = _Region(found, self._let_go, segment, begins, at, size)
        return found

    def keep(self, body: Body) -> memoryview | None:
        """Returns bytes that lie here, equal to these; for the same object the same ones again.

        The first `IN_MEMORY` bytes stay where they are.
        """
        known = self._known.get(id(body))
        if known is not None:
            return known[1]
        if type(body) is not bytes or len(body) + TAIL < FROM:
            return None
        view = self._in_memory(body) or self._written(body)
        if view is not None:
            self._known[id(body)] = body, view  # the body stays, so its id stays its own
            while len(self._known) > self.REMEMBERED:
                self._known.popitem(last=False)
        return view

    def _in_memory(self, body: bytes) -> memoryview | None:
        """A view of the body, which is counted as long as somebody has it; None where many are."""
        if self._kept_bytes + len(body) > IN_MEMORY:
            return None
        array: Array = np.frombuffer(body, np.uint8)
        kept = _Kept(array, self._drop)  # without an `__init__`: there is one for each answer
        kept.size = len(body)
        self._kept[id(kept)] = kept
        self._kept_bytes += kept.size
        return array.data

    def _dropped(self, kept: _Kept) -> None:
        del self._kept[id(kept)]
        self._kept_bytes -= kept.size

    def _written(self, body: bytes) -> memoryview | None:
        """The body as it lies in the file; None where it finds no room there."""
        found = self.array(len(body) + TAIL)
        if found is None:
            return None
        region = self._regions[id(found)]
        data, start, last = memoryview(body), region.begins + region.at, len(body) & -mmap.PAGESIZE
        # By the file: as memory each page would have to come first. Of a large body the first page and the
        # last are written by themselves, because what is written at once may come at once (see `joined`).
        parts = ((0, mmap.PAGESIZE), (mmap.PAGESIZE, last), (last, len(body)))
        for written, end in parts if len(body) > AROUND else ((0, len(body)),):
            while written < end:
                written += os.pwrite(self._file, data[written:end], start + written)
        return found.data[: len(body)].toreadonly()

    def forget(self) -> None:
        """Knows no body again."""
        self._known.clear()

    def joined(self, body: Body, rest: bytes) -> Body:
        """Returns the body and what follows it: behind a body of `keep`, the first time, and else a copy.

        What comes into memory as it is read is let go of with the last view of what is returned.
        """
        region = self._region(body)
        if region is None or not isinstance(body, memoryview) or len(rest) > TAIL:
            return b"".join((body, rest))
        if region.ended:
            return b"".join((body, rest))
        region.ended = region.read = True
        segment, begins, at, size = region.segment, region.begins, region.at, region.size
        # A page that is read comes with those around it (`AROUND`), one that is written comes by itself. A
        # server reads both ends of all answers before it adds up the first: 8 KB of each come, instead of 75.
        segment[at : at + 1] = os.pread(self._file, 1, begins + at)
        segment[at + len(body) : at + len(body) + len(rest)] = rest
        whole: Array = np.frombuffer(segment, np.uint8, len(body) + len(rest), at)
        found = _Region(whole, self._read, segment, begins, at, size, owner=body.obj)
        self._joined[found.name] = found
        return whole.data.toreadonly()

    def lying(self, view: Body) -> Lying | None:
        """Where the bytes of `keep` lie, for another process; None for other bytes."""
        region = self._region(view)
        if region is None:
            return None
        return Lying.at(self.path, region.begins + region.at, len(view))

    def leave(self, what: Array | Body) -> None:
        """Nobody looks at an array, or at what `keep` has returned, for now: its pages are let go of.

        Those of an envelope that somebody reads go with the last view of it.
        """
        region = self._region(what)
        if region is not None and not region.read:
            region.leave()

    def close(self) -> None:
        """Closes the file; what lies in it can still be looked at."""
        if not self._full:
            self._full = True
        os.close(self._file)

    def _region(self, what: Array | Body) -> _Region | None:
        owner = what.obj if isinstance(what, memoryview) else what
        return self._regions.get(id(owner)) if isinstance(owner, np.ndarray) else None

    def _taken(self, size: int) -> tuple[mmap.mmap, int, int] | None:
        """(segment, its beginning in the file, the place in it) of so many bytes, whole pages."""
        if free := self._free.get(size):
            return free.pop()
        if self._open is None or self._open[2] + size > len(self._open[0]):
            length = max(SEGMENT, size)
            try:
                os.posix_fallocate(self._file, self._end, length)  # a page without a block ends the process
                segment = mmap.mmap(self._file, length, mmap.MAP_SHARED, offset=self._end)
            except OSError:  # no room on the disk, or a file system that cannot promise any
                self._full = True
                return None
            self._open = segment, self._end, 0
            self._end += length
        segment, begins, used = self._open
        self._open = segment, begins, used + size
        return segment, begins, used

    def _give_back(self, region: _Region) -> None:
        """Nobody can look at an array any more."""
        del self._regions[region.name]
        region.leave()
        self._free.setdefault(region.size, []).append((region.segment, region.begins, region.at))

    def _was_read(self, region: _Region) -> None:
        """Nobody can look at an envelope any more."""
        del self._joined[region.name]
        self._regions[id(region.owner)].read = False
        region.leave()
