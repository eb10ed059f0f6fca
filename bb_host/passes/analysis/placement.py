"""Decides on which class of devices each op runs, and of which class the peers of each list are.

In this order, a later rule only when no earlier one places more: the slot's `at=`, of loops and branches the
slots' in their bodies; the class of data and control inputs; the scope `with g.at(…)`; the class of the
readers, Sends not counted. Inputs and entries that no wire feeds belong to their scope, else to home. Ops
over constants only are copied to every class that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from bb_edge.ir import keys, types
from bb_edge.ir.bodies import BODY_ATTRS
from bb_edge.ir.class_names import CLASS_NAME_RULE, is_class_name
from bb_edge.ir.opsets.wire import (
    ONNX_OPS_OVER_PEERS,
    OP_RECV_RESP_BATCHED,
    OP_SEND_REQ,
    OP_SEND_RESP,
    SEND_FLAVORED,
)
from bb_edge.ir.suggestions import suggestion
from bb_host.errors import AmbiguousPlacement, CrossClassDataflow, InvalidClassName, named
from bb_host.ir.program import Function, Op, Slot
from bb_host.ir.queries import DRAWS, is_after, is_entry, reads
from bb_host.passes.analysis import flow

_PEER_SYSCALLS = frozenset(
    {
        *("Any", "Gate", "PassThrough", "Tee", "GateDispatch", "GateManyDispatch", "DeadlineCheck"),
        *("PeerAt", "PeerList"),
    }
)
_JOINS_PEERS = frozenset({"Any", "PeerList"})
_RANDOM = DRAWS | {"Dropout"}
_HANDS_ON_PEERS = ONNX_OPS_OVER_PEERS | _PEER_SYSCALLS
_CONSTANT_SYSCALLS = frozenset({"PassThrough", "Tee", "Constant"})


@dataclass(frozen=True, slots=True)
class Placement:
    """The result: classes of each op (several for copied constants), of inputs, and of lists of peers.

    `order` holds all classes in the order in which they first appear, home first; `leading` the places of the
    ops that yield lists of peers.
    """

    ops: tuple[tuple[str, ...], ...]
    inputs: Mapping[str, str]
    peers: Mapping[str, str]
    order: tuple[str, ...]
    leading: Collection[int]


def is_single_class(function: Function, slots: Mapping[str, Slot], home: str) -> bool:
    """Whether nothing in the function speaks of another class than home; then nothing is to be placed."""
    for slot in slots.values():
        if (slot.at and slot.at != home) or (slot.peer_class and slot.peer_class != home):
            return False
    if any(where != home for where in function.facts.input_classes.values()):
        return False
    if flow.has_wire(function):
        return False
    return "at" not in flow.summary(function.ops).said or not any(
        op.facts.at not in ("", home) for op in function.ops
    )


def place(
    function: Function,
    slots: Mapping[str, Slot],
    home: str,
    in_bodies: Callable[[Op], Collection[str]] = lambda op: (),
) -> Placement:
    """Places every op of a function. `in_bodies` gives the slots that an op's bodies use.

    Raises CrossClassDataflow and AmbiguousPlacement, naming the ops' lines, and InvalidClassName.
    """
    return _Placer(function, slots, home, in_bodies).run()


class _Placer:
    def __init__(
        self,
        function: Function,
        slots: Mapping[str, Slot],
        home: str,
        in_bodies: Callable[[Op], Collection[str]],
    ) -> None:
        self.in_bodies = in_bodies
        self.function = function
        self.ops = function.ops
        self.home = home
        self.slots = slots
        there = flow.summary(self.ops)
        bodies = there.has_subgraphs
        self.needs = [
            self._needs(op) if "" in op.inputs or (bodies and op.attrs) else op.inputs for op in self.ops
        ]
        # Where a walk may still learn something though the op is placed.
        handing = _HANDS_ON_PEERS.intersection([op_type for _, op_type in there.kinds])
        self.moving = [bool(handing) and op.op_type in handing for op in self.ops]
        self.requests: dict[str, int] = {}
        for index in there.wire:
            op = self.ops[index]
            self.needs[index] = self._needs(op)
            self.moving[index] = True
            if op.op_type == OP_SEND_REQ:
                self.requests[flow.wire_id(op)] = index
        self.placed: list[str | None] = [None] * len(self.ops)
        self.values: dict[str, str] = {}  # value → class it is on
        self.peers: dict[str, str] = {}  # list of peers → class it leads to
        self.leading: set[int] = set()  # the ops that yield such lists
        self.constant: set[str] = set()
        self.near_constants: list[int] = []  # the ops that read one, or nothing
        self.is_constant = [False] * len(self.ops)
        self.unsettled: list[int] = []
        self.inputs: dict[str, str] = {}
        self.default_peers: str | None = None

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for index, names in enumerate(self.needs):
            for name in names:
                found.setdefault(name, []).append(index)
        return found

    def _needs(self, op: Op) -> tuple[str, ...]:
        """The values whose class is the op's: a reply's request id crosses over by itself."""
        names = reads(op)
        if op.op_type == OP_SEND_RESP and flow.is_wire(op):
            names = names[:-1]
        return tuple(n for n in names if n) if "" in names else names

    # --- the run

    def run(self) -> Placement:
        self._inputs()
        self._constants()
        self._facts()
        if self._classes() == {self.home}:
            self._all_home()
        else:
            self._fixed_point()
        self._check()
        return self._result()

    def _inputs(self) -> None:
        listed: set[str] = set()
        if (keys.SYSCALL_DOMAIN, "PeerList") in flow.summary(self.ops).kinds:
            listed.update(name for op in self.ops if op.op_type == "PeerList" for name in op.inputs)
        for name in self.function.inputs:
            where = self.function.facts.input_classes.get(name) or self.home
            self.inputs[name] = self.values[name] = where
            known = self.function.types.get(name)
            node = None if known is None else known.node
            if node is types.PEER_ID_VEC or (node is types.PEER_ID and name in listed):
                self.peers[name] = name

    def _constants(self) -> None:
        is_apart = self.constant.isdisjoint
        for index, needs in enumerate(self.needs):
            if needs and is_apart(needs):
                continue
            self.near_constants.append(index)
            if self._over_constants(index, self.ops[index]):
                self.is_constant[index] = True
                self.constant.update(self.ops[index].outputs)

    def _over_constants(self, index: int, op: Op) -> bool:
        needs = self.needs[index]
        if op.domain == keys.ONNX_DOMAIN or op.domain == keys.ONNX_DOMAIN_ALIAS:
            if not needs:
                return op.op_type == "Constant"
            return op.op_type not in _RANDOM and self.constant.issuperset(needs)
        if op.domain == keys.SYSCALL_DOMAIN and op.op_type in _CONSTANT_SYSCALLS:
            return self.constant.issuperset(needs) and (bool(needs) or op.op_type == "Constant")
        return op.domain == keys.COMPOSITE_DOMAIN and bool(needs) and self.constant.issuperset(needs)

    def _facts(self) -> None:
        """What needs no inference: slots that live somewhere, entries, selectors of peers."""
        slots = self.slots
        homes = {name: slot.at for name, slot in slots.items() if slot.at}
        for index, op in enumerate(self.ops):
            where = homes.get(op.facts.slot)
            if op.domain == keys.ROLE_PEER_SELECTOR_DOMAIN and op.facts.slot in slots:
                self.leading.add(index)
                for name in op.outputs:
                    self.peers[name] = slots[op.facts.slot].peer_class or self.home
            if where is not None:
                self._place(index, where)
            elif op.op_type == "StopRounds" and op.domain == keys.SYSCALL_DOMAIN:
                self._place(index, self._of_rounds())
            elif op.op_type in BODY_ATTRS and (around := self._of_bodies(op)):
                self._place(index, around)
            elif not op.inputs and is_entry(op):
                self._place(index, op.facts.at or self.home)

    def _of_rounds(self) -> str:
        """The class on which the rounds are that an op ends."""
        return next((op.facts.at for op in self.ops if op.op_type == "Repeat"), "") or self.home

    def _of_bodies(self, op: Op) -> str:
        """The class on which all slots of an op's bodies are; empty where none says one."""
        found = {
            at: name
            for name in sorted(self.in_bodies(op))
            if name in self.slots and (at := self.slots[name].at)
        }
        if len(found) > 1:
            sides = " and ".join(f"slot {name!r} of {where}" for where, name in found.items())
            raise CrossClassDataflow(
                f"its body uses {sides}", hint="a body runs on one class: send between two loops", op=op
            )
        return next(iter(found), "")

    def _classes(self) -> set[str]:
        found = {self.home, *self.inputs.values(), *self.peers.values()}
        found.update(facts.at for facts in flow.summary(self.ops).records if facts.at)
        for slot in self.slots.values():
            found.update(filter(None, (slot.at, slot.peer_class)))
        for name in found:
            if not is_class_name(name):
                raise InvalidClassName(
                    f"{name!r} is not a valid name for a class", self.function.name, CLASS_NAME_RULE
                )
        return found

    def _all_home(self) -> None:
        self.default_peers = self.home
        for index in range(len(self.ops)):
            if self.placed[index] is None:
                self._place(index, self.home)
        self.unsettled = [i for i, moves in enumerate(self.moving) if moves]
        self._forward(scopes=False)

    def _fixed_point(self) -> None:
        state = zip(self.placed, self.is_constant, self.moving, strict=True)
        self.unsettled = [i for i, (at, fixed, moves) in enumerate(state) if moves or not (at or fixed)]
        while True:
            self._forward(scopes=False)
            before = len(self._unsettled())
            self._forward(scopes=True)
            if len(self._unsettled()) == before and not self._by_readers():
                return

    def _forward(self, scopes: bool) -> None:
        """Rule 2, and rule 3 with `scopes`, in the order of the ops, until lists of peers stand still too."""
        values, placed, moving, needs = self.values, self.placed, self.moving, self.needs
        while True:
            before = len(values), len(self.peers)
            for index in self._unsettled():
                if moving[index] and self.ops[index].op_type in _HANDS_ON_PEERS:
                    self._peers_through(index, self.ops[index])
                if placed[index] is None:
                    found = None
                    for name in needs[index]:
                        found = values.get(name)
                        if found is not None:
                            break
                    if found is None and scopes:
                        found = self.ops[index].facts.at or None
                    if found is not None:
                        self._place(index, found)
                elif self.ops[index].domain == keys.WIRE_DOMAIN:
                    self._wire_outputs(index, self.ops[index])
            if (len(values), len(self.peers)) == before:
                return

    def _unsettled(self) -> list[int]:
        """Ops that a walk may still learn something about, in order; what is settled stays so."""
        placed, moving = self.placed, self.moving
        self.unsettled = [i for i in self.unsettled if placed[i] is None or moving[i]]
        return self.unsettled

    def _by_readers(self) -> bool:
        """Rule 4, from the last op to the first; what it places is followed forward at once."""
        any_placed = False
        for index in reversed(self.unsettled):
            if self.placed[index] is not None or self.is_constant[index]:
                continue
            classes = {
                found
                for name in self.ops[index].outputs
                for reader in self.readers.get(name, ())
                if (found := self.placed[reader]) is not None and not self._is_send(reader)
            }
            if len(classes) == 1:
                self._place(index, classes.pop())
                self._follow(index)
                any_placed = True
        return any_placed

    def _is_send(self, index: int) -> bool:
        op = self.ops[index]
        return op.domain == keys.WIRE_DOMAIN and op.op_type in SEND_FLAVORED

    def _follow(self, index: int) -> None:
        todo = [index]
        while todo:
            for name in self.ops[todo.pop()].outputs:
                where = self.values.get(name)
                for reader in self.readers.get(name, ()) if where is not None else ():
                    if self.placed[reader] is None and not self.is_constant[reader] and where is not None:
                        self._place(reader, where)
                        todo.append(reader)

    # --- one op

    def _place(self, index: int, where: str) -> None:
        self.placed[index] = where
        op = self.ops[index]
        if op.domain == keys.WIRE_DOMAIN:
            self._wire_outputs(index, op)
        else:
            for name in op.outputs:
                if name:
                    self.values[name] = where
            if op.op_type == "OwnPeer" and op.domain == keys.ADDRESS_BOOK_DOMAIN:
                self._lead(index, op.outputs[0], where)

    def _wire_outputs(self, index: int, op: Op) -> None:
        """Outputs of a wire op: on this side, or as the other side sees them."""
        where = self.placed[index]
        assert where is not None
        if op.op_type not in SEND_FLAVORED:
            self.values.update((n, where) for n in op.outputs if n)
            if op.op_type == OP_RECV_RESP_BATCHED and len(op.outputs) > 1:
                request = self.requests.get(op.facts.request)
                if request is not None:
                    self._lead(index, op.outputs[1], self.peers.get(flow.peers_input(self.ops[request])))
            return
        if op.op_type == OP_SEND_REQ and op.outputs:
            self.values[op.outputs[0]] = where
        if not flow.is_recorded_form(op):
            self.values.update((n, where) for n in op.outputs if n)
            return
        self._lead(index, op.outputs[-1], where)
        there = self._destination(op)
        if there is not None:
            self.values.update((n, there) for n in flow.received_outputs(op) if n)
        for source, result in zip(flow.payload_inputs(op), flow.received_outputs(op), strict=False):
            # Peers that travel are of the class that they are of.
            self._lead(index, result, self.peers.get(source))

    def _destination(self, op: Op) -> str | None:
        """The class that a Send-flavored op sends to."""
        if op.op_type == OP_SEND_RESP:
            request = self.requests.get(op.facts.request)
            if request is not None:
                return self.placed[request]
        return self.peers.get(flow.peers_input(op)) or self.default_peers

    def _lead(self, index: int, name: str, where: str | None) -> None:
        if name and where is not None:
            self.leading.add(index)
            self.peers.setdefault(name, where)

    def _peers_through(self, index: int, op: Op) -> None:
        """Lists of peers keep their class through ops that only pick and join."""
        if op.op_type in ONNX_OPS_OVER_PEERS:
            if op.domain != keys.ONNX_DOMAIN and op.domain != keys.ONNX_DOMAIN_ALIAS:
                return
            sources = op.inputs if op.op_type == "Concat" else op.inputs[:1]
        elif op.op_type in _PEER_SYSCALLS and op.domain == keys.SYSCALL_DOMAIN:
            sources = op.inputs if op.op_type in _JOINS_PEERS else op.inputs[:1]
        else:
            return
        found: dict[str, str] = {self.peers[n]: n for n in sources if n in self.peers}
        if len(found) > 1:
            raise CrossClassDataflow(
                f"it joins peers of {' and '.join(sorted(found))}", hint="send to each class by itself", op=op
            )
        for where in found:
            for name in op.outputs:
                self._lead(index, name, where)

    # --- checks and result

    def _check(self) -> None:
        values = self.values
        for index, where in enumerate(self.placed):
            if self.is_constant[index]:
                continue
            if where is None:
                raise self._ambiguous(self.ops[index])
            for name in self.needs[index]:
                if values.get(name, where) != where:
                    raise self._crossing(index, self.ops[index], where)
            if self.moving[index]:
                self._check_destination(index, self.ops[index])

    def _check_destination(self, index: int, op: Op) -> None:
        if self._is_send(index) and flow.is_recorded_form(op) and self._destination(op) is None:
            raise AmbiguousPlacement(
                f"nothing says which class its peers {flow.peers_input(op)!r} are of",
                hint="take them from a selector with peer_class=, an input, or a .sender",
                op=op,
            )

    def _ambiguous(self, op: Op) -> AmbiguousPlacement:
        classes = {
            found: named(self.ops[reader])
            for name in op.outputs
            for reader in self.readers.get(name, ())
            if (found := self.placed[reader]) is not None
        }
        what = "nothing says on which class it runs"
        if len(classes) > 1:
            readers = ", ".join(f"{c}: {text}" for c, text in classes.items())
            what = f"it is read on several classes ({readers})"
        return AmbiguousPlacement(what, hint="say at= on its slot, with g.at(…), or after= something", op=op)

    def _crossing(self, index: int, op: Op, where: str) -> CrossClassDataflow:
        sides: dict[str, str] = {}
        for name in self.needs[index]:
            found = self.values.get(name)
            if found is not None:
                sides.setdefault(found, self._origin(name, found))
        while is_after(op) and (readers := self.readers.get(op.outputs[0])):
            op = self.ops[readers[0]]  # which was written with an after=
        listed = " and ".join(f"{text} on {side}" for side, text in sides.items())
        if len(sides) == 1:
            listed = f"{listed}, and runs on {where}"
        hint = "send the value: g.net_out(…), g.request(…)"
        slot = self.function.slots.get(op.slot) if op.slot else None
        if slot is not None and slot.at == where and len(sides) == 1:
            # The value may be where it belongs, and the slot declared at the wrong class.
            (side,) = sides
            declared = f", {slot.where}" if slot.where else ""
            hint = f"at={side!r} on slot {op.slot!r} ({slot.at!r} now{declared}) runs it there. Else {hint}"
        there = dict.fromkeys((*sides, where))
        unsaid = [
            f"slot {name!r} ({slot.where})" if slot.where else f"slot {name!r}"
            for name, slot in self.function.slots.items()
            if slot.role == keys.ROLE_PEER_SELECTOR and not slot.peer_class
        ]
        others = [side for side in there if side != self.home]
        if unsaid and len(others) == 1 and self.home in there:
            what = f"{unsaid[0]} says no peer_class=, so that its peers are of {self.home!r}"
            hint = f"{what}: write peer_class={others[0]!r} if they are of {others[0]}. Else {hint}"
        if self.home == flow.NO_HOME and flow.NO_HOME in there and len(there) > 1:
            other = next(side for side in there if side != flow.NO_HOME)
            what = f"{flow.NO_HOME} is the class of a module without a home"
            hint = f"{what}: write home = {other!r} in it if {other} is meant. Else {hint}"
        for side, other in combinations(there, 2):
            if suggestion(side, [other], "").startswith("did you mean"):
                hint = f"{side} and {other} are two classes: is one of them misspelt? Else {hint}"
        return CrossClassDataflow(f"it needs {listed}", hint=hint, op=op)

    def _origin(self, name: str, side: str) -> str:
        """What gave the value; behind an after= what is on that side."""
        while (op := next((op for op in self.ops if name in op.outputs), None)) is not None and is_after(op):
            name = next((other for other in op.inputs if self.values.get(other) == side), op.inputs[0])
        return f"input {name!r}" if op is None else f"{name!r} of {named(op)}"

    def _result(self) -> Placement:
        order = dict.fromkeys([self.home, *filter(None, self.placed)])
        rank = {name: i for i, name in enumerate(order)}
        single = {name: (name,) for name in order}
        copies: dict[str, set[str]] = {}
        outputs = set(self.function.outputs)
        found: list[tuple[str, ...]] = [() if w is None else single[w] for w in self.placed]
        used = set(filter(None, self.placed)) if self.ops else {self.home}
        for index in reversed(self.near_constants):
            if self.is_constant[index]:
                names = self.ops[index].outputs
                classes = set().union(*(copies.get(n, ()) for n in names))
                if not classes or not outputs.isdisjoint(names):
                    classes.add(self.home)
                found[index] = tuple(sorted(classes, key=lambda c: rank[c]))
                used.update(classes)
            for name in self.constant.intersection(self.needs[index]):
                copies.setdefault(name, set()).update(found[index])
        used.update(self.inputs.values())
        for name in self.inputs.values():
            order.setdefault(name)
        return Placement(
            tuple(found), self.inputs, self.peers, tuple(c for c in order if c in used), self.leading
        )
