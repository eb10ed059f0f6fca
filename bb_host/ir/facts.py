"""What ops, functions and programs say of themselves beside what they do: their line, class and wire.

A fact that is not said has its default. Facts are values of their types here; they are texts only in a file
and in the text notation (`bb_host.ir.spelling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

_NOTHING: Mapping[str, str] = MappingProxyType({})
_F = TypeVar("_F", bound="Facts")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    # To the type checker facts are a frozen dataclass, so that each name and each value is checked.
    @dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
    class _Namespace: ...

else:
    # When they are run they are a namespace, which holds what is said and takes the rest from its class: an
    # op says four facts of forty, and passes make them by the thousand.
    _Namespace = SimpleNamespace


class Facts(_Namespace):
    """Facts, never changed in place. What was said is in `vars()`, in the order in which it was said.

    `a | b` says what both say, and `b` where both speak of the same.
    """

    def __hash__(self) -> int:
        return hash(frozenset(vars(self)))  # equal ones say the same names

    def __or__(self: _F, more: _F) -> _F:
        return type(self)(**(vars(self) | vars(more)))

    def without(self: _F, *names: str) -> _F:
        """All but the facts of these names; itself where none of them is said."""
        said = vars(self)
        if said.keys().isdisjoint(names):
            return self
        return type(self)(**{name: value for name, value in said.items() if name not in names})

    def only(self: _F, *names: str) -> _F:
        """The facts of these names, in the order in which they were said here."""
        return type(self)(**{name: value for name, value in vars(self).items() if name in names})


def shared(facts: _F, there: dict[object, _F]) -> _F:
    """The record in `there` that says the same in the same order; this one, kept there, where none does.

    Most ops say what others say too, so whoever deals with records (`program.stamping`) has few of them.
    """
    try:
        return there.setdefault(tuple(vars(facts).items()), facts)
    except TypeError:  # a mapping is among the facts
        return facts


class OpFacts(Facts):
    """What an op says. Nanoseconds where a name ends in `_ns`; numbers of slots as the engine counts them."""

    source: str = ""
    """The author's line, `file.py:12`."""
    scope: str = ""
    """Instance of the module that records it, `Outer_Inner`."""
    at: str = ""
    """The class whose scope it was recorded in (`with g.at("Client"):`)."""
    on_invoke: bool = False
    """Recorded in `with g.on_invoke():`: the host starts it."""

    slot: str = ""
    """The slot that it runs on."""
    slot_id: int | None = None
    """The number of that slot."""
    trait: str = ""
    """The role that a generic slot asks for."""
    concrete_type: str = ""
    """TYPE_NAME of a concrete slot's component."""
    instance: int | None = None
    """Which of the program's slots of that type a concrete slot is, from 0."""

    classes: tuple[str, ...] = ()
    """The classes of devices that it runs on, as placement found; several for constants alone."""
    leads: Mapping[str, str] = _NOTHING
    """Per output that is a list of peers their class."""
    control: int = 0
    """How many trailing inputs only order (`after=`)."""
    deadline_ns: int | None = None
    """Of a send from now on, of what may answer later from its start; 0 is none."""
    chain_depth: int | None = None
    """Hops that a deadline has to last for."""

    wire_id: str = ""
    """The pairing token of a wire op and its gates."""
    request: str = ""
    """On the reply side: the wire id of the ask."""
    port: str = ""
    """The author's name of a send or request."""
    correlation: str = ""
    """One of `keys.CORRELATION_*`."""
    durable: bool = False
    """Survives a restart on both sides."""
    answer_mode: str = ""
    """Of a request, one of `keys.ANSWER_*`."""
    enough: int | None = None
    """The answers that close a request."""
    trigger_output: bool = False
    """Receiving half: the last output is a trigger."""
    made_from: str = ""
    """Receiving half: the wire id of the send that it was made for."""
    sender_class: str = ""
    """Receiving half: the class that its senders are of."""
    sole_sender: bool = False
    """Receiving half of a request: one peer of that class should ask."""
    sites: tuple[int, ...] = ()
    """The site id of each payload, 64 bits."""
    transport: str = ""
    """One of `keys.WIRE_TRANSPORT_*`."""
    type_hashes: tuple[int, ...] = ()
    """The wire hash of each payload's type; 0 is any."""
    max_bytes: tuple[int, ...] = ()
    """The largest planned size of each payload; 0 where it is unknown."""
    batch_group: int | None = None
    """Sends of one number may share an envelope."""
    arrives_as: Mapping[str, str] = _NOTHING
    """Per payload input the name of the value that receives it."""
    feeds: int | None = None
    """Receiving half: the number of the slot that its payload goes to."""

    shapes: str = ""
    """As `bb_edge.ir.stamped_shapes` writes them: of each payload received, of a contribution; of payloads
    that are sent where receivers take narrower ones than the sender knows."""
    parts: str = ""
    """As `bb_edge.ir.stamped_parts` writes them: of bundles received, of a batch."""
    fewest_rows: int | None = None
    """Of an op that gives batches: the rows that they have at least, where a model is trained on them."""
    label_classes: tuple[int, ...] = ()
    """Of an op that gives batches, whose labels are numbers of classes: how many, and the number of none."""
    cohort: str = ""
    """Of an aggregator's op, the execution whose sum it is: levels up, or `keys.COHORT_ROUND`."""

    foreign: Mapping[str, str] = _NOTHING
    """Metadata that nothing here understands, as it came."""


