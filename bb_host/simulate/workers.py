"""Where shards run: in this process, in processes of their own, or on Ray (`on_ray.py`).

All of them are told the same things in the same order, so what they compute is the same, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import traceback
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from multiprocessing import Pipe, current_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bb_edge.ir.errors import BBError
from bb_edge.transport.in_process import Arrival
from bb_host.errors import ScenarioError, WorkerError
from bb_host.simulate.accounts import Accounts, Progress
from bb_host.simulate.busy import Told, nobody
from bb_host.simulate.channel import Channel
from bb_host.simulate.garbage import BetweenWindows
from bb_host.simulate.scenario import Member, Scenario
from bb_host.spawned import Spawned

if TYPE_CHECKING:
    from bb_host.simulate.shard import Shard

ONE_THREAD = {
    name: "1"
    for name in (
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
        *("NUMEXPR_NUM_THREADS", "BB_TFLITE_THREADS"),
    )
}
"""The environment of a worker. BLAS adds up in another order with another number of threads."""

ENDS_WITHIN_S = 10.0


class Workers(Protocol):
    """The shards of one scenario, in their order."""

    busy: Told
    """Gets a line about each node that computes for long, while `step` waits for it; Ray has none."""

    def start(self, scenario: Scenario, members: Sequence[Sequence[Member]]) -> list[Progress]:
        """Makes a shard for each list of members."""

    def step(self, end_ns: int, arrivals: Sequence[Sequence[Arrival]]) -> list[Progress]:
        """Has each shard take what arrives at it, and run all that is due before `end_ns`."""

    def accounts(self) -> list[Accounts]:
        """What each shard has to tell at the end."""

    def close(self) -> None:
        """Ends all of them, whatever they are doing."""


class Here:
    """All shards in this process, one after the other: for tests, and under a debugger."""

    def __init__(self) -> None:
        self.busy: Told = nobody
        self._shards: list[Shard] = []

    def start(self, scenario: Scenario, members: Sequence[Sequence[Member]]) -> list[Progress]:
        from bb_host.simulate.shard import Shard

        for mine in members:
            self._shards.append(Shard(scenario, mine, busy=self.busy))
        return [shard.progress() for shard in self._shards]

    def step(self, end_ns: int, arrivals: Sequence[Sequence[Arrival]]) -> list[Progress]:
        return [shard.step(end_ns, mine) for shard, mine in zip(self._shards, arrivals, strict=True)]

    def accounts(self) -> list[Accounts]:
        return [shard.accounts() for shard in self._shards]

    def close(self) -> None:
        for shard in self._shards:
            shard.close()


class Processes:
    """A process per shard, of Python's own multiprocessing, with one thread for BLAS and interpreters."""

    def __init__(self) -> None:
        self.busy: Told = nobody
        self._workers: list[tuple[BaseProcess, Channel]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="bb-simulate-")
        """What the workers write: who is killed removes nothing."""

    def start(self, scenario: Scenario, members: Sequence[Sequence[Member]]) -> list[Progress]:
        with _environment(ONE_THREAD):
            for number, mine in enumerate(members):
                ours, theirs = Pipe()
                name = f"bb-simulate-{number}"
                numbers = array("q", chain.from_iterable(mine))  # a pickle of 10,000 members takes 20 ms
                work = theirs, scenario, numbers, self._folder.name
                process = Spawned(target=_work, args=work, name=name, daemon=True)
                with _deaf_to_interrupts():
                    process.start()
                theirs.close()
                self._workers.append((process, Channel(ours)))
        return [self._answer(worker) for worker in self._workers]

    def step(self, end_ns: int, arrivals: Sequence[Sequence[Arrival]]) -> list[Progress]:
        return self._all("step", [(end_ns, mine) for mine in arrivals])

    def accounts(self) -> list[Accounts]:
        return self._all("accounts", [() for _ in self._workers])

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        for worker, mine in zip(self._workers, arguments, strict=True):
            with contextlib.suppress(BrokenPipeError):  # it says why it is gone when it is asked
                worker[1].send((method, mine))
        return [self._answer(worker) for worker in self._workers]

    def _answer(self, worker: tuple[BaseProcess, Channel]) -> Any:
        process, pipe = worker
        try:
            while (told := pipe.recv())[0] == "busy":
                self.busy(told[1])
            kind, value = told
        except (EOFError, ConnectionResetError) as error:
            process.join(ENDS_WITHIN_S)
            code = process.exitcode
            how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"code {code}"
            hint = "it may have run out of memory: use fewer clients, or more machines"
            if code == 1:
                hint = _hidden() or (
                    "what it said stands above; a script calls simulate under"
                    ' `if __name__ == "__main__":`, since each worker imports it again'
                )
            raise WorkerError(f"it ended with {how}", process.name, hint) from error
        if kind == "error":
            raise value
        return value

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.close()  # a worker ends when nobody asks any more
            process.join(ENDS_WITHIN_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


def _hidden() -> str:
    """The remedy where a file that can be imported hides one of Python's own modules from new processes."""
    for folder in sys.path:
        if folder and not folder.startswith((sys.prefix, sys.base_prefix)):
            for file in sorted(Path(folder).glob("*.py")):
                if file.stem in sys.stdlib_module_names:
                    return f"{file} hides Python's own {file.stem!r} from it: rename the file"
    return ""


def _work(connection: Connection, scenario: Scenario, numbers: array[int], folder: str) -> None:
    """The life of a worker process, which writes in a folder of somebody who outlives it.

    `numbers` are those of its members, one after the other.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; who asked for this one ends it
    shard: Shard | None = None
    pipe, garbage = Channel(connection), BetweenWindows()

    def answer(work: Callable[[], object]) -> None:
        told: tuple[str, object]
        try:
            told = "value", work()
        except BBError as error:
            told = "error", portable(error)
        # The border to users' components, which raise anything; a worker has nobody else to tell it to.
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            name = current_process().name
            what = f"it failed: {type(error).__name__}: {error}"
            told = "error", WorkerError(what, name, "its traceback stands above")
        with contextlib.suppress(BrokenPipeError):  # another worker has refused, and nobody asks any more
            pipe.send(told)
        garbage.collect()

    def begin() -> Progress:
        # Not above: who starts workers imports this file too, and has no need of nodes, some 13 MB.
        from bb_host.simulate.shard import Shard

        nonlocal shard
        shard = Shard(
            scenario,
            [*map(Member, numbers[::2], numbers[1::2])],
            folder,
            lambda text: pipe.send(("busy", text)),
        )
        return shard.progress()

    try:
        answer(begin)
        # Who asks has ended, or was interrupted before it has read the last answer.
        with contextlib.suppress(EOFError, ConnectionResetError, KeyboardInterrupt):
            while shard is not None:
                method, arguments = pipe.recv()
                bound = getattr(shard, method)
                answer(lambda bound=bound, arguments=arguments: bound(*arguments))  # type: ignore[misc]
    finally:
        if shard is not None:
            shard.close()
    if shard is not None:
        # Nothing is left to do: Python would take the nodes down object by object, a tenth of a short run.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def portable(error: BBError) -> BBError:
    """The error as one that every process can read."""
    kind = "" if isinstance(error, ScenarioError) else f"{type(error).__name__}: "
    return ScenarioError(f"{kind}{error.what}", error.where, error.hint)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Any:
    """A process that is started in the block ignores Ctrl-C from its first instruction on."""
    if threading.current_thread() is not threading.main_thread():  # nobody else may set it
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Any:
    """Sets variables for the processes that are started in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
