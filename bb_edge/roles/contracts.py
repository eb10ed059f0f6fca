"""The Contracts of the roles: one method per op of a role's opset (bb_edge/ir/opsets/roles.py).

The op `LoadParameters` calls `load_parameters(ctx, *inputs, **attributes)`: an absent optional input is None.
A method returns the value of its single output, a tuple for several, None where the output is a `CommandId`,
or the `Later` that it got from `ctx.later()`. Arrays that come in are never written to; arrays that go out
are never written to afterwards.

Results are checked, at once or when a `Later` is completed: the number of outputs, and of each its kind, its
dtype, and its rank where the program declares one. A tensor is an `np.ndarray` of exactly the declared
dtype; a NumPy scalar is taken as a 0-D array, a list of peers as their tuple. Python numbers, lists and other
dtypes fail the op (`bb_edge/syscalls/results.py`).
"""

from __future__ import annotations

import re
import typing
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from bb_edge.ir import keys
from bb_edge.ir.shares import share_of
from bb_edge.roles.completion import Later
from bb_edge.roles.component import Component
from bb_edge.roles.errors import ComponentError, OptionalMethodError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bb_edge.ir.ids import PeerId
    from bb_edge.ir.opsets import Opset
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.context import Ctx, ProtocolCtx
    from bb_edge.roles.values import Trigger

    Peers = tuple[PeerId, ...]

__all__ = [
    "Aggregator",
    "Codec",
    "DataSource",
    "Index",
    "LeftOut",
    "Model",
    "PeerSelector",
    "ProtocolComponent",
    "forgets",
    "loses",
    "method_name",
    "offers",
]

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def method_name(op_name: str) -> str:
    """Returns the name of an op's Contract method: ``LoadParameters`` gives ``load_parameters``."""
    return _HUMP.sub("_", op_name).lower()


def offers(component: type[Component] | Component, op_name: str) -> bool:
    """Returns whether a component implements an op itself, instead of inheriting a refusal."""
    method = getattr(component, method_name(op_name), None)
    return callable(method) and not getattr(method, "_refuses", False)


def forgets(kind: type[Component]) -> bool:
    """Returns whether a component class has state between calls that it does not write into snapshots."""
    if kind.stateless or kind.serialize is not Component.serialize:
        return False
    return kind.stateless is False or any(_writes(kind))


def loses(kind: type[Component], ops: typing.Iterable[tuple[str, str]]) -> bool:
    """Returns whether a restart loses what one of these ops (domain, type) leaves in a component."""
    if not forgets(kind):
        return False
    from bb_edge.ir.opsets import Effect, lookup

    own = kind.atomic_opset().ops if issubclass(kind, ProtocolComponent) else {}
    rows = (lookup(domain, op_type) or own.get(op_type) for domain, op_type in ops)
    return kind.stateless is False or any(row is not None and row.effect is Effect.WRITE for row in rows)


