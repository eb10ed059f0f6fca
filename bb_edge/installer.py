"""`install`: one node's state over a Program. Failure leaves nothing half-built."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bb_edge import wiring
from bb_edge.construction import build, construction
from bb_edge.engine import snapshot as snapshots
from bb_edge.engine.binding import BindEnv, Core, make_gather
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.drawing import Drawing
from bb_edge.engine.entries.bootstrap import of_target
from bb_edge.engine.errors import LoadError, OpError
from bb_edge.engine.net.ports import ports_of
from bb_edge.engine.program.program import Binding, FunctionKey, Program, Target
from bb_edge.engine.run.body_frames import fill_frames
from bb_edge.engine.run.bound import BoundGraph
from bb_edge.engine.run.claims import find_claims, touch_set
from bb_edge.engine.runtime import Executor, Runtime
from bb_edge.install_plan import InstallPlan, no_number
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.onnx_pb2 import FunctionProto
from bb_edge.ir.opsets import OpKind
from bb_edge.ir.opsets.wire import RECV_FLAVORED
from bb_edge.ir.suggestions import suggestion
from bb_edge.loading import load
from bb_edge.node import Node
from bb_edge.registry import Registry, default_registry
from bb_edge.roles import Backend, Component, ComponentEnv, UnsupportedOpsError
from bb_edge.roles.settings import settings_of
from bb_edge.syscalls.table import binder
from bb_edge.targets import InstallError, SeveralRefusals, check_arguments, refuse_forgetful
from bb_edge.wiring import Bound, Slots

if TYPE_CHECKING:
    from bb_edge.adoption import Former

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
    seed: bytes | int | None = None,
    durable: bool = False,
    snapshot: bytes | None = None,
    adopt: Former | None = None,
    now_ns: int = 0,
    clock_offset_ns: int = 0,
    clock: Callable[[], int] | None = None,
    executor: Executor | None = None,
    why_not_train: Callable[[], str] | None = None,
    incarnation: bytes | int | None = None,
    epoch: int | None = None,
    plan: InstallPlan | None = None,
) -> Node:
    """Makes a node that runs `targets` of a program.

    `addresses` are the node's own (binary multiaddrs), `components` overrides configuration per slot,
    `registry` finds the classes of components, and `seed` feeds the node's generator (None: the operating
    system's entropy).

    State: `durable` says that the driver keeps on disk what `PersistOutbox`, `Journal` and `SnapshotWanted`
    ask for (`bb_edge.state.Keeper` does); programs with durable sends need such a driver. `snapshot` are the
    bytes of `Node.snapshot` of a node of the same peer, artifact and targets: the new one continues where
    that one stopped, `now_ns` being the time now. SnapshotDamagedError, SnapshotForeignError,
    SnapshotVersionError where it cannot. Without one, `adopt` is a node of another program, of which the new
    one takes over what fits; `adopt.rows` tell what, and the rows of `adopt.outbox` have to be on disk before
    the node is given its outbox.

    What the driver gives: `clock_offset_ns` turns monotonic into wall time; `clock()` is the monotonic time
    in nanoseconds, by which a poll ends in time (None: time is simulated); `executor` takes the work that
    components offload (a thread pool; the caller shuts it down), and without one it is done inline;
    `why_not_train()` is asked for each request that trains, and says why the node declines it now, "" where
    it does not.

    Who the node is among others: `incarnation` is entropy that differs at every start, for epochs and request
    ids; without it they follow the seed, as simulations want it. `epoch`, of 56 bits and not 0, is the node's
    first one in place of one that is drawn, for hosts that tell it of nodes not installed yet. `plan` was
    made of this program, these targets and this config, by a host that installs many nodes.

    Raises UnknownTargetError, SlotBindingConflict, UnregisteredConcreteError, UnsupportedOps, InstallError,
    ComponentError (a component refuses its configuration, or cannot be built) and what `load` raises.
    Where several slots are refused it is SeveralRefusals, with all of these errors.
    """
    if isinstance(program, bytes | bytearray | memoryview):
        program = load(bytes(program))
    check_arguments(peer_id, addresses, program)
    plan = InstallPlan(program, targets, config) if plan is None else plan.of(program, targets, config)
    chosen = plan.targets
    identity = snapshots.Identity.of(peer_id, program, [target.name for target in chosen])
    body = None if snapshot is None else snapshots.read(snapshot, identity)
    number = (random.SystemRandom() if seed is None else random.Random(seed)).getrandbits(128)
    runtime = Runtime(
        plan.config,
        peer_id,
        Drawing(number),
        # A stream of its own: what a program draws must not depend on how many ids were minted before.
        Drawing(number ^ _IDS if incarnation is None else incarnation),
        ids_go_on=incarnation is None,
        clock_offset_ns=clock_offset_ns,
        local_addresses=tuple(addresses),
        executor=executor,
        clock=clock,
        why_not_train=why_not_train,
    )
    installer = _Installer(runtime, plan, components or {}, registry or default_registry())
    slots = installer.slots()
    if adopt is not None and body is None:
        slots = replace(slots, construct=adopt.hand_over(slots.components, slots.construct))
    classes = {target.name: target.peer_class for target in chosen}
    dealt = program.dealt_with(classes)
    core = wiring.core(runtime, slots, classes, program.identity, durable, dealt, epoch)
    bound = installer.bound(core, slots, durable)
    node, parts = wiring.node(core, bound, slots, program, durable, plan.raised, plan.once)
    if body is not None:
        snapshots.restore(parts, body, now_ns)
    elif adopt is not None:
        adopt.finish(parts, program, chosen)
    return node


_IDS = 0x6964730A
"""Tells the seed of the ids from that of the generator."""


@dataclass(slots=True)
class _Installer:
    """Builds one node; everything lives in locals of it until the node stands."""

    runtime: Runtime
    plan: InstallPlan
    overrides: Mapping[str, Mapping[str, object]]
    registry: Registry

    @property
    def program(self) -> Program:
        return self.plan.program

    @property
    def targets(self) -> tuple[Target, ...]:
        return self.plan.targets

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
        refused: list[BBError] = [
            InstallError(
                f"configuration for slot {slot!r}, which no target has",
                "install",
                suggestion(slot, bindings, "slots: "),
            )
            for slot in self.overrides
            if slot not in bindings
        ]
        made: dict[str, Component] = {}
        order = sorted(
            bindings, key=lambda s: (bindings[s][0].role != keys.ROLE_BACKEND, bindings[s][0].slot_id)
        )
        for slot in order:
            try:
                made[slot] = self.construct(slot, *bindings[slot], made)
            except BBError as error:
                error.slot = slot
                refused.append(error)
                if bindings[slot][0].role == keys.ROLE_BACKEND:
                    break  # what takes the backend would be refused for that alone
        if len(refused) > 1:
            raise SeveralRefusals(refused)
        if refused:
            raise refused[0]
        return made

    def construct(
        self, slot: str, binding: Binding, target: Target, made: Mapping[str, Component]
    ) -> Component:
        """One component, from its construction state and what was made before it."""
        where = f"slot {slot!r} of {target.name}"
        kind = self.registry.lookup(binding.type_name, where)
        once = self.plan.once
        state = once(("state", target.name, slot), lambda: construction(target.states.get(slot), where))
        own = self.overrides.get(slot, {})
        config, tensors = {**deepcopy(state[0]), **own}, dict(state[1])
        functions = self.program.functions

        def graph(suffix: str) -> FunctionProto | None:
            name = f"{slot}.{suffix}"
            own = functions.get((keys.COMPONENT_DOMAIN, f"{name}#{target.name}"))
            return own or functions.get((keys.COMPONENT_DOMAIN, name))

        backend = made.get(keys.ROLE_BACKEND)
        env = ComponentEnv(
            slot=slot,
            target=target.name,
            config=config,
            tensors=tensors,
            graph=graph,
            backend=backend if isinstance(backend, Backend) else None,
            seed=self.runtime.rng.getrandbits(63),
            own_class=target.peer_class,
            peer_class=target.peer_classes.get(slot, target.peer_class),
            functions=functions,
            tensor_bytes=self.runtime.config.tensor_bytes,
            once=lambda key, make: once((target.name, slot, key), make),
            compiled=state[0],
            alike=not own,
        )
        for key in sorted(kind.COMPILED & own.keys()):
            if config[key] != (compiled := state[0].get(key, (settings_of(kind) or {})[key].default)):
                raise env.error(
                    f"the graphs were compiled with {compiled}, not {config[key]!r}",
                    key,
                    "leave it out here; to change it, change what `trainable` is given, and compile again",
                )
        return build(kind, env)

    # --- graphs ---------------------------------------------------------------------------------------

    def graphs_of(self, target: Target, first_index: int) -> dict[FunctionKey, BoundGraph]:
        """The target's main, bootstrap and everything that they call, bound to it."""
        names = self.plan.once(("graphs", target.name), lambda: self._reached(target))
        return {
            key: BoundGraph(self.program.graphs[key], first_index + number, target.name)
            for number, key in enumerate(names)
        }

    def _reached(self, target: Target) -> tuple[FunctionKey, ...]:
        program = self.program
        found: dict[FunctionKey, None] = {}
        todo: list[tuple[FunctionKey, tuple[FunctionKey, ...]]] = [(target.main, ())]
        if target.bootstrap is not None:
            todo.append((target.bootstrap, ()))
        while todo:
            key, path = todo.pop(0)
            if key in path or len(path) > MAX_CALL_DEPTH:
                raise LoadError(f"function {key[1]!r} calls itself", where=target.name)
            found[key] = None
            for op in program.graphs[key].ops:
                todo += [(callee, (*path, key)) for callee in op.callees if callee in program.graphs]
            if len(todo) > 10_000:
                raise LoadError("too many calls", where=target.name)
        return tuple(found)

    def slots(self) -> Slots:
        """Every slot with its component, constructed."""
        bindings = self.bindings()
        components = self.components(bindings)
        numbers = {slot: number for number, slot in enumerate(components)}
        return Slots(
            components,
            {(t.name, slot): numbers[slot] for t in self.targets for slot in t.bindings},
            {slot: (binding.slot_id, target.name) for slot, (binding, target) in bindings.items()},
            lambda slot: self.construct(slot, *bindings[slot], components),
        )

    def bound(self, core: Core, slots: Slots, durable: bool) -> Bound:
        """All graphs with their ops bound. InstallError, UnsupportedOps and LoadError where one cannot be."""
        bound = Bound()
        missing: list[str] = []
        for target in self.targets:
            graphs = self.graphs_of(target, len(bound.graphs))
            bound.graphs += graphs.values()
            backends = {
                slot: component
                for slot, component in slots.components.items()
                if isinstance(component, Backend) and slot in target.bindings
            }
            state = core.states.by_target[target.name] = {}
            for graph in graphs.values():
                env = BindEnv(
                    **vars(core),
                    graph=graph,
                    state=state,
                    backends=backends,
                    program=self.program,
                    graphs=graphs,
                    once=self.plan.once,
                )
                missing += _bind(graph, env)
                bound.of_components += [(op, env) for op in graph.ops if op.component >= 0]
            find_claims(graphs, core.scheduler.components, self.plan.once)
            if any(op.spec.meta.get(keys.DURABLE_KEY) == "1" for op in graphs[target.main].ops):
                refuse_forgetful(graphs.values(), slots.components)
            main = bound.mains[target.name] = graphs[target.main]
            _find_entries(main, backends.get(keys.ROLE_BACKEND), bound, durable)
            entered = [main]
            if target.bootstrap is not None:
                bootstrap = graphs[target.bootstrap]
                touched = touch_set(bootstrap, graphs)
                bound.bootstraps[target.name] = of_target(core.scheduler, bootstrap, touched)
                entered.append(bootstrap)
            config = self.runtime.config
            for region in (region for graph in entered for region in graph.regions):
                per_execution = config.max_children if region.region.index else 1
                count = config.max_executions * per_execution
                fill_frames(core.scheduler.pool.frames, region, count, graphs, now=not self.plan.many)
        if missing:
            raise UnsupportedOps(
                f"not supported here: {', '.join(sorted(set(missing)))}",
                "install",
                "use another backend, or other ops",
            )
        return bound


