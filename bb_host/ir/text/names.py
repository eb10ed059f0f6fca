"""Names of the text notation: short domains, words, elements, implied opsets."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bb_edge.ir import keys, opsets, types
from bb_host.ir.program import Function, Op, walk_ops

OUR_DOMAINS = (
    *opsets.FRAMEWORK_DOMAINS,
    keys.MODULE_DOMAIN,
    keys.BACKEND_DOMAIN,
    keys.COMPONENT_DOMAIN,
    keys.PROGRAM_DOMAIN,
)
SHORT_OF_DOMAIN = {domain: domain[len(keys.PREFIX) + 1 :] for domain in OUR_DOMAINS}
DOMAIN_OF_SHORT = {short: domain for domain, short in SHORT_OF_DOMAIN.items()}

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./#-]*")
"""What needs no quotes."""

META_WORD = re.compile(r"[A-Za-z0-9_./#:+|-]+")
"""What needs no quotes as the value of a metadata key."""

KEYWORDS = frozenset({"program", "function", "slot", "opset", "type", "init", "graph", "extra", "meta"})

ELEMENT_NAMES = {node.id[7:-1]: node for node in types.REGISTRY if node.elem_type is not None}
"""`F32` → Tensor<F32>."""
NAME_OF_ELEM = {node.elem_type: name for name, node in ELEMENT_NAMES.items()}


def split_op(word: str) -> tuple[str, str]:
    """The domain and op type of a short name; both may hold dots, so the longest known domain wins."""
    best = ""
    for short in DOMAIN_OF_SHORT:
        if len(short) > len(best) and word.startswith(short + "."):
            best = short
    if best:
        return DOMAIN_OF_SHORT[best], word[len(best) + 1 :]
    return keys.ONNX_DOMAIN, word


def implied_opsets(ops: Iterable[Op]) -> dict[str, int]:
    """The opsets that ops need, and ONNX's in any case; sorted by domain.

    Of our own domains it is the oldest version that has all of these ops as they are, so that older devices
    take what they understand; of others it is 1.
    """
    return opsets_of_kinds({(op.domain, op.op_type) for op in walk_ops(tuple(ops))})


def opsets_of_kinds(kinds: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The opsets that ops of these domains and types need, as `implied_opsets` says."""
    found = {keys.ONNX_DOMAIN: 1}
    for domain, op_type in kinds:
        row = opsets.lookup(domain, op_type)
        found[domain] = max(found.get(domain, 1), 1 if row is None else row.since)
    table = opsets.opset(keys.ONNX_DOMAIN)
    found[keys.ONNX_DOMAIN] = 1 if table is None else table.version
    return dict(sorted(found.items()))


def implied_program_opsets(functions: Iterable[Function]) -> dict[str, int]:
    """The union of the functions' opsets, sorted by domain, and ONNX's own in any case."""
    union = implied_opsets(())
    for function in functions:
        for domain, version in function.opsets.items():
            union[domain] = max(version, union.get(domain, 0)) if domain != keys.ONNX_DOMAIN else version
        union.setdefault(function.domain, 1)
    return dict(sorted(union.items()))
