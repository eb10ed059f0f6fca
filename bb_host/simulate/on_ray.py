"""Shards as actors of Ray, on a cluster. Needs the extra `[ray]`; nothing else here imports it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from bb_edge.ir.errors import BBError
from bb_edge.transport.in_process import Arrival
from bb_host.errors import ScenarioError, WorkerError
from bb_host.simulate.accounts import Accounts, Progress
from bb_host.simulate.busy import Told, nobody
from bb_host.simulate.scenario import Member, Scenario
from bb_host.simulate.shard import Shard
from bb_host.simulate.workers import ONE_THREAD, portable


class ShardActor:
    """A shard as an actor has it: what is refused comes back as a value, since Ray wraps what is raised.

    A refusal of the constructor comes with the first answer.
    """

    def __init__(self, scenario: Scenario, members: Sequence[Member]) -> None:
        self._shard: Shard | None = None
        self._refusal: BBError | None = None
        try:
            self._shard = Shard(scenario, members)
        except BBError as error:
            self._refusal = portable(error)

    def call(self, method: str, *arguments: object) -> object:
        """What a method of the shard returns, or the BBError that it raises."""
        if self._shard is None:
            return self._refusal
        try:
            return getattr(self._shard, method)(*arguments)
        except BBError as error:
            return portable(error)

    def close(self) -> None:
        """Removes what the shard has written."""
        if self._shard is not None:
            self._shard.close()


class RayWorkers:
    """An actor per shard, one processor each, with one thread for BLAS and interpreters.

    Joins the cluster of `$RAY_ADDRESS`, or starts one on this machine: without dashboard, and without usage
    statistics. ScenarioError where Ray is not installed, WorkerError where an actor is lost.
    """

    def __init__(self) -> None:
        self.busy: Told = nobody
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            hint = 'pip install "bytesandbrains-edge[ray]", or use --on processes'
            raise ScenarioError("Ray is not installed", "--on ray", hint) from error
        self._ray: Any = ray
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": ONE_THREAD},
            )
        self.actors: list[Any] = []
        """In the order of the shards."""

    def start(self, scenario: Scenario, members: Sequence[Sequence[Member]]) -> list[Progress]:
        remote = self._ray.remote(num_cpus=1)(ShardActor)
        shared = self._ray.put(scenario)
        self.actors = [remote.remote(shared, mine) for mine in members]
        return self._get([actor.call.remote("progress") for actor in self.actors])

    def step(self, end_ns: int, arrivals: Sequence[Sequence[Arrival]]) -> list[Progress]:
        pairs = zip(self.actors, arrivals, strict=True)
        return self._get([actor.call.remote("step", end_ns, mine) for actor, mine in pairs])

    def accounts(self) -> list[Accounts]:
        return self._get([actor.call.remote("accounts") for actor in self.actors])

    def _get(self, futures: Sequence[Any]) -> list[Any]:
        try:
            found: list[Any] = self._ray.get(futures)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            raise WorkerError(f"an actor failed: {cause or error}", "--on ray") from error
        for answer in found:
            if isinstance(answer, BBError):
                raise answer
        return found

    def close(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):  # who is lost has nothing to close
            self._ray.get([actor.close.remote() for actor in self.actors])
        for actor in self.actors:
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()