def _find_entries(main: BoundGraph, backend: Backend | None, bound: Bound, durable: bool) -> None:
    """Notes the ports of a target's main and the ops that start executions by themselves."""
    for op in main.ops:
        spec = op.spec
        if spec.domain == keys.WIRE_DOMAIN and spec.op_type in RECV_FLAVORED:
            try:
                ports = ports_of(main, op, backend if keys.RECV_SLOT_ID_KEY in spec.meta else None)
            except ValueError as error:
                raise no_number(error, main.target, spec.name) from error
            for site, port in ports:
                if site in bound.ports:
                    raise InstallError(
                        f"site {site:#018x} is declared twice",
                        f"{main.target}, {spec.name}",
                        "give ports different names",
                    )
                bound.ports[site] = port
        elif spec.kind is OpKind.ENTRY and spec.domain != keys.WIRE_DOMAIN:
            bound.entries.setdefault(spec.op_type, []).append((main, op))
        if spec.meta.get(keys.DURABLE_KEY) == "1" and not durable:
            raise InstallError(
                "it sends durably, and nothing here would be kept on disk",
                f"{main.target}, {spec.name}",
                "run it with a state folder (bb-edge run --state), or record it with durable=False",
            )


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
        except OpError as error:
            error.slot = error.slot or op.spec.meta.get(keys.SLOT_KEY, "")
            raise
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