def _writes(kind: type[Component]) -> typing.Iterator[bool]:
    """Yields for each op that the class offers whether it writes."""
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
        """Returns the parameters by the names of the model's file, or None where they have no names.

        `bb-edge export` and `--save-model` write them. The arrays are not written to afterwards, and come in
        the order of the flat vector.
        """
        return None

    @property
    def personal_untrained(self) -> Sequence[str]:
        """Names of parameters that are trained and not sent, where no step has changed them on this node.

        A server has such a copy: whoever exports or scores it is told.
        """
        return ()

    @property
    def activations_dropped(self) -> int:
        """How often activations went for newer ones, so far; the counter `activations.dropped` tells it."""
        return 0

    def take_notes(self) -> Sequence[str]:
        """Returns what there is to say of its training since the last call: that its learning rate is 0 now.

        The engine asks behind each `step`, and tells it. The base has nothing to say.
        """
        return ()

    @abstractmethod
    def forward(self, ctx: Ctx, input: Array) -> Array | Later:
        """Returns the model's output; stores the activations of `ctx.exec_id` for a possible `backward`."""

    @_optional
    def backward(self, ctx: Ctx, grad: Array) -> Later | None:
        """Adds dL/dparameters to the gradient, given dL/doutput of this execution's last `forward`."""
        raise self._refuse("Backward")

    @_optional
    def train(self, ctx: Ctx, input: Array, target: Array) -> Array | Later:
        """Adds dL/dparameters of the mean loss L over the batch to the gradient; returns L, 0-D f32."""
        raise self._refuse("Train")

    @_optional
    def forward_keyed(self, ctx: Ctx, input: Array, key: object) -> Array | Later:
        """Returns the model's output; keeps its activations under `key` until a backward pass uses them.

        `key` is an integer (0-D), bytes, an id, or a tuple of those. What is kept has to be bounded.
        """
        raise self._refuse("ForwardKeyed")

    @_optional
    def backward_keyed(self, ctx: Ctx, grad: Array, key: object) -> Later | None:
        """Does what `backward` does, for the `forward_keyed` of the same key, whose activations go."""
        raise self._refuse("BackwardKeyed")

    @_optional
    def backward_input(self, ctx: Ctx, grad: Array, key: object = None) -> Array | Later:
        """Does what `backward` or `backward_keyed` does; returns dL/dinput, shaped and typed as the input."""
        raise self._refuse("BackwardInput")

    @_optional
    def gradient(self, ctx: Ctx) -> Array | Later:
        """Returns the gradient since the last step, 1-D f32, zeros without one; the next sum begins anew."""
        raise self._refuse("Gradient")

    @_optional
    def step(self, ctx: Ctx, grads: Array | None = None) -> Later | None:
        """Applies the model's own gradient and clears it, or applies `grads` (1-D f32) and leaves its own."""
        raise self._refuse("Step")

    @_optional
    def set_round(self, ctx: Ctx, round: Array) -> Later | None:
        """Sets the round, one whole number from 1, that learning rates which change by round go by."""
        raise self._refuse("SetRound")

    @_optional
    def evaluate(self, ctx: Ctx, input: Array, target: Array) -> Array | Later:
        """Returns the mean loss over the batch, 0-D f32."""
        raise self._refuse("Evaluate")

    @_optional
    def apply_delta(self, ctx: Ctx, delta: Array) -> Later | None:
        """Adds `delta` (1-D f32) to the parameters; an empty one leaves them."""
        raise self._refuse("ApplyDelta")

    @abstractmethod
    def load_parameters(self, ctx: Ctx, params: Array) -> Later | None:
        """Sets the parameters from 1-D f32, in initializer order and row-major; an empty one leaves them."""

    def reserve(self) -> None:
        """Takes the memory that `params` needs, at the start of a node that calls it. The base takes none."""

    def release(self) -> None:
        """Gives back memory that holds nothing now and is taken again when it is needed.

        For nodes that nobody needs for a while, of which a machine has many. The base gives none.
        """

    @abstractmethod
    def params(self, ctx: Ctx) -> Array | Later:
        """Returns a copy of all parameters, 1-D f32, in the order of `load_parameters`."""


class GivenUp(NamedTuple):
    """Contributions that an aggregator had taken and has dropped: why, how many, and whose."""

    why: str
    contributions: int
    peers: tuple[PeerId, ...] = ()


class Dominant(NamedTuple):
    """Contributions that decide an aggregate by themselves: why, how many, how far they are off, and whose.

    `times` is the largest of them over what is usual; `peers` are those that the contributions name.
    """

    why: str
    contributions: int
    times: float
    peers: tuple[PeerId, ...] = ()


