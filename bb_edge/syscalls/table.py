"""Which implementation serves which op; `install` looks nowhere else."""

from __future__ import annotations

from bb_edge.engine.binding import Bind, BindEnv, Run
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.waiting import PENDING
from bb_edge.ir import keys
from bb_edge.ir.opsets import OpKind, normalize_domain
from bb_edge.syscalls import (
    address_book,
    bodies,
    calls,
    composite,
    flow,
    gates,
    host,
    peer_lists,
    role_ops,
    scalars,
    state,
    subgraph,
    timing,
    wire_ops,
)

STATELESS: dict[str, dict[str, Bind]] = {
    keys.SYSCALL_DOMAIN: {
        **flow.BINDERS,
        **timing.BINDERS,
        **scalars.BINDERS,
        **peer_lists.BINDERS,
        **state.BINDERS,
        **host.BINDERS,
        **bodies.BINDERS,
        **wire_ops.REQUEST_BINDERS,
    },
    keys.WIRE_DOMAIN: wire_ops.BINDERS,
    keys.GATE_DOMAIN: gates.BINDERS,
    keys.COMPOSITE_DOMAIN: composite.BINDERS,
    keys.ADDRESS_BOOK_DOMAIN: address_book.BINDERS,
}


def _entry(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx: PENDING


def binder(op: BoundOp, graph_keys: frozenset[tuple[str, str]]) -> Bind | None:
    """Returns what binds an op; None where nothing serves it.

    That is one of the stateless ops below, a role op, a call of a function of the artifact, or a backend
    subgraph.
    """
    spec = op.spec
    if spec.domain == keys.BACKEND_DOMAIN:
        return subgraph.bind_call
    if normalize_domain(spec.domain) == keys.ONNX_DOMAIN:
        return subgraph.bind_onnx
    if spec.domain in keys.ROLE_DOMAINS:
        return role_ops.bind if spec.definition is not None else None
    if (spec.domain, spec.op_type) in graph_keys:
        return calls.bind
    if spec.definition is None and keys.SLOT_KEY in spec.meta and spec.domain not in STATELESS:
        return role_ops.bind  # an op of a component's own opset
    bind = STATELESS.get(spec.domain, {}).get(spec.op_type)
    if bind is None and spec.definition is not None and spec.definition.kind is OpKind.ENTRY:
        return _entry
    return bind
