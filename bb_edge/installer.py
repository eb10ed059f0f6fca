"""`install`: one node's state over a Program (semantics §4). Failure leaves nothing half-built."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from bb_edge.construction import build, construction
from bb_edge.engine import restart
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.engine import Engine, EntryOp
from bb_edge.engine.entries.bootstrap import Bootstraps, Planned, of_component, of_target
from bb_edge.engine.net.admission import Inbound
from bb_edge.engine.net.control_plane import ControlPlane
from bb_edge.engine.net.ingress import Ingress
from bb_edge.engine.net.journal import Journaling
from bb_edge.engine.net.outgoing import Outbound
from bb_edge.engine.net.peer_state import Neighbours
from bb_edge.engine.net.requests import Requests
from bb_edge.engine.net.routing import Port, ports_of
from bb_edge.engine.program.node_values import LoadError
from bb_edge.engine.program.program import Binding, FunctionKey, Program, Target
from bb_edge.engine.run.binding import BindEnv, make_gather
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.direct import direct_of
from bb_edge.engine.run.flows import find_claims, touch_set
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.engine.snapshot import Identity
from bb_edge.engine.snapshot import read as read_snapshot
from bb_edge.engine.snapshot_parts import Parts
from bb_edge.inputs import decode_input
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.ir.onnx_pb2 import FunctionProto
from bb_edge.ir.opsets import OpKind
from bb_edge.ir.opsets.wire import RECV_FLAVORED
from bb_edge.ir.suggestions import suggestion
from bb_edge.loading import load
from bb_edge.node import Node
from bb_edge.registry import Registry, default_registry
from bb_edge.renewal import renewal
from bb_edge.roles import Backend, Component, ComponentEnv, ProtocolComponent, UnsupportedOpsError
from bb_edge.syscalls.role_ops import component_bootstrap
from bb_edge.syscalls.table import binder
from bb_edge.targets import InstallError, check_arguments, chosen_targets
from bb_edge.wire.delivery import LinkConfig, Links
from bb_edge.wire.outbox import Outbox

if TYPE_CHECKING:
    from concurrent.futures import Executor

MAX_CALL_DEPTH = 64
"""Functions that call functions: deeper nests are refused, cycles with them."""


class SlotBindingConflict(InstallError):
    """Two targets bind one slot differently; names every contributor."""


class UnsupportedOps(InstallError):
    """The program needs ops that this runtime, or its backend, has not; names them all."""


def install(
    peer_id: PeerId,
    addresses: Sequence[bytes],
    program: Program | bytes,
    targets: Sequence[str],
    config: NodeConfig | None = None,
    *,
    components: Mapping[str, Mapping[str, object]] | None = None,
    registry: Registry | None = None,
    clock_offset_ns: int = 0,
    seed: bytes | int | None = None,
    incarnation: bytes | int | None = None,
    executor: Executor | None = None,
    durable: bool = False,
    snapshot: bytes | None = None,
    now_ns: int = 0,
) -> Node:
    """Makes a node that runs `targets` of a program.

    `addresses` are the node's own (binary multiaddrs), `components` overrides configuration per slot,
    `seed` feeds the node's generator (None: the operating system's entropy), `clock_offset_ns` turns
    monotonic into wall time. `incarnation` is entropy that differs at every start, for epochs and request
    ids; without it they follow the seed, as simulations want it.

    `executor` takes the work that components offload (a thread pool; the caller shuts it down); without one
    it is done inline, so that a simulation stays deterministic.

    `durable` says that the driver keeps on disk what `PersistOutbox`, `Journal` and `SnapshotWanted` ask for
    (`bb_edge.state.Keeper` does). Programs with durable sends need such a driver.

    `snapshot` are the bytes of `Node.snapshot` of a node of the same peer, artifact and targets: the new one
    continues where that one stopped, `now_ns` being the time now. SnapshotDamagedError,
    SnapshotForeignError, SnapshotVersionError where it cannot.

    Raises UnknownTargetError, SlotBindingConflict, UnregisteredConcreteError, UnsupportedOps, InstallError,
    ComponentError (a component refuses its configuration, or cannot be built) and what `load` raises.
    """
    if isinstance(program, bytes | bytearray | memoryview):
        program = load(bytes(program))
    check_arguments(peer_id, addresses, program)
    chosen = chosen_targets(program, targets)
    return _Installer(
        peer_id,
        addresses,
        program,
        chosen,
        config or NodeConfig.edge(),
        components or {},
        registry or default_registry(),
        seed,
        incarnation,
    ).node(clock_offset_ns, executor, durable, snapshot, now_ns)


_IDS = 0x6964730A
"""Tells the seed of the ids from that of the generator."""


class _Installer:
    """Builds one node; everything lives in locals of it until the node stands."""

    def __init__(
        self,
        peer_id: PeerId,
        addresses: Sequence[bytes],
        program: Program,
        targets: tuple[Target, ...],
        config: NodeConfig,
        overrides: Mapping[str, Mapping[str, object]],
        registry: Registry,
        seed: bytes | int | None,
        incarnation: bytes | int | None,
    ) -> None:
        self.peer_id = peer_id
        self.addresses = tuple(addresses)
        self.program = program
        self.targets = targets
        self.config = config
        self.overrides = overrides
        self.registry = registry
        self.rng = random.Random(seed) if seed is not None else random.SystemRandom()
        number = self.rng.getrandbits(128)
        self.seeded = random.Random(number)
        # A stream of its own: what a program draws must not depend on how many ids were minted before.
        self.ids_go_on = incarnation is None
        self.ids = random.Random(number ^ _IDS if incarnation is None else incarnation)

    # --- components -----------------------------------------------------------------------------------

    def bindings(self) -> dict[str, tuple[Binding, Target]]:
        """One binding per slot name; targets that share a slot must agree on it."""
        found: dict[str, tuple[Binding, Target]] = {}
        for target in self.targets:
            for slot, binding in target.bindings.items():
                if slot not in found:
                    found[slot] = (binding, target)
                    continue
                other, first = found[slot]
                same_state = target.states.get(slot) == first.states.get(slot)
                if (other.role, other.type_name) != (binding.role, binding.type_name) or not same_state:
                    details = "" if same_state else ", with different configuration"
                    raise SlotBindingConflict(
                        f"{first.name} binds {other.role}|{other.type_name}, "
                        f"{target.name} binds {binding.role}|{binding.type_name}{details}",
                        f"slot {slot!r}",
                        "install the targets on separate nodes, or bind the slot alike",
                    )
        return found

    def components(self, bindings: Mapping[str, tuple[Binding, Target]]) -> dict[str, Component]:
        """Backends first: the others are given theirs."""
        for slot in self.overrides:
            if slot not in bindings:
                raise InstallError(
                    f"configuration for slot {slot!r}, which no target has",
                    "install",
                    suggestion(slot, bindings, "slots: "),
                )
        made: dict[str, Component] = {}
        order = sorted(
            bindings, key=lambda s: (bindings[s][0].role != keys.ROLE_BACKEND, bindings[s][0].slot_id)
        )
        for slot in order:
            made[slot] = self.construct(slot, *bindings[slot], made)
        return made

    def construct(
        self, slot: str, binding: Binding, target: Target, made: Mapping[str, Component]
    ) -> Component:
        """One component, from its construction state and what was made before it."""
        kind = self.registry.lookup(binding.type_name, f"slot {slot!r} of {target.name}")
        return build(kind, self._env(slot, binding, target, made))

    def _env(
        self, slot: str, binding: Binding, target: Target, made: Mapping[str, Component]
    ) -> ComponentEnv:
        config, tensors = construction(target.states.get(slot), f"slot {slot!r} of {target.name}")
        config.update(self.overrides.get(slot, {}))
        functions = self.program.functions

        def graph(suffix: str) -> FunctionProto | None:
            for name in (f"{slot}.{suffix}#{target.name}", f"{slot}.{suffix}"):
                found = functions.get((keys.COMPONENT_DOMAIN, name))
                if found is not None:
                    return found
            return None

        backend = made.get(keys.ROLE_BACKEND)
        return ComponentEnv(
            slot=slot,
            target=target.name,
            config=config,
            tensors=tensors,
            graph=graph,
            backend=backend if isinstance(backend, Backend) else None,
            seed=self.seeded.getrandbits(63),
            own_class=target.peer_class,
            peer_class=target.peer_classes.get(slot, target.peer_class),
            functions=functions,
        )

    # --- graphs ---------------------------------------------------------------------------------------

    def graphs_of(self, target: Target, first_index: int) -> dict[FunctionKey, BoundGraph]:
        """The target's main, bootstrap and everything that they call, bound to it."""
        program = self.program
        found: dict[FunctionKey, BoundGraph] = {}
        todo: list[tuple[FunctionKey, tuple[FunctionKey, ...]]] = [(target.main, ())]
        if target.bootstrap is not None:
            todo.append((target.bootstrap, ()))
        while todo:
            key, path = todo.pop(0)
            if key in path or len(path) > MAX_CALL_DEPTH:
                raise LoadError(f"function {key[1]!r} calls itself", where=target.name)
            slot = program.graphs[key]
            if key not in found:
                found[key] = BoundGraph(slot, first_index + len(found), target.name)
            for op in slot.ops:
                callee = (op.domain, op.op_type)
                if callee in program.graphs:
                    todo.append((callee, (*path, key)))
            if len(todo) > 10_000:
                raise LoadError("too many calls", where=target.name)
        return found

    def planned_sizes(self) -> dict[int, int]:
        """Largest planned payload per site that the targets receive at, where the compiler knew it."""
        found: dict[int, int] = {}
        for target in self.targets:
            for op in self.program.graphs[target.main].ops:
                sites, sizes = op.meta.get(keys.SITE_IDS_KEY, ""), op.meta.get(keys.WIRE_MAX_BYTES_KEY, "")
                if op.domain == keys.WIRE_DOMAIN and op.op_type in RECV_FLAVORED and sites and sizes:
                    try:
                        for site, size in zip(sites.split(","), sizes.split(","), strict=False):
                            found[int(site, 16)] = int(size)
                    except ValueError as error:
                        raise _no_number(error, target.name, op.name) from error
        return found

    # --- the node -------------------------------------------------------------------------------------

    def node(
        self,
        clock_offset_ns: int,
        executor: Executor | None,
        durable: bool,
        snapshot: bytes | None,
        now_ns: int,
    ) -> Node:
        identity = Identity.of(self.peer_id, self.program, [t.name for t in self.targets])
        body = None if snapshot is None else read_snapshot(snapshot, identity)
        caps, raised = self.config.caps.with_sites(self.planned_sizes())
        config = self.config.with_(caps=caps) if raised else self.config
        bindings = self.bindings()
        components = self.components(bindings)
        names = list(components)
        slots = {(t.name, slot): names.index(slot) for t in self.targets for slot in t.bindings}
        runtime = Runtime(
            config,
            self.peer_id,
            self.seeded,
            self.ids,
            ids_go_on=self.ids_go_on,
            clock_offset_ns=clock_offset_ns,
            local_addresses=self.addresses,
            executor=executor,
        )
        engine = Scheduler(
            runtime,
            [components[n] for n in names],
            slots,
            {t.name: t.peer_class for t in self.targets},
            raised,
        )
        ingress = Ingress(config.ingress_entries, config.ingress_bytes, config.answer_entries)
        engine.parking.sink = ingress
        engine.on_bytes_released = ingress.release
        link_config = LinkConfig(
            max_links=config.max_peers,
            max_pending=config.outbound_queue,
            pending_bytes=config.ingress_bytes,
            ack_delay_ns=config.ack_delay_ns,
            resend_ns=config.resend_ns,
        )
        links = Links(self.ids.getrandbits(56) or 1, self.ids.getrandbits(56) or 1, link_config)
        requests = Requests(engine)
        graphs_by_target = {}
        total = 0
        for target in self.targets:
            graphs_by_target[target.name] = self.graphs_of(target, total)
            total += len(graphs_by_target[target.name])
        ports: dict[int, Port] = {}
        entries: dict[str, list[EntryOp]] = {}
        neighbours = Neighbours(engine, requests, links, bindings_classes(self.targets))
        engine.neighbours = neighbours
        outbound = Outbound(engine, links, ingress.offer_own(self.peer_id))
        requests.on_closed = outbound.forget_ask
        control = engine.control = ControlPlane(engine, outbound)

        def lost(req_id: int, peer: PeerId) -> None:
            if not control.lost(req_id, peer):
                requests.settle_peer(req_id, peer)

        outbound.on_lost = lost
        missing: list[str] = []
        bound: list[tuple[BoundOp, BindEnv]] = []
        of_targets: dict[str, Planned] = {}
        for target in self.targets:
            graphs = graphs_by_target[target.name]
            backends = {
                s: c for s, c in components.items() if isinstance(c, Backend) and s in target.bindings
            }
            state = engine.op_states[target.name] = {}
            for graph in graphs.values():
                env = BindEnv(
                    engine,
                    requests,
                    outbound,
                    graph,
                    state,
                    backends,
                    self.program.functions,
                    graphs,
                    self.program.opsets,
                )
                missing += _bind(graph, env)
                bound += [(op, env) for op in graph.ops if op.component >= 0]
            find_claims(graphs, engine.components)
            main = graphs[target.main]
            main.direct = direct_of(main, engine)
            for op in main.ops:
                self._entry(op, main, backends, ports, entries)
                if op.spec.meta.get(keys.DURABLE_KEY) == "1" and not durable:
                    raise InstallError(
                        "it sends durably, and nothing here would be kept on disk",
                        f"{target.name}, {op.spec.name}",
                        "run it with a state folder (bb-edge run --state), or record it with durable=False",
                    )
            if target.bootstrap is not None:
                bootstrap = graphs[target.bootstrap]
                of_targets[target.name] = of_target(engine, bootstrap, touch_set(bootstrap, graphs))
            children = config.max_executions * config.max_children
            for graph in (main, *([graphs[target.bootstrap]] if target.bootstrap else ())):
                for region in graph.regions:
                    count = config.max_executions if region.region.index == 0 else children
                    engine.pool.frames.fill(region, count)
        if missing:
            raise UnsupportedOps(
                f"not supported here: {', '.join(sorted(set(missing)))}",
                "install",
                "use another backend, or other ops",
            )
        engine.graphs = tuple(g for graphs in graphs_by_target.values() for g in graphs.values())
        inbound = Inbound(engine, ingress, links, requests, ports)
        if durable:
            requests.want_snapshot = outbound.keep_durable(
                Outbox(config.outbox_records, config.outbox_bytes)
            ).want_snapshot
            inbound.journaling = Journaling(engine, links)
            inbound.on_settled = outbound.settled
        neighbours.attach(inbound, outbound)
        for slot, (binding, target) in bindings.items():
            component = components[slot]
            if isinstance(component, ProtocolComponent):
                control.add(binding.slot_id, names.index(slot), component, target.name, slot, inbound)
        try:
            cycle = Engine(engine, ingress, inbound, outbound, requests, links, entries)
        except (ValueError, TypeError) as error:
            raise LoadError(
                f"an op that starts executions: {error}", "install", "compile the program again"
            ) from error
        neighbours.on_peer_up = cycle.peer_up
        of_slots: dict[str, Planned] = {}
        own_graphs: dict[str, BoundGraph] = {}
        by_index = {graph.index: graph for graph in engine.graphs}
        for (target_name, slot), number in slots.items():
            if slot not in of_slots and type(components[slot]).bootstrap is not Component.bootstrap:
                graph = component_bootstrap(engine, target_name, slot, number, total + len(of_slots))
                of_slots[slot] = of_component(target_name, slot, graph, number)
                by_index[graph.index] = own_graphs[slot] = graph

        def keep() -> None:
            if outbound.durable is not None:  # what was done once is not to be done again
                outbound.durable.want_snapshot("a bootstrap")

        bootstraps = Bootstraps(
            engine,
            ingress,
            [t.name for t in self.targets],
            of_targets,
            of_slots,
            decode_input,
            cycle.start_target,
            cycle.hold_target,
            renewal(
                engine,
                components,
                lambda slot: self.construct(slot, *bindings[slot], components),
                bound,
                own_graphs,
            ),
            keep,
        )
        engine.on_bootstrap_failure = bootstraps.failed_in
        mains = {t.name: graphs_by_target[t.name][t.main] for t in self.targets}
        engine.graph_of = {op: graph.index for graph in by_index.values() for op in graph.ops}
        parts = Parts(engine, cycle, bootstraps, by_index)
        node = Node(engine, cycle, ingress, bootstraps, neighbours, mains, self.program, parts)
        for target in self.targets:
            if target.bootstrap is None:
                cycle.start_at_first_poll(target.name)
        if body is not None:
            restart.restore(parts, body, now_ns)
        return node

    def _entry(
        self,
        op: BoundOp,
        graph: BoundGraph,
        backends: Mapping[str, Backend],
        ports: dict[int, Port],
        entries: dict[str, list[EntryOp]],
    ) -> None:
        spec = op.spec
        if spec.domain == keys.WIRE_DOMAIN and spec.op_type in RECV_FLAVORED:
            backend = backends.get(keys.ROLE_BACKEND) if keys.RECV_SLOT_ID_KEY in spec.meta else None
            try:
                found = ports_of(graph, op, backend)
            except ValueError as error:
                raise _no_number(error, graph.target, spec.name) from error
            for site, port in found:
                if site in ports:
                    raise InstallError(
                        f"site {site:#018x} stands twice",
                        f"{graph.target}, {spec.name}",
                        "give ports different names",
                    )
                ports[site] = port
        if spec.kind is OpKind.ENTRY and spec.domain != keys.WIRE_DOMAIN:
            entries.setdefault(spec.op_type, []).append((graph, op))


