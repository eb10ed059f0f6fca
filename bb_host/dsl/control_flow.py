"""If and Loop: branches and bodies recorded by functions of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bb_edge.ir import keys, types
from bb_edge.ir.bodies import BODY_ATTRS
from bb_edge.ir.types import ValueType
from bb_host.dsl.calls import Done
from bb_host.dsl.closed import Closed
from bb_host.dsl.drafts import Draft, SubgraphDraft
from bb_host.dsl.literals import as_array, lift, no_bundle
from bb_host.dsl.misuse import fails_to_start, typed_calls
from bb_host.dsl.one_element import refuse_several
from bb_host.dsl.onnx_ops import call_onnx, refuse_constant_condition
from bb_host.dsl.output import Output, Value
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.session import is_engine_op
from bb_host.dsl.shapes import ONE_CONDITION, ONE_NUMBER, Shape
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import ArityError, OpInSubgraph, ValueTypeError
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import AttrValue


@typed_calls
class ControlFlow:
    """What `g.onnx` has of operators that hold graphs."""

    _graph: Recorder
    _facts: OpFacts

    def op(
        self,
        name: str,
        *inputs: object,
        outputs: int | None = None,
        after: After = UNORDERED,
        **attrs: object,
    ) -> Any:
        """Any operator by its name: one Output, or a tuple where it has several."""
        return call_onnx(self._graph, name, inputs, attrs, outputs=outputs, after=after, facts=self._facts)

    def if_(
        self,
        cond: Value,
        then_branch: Callable[..., Any],
        else_branch: Callable[..., Any],
        *,
        after: After = UNORDERED,
    ) -> Any:
        """`If`: each branch is a function of a graph that returns the branch's values, as many as the
        other, or none. The value, a tuple of them, or what `after=` takes.

        Where a branch holds more than tensor work (ops of roles, syscalls, modules that hold such), the
        engine runs the one that is chosen.
        """
        refuse_constant_condition(self._graph, "If", cond)
        self._one_element("if_", "the condition", cond)
        branches = [self._branch(name, fn, ()) for name, fn in (("then", then_branch), ("else", else_branch))]
        counts = [len(b.outputs) for b in branches]
        if counts[0] != counts[1]:
            raise self._graph.error(
                ArityError,
                f"then yields {counts[0]} values, else {counts[1]}",
                "return the same number of values from both branches",
            )
        if any(map(self._is_engines, branches)):
            return self._engines_if(lift(self._graph, cond, types.TENSOR_BOOL), branches, after)
        if not counts[0]:
            raise self._graph.error(
                ArityError, "the branches yield nothing", "return a value from both, or leave the If out"
            )
        found = self.op(
            "If",
            lift(self._graph, cond, types.TENSOR_BOOL),
            then_branch=branches[0],
            else_branch=branches[1],
            outputs=counts[0],
            after=after,
        )
        outputs = (found,) if isinstance(found, Output) else found
        for value, a, b in zip(outputs, branches[0].outputs, branches[1].outputs, strict=True):
            value.type = a.type if a.type == b.type else ValueType(types.join(a.node, b.node))
        return found

    def _engines_if(self, cond: Output, branches: Sequence[SubgraphDraft], after: After) -> Any:
        """An `If` whose branches the engine runs."""
        results = []
        for a, b in zip(branches[0].outputs, branches[1].outputs, strict=True):
            same = a.shape if a.shape == b.shape else None
            results.append(self._graph.fresh("if", ValueType(types.join(a.node, b.node), same)))
        attrs = dict(zip(BODY_ATTRS["If"], branches, strict=True))
        return self._engines("If", [cond], results, attrs, after)

    def _engines(
        self,
        name: str,
        inputs: Sequence[Output | None],
        results: Sequence[Output],
        attrs: Mapping[str, AttrValue | SubgraphDraft],
        after: After,
    ) -> Any:
        """Records an op whose bodies the engine runs; its results, or its trigger where it has none."""
        graph = self._graph
        if self._facts.slot:
            raise graph.error(
                OpInSubgraph,
                f"{name} is pinned to a backend, and its body holds more than ONNX operators",
                "write g.onnx.if_ or g.onnx.loop: the engine runs such a body",
            )
        done = graph.fresh(f"{name.lower()}_done", ValueType(types.TRIGGER))
        draft = Draft(name, keys.SYSCALL_DOMAIN, list(inputs), [done, *results], dict(attrs))
        done, *values = graph.put(draft, after)
        return done if not values else values[0] if len(values) == 1 else tuple(values)

    def _is_engines(self, body: SubgraphDraft) -> bool:
        """Whether a body holds more than tensor work."""
        return any(map(self._is_engine_op, body.drafts))

    def _is_engine_op(self, draft: Draft) -> bool:
        if draft.is_call:
            session = self._graph.session
            called = (r.function for r in session.records if r.function.key == (draft.domain, draft.op_type))
            return any(session.first_op(function, is_engine_op) is not None for function in called)
        return draft.domain != keys.ONNX_DOMAIN or bool(draft.facts.slot)

    def loop(
        self,
        max_trip: Value | None,
        cond: Value | None,
        *initial: Value,
        body: Callable[..., Any],
        after: After = UNORDERED,
    ) -> Any:
        """`Loop`: `body(g, i, cond, *carried)` returns `(cond, *carried, *scanned)`.

        The result is the last carried values, then the scanned ones, stacked. Where the body holds more than
        tensor work, the engine runs it: `g.loop` reads better then.
        """
        graph = self._graph
        if isinstance(max_trip, (bool, np.bool_)):
            raise graph.error(
                ValueTypeError,
                f"loop: max_trip is {max_trip}, not a number of passes",
                "write loop(n, cond, *initial, body=…); None is for ever",
            )
        self._one_element("loop", "max_trip", max_trip)
        self._one_element("loop", "the condition", cond)
        carried = [lift(graph, v) for v in initial]
        formals = [
            ("iteration", ValueType(types.TENSOR_I64, ())),
            ("keep_going", ValueType(types.TENSOR_BOOL, ())),
            *(("carried", ValueType(v.node)) for v in carried),
        ]
        draft = self._branch("body", body, formals)
        if len(draft.outputs) < 1 + len(carried):
            raise graph.error(
                ArityError,
                f"the loop's body yields {len(draft.outputs)} values, not {1 + len(carried)} or more",
                "return (condition, *carried values, *scanned values)",
            )
        self._check_carried(draft.outputs, carried)
        trip = None if max_trip is None else lift(graph, max_trip, types.TENSOR_I64)
        first = None if cond is None else lift(graph, cond, types.TENSOR_BOOL)
        if first is None and not carried:  # ONNX wants two inputs
            first = graph.tensor_constant(np.array(True))
        count = len(draft.outputs) - 1
        if self._is_engines(draft):
            results = []
            for i, inner in enumerate(draft.outputs[1:]):
                shape = None if i < len(carried) or inner.shape is None else (None, *inner.shape)
                results.append(graph.fresh("loop", ValueType(inner.node, shape)))
            attrs: dict[str, AttrValue | SubgraphDraft] = {
                "body": draft,
                "carried": len(carried),
                "condition": 1,
            }
            return self._engines("Loop", [trip, first, *carried], results, attrs, after)
        if count == 0:
            raise graph.error(
                ArityError,
                "the loop's body yields nothing but its condition",
                "carry a value, or return one to be stacked",
            )
        found = self.op("Loop", trip, first, *carried, body=draft, outputs=count, after=after)
        outputs = (found,) if isinstance(found, Output) else found
        for i, (value, inner) in enumerate(zip(outputs, draft.outputs[1:], strict=True)):
            scanned = i >= len(carried) and inner.shape is not None
            value.type = ValueType(
                inner.node, (None, *inner.shape) if scanned and inner.shape is not None else None
            )
        return found

    def _check_carried(self, yielded: Sequence[Output], carried: Sequence[Output]) -> None:
        """ValueTypeError where a loop's body yields another type than the next pass takes."""
        again = yielded[0]
        if not types.compatible(again.node, types.TENSOR_BOOL):
            raise self._graph.error(
                ValueTypeError,
                f"the loop's body yields {again!r} as its condition, and a condition is BOOL",
                "return a comparison (x > 0), True, or the condition that came in",
            )
        self._one_element("loop", "the condition that the body yields", again)
        for number, (first, later) in enumerate(zip(carried, yielded[1:], strict=False)):
            known = first.node.elem_type is not None and later.node.elem_type is not None
            if known and first.node is not later.node:
                raise self._graph.error(
                    ValueTypeError,
                    f"the loop's body makes {later.node} of the carried value {number}, which begins as "
                    f"{first.node}",
                    "begin with that type, g.constant(0, 'F32'), or cast in the body: g.onnx.cast(x, to=…)",
                )

    def _one_element(self, call: str, what: str, value: object) -> None:
        """ValueTypeError where something has, as far as is known, more elements than one, or none."""
        shape: Shape = None
        if isinstance(value, Output):
            shape = value.shape
        elif value is not None:
            shape = as_array(self._graph, value, None).shape
        hint = ONE_NUMBER if what == "max_trip" else ONE_CONDITION
        refuse_several(self._graph, f"{call}: {what}", shape, repr(value), hint)

    def _branch(
        self, name: str, fn: Callable[..., Any], formals: Sequence[tuple[str, ValueType]]
    ) -> SubgraphDraft:
        inner = self._graph.subgraph(name)
        inputs = [inner.fresh(hint, value) for hint, value in formals]
        graph, around = self._graph, self._graph.open_branch
        graph.open_branch = inner
        try:
            result = fn(inner, *inputs)
        except TypeError as error:
            if not fails_to_start(error):
                raise
            takes = ", ".join(["g", *(hint for hint, _ in formals)])
            raise self._graph.error(
                ArityError, f"{name} is called with ({takes}): {error}", f"write: lambda {takes}: …"
            ) from None
        finally:
            graph.open_branch = around
        values = result if isinstance(result, (list, tuple)) else () if result is None else (result,)
        outputs: list[Output] = []
        for value in values:
            if isinstance(value, Done):  # that something has run: the If or Loop waits for it by itself
                continue
            lifted = no_bundle(inner, lift(inner, value))
            if lifted.graph is not inner or any(lifted is o for o in (*inputs, *outputs)):
                lifted = inner.copy(lifted)
            outputs.append(lifted)
        Closed(inner.describe(), _OUT_OF.get(name, _OUT_OF_BRANCH)).close(inputs, inner.drafts)
        return SubgraphDraft(name, inputs, outputs, inner.drafts)


_OUT_OF_BRANCH = "return it from both branches: y = g.onnx.if_(condition, lambda b: x, lambda b: other)"
_OUT_OF = {"body": "return it from the body: behind the condition what is carried, then what is stacked"}
