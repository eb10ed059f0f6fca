"""The Contracts: one method per op of a role's opset (bb_edge/ir/opsets/roles.py, semantics §8).

The op `LoadParameters` calls `load_parameters(ctx, *inputs, **attributes)`: an absent optional input is None.
A method returns the value of its single output, a tuple for several, None where the output is a `CommandId`,
or the `Later` that it got from `ctx.later()`. Arrays that come in are never written to; arrays that go out
are never written to afterwards.

What a method returns is checked, at once or when its `Later` is completed: the number of outputs, and of each
its kind, dtype, and rank where the program declares it. A tensor is an `np.ndarray` of exactly the declared
dtype; a NumPy scalar is taken as a 0-D array, a list of peers as their tuple. Python numbers, lists and other
dtypes fail the op (`bb_edge/syscalls/results.py`).
"""

from __future__ import annotations

import re
import typing
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from bb_edge.ir import keys
from bb_edge.roles.component import Component
from bb_edge.roles.errors import OptionalMethodError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bb_edge.ir.ids import PeerId
    from bb_edge.ir.opsets import Opset
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.completion import Later
    from bb_edge.roles.context import Ctx, ProtocolCtx
    from bb_edge.roles.values import Trigger

    Peers = tuple[PeerId, ...]

__all__ = [
    "Aggregator",
    "Codec",
    "DataSource",
    "Index",
    "Model",
    "PeerSelector",
    "ProtocolComponent",
    "forgets",
    "method_name",
    "offers",
]

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def method_name(op_name: str) -> str:
    """The Contract method of an op: ``LoadParameters`` → ``load_parameters``."""
    return _HUMP.sub("_", op_name).lower()


def offers(component: type[Component] | Component, op_name: str) -> bool:
    """Whether a component implements an op, beyond inheriting a refusal."""
    method = getattr(component, method_name(op_name), None)
    return callable(method) and not getattr(method, "_refuses", False)


def forgets(kind: type[Component]) -> bool:
    """Whether a component class keeps state between calls and does not write it into snapshots."""
    if kind.stateless or kind.serialize is not Component.serialize:
        return False
    return kind.stateless is False or any(_writes(kind))


def _writes(kind: type[Component]) -> typing.Iterator[bool]:
    """For each op that the class offers, whether it writes."""
    from bb_edge.ir.opsets import Effect, opset  # only here: tensor work alone starts without the catalog

    for domain, role in keys.ROLE_OF_DOMAIN.items():
        if role == kind.ROLE:
            table = opset(domain)
            assert table is not None, domain
            yield from (op.effect is Effect.WRITE and offers(kind, op.name) for op in table.ops.values())
    if issubclass(kind, ProtocolComponent):
        yield from (op.effect is Effect.WRITE for op in kind.atomic_opset().ops.values())


_F = typing.TypeVar("_F", bound=typing.Callable[..., object])


def _optional(method: _F) -> _F:
    """Marks a Contract method whose default only refuses."""
    method._refuses = True  # type: ignore[attr-defined]
    return method


class _Contract(Component, ABC):
    def _refuse(self, op_name: str) -> OptionalMethodError:
        return OptionalMethodError(
            f"{self.TYPE_NAME or type(self).__name__} does not offer {op_name}",
            hint=f"bind another {self.ROLE}, or leave the op out",
        )


class Model(_Contract):
    """Something with parameters that maps tensors to tensors."""

    ROLE: ClassVar[str] = keys.ROLE_MODEL

    def named_parameters(self) -> Mapping[str, Array] | None:
        """The parameters as `bb-edge export` and `--save-model` write them: by the names of the model's file.

        Arrays that are not written to afterwards, in the order of the flat vector; None: it has no names.
        """
        return None

    @abstractmethod
    def forward(self, ctx: Ctx, input: Array) -> Array | Later:
        """The model's output; keeps the activations of `ctx.exec_id` where a `backward` may follow."""

    @_optional
    def backward(self, ctx: Ctx, grad: Array) -> Later | None:
        """Adds dL/dparameters to the gradient, for dL/doutput of this execution's last `forward`."""
        raise self._refuse("Backward")

    @_optional
    def step(self, ctx: Ctx, grads: Array | None = None) -> Later | None:
        """Applies the own gradient and clears it; or applies `grads`, 1-D f32, and leaves the own one."""
        raise self._refuse("Step")

    @_optional
    def evaluate(self, ctx: Ctx, input: Array, target: Array) -> Array | Later:
        """Mean loss, 0-D f32."""
        raise self._refuse("Evaluate")

    @_optional
    def apply_delta(self, ctx: Ctx, delta: Array) -> Later | None:
        """Adds `delta`, 1-D f32, to the parameters; an empty one leaves them."""
        raise self._refuse("ApplyDelta")

    @abstractmethod
    def load_parameters(self, ctx: Ctx, params: Array) -> Later | None:
        """Sets the parameters from 1-D f32 in initializer order, row-major; an empty one leaves them."""

    @abstractmethod
    def params(self, ctx: Ctx) -> Array | Later:
        """A copy of all parameters, 1-D f32."""


