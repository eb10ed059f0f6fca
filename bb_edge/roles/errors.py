"""Errors of components, their contracts and backends.

Whose fault each one is: `ComponentError` the configuration's or the caller's, `ContractError` the component
author's, `BackendWalkError` the graph's, `UnsupportedOpsError` the choice of backend, `MaterializeError` a
remote peer's.
"""

from __future__ import annotations

from collections.abc import Iterable

from bb_edge.ir.errors import BBError


class RoleError(BBError):
    """Base of everything that a component or a backend raises on purpose."""


class ContractError(RoleError):
    """A component class does not keep its Contract; raised when the class is created or looked at."""


class ComponentError(RoleError):
    """A component cannot be built or cannot do what it was asked; `where` names its slot, and the key where
    there is one.
    """


class ComponentStateError(ComponentError):
    """The bytes that a component is restored from are damaged, or were not written by its type."""


class OptionalMethodError(ComponentError):
    """The op exists in the role, but this component does not offer it."""


class CompletionError(RoleError):
    """Base of what an operation that answers later can fail with."""


class CompletionLostError(CompletionError):
    """A parked operation cannot be finished: its component went away, or the node was restarted."""


class CompletionExpiredError(CompletionError):
    """Nobody completed a parked operation before its deadline."""


class BackendError(RoleError):
    """Base of a backend's refusals; the component or subgraph that asked gets it as `OpFailed`."""


class UnsupportedOpsError(BackendError):
    """A graph holds operators that the backend does not have. `ops` names them all, sorted; `backend` is its
    TYPE_NAME, where it was chosen by name.
    """

    def __init__(self, ops: Iterable[str], where: str = "", hint: str = "", backend: str = "") -> None:
        self.ops = tuple(sorted(set(ops)))
        self.backend = backend
        super().__init__(
            f"{f'backend {backend}' if backend else 'the backend'} has no {', '.join(self.ops)}",
            where,
            hint or "bind a backend that has them, or replace the operators",
        )


class BackendWalkError(BackendError):
    """A graph is not well formed: a value nobody produces, a call of itself, a wrong attribute."""


class BackendRunError(BackendError):
    """A well-formed graph cannot run on these inputs: shapes, dtypes, or a loop without end."""


class BackendMemoryError(BackendError):
    """A plan needs more memory than it may have; `requested` and `available` are bytes."""

    def __init__(self, requested: int, available: int, where: str = "") -> None:
        self.requested = requested
        self.available = available
        super().__init__(
            f"the plan needs {requested} bytes, {available} are available, {requested - available} missing",
            where,
            "feed smaller batches, or raise the backend's arena_limit",
        )


class MaterializeError(BackendError):
    """Bytes from the wire are not a tensor that the backend can take."""