def _no_number(error: ValueError, target: str, op: str) -> LoadError:
    return LoadError(f"the sites of its payloads: {error}", f"{target}, {op}", "compile the program again")


def bindings_classes(targets: Iterable[Target]) -> tuple[str, ...]:
    """The peer classes that a node with these targets presents."""
    return tuple(dict.fromkeys(t.peer_class for t in targets))


def _bind(graph: BoundGraph, env: BindEnv) -> list[str]:
    """Resolves every op's dispatch; returns the names of those that nothing serves."""
    known = frozenset(env.graphs)
    missing: list[str] = []
    for op in graph.ops:
        make = binder(op, known)
        if make is None:
            missing.append(f"{op.spec.domain or keys.ONNX_DOMAIN_ALIAS}::{op.spec.op_type}")
            continue
        op.gather = make_gather(op.spec.inputs, graph.slot.absent)
        try:
            op.run = make(op, env)
        except UnsupportedOpsError as error:
            missing += [f"{name} (backend {error.backend})" if error.backend else name for name in error.ops]
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            # What no compiler wrote: attributes of the wrong kind, inputs that an op cannot have.
            raise LoadError(
                f"{type(error).__name__}: {error}",
                f"{graph.target}, {op.spec.name}",
                "compile the program again",
            ) from error
    return missing
