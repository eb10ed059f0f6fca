"""Bundles: several values that travel as one, and their parts again."""

from __future__ import annotations

from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run
from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.ir import keys, types
from bb_edge.roles import Composite
from bb_edge.wire.codecs import wire_type_hash


def _child_types(op: BoundOp) -> tuple[types.TypeNode, ...]:
    text = op.spec.attrs.get(keys.CHILD_TYPES_ATTR, b"")
    names = text.decode().split(",") if isinstance(text, bytes) and text else []
    nodes = []
    for name in names:
        node = types.by_denotation(name)
        if node is None:
            raise OpError(
                f"unknown child type {name!r}", where=op.spec.name, hint="register the type on this device"
            )
        nodes.append(node)
    return tuple(nodes)


def _hash(node: types.TypeNode) -> int | None:
    """Returns the hash by which a child says its type; None for an abstract type.

    A type that never travels has no wire hash: its name and version are hashed the same way.
    """
    if node.wire_hash is not None or node.abstract:
        return node.wire_hash
    return types.compute_wire_hash(node.id, node.version)


def _bundle(op: BoundOp, env: BindEnv) -> Run:
    """Bundles values, each with the type that was recorded; with its value's where that is abstract."""
    recorded = _child_types(op)
    hashes = tuple(map(_hash, recorded)) or (None,) * len(op.spec.inputs)

    def run(ctx: OpContext, *parts: object) -> Composite:
        pairs = zip(hashes, parts, strict=True)
        return Composite(tuple((wire_type_hash(part) if h is None else h, part) for h, part in pairs))

    return run


def _unbundle(op: BoundOp, env: BindEnv) -> Run:
    count = len(op.outs)
    expected = tuple((node, _hash(node)) for node in _child_types(op))

    def run(ctx: OpContext, composite: object) -> object:
        if not isinstance(composite, Composite) or len(composite) != count:
            size = len(composite) if isinstance(composite, Composite) else type(composite).__name__
            raise OpError(f"expected a bundle of {count}, got {size}", where=ctx.op.spec.name)
        children = composite.children
        for index, ((node, wanted), (type_hash, _)) in enumerate(zip(expected, children)):  # noqa: B905 (same length)
            if wanted is not None and type_hash != wanted:
                raise OpError(
                    f"child {index} has type hash {type_hash:#x}, not that of {node}", where=ctx.op.spec.name
                )
        return composite.values if count > 1 else composite.values[0]

    return run


BINDERS: dict[str, Bind] = {"Bundle": _bundle, "Unbundle": _unbundle}