class Clipped(NamedTuple):
    """Contributions to an aggregate that were shortened: how many, and the longest of them over the bound.

    `why` says so in words where they are the exception, with `peers`, whose they are; empty where half of all
    or more were shortened.
    """

    why: str
    contributions: int
    times: float
    peers: tuple[PeerId, ...] = ()


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
        sent: Array | None = None,
    ) -> Later | None:
        """Adds a contribution to the sum of `ctx.cohort`; of those with the same (round, peer) the first
        counts.

        `weight` (1 where there is none) and `round` (i64) are 0-D. `sent` is what the peer was asked with;
        the engine has checked that the contribution is of its shape. Whatever is raised says that the
        contribution does not count; the engine adds whose it was.
        """

    @abstractmethod
    def aggregate(
        self, ctx: Ctx, stack: object = None, round: Array | None = None
    ) -> tuple[Array, Array] | Later:
        """Returns (aggregate, total weight 0-D f32), or (empty, 0) where nothing was contributed.

        A tensor as `stack` contributes its rows first. The sum is that of `ctx.cohort`.
        """

    def check_rule(self, size: int | None) -> None:
        """Raises a typed error where its rule cannot work, at the start of a node, before `reserve`.

        `size` is how many numbers a contribution has, where that is known. The base has nothing to check.
        """

    def reserve(self, size: int) -> None:
        """Takes the memory for contributions of `size` numbers, of which the node is told at its start.

        So a device that cannot hold its program finds out then, and not in its first round. The base takes
        none.
        """

    def take_given_up(self) -> Sequence[GivenUp]:
        """Returns what it has dropped of what it had taken, since it was asked last.

        The engine asks behind each `contribute` and `execution_ended`, and tells it. The base drops nothing.
        """
        return ()

    def take_dominant(self) -> Sequence[Dominant]:
        """Returns which contributions decided an aggregate by themselves, since it was asked last.

        The engine asks behind each `aggregate`, and tells it. The base looks at none.
        """
        return ()

    def take_clipped(self) -> Sequence[Clipped]:
        """Returns what was shortened, one for each aggregate that has any of it, since it was asked last.

        The engine asks behind each `aggregate`, counts, and tells it. The base shortens nothing.
        """
        return ()

    @abstractmethod
    def current_tensor(self, ctx: Ctx, trigger: Trigger | None = None) -> Array | Later:
        """Returns the last aggregate, empty before the first."""


class Index(_Contract):
    """Holds vectors and finds the nearest ones."""

    ROLE: ClassVar[str] = keys.ROLE_INDEX
    shared: ClassVar[bool] = True

    @abstractmethod
    def add(self, ctx: Ctx, vec: Array) -> Later | None:
        """Adds vectors, [n, d] or [d]."""

    @abstractmethod
    def search(self, ctx: Ctx, query: Array, *, k: int) -> tuple[Array, Array] | Later:
        """Returns the `k` nearest as (ids i64, distances f32), nearest first.

        Both are [k] for one query [d], and [n, k] for several [n, d].
        """

    @_optional
    def remove(self, ctx: Ctx, id: Array) -> Later | None:
        """Removes vectors by their ids."""
        raise self._refuse("Remove")


class Codec(_Contract):
    """Encodes tensors in fewer bytes."""

    ROLE: ClassVar[str] = keys.ROLE_CODEC

    @_optional
    def train_codebook(self, ctx: Ctx, training: Array) -> Later | None:
        """Fits the codec to a sample of the tensors to come."""
        raise self._refuse("TrainCodebook")

    @abstractmethod
    def compress(self, ctx: Ctx, t: Array) -> Array | Later:
        """Returns the code of a tensor."""

    @abstractmethod
    def decompress(self, ctx: Ctx, code: Array) -> Array | Later:
        """Returns the tensor of a code, as near to the original as the codec allows."""


class LeftOut(NamedTuple):
    """Data that a source has left out or may have missed: why, and how many samples, as far as is known."""

    why: str
    samples: int = 0


