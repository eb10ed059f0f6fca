"""`with g.loop(n) as step:` what is done again and again in one execution.

Rule P25 of the specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.opsets import Ready
from bb_edge.ir.types import ValueType
from bb_host.author_lines import author_line, short_line
from bb_host.dsl.closed import Closed
from bb_host.dsl.drafts import Draft, SubgraphDraft
from bb_host.dsl.literals import lift, no_bundle
from bb_host.dsl.misuse import Suggests, typed_calls
from bb_host.dsl.names import snake
from bb_host.dsl.one_element import in_first_iteration, refuse_several
from bb_host.dsl.output import Output, Value
from bb_host.dsl.received import counted
from bb_host.dsl.recorder import OpenLoop, Recorder
from bb_host.dsl.shapes import ONE_CONDITION, ONE_NUMBER
from bb_host.dsl.tape import After
from bb_host.errors import ArityError, AttributeValueError, LoopError, ValueTypeError

MANY_ITERATIONS = 100_000_000
"""An iteration takes 10 µs at the least: so many are a quarter of an hour."""


@typed_calls
class Loop(Suggests):
    """A loop: entered with `with`, once. What is recorded in the block is its body.

    In the block: `step.index` is the iteration's number, 0-D I64 from 0; `step.carried` what is carried, as
    one value or as many as `carry=` has; `step.next(…)` gives what is carried into the next iteration;
    `step.stop(when)` ends the loop behind this one; `rows = step.collect(x)` stacks a tensor of each
    iteration, read behind the block. Behind it: `step.result` is what was carried last, and `after=step`
    waits for the end.
    """

    def __init__(self, graph: Recorder, times: Value | None, carry: object, after: After) -> None:
        self._graph = graph
        self._line = author_line()
        self._single = not isinstance(carry, (list, tuple))
        given: Sequence[Any] = (
            carry if isinstance(carry, (list, tuple)) else () if carry is None else (carry,)
        )
        self._times = 1  # as far as a literal says it
        self._trips = None if times is None else self._count(times)
        self._first = [no_bundle(graph, lift(graph, value)) for value in given]
        self._after = after
        self._scope: OpenLoop | None = None
        self._index: Output
        self._formals: list[Output] = []
        self._next: list[Output] | None = None
        self._stop: Output | None = None
        self._stops: list[tuple[Output, tuple[str, int]]] = []
        self._rows: list[tuple[Output, Output]] = []
        self._done: Output | None = None
        self._results: list[Output] = []
        graph.session.begin(
            self, "g.loop(…) stands without `with`: nothing is done", "write: with g.loop(…) as step:"
        )

    def __repr__(self) -> str:
        return "<loop: no value; what it carried last is .result, and after= takes it>"

    def __iter__(self) -> NoReturn:
        what = "g.loop is not a Python loop: its block is recorded once, and repeats on the device"
        raise self._graph.error(LoopError, what, "write: with g.loop(…) as step:")

    def _count(self, times: Value) -> Output:
        g = self._graph
        if isinstance(times, (bool, np.bool_, float, np.floating)) or not isinstance(
            times, (int, np.integer, Output)
        ):
            raise g.error(
                ValueTypeError,
                f"loop: {times!r} is not a number of iterations",
                "a whole number, a value of type I64, or None with step.stop(…)",
            )
        if not isinstance(times, Output):
            if times < 0:
                raise g.error(AttributeValueError, f"loop: {times} iterations", "say 0 or more")
            if not times:
                g.warn("empty-loop", "a loop of 0 iterations never runs", "say 1 or more, or give a value")
            self._times = int(times)
            return g.tensor_constant(np.array(int(times), np.int64))
        value = g.own(times)
        if not types.compatible(value.node, types.TENSOR_I64):
            raise g.error(
                ValueTypeError,
                f"loop: the number of iterations is a {types.TENSOR_I64}, got {value!r}",
                "cast it: g.onnx.cast(n, to='I64')",
            )
        refuse_several(g, "loop: the number of iterations", value.shape, repr(value), ONE_NUMBER)
        return value

    # --- the block

    def __enter__(self) -> Loop:
        g = self._graph
        g.session.end(self)
        if self._scope is not None:
            raise g.error(LoopError, "this loop was entered before", "call g.loop again")
        if g.parent is not None or g.open_branch is not None:
            raise g.error(
                LoopError,
                f"g.loop stands in {g.describe()}",
                "in the function of a branch or body, write g.onnx.loop(…)",
            )
        around = g.open_loops[-1].times if g.open_loops else 1
        self._scope = OpenLoop(self._line, g.drafts, dict(g._constants), around * self._times)
        g.drafts = []
        g.open_loops.append(self._scope)
        self._index = g.fresh("iteration", ValueType(types.TENSOR_I64, ()), line=self._line)
        self._going = g.fresh("going", ValueType(types.TENSOR_BOOL, ()), line=self._line)
        for value in self._first:
            formal = g.fresh("carried", ValueType(value.node), line=self._line)
            self._formals.append(formal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        g, scope = self._graph, self._scope
        assert scope is not None
        condition: list[Output] = []
        if kind is None:
            self._check()
            self._check_stops()
            if self._stop is not None:
                condition.append(g.onnx_op("Not", (self._stop,)))
            elif scope.times // max(self._times, 1) <= MANY_ITERATIONS < scope.times:
                g.warn(
                    "long-loop",
                    f"{scope.times:,} iterations, those of the loops around it multiplied in: a device is in"
                    " it for a quarter of an hour at the least",
                    "say fewer, or end it: step.stop(…)",
                    self._line,
                )
        drafts, g.drafts = g.drafts, scope.around
        g._constants = scope.constants
        g.open_loops.pop()
        if kind is not None:
            return
        yields = [*condition, *(self._next or ()), *(row for row, _ in self._rows)]
        self._close(drafts)
        self._done = g.fresh("loop_done", ValueType(types.TRIGGER), line=self._line)
        for first, last in zip(self._first, self._next or (), strict=True):
            shape = first.shape if first.shape == last.shape else None
            node = last.node if first.node.abstract else first.node
            result = g.fresh("loop", ValueType(node, shape), line=self._line)
            self._results.append(result)
        outputs = [self._done, *self._results]
        for _, rows in self._rows:
            rows.graph = g
            outputs.append(rows)
        body = SubgraphDraft("body", [self._index, self._going, *self._formals], yields, drafts)
        attrs: dict[str, Any] = {"body": body, "carried": len(self._first), "condition": len(condition)}
        inputs: list[Output | None] = [self._trips, None, *self._first]
        g.put(Draft("Loop", keys.SYSCALL_DOMAIN, inputs, outputs, attrs), self._after)

    def _check(self) -> None:
        g = self._graph
        if not g.drafts:
            raise g.error(LoopError, "the loop does nothing", "record ops in the block", self._line)
        if self._trips is None and self._stop is None:
            raise g.error(
                LoopError, "the loop never ends", "say how often, or when: step.stop(x < 0.1)", self._line
            )
        if self._next is None and self._first:
            raise g.error(
                LoopError,
                f"nothing says what the next iteration carries ({len(self._first)} values)",
                "say it at the end of the block: step.next(…)",
                self._line,
            )

    def _check_stops(self) -> None:
        """ValueTypeError where a condition has several elements in the first iteration."""
        g = self._graph
        pairs = zip(self._formals, self._first, strict=True)
        begins = {id(formal): first.type for formal, first in pairs if first.shape is not None}
        if not begins or all(value.shape is not None for value, _ in self._stops):
            return
        found = in_first_iteration(g.drafts, begins)
        for value, line in self._stops:
            known = found.get(id(value))
            if known is not None:
                refuse_several(g, "step.stop: the condition", known.shape, str(known), ONE_CONDITION, line)

    def _close(self, drafts: Sequence[Draft]) -> None:
        """Has nothing read the body's values any more."""
        for draft in drafts:
            row = opsets.lookup(draft.domain, draft.op_type)
            if (
                not draft.outputs
                and row is not None
                and row.outputs
                and row.outputs[0].ready is Ready.OPTIONAL
            ):
                done = self._graph.fresh(f"{snake(draft.op_type)}_done", ValueType(types.TRIGGER))
                draft.outputs.append(done)
        self._closed().close((self._index, self._going, *self._formals), drafts)

    def _closed(self) -> Closed:
        remedy = "carry it, g.loop(n, carry=…) and step.next(…), or collect it: rows = step.collect(x)"
        return Closed(f"an iteration of the loop at {short_line(self._line)}", remedy)

    def _inside(self, what: str) -> Recorder:
        if self._scope is None or self._scope not in self._graph.open_loops:
            raise self._graph.error(
                LoopError, f"{what} stands outside of the loop's block", "write: with g.loop(…) as step:"
            )
        return self._graph

    @property
    def index(self) -> Output:
        """The number of the iteration, 0-D I64 from 0."""
        self._inside("step.index")
        return self._index

    @property
    def carried(self) -> Any:
        """What the iteration was given: one value, or a tuple where `carry=` is a list."""
        self._inside("step.carried")
        if not self._formals:
            raise self._graph.error(LoopError, "the loop carries nothing", "write: g.loop(n, carry=x)")
        return self._formals[0] if self._single else tuple(self._formals)

    def next(self, *values: Value) -> None:
        """Gives what the next iteration is given, in the order of `carry=`; types stay, shapes may change."""
        g = self._inside("step.next")
        if self._next is not None:
            raise g.error(LoopError, "step.next is called twice", "give all values at once")
        given = values[0] if len(values) == 1 and isinstance(values[0], (list, tuple)) else values
        if len(given) != len(self._formals):
            raise g.error(
                ArityError,
                f"step.next gives {counted(len(given))}, and the loop carries {len(self._formals)}",
                "give as many as carry= has",
            )
        found = [
            lift(g, value, first.node if first.node.elem_type is not None else None)
            for value, first in zip(given, self._first, strict=True)
        ]
        for number, (first, later) in enumerate(zip(self._first, found, strict=True)):
            if not types.compatible(first.node, later.node):
                raise g.error(
                    ValueTypeError,
                    f"the carried value {number} begins as {first.node}, and its next one is {later.node}",
                    "begin with that type, g.constant(0, 'F32'), or cast: g.onnx.cast(x, to=…)",
                )
        self._next = found

    def stop(self, when: Value) -> None:
        """Ends the loop behind this iteration where `when`, one BOOL, holds; of several calls, where one
        of their conditions does.
        """
        g = self._inside("step.stop")
        if not isinstance(when, Output) or not types.compatible(g.own(when).node, types.TENSOR_BOOL):
            raise g.error(
                ValueTypeError, f"step.stop takes a BOOL value, not {when!r}", "compare values: loss < 0.1"
            )
        refuse_several(g, "step.stop: the condition", when.shape, repr(when), ONE_CONDITION)
        self._stops.append((when, author_line()))
        self._stop = when if self._stop is None else g.onnx_op("Or", (self._stop, when))

    def collect(self, value: Value) -> Output:
        """A tensor of each iteration, stacked: [iterations, …], to be read behind the block. All have one
        shape; a loop that does not go round has none.
        """
        g = self._inside("step.collect")
        row = lift(g, value)
        if not types.compatible(row.node, types.TENSOR):
            raise g.error(
                ValueTypeError, f"step.collect stacks tensors, not {row!r}", "take its number: g.as_tensor(x)"
            )
        type_ = ValueType(row.node, None if row.shape is None else (None, *row.shape))
        rows = g.fresh(f"{row.hint}_rows", type_)
        rows.graph = self._closed()
        self._rows.append((row, rows))
        return rows

    # --- behind the block

    @property
    def result(self) -> Any:
        """What was carried last; one value, or a tuple where `carry=` is a list."""
        if self._done is None:
            raise self._graph.error(LoopError, "step.result stands before the end of the loop's block")
        if not self._results:
            raise self._graph.error(LoopError, "the loop carries nothing", "write: g.loop(n, carry=x)")
        return self._results[0] if self._single else tuple(self._results)

    def after_values(self) -> tuple[Output, ...]:
        """In the block the begin of the iteration, behind it the end of the loop."""
        return (self.index if self._done is None else self._done,)
