"""Orders a request behind the values that its answers will read.

Ops that run once per answer see the asking execution's values. A value that is not there yet when an
answer comes would starve them, and whether it is there would be a matter of luck: so the request is sent
behind every such value, by a `GateDispatch` (several: `GateManyDispatch`) on its first payload.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Sequence

from bb_edge.ir import keys
from bb_edge.ir.opsets.wire import OP_RECV_RESP, OP_SEND_REQ
from bb_host.errors import CrossExecutionJoin, named
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import reads
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.joins import Joins

GATE, GATE_MANY = "GateDispatch", "GateManyDispatch"


def order_answers(function: Function, joins: Joins) -> Function:
    """The partition with such requests gated; the same one where none needs it.

    Raises CrossExecutionJoin where two requests would wait for each other.
    """
    answers = {
        op.facts.request: index
        for index, op in enumerate(function.ops)
        if op.domain == keys.WIRE_DOMAIN and op.op_type == OP_RECV_RESP
    }
    if not answers:
        return function
    return _Orderer(function, joins, answers).run()


class _Orderer:
    def __init__(self, function: Function, joins: Joins, answers: dict[str, int]) -> None:
        self.function = function
        self.ops = function.ops
        self.joins = joins
        self.answers = answers
        self.yields = {n: i for i, op in enumerate(self.ops) for n in op.outputs if n}
        self.readers = flow.readers(self.ops)
        self.before: list[set[int]] = [
            {self.yields[n] for n in reads(op) if n in self.yields} for op in self.ops
        ]

    def run(self) -> Function:
        asks = {
            flow.wire_id(op): i
            for i, op in enumerate(self.ops)
            if op.op_type == OP_SEND_REQ and flow.is_wire(op)
        }
        gates: dict[int, tuple[str, ...]] = {}
        for number, answer in self.answers.items():
            if number in asks:
                self.before[answer].add(asks[number])  # no input says so, and analyses read ops in order
        for number, answer in self.answers.items():
            ask = asks.get(number)
            if ask is None:
                continue
            wanted = self._wanted(answer, asks, number)
            early = self._behind([ask])
            late = tuple(n for n in wanted if self.yields[n] not in early and self.yields[n] != ask)
            for name in late:
                if ask in self._behind([self.yields[name]]):
                    raise CrossExecutionJoin(
                        f"its answers need {name!r} of {named(self.ops[self.yields[name]])}, which comes only"
                        " when it is closed",
                        hint="read the whole batch, r.responses, for one of the requests",
                        op=self.ops[ask],
                    )
            if late:
                gates[ask] = late
                self.before[ask].update(self.yields[n] for n in late)
        return self._gated(gates) if gates else self.function

    def _wanted(self, answer: int, asks: dict[str, int], number: str) -> list[str]:
        """What the ops of an answer, and of answers to what these ask, read of the asking execution."""
        inside = self._region(answer, asks)
        asking = set(self.joins.asking.get(number, ()))
        found: dict[str, None] = {}
        for index in sorted(inside):
            for name in reads(self.ops[index]):
                if name in self.yields and self.yields[name] not in inside:
                    where = self.joins.values.get(name)
                    if where is not None and asking and asking <= set(where):
                        found[name] = None
        return list(found)

    def _region(self, answer: int, asks: dict[str, int]) -> set[int]:
        opened = {asks[number]: index for number, index in self.answers.items() if number in asks}
        inside: set[int] = set()
        todo = [answer]
        while todo:
            at = todo.pop()
            if at in inside:
                continue
            inside.add(at)
            if at in opened:
                todo.append(opened[at])
            for name in self.ops[at].outputs:
                todo.extend(self.readers.get(name, ()))
        return inside

    def _behind(self, start: Iterable[int]) -> set[int]:
        """All ops that must have run before these."""
        found: set[int] = set()
        todo = list(start)
        while todo:
            for index in self.before[todo.pop()]:
                if index not in found:
                    found.add(index)
                    todo.append(index)
        return found

    def _gated(self, gates: dict[int, tuple[str, ...]]) -> Function:
        types = dict(self.function.types)
        done: list[Op] = []
        for index in _in_order(self.before):
            op = self.ops[index]
            names = gates.get(index)
            if names is not None:
                payload = op.inputs[0]
                ready = f"{payload}__ready_{flow.wire_id(op)}"
                known = types.get(payload)
                if known is not None:
                    types[ready] = known
                facts = op.facts.only("classes", "scope", "source")
                gate = GATE if len(names) == 1 else GATE_MANY
                done.append(Op(gate, keys.SYSCALL_DOMAIN, (payload, *names), (ready,), {}, facts))
                op = dataclasses.replace(op, inputs=(ready, *op.inputs[1:]))
            done.append(op)
        opsets = {keys.SYSCALL_DOMAIN: 1, **self.function.opsets}
        return dataclasses.replace(
            self.function, ops=tuple(done), types=types, opsets=dict(sorted(opsets.items()))
        )


def _in_order(before: Sequence[set[int]]) -> list[int]:
    """A topological order that keeps to the given one as far as it can."""
    left = [len(b) for b in before]
    behind: list[list[int]] = [[] for _ in before]
    for index, earlier in enumerate(before):
        for one in earlier:
            behind[one].append(index)
    ready = [i for i, n in enumerate(left) if not n]
    found = []
    while ready:
        index = heapq.heappop(ready)
        found.append(index)
        for later in behind[index]:
            left[later] -= 1
            if not left[later]:
                heapq.heappush(ready, later)
    return found