class Aggregator(_Contract):
    """Joins contributions of many peers into one tensor."""

    ROLE: ClassVar[str] = keys.ROLE_AGGREGATOR
    shared: ClassVar[bool] = True

    @abstractmethod
    def contribute(
        self,
        ctx: Ctx,
        contribution: Array,
        weight: Array | None = None,
        peer: Peers | None = None,
        round: Array | None = None,
    ) -> Later | None:
        """Adds a contribution, once per (round, peer), first wins. `weight` and `round` are 0-D."""

    @abstractmethod
    def aggregate(self, ctx: Ctx, stack: object = None) -> tuple[Array, Array] | Later:
        """(aggregate, total weight 0-D f32); over nothing (empty, 0). Rows of a tensor count first."""

    @abstractmethod
    def current_tensor(self, ctx: Ctx, trigger: Trigger | None = None) -> Array | Later:
        """The last aggregate, empty before the first."""


class Index(_Contract):
    """Finds nearest vectors."""

    ROLE: ClassVar[str] = keys.ROLE_INDEX
    shared: ClassVar[bool] = True

    @abstractmethod
    def add(self, ctx: Ctx, vec: Array) -> Later | None:
        """Adds vectors, [n, d] or [d]."""

    @abstractmethod
    def search(self, ctx: Ctx, query: Array, *, k: int) -> tuple[Array, Array] | Later:
        """(ids i64, distances f32), nearest first: [k] for one query [d], [n, k] for several [n, d]."""

    @_optional
    def remove(self, ctx: Ctx, id: Array) -> Later | None:
        """Removes vectors by id."""
        raise self._refuse("Remove")


class Codec(_Contract):
    """Makes tensors smaller."""

    ROLE: ClassVar[str] = keys.ROLE_CODEC

    @_optional
    def train_codebook(self, ctx: Ctx, training: Array) -> Later | None:
        """Fits the codec to a sample."""
        raise self._refuse("TrainCodebook")

    @abstractmethod
    def compress(self, ctx: Ctx, t: Array) -> Array | Later:
        """Encodes."""

    @abstractmethod
    def decompress(self, ctx: Ctx, code: Array) -> Array | Later:
        """Decodes."""


class DataSource(_Contract):
    """Yields batches of a shard of data."""

    ROLE: ClassVar[str] = keys.ROLE_DATA_SOURCE

    @abstractmethod
    def next_batch(self, ctx: Ctx) -> tuple[Array, Array | None] | Later:
        """(batch, labels); labels are None where the source has none."""

    @abstractmethod
    def num_samples(self, ctx: Ctx) -> Array | Later:
        """Samples in the shard, 0-D i64."""

    @_optional
    def reset(self, ctx: Ctx, trigger: Trigger) -> Trigger | Later:
        """Back to the first batch; yields a trigger."""
        raise self._refuse("Reset")

    @_optional
    def on_data_loaded(self, ctx: Ctx) -> Trigger | Later:
        """A trigger, once the data is there."""
        raise self._refuse("OnDataLoaded")


class PeerSelector(_Contract):
    """Chooses peers of one class."""

    ROLE: ClassVar[str] = keys.ROLE_PEER_SELECTOR
    shared: ClassVar[bool] = True

    @abstractmethod
    def sample(self, ctx: Ctx, *, n: int, min: int = 0) -> Peers | Later:
        """At most `n` peers at random, none where fewer than `min` are there."""

    @abstractmethod
    def current_view(self, ctx: Ctx) -> Peers | Later:
        """All peers in view."""

    @_optional
    def near_key(self, ctx: Ctx, key: bytes, *, n: int) -> Peers | Later:
        """The `n` peers in view that are nearest to `key` by the selector's metric, nearest first."""
        raise self._refuse("NearKey")


class ProtocolComponent(_Contract):
    """A component with ops of its own; each op of its opset calls the method of that name.

    An op declared `remote` is called by the component in the same slot of another node, which sends to it
    with `ctx.send` or `ctx.request`: `method(ctx, sender, payload)`, with bytes that only the component
    reads, and gives None, the reply or a `Later` of it. It runs outside of executions, as do timers
    (`ctx.scheduler.after`) and the two hooks below; `ctx` is a `ProtocolCtx` there. A component may serve
    another role beside it: `class Gossip(PeerSelector, ProtocolComponent)`.
    """

    ROLE: ClassVar[str] = keys.ROLE_PROTOCOL
    shared: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def atomic_opset(cls) -> Opset:
        """The ops that it brings: domain, version, ports, attributes.

        Ops fire when all their inputs are there, or as sources where they have none; entries and ports that
        take the first of several arrivals are the framework's. A remote op has the inputs `sender:PeerId,
        payload:Bytes` and no output or `reply:Bytes`.
        """

    def started(self, ctx: ProtocolCtx) -> None:
        """Called once, when the slot's target begins to run (after its bootstrap, where it has one)."""

    def stopping(self, ctx: ProtocolCtx) -> None:
        """Called when the node shuts down; what is sent here still leaves."""
