"""Errors of components, their contracts and backends.

The type says whose fault it is: `ComponentError` the configuration's or the caller's, `ContractError` the
component author's, `BackendWalkError` the graph's, `UnsupportedOpsError` the choice of backend,
`MaterializeError` a remote peer's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bb_edge.ir.errors import BBError

if TYPE_CHECKING:
    from bb_edge.ir.ids import PeerId


class RoleError(BBError):
    """Base of everything that a component or a backend raises on purpose."""


class ContractError(RoleError):
    """A component class that does not keep its Contract; raised when the class is created or checked."""


class ComponentError(RoleError):
    """A component that cannot be built, or cannot do what it was asked.

    `where` names its slot, and the key where there is one.
    """


class ConstructionFailed(ComponentError):
    """The code of a component raised something unforeseen while it was built; `__cause__` is what."""


class ComponentStateError(ComponentError):
    """Bytes from which a component cannot be restored: damaged, or of another type."""


class OptionalMethodError(ComponentError):
    """An op of the role that this component does not offer."""


class ContributionRefused(ComponentError):
    """A contribution that does not count; `peer` is whose it is, None where the op is not told.

    Components raise any error; the engine adds the peer. The answer that brought it counts as none, and its
    peer is told `why`, the reason alone.
    """

    def __init__(
        self, what: str, where: str = "", hint: str = "", peer: PeerId | None = None, why: str = ""
    ) -> None:
        super().__init__(what, where, hint)
        self.peer = peer
        self.why = why


class RequestDeclined(ComponentError):
    """A request in which this node takes no part, on purpose; `what` says why.

    Whoever asked hears it at once, with the reason `declined`, and holds it against nobody. In an execution
    that nobody asked for it is an error like any other.
    """


class KeptValueError(ComponentError):
    """A value of another shape, element type or kind than the one that a slot keeps."""


class AggregateNotFinite(ComponentError):
    """Contributions whose combination holds inf or nan; it is dropped. `peers` are those that were in it."""

    def __init__(self, peers: Iterable[PeerId], where: str = "") -> None:
        self.peers = tuple(peers)
        named = ", ".join(map(str, self.peers[:8])) or "nobody by name"
        more = f" and {len(self.peers) - 8} more" if len(self.peers) > 8 else ""
        super().__init__(
            f"the aggregate holds inf or nan and is dropped; in it were {named}{more}",
            where,
            "set clip_norm and max_weight, and look at what these peers train on; each of their numbers was"
            " finite, so that a rule of your own may be what overflows",
        )


class CompletionError(RoleError):
    """Base of the ways in which an op that answers later can fail."""


class CompletionLostError(CompletionError):
    """A parked op that cannot be finished: its component went away, or the node was restarted."""


class CompletionExpiredError(CompletionError):
    """A parked op that nobody completed before its deadline."""


class BackendError(RoleError):
    """Base of a backend's refusals; the component or subgraph that asked gets it as `OpFailed`."""


class UnsupportedOpsError(BackendError):
    """A graph with operators that the backend does not have.

    `ops` are all of them, sorted; `backend` is its TYPE_NAME, where it was chosen by name.
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
    """A graph that is not well formed: a value that nothing produces, a call of itself, a wrong attribute."""


class BackendRunError(BackendError):
    """A well-formed graph that cannot run on these inputs: shapes, dtypes, or a loop without end."""


class BackendMemoryError(BackendError):
    """A plan that needs more memory than it may have; `requested` and `available` are bytes."""

    def __init__(self, requested: int, available: int, where: str = "") -> None:
        self.requested = requested
        self.available = available
        super().__init__(
            f"the plan needs {requested} bytes, {available} are available, {requested - available} missing",
            where,
            "feed smaller batches, or raise the backend's arena_limit",
        )


class TensorBytesError(BackendMemoryError):
    """Values whose shapes depend on data that need more memory than `tensor_bytes`; nothing is allocated."""

    def __init__(self, requested: int, available: int, where: str = "") -> None:
        self.requested = requested
        self.available = available
        BackendError.__init__(
            self,
            f"shapes that depend on data ask for {requested} bytes, tensor_bytes allows {available}",
            where,
            "check the numbers that become shapes, or raise tensor_bytes (limits of the configuration)",
        )


class MaterializeError(BackendError):
    """Bytes from the wire that are not a tensor that the backend can take."""
