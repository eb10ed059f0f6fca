"""What a host may ask of bootstraps, and what it is told of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from bb_edge.ir.errors import BBError


class BootstrapError(BBError):
    """A request that cannot be staged; nothing of it was."""


class UnknownTarget(BootstrapError):
    """No installed target of that name has a bootstrap."""


class UnknownInput(BootstrapError):
    """An input that the bootstrap does not declare."""


class MissingInput(BootstrapError):
    """A declared input that was not given."""


class AlreadyTransitivelyQueued(BootstrapError):
    """The bootstrap waits or runs already."""


class BootstrapStatus(enum.Enum):
    NONE = "none"
    READY = "ready"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing has to run any more."""
        return self in (BootstrapStatus.NONE, BootstrapStatus.DONE)


@dataclass(frozen=True, slots=True)
class BootstrapAll:
    """Every bootstrap that is not done, components' and targets', in install order."""


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """These targets' bootstraps, without inputs."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """One target's bootstrap with values for its inputs."""

    target: str
    inputs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModuleRequests:
    """Several targets' bootstraps with inputs."""

    requests: tuple[BootstrapRequest, ...]


@dataclass(frozen=True, slots=True)
class Slots:
    """The bootstraps of the components in these slots."""

    slots: tuple[str, ...]


BootstrapTarget = BootstrapAll | ModuleNames | ModuleRequests | Slots


@dataclass(frozen=True, slots=True)
class BootstrapState:
    """One bootstrap as the outside sees it: `slot` is empty for a target's own.

    `next_try_ns` is monotonic, 0 where nobody tries again; `reason` is why the last try failed.
    """

    target: str
    slot: str
    status: BootstrapStatus
    next_try_ns: int = 0
    reason: str = ""