NO_FACTS = OpFacts()
"""What an op says that nobody wrote: nothing."""


class FunctionFacts(Facts):
    """What a function says. Its slots say for themselves what they are."""

    phase: str = ""
    """One of `keys.MODULE_PHASE_*`."""
    home: str = ""
    """The root's: the class that is home to its module."""
    input_classes: Mapping[str, str] = _NOTHING
    """Per input the class that it is given to."""
    partition: str = ""
    """Of a partition and its bootstrap: the class of devices that it is for."""
    entry: bool = False
    """A partition's main, which a device starts with."""
    backend_slot: str = ""
    """Of tensor work: the slot of the backend that runs it, the target's own where none is said."""
    arity: tuple[int, ...] = ()
    """Of a component's `forward`: inputs, parameters, activations."""
    chunk: int | None = None
    """Of a component's `fit`: how many rows of a batch one run takes; all of them where none is said.

    0 for one that must have them all, because it takes statistics of them: nobody chooses another number."""
    class_count: int | None = None
    """Of a component's `fit` and `loss`: its targets are numbers of so many classes."""
    fewest_rows: int | None = None
    """Of a component's `fit`: the rows that a batch has at least; one where none is said."""
    memory_plan: str = ""
    """Of tensor work: where its values lie, as `bb_edge.backends.stored_plan` writes it."""
    peer_classes: Mapping[str, str] = _NOTHING
    """In an artifact, per selector that has no state its class of peers."""

    foreign: Mapping[str, str] = _NOTHING
    """Metadata that nothing here understands, as it came."""


class Heard(NamedTuple):
    """The classes that a target deals with, sorted; `*` alone for every class."""

    hears: tuple[str, ...]
    """Those whose presence it needs."""
    asks: tuple[str, ...]
    """Those of them that it sends to, receives from or selects."""


class Bound(NamedTuple):
    """What a slot is bound to: its role, the TYPE_NAME of its component, and its number on the device."""

    role: str
    type_name: str
    slot_id: int


class ProgramFacts(Facts):
    """What a program says."""

    module: str = ""
    """The root module, of which site ids are made."""
    compiled: str = ""
    """Its passport: the version of what was compiled."""
    targets: tuple[str, ...] = ()
    """The partitions, in order."""
    stripped: bool = False
    """The artifact of one target."""
    heard: Mapping[str, Heard] = MappingProxyType({})
    """Per target the classes of its peers."""
    contracts: Mapping[str, str] = _NOTHING
    """Per pair of classes (`bb_edge.wire.programs.pair`) the digest of what travels between them."""
    bindings: Mapping[tuple[str, str], Bound] = MappingProxyType({})
    """Per target and slot."""
    program: str = ""
    """The digest of the recorded program, 64 hex digits."""
    accepts: tuple[str, ...] = ()
    """Digests of the other programs whose nodes it takes."""
    telemetry: Mapping[str, int] = MappingProxyType({})
    """What passes counted."""
    digest: str = ""
    """The seal of the file that it was read from."""

    foreign: Mapping[str, str] = _NOTHING
    """Metadata that nothing here understands, as it came."""

    def bound(self, target: str, slot: str) -> Bound | None:
        """What a slot is bound to on a target, if it is."""
        return self.bindings.get((target, slot))