class DataSource(_Contract):
    """Yields batches of a shard of data."""

    ROLE: ClassVar[str] = keys.ROLE_DATA_SOURCE

    @abstractmethod
    def next_batch(self, ctx: Ctx) -> tuple[Array, Array | None] | Later:
        """Returns (batch, labels), both with samples along axis 0; labels are None where there are none."""

    @abstractmethod
    def num_samples(self, ctx: Ctx) -> Array | Later:
        """Returns the number of samples in the shard, 0-D i64."""

    def batch_like(self) -> tuple[Array, ...]:
        """Returns arrays of the dtypes and shapes of a batch, and of its labels where there are any.

        They are held against the program when it is installed. Nothing where that is not known, the default.
        """
        return ()

    def wrong_label(self, classes: int, ignored: int) -> tuple[str, str] | None:
        """Returns which label is none of 0 to `classes` - 1, nor `ignored`, and what to do."""
        return None

    def take_left_out(self) -> Sequence[LeftOut]:
        """Returns the rows that the source has left out since the last call.

        The engine asks behind each `next_batch`, counts, and tells it. The base leaves nothing out.
        """
        return ()

    def take_notes(self) -> Sequence[str]:
        """Returns what there is to say of the samples since the last call, where none is lost.

        Digits that float32 does not hold are the usual case. The engine asks behind each `next_batch`, and
        tells it; nothing is counted. The base has nothing to say.
        """
        return ()

    @_optional
    def reset(self, ctx: Ctx, trigger: Trigger) -> Trigger | Later:
        """Goes back to the first batch, and returns the trigger."""
        raise self._refuse("Reset")

    @_optional
    def on_data_loaded(self, ctx: Ctx) -> Trigger | Later:
        """Returns a trigger once the data is there."""
        raise self._refuse("OnDataLoaded")


class PeerSelector(_Contract):
    """Chooses peers of one class."""

    ROLE: ClassVar[str] = keys.ROLE_PEER_SELECTOR
    shared: ClassVar[bool] = True
    sees_absent: bool = False
    """Whether peers that are away are in view on purpose. Only durable sends go to what it chooses: `install`
    refuses a request of such peers, and a send that does not wait for them."""

    @abstractmethod
    def sample(self, ctx: Ctx, *, n: int, min: int = 0) -> Peers | Later:
        """Returns at most `n` peers at random; none where fewer than `min` are there."""

    def sample_share(self, ctx: Ctx, *, n: int, share: int, min: int = 0) -> Peers | Later:
        """Returns that share of the peers in view at random, in billionths; none where fewer than `min` are.

        The share is rounded up, then raised to `min` and lowered to `n`. `sample` chooses them. A selector
        whose view comes later refuses this unless it has a method of its own: ComponentError.
        """
        view = self.current_view(ctx)
        if isinstance(view, Later):
            raise ComponentError(
                "a share of the peers was asked for, and how many are in view comes later",
                self.TYPE_NAME,
                "give a number of peers alone, or override sample_share",
            )
        return self.sample(ctx, n=share_of(len(view), share, n, min), min=min)

    @abstractmethod
    def current_view(self, ctx: Ctx) -> Peers | Later:
        """Returns all peers in view."""

    def resting(self, ctx: Ctx) -> int:
        """Returns how many peers are there but not in view, because they left requests unanswered.

        They count towards `min`: one mute device does not have all others wait. 0 unless a selector knows.
        """
        return 0

    @_optional
    def near_key(self, ctx: Ctx, key: bytes, *, n: int) -> Peers | Later:
        """Returns the `n` peers in view that are nearest to `key` by the selector's metric, nearest first."""
        raise self._refuse("NearKey")


class ProtocolComponent(_Contract):
    """A component with ops of its own; each op of its opset calls the method of that name.

    An op declared `remote` is called by the component in the same slot of another node, which sends to it
    with `ctx.send` or `ctx.request`: `method(ctx, sender, payload)`, with bytes that only the component
    reads. It returns None, the reply or a `Later` of it. It runs outside of executions, as timers
    (`ctx.scheduler.after`) and the two hooks below do; `ctx` is a `ProtocolCtx` there. A component may serve
    another role as well: `class Gossip(PeerSelector, ProtocolComponent)`.
    """

    ROLE: ClassVar[str] = keys.ROLE_PROTOCOL
    shared: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def atomic_opset(cls) -> Opset:
        """Returns the ops that the component brings, with domain, version, ports and attributes.

        An op fires when all its inputs are there, or as a source where it has none; entries, and ports that
        take the first of several arrivals, are the framework's alone. A remote op has the inputs
        `sender:PeerId, payload:Bytes` and no output or `reply:Bytes`.
        """

    def started(self, ctx: ProtocolCtx) -> None:
        """Starts timers and the like, once, when the slot's target begins to run, after its bootstrap."""

    def stopping(self, ctx: ProtocolCtx) -> None:
        """Takes leave when the node shuts down; messages that are sent here still go out."""
