"""Processes as Python spawns them, without the one that Python starts beside them.

With the first process that it spawns, multiprocessing starts another, which tracks semaphores and shared
memory until the parent ends: some 7 MB for nothing where neither is used.
"""

from __future__ import annotations

import contextlib
import io
import os
from multiprocessing import reduction, spawn, util
from multiprocessing.context import SpawnProcess, set_spawning_popen
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess


class Spawned(SpawnProcess):
    """A process that Python spawns, with the arguments and rules of `multiprocessing.Process`.

    None of its arguments may be a semaphore, a lock or shared memory of multiprocessing. What it makes of
    these itself is tracked as ever.
    """

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:
        return _Untracked(process_obj)


class _Untracked(Popen):
    """As its base, but no tracker is started, and the child is told of none: it starts one if it needs it."""

    _fds: list[int]
    """What the child inherits because its arguments need it."""

    def _launch(self, process_obj: BaseProcess) -> None:
        data = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj.name), data)
            reduction.dump(process_obj, data)
        finally:
            set_spawning_popen(None)
        ends: list[int] = []
        try:
            ends += os.pipe()  # one end is the child's as long as it lives, so the other tells when it ends
            ends += os.pipe()  # by which the child is told what it is
            self.sentinel, its_life, told, tells = ends
            command = spawn.get_command_line(pipe_handle=told)
            inherited = [*self._fds, its_life, told]
            self.pid = util.spawnv_passfds(os.fsencode(spawn.get_executable()), command, inherited)
            self.finalizer = util.Finalize(self, _close, [self.sentinel, tells])
        finally:
            # The child alone reads: where it dies before it has read all, this process would wait for ever.
            _close(*(ends if self.finalizer is None else ends[1:3]))
        with contextlib.suppress(BrokenPipeError), open(tells, "wb", closefd=False) as file:
            file.write(data.getbuffer())  # whoever waits for the child learns that it has died


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
