"""The parts of a node, made in the order of their floors: each is given the ones below it.

`core` makes what ops are bound to; the installer binds them; `node` puts what starts executions, the engine
and the node itself on top. One call per part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bb_edge.engine.binding import BindEnv, Core, OpContext
from bb_edge.engine.engine import Engine, Parts
from bb_edge.engine.entries.bootstrap import Bootstrap, of_component
from bb_edge.engine.entries.bootstraps import Bootstraps
from bb_edge.engine.entries.quorum import RoundContext
from bb_edge.engine.entries.sources import EntryOp, Sources
from bb_edge.engine.errors import LoadError
from bb_edge.engine.ledger import Ledger
from bb_edge.engine.net.admission import Admission
from bb_edge.engine.net.back_pressure import BACKOFF_OP
from bb_edge.engine.net.control_plane import ControlPlane
from bb_edge.engine.net.durable import Durable
from bb_edge.engine.net.failures import Failures
from bb_edge.engine.net.former_sites import values_of
from bb_edge.engine.net.ingress import Ingress
from bb_edge.engine.net.journal import Journal
from bb_edge.engine.net.marks import Marks
from bb_edge.engine.net.marks_op import MarksOp
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.ports import Port
from bb_edge.engine.net.records import Records
from bb_edge.engine.net.requests import Requests
from bb_edge.engine.net.routing import Routing
from bb_edge.engine.net.senders import Senders
from bb_edge.engine.net.until_snapshot import SnapshotWish
from bb_edge.engine.net.verdicts import ANSWER_REFUSED_OP
from bb_edge.engine.program.program import PeerClasses, Program
from bb_edge.engine.run.bound import BoundGraph, BoundOp, OpObserver
from bb_edge.engine.run.components import Components, OpStates
from bb_edge.engine.run.naming import Naming
from bb_edge.engine.run.overdue import Overdue
from bb_edge.engine.run.pool import ExecutionPool
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.turns import Turns
from bb_edge.engine.run.waiting import WaitingRoom
from bb_edge.engine.runtime import Runtime
from bb_edge.inputs import decode_input
from bb_edge.ir.once import Once
from bb_edge.node import Node
from bb_edge.renewal import renewal
from bb_edge.roles import Component, PeerSelector, ProtocolComponent
from bb_edge.syscalls.role_ops import component_bootstrap
from bb_edge.wire.caps import RaisedSite
from bb_edge.wire.delivery import EPOCH_BITS, LinkConfig, Links
from bb_edge.wire.durable_receiver import DurableReceiver
from bb_edge.wire.durable_sender import DurableSender
from bb_edge.wire.marks import MARKS_OP
from bb_edge.wire.outbox_room import OutboxRoom
from bb_edge.wire.programs import ProgramClaim


@dataclass(frozen=True, slots=True)
class Slots:
    """The components of a node and the slots that they are bound to.

    `components` are by slot, in the order of their numbers; `numbers` tells the number for (target, slot).
    `refs` tells of a slot the number that its remote ops are reached under, and the target that binds it
    first. `construct` makes the component of a slot anew.
    """

    components: dict[str, Component]
    numbers: Mapping[tuple[str, str], int]
    refs: Mapping[str, tuple[int, str]]
    construct: Callable[[str], Component]


@dataclass(slots=True)
class Bound:
    """The graphs of a node with their ops bound, and what binding has found in them."""

    graphs: list[BoundGraph] = field(default_factory=list)
    mains: dict[str, BoundGraph] = field(default_factory=dict)
    ports: dict[int, Port] = field(default_factory=dict)
    entries: dict[str, list[EntryOp]] = field(default_factory=dict)
    bootstraps: dict[str, Bootstrap] = field(default_factory=dict)
    of_components: list[tuple[BoundOp, BindEnv]] = field(default_factory=list)


def core(
    runtime: Runtime,
    slots: Slots,
    peer_classes: Mapping[str, str],
    claim: ProgramClaim,
    durable: bool,
    dealt: PeerClasses | None = None,
    epoch: int | None = None,
) -> Core:
    """Makes everything up to what ops may call. `peer_classes` are by target, `claim` tells of the program.

    `dealt` are the classes of peers that the targets deal with. `epoch` is the best-effort one; where it is
    None, it is the first number that is drawn from the generator of ids.

    `durable` tells whether the driver keeps on disk what the node asks it to keep.
    """
    config = runtime.config
    links_config = LinkConfig(
        max_links=config.max_peers,
        max_pending=config.outbound_queue,
        pending_bytes=config.ingress_bytes,
        ack_delay_ns=config.ack_delay_ns,
        resend_ns=config.resend_ns,
    )
    places = config.ingress_entries + config.answer_entries
    ledger = Ledger(places, config.ingress_entries, config.ingress_bytes)
    components = Components(tuple(slots.components.values()), slots.numbers, peer_classes)
    pool = ExecutionPool(config.max_executions)
    ingress = Ingress(ledger, config.answer_entries)
    waiting = WaitingRoom(runtime, components, pool, ingress)
    sources = DurableReceiver(lambda: runtime.ids.getrandbits(63) or 1, config.max_peers)
    epoch = runtime.ids.getrandbits(EPOCH_BITS) or 1 if epoch is None else epoch
    links = Links(epoch, sources, links_config)
    peers = PeerStates(runtime, links, tuple(dict.fromkeys(peer_classes.values())), claim, dealt)
    wish = SnapshotWish(runtime, durable)
    room = OutboxRoom(config.outbox_records, config.outbox_bytes)
    sender = DurableSender(lambda: runtime.ids.getrandbits(63), room)
    marks = Marks(runtime, peers, durable)
    records = Records(runtime, links, peers, marks, sender, wish.until("a durable request"))
    kept = Durable(runtime, peers, records, wish)
    if durable and any(isinstance(c, PeerSelector) and c.sees_absent for c in slots.components.values()):
        peers.note = records.note
    outgoing = Outgoing(runtime, links, peers, kept, ingress.offer_own(runtime.own_peer))
    control = ControlPlane(runtime, components, peers, outgoing, ingress)
    ctx = OpContext(runtime, components, peers, control, waiting)
    turns = Turns(runtime.clock, config.cycle_time_ns, runtime.paces)
    scheduler = Scheduler(runtime, components, pool, waiting, ledger, turns, ctx)
    Overdue(scheduler)
    requests = Requests(runtime, scheduler, outgoing, peers, wish)
    return Core(runtime, scheduler, ctx, OpStates(), ingress, links, peers, wish, outgoing, control, requests)


def node(
    core: Core,
    bound: Bound,
    slots: Slots,
    program: Program,
    durable: bool,
    raised_sites: tuple[RaisedSite, ...],
    once: Once,
) -> tuple[Node, Parts]:
    """Makes the rest, on top of bound ops; `once` is the plan's.

    LoadError for entry ops with wrong attributes.
    """
    runtime, scheduler = core.runtime, core.scheduler
    graphs, component_bootstraps = _with_bootstraps(core, bound, slots)
    failures = Failures(runtime, core.peers, core.outgoing)
    routing = Routing(runtime, scheduler, failures, bound.ports, acknowledges=durable)
    routing.register(0, BACKOFF_OP, core.peers.back_pressure.told)
    routing.register(0, ANSWER_REFUSED_OP, core.requests.verdicts.told)
    for slot, (ref, target) in slots.refs.items():
        component = slots.components[slot]
        if isinstance(component, ProtocolComponent):
            index = slots.numbers[target, slot]
            for op, remote in core.control.add(ref, index, component, target, slot).items():
                routing.register(ref, op, remote, index)
    records = core.outgoing.durable.records
    journal = Journal(runtime, core.links, records.marks, records.writing.ahead, durable)
    routing.register(0, MARKS_OP, MarksOp(runtime, records, journal).told)
    admission = Admission(
        runtime,
        scheduler.waiting,
        core.ingress,
        core.links,
        core.peers,
        core.requests,
        core.control.calls,
        core.outgoing,
        routing,
        Senders(runtime, core.peers, routing),
        failures,
        journal,
    )
    try:
        sources = Sources(
            runtime,
            scheduler,
            core.ingress,
            core.control,
            core.wish.want,
            RoundContext(scheduler.components, core.peers, core.control, core.ctx),
            lambda target, slot: program.targets[target].peer_classes.get(slot, target),
            core.peers,
            bound.entries,
        )
    except (ValueError, TypeError) as error:
        raise LoadError(
            f"an op that starts executions: {error}", "install", "compile the program again"
        ) from error

    observer = OpObserver()
    bootstraps = Bootstraps(
        runtime,
        scheduler,
        core.ingress,
        list(bound.mains),
        bound.bootstraps,
        {slot: planned for slot, (_, planned) in component_bootstraps.items()},
        decode_input,
        sources,
        renewal(
            core,
            observer,
            slots.components,
            slots.construct,
            bound.of_components,
            {slot: graph for slot, (graph, _) in component_bootstraps.items()},
        ),
        core.wish.want,
    )
    found = once("sends", lambda: [values_of(graph.slot.ops) for graph in graphs.values()])
    sends = sorted({site: value for of_graph in found for site, value in of_graph.items()}.items())
    naming = Naming(graphs, scheduler.pool.active, sends)
    parts = Parts(**vars(core), admission=admission, sources=sources, bootstraps=bootstraps, naming=naming)
    made = Node(Engine(parts), parts, bound.graphs, bound.mains, program, observer, raised_sites)
    for target in bound.mains:
        if target not in bound.bootstraps:
            sources.start_at_first_poll(target)
    return made, parts


def _with_bootstraps(
    core: Core, bound: Bound, slots: Slots
) -> tuple[dict[int, BoundGraph], dict[str, tuple[BoundGraph, Bootstrap]]]:
    """All graphs by index, and those of components' own bootstraps, by slot: these come behind the others."""
    graphs = {graph.index: graph for graph in bound.graphs}
    of_slots: dict[str, tuple[BoundGraph, Bootstrap]] = {}
    for (target, slot), number in slots.numbers.items():
        if slot not in of_slots and type(slots.components[slot]).bootstrap is not Component.bootstrap:
            graph = component_bootstrap(core.scheduler, target, slot, number, len(graphs))
            core.scheduler.pool.frames.fill(graph.regions[0], 1)
            of_slots[slot] = graph, of_component(target, slot, graph, number)
            graphs[graph.index] = graph
    return graphs, of_slots
