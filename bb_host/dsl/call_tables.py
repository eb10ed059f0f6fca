"""What the calls that authors write look like: syscalls under natural names, and ONNX operators.

A call is spelt with its parameters in order. Those that are called as an attribute of the op, apart from case
and underscores, are attributes, all others inputs; each call takes `after=` besides, but for those that start
executions.
"""

from __future__ import annotations

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets import AttrKind
from bb_host.dsl.calls import row_of
from bb_host.dsl.literals import as_attribute, element_number
from bb_host.dsl.names import snake
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.rows import Row
from bb_host.errors import AttributeValueError
from bb_host.whole_numbers import whole

# --- syscalls

NATURAL_NAMES = {
    # entries: each firing starts an execution
    "pulse": "Pulse()",
    "interval": "Interval(period_ns)",
    # triggers and time
    "on_trigger": "OnTrigger(trigger)",
    "when": "When(condition)",
    "threshold": "Threshold(n, *inputs)",
    "after": "After(trigger, delay_ns)",
    "sleep": "Sleep(trigger, duration_ns)",
    "deadline_match": "DeadlineMatch(then, timeout)",
    "clock": "Clock(trigger)",
    "rng_u64": "RngU64(trigger)",
    "elapsed": "Elapsed(since, until)",
    # numbers
    "as_scalar": "AsScalar(value)",
    # flow
    "any": "Any(*inputs, group='')",
    "gate": "Gate(value, trigger)",
    "pass_through": "PassThrough(value)",
    # state of the op, bounded, across executions
    "limit_acquire": "Limit.Acquire(name, trigger, n)",
    "limit_release": "Limit.Release(name, trigger)",
    "serialize_enqueue": "Serialize.Enqueue(queue, value)",
    "serialize_dequeue": "Serialize.Dequeue(queue, trigger)",
    "hold_stash": "Hold.Stash(slot, value)",
    "hold_flush": "Hold.Flush(slot, trigger)",
    "correlate_tag": "CorrelateTag(trigger)",
    # to the host
    "app_emit": "AppEmit(name, value)",
    "app_notify": "AppNotify(name, trigger)",
    "record": "Record(name, value)",
    "incr_metric": "IncrMetric(name, trigger, delta=1)",
    # peers and addresses
    "own_peer": "OwnPeer()",
    "own_addresses": "OwnAddresses()",
    "peer_at": "PeerAt(peers, index)",
    "peer_list": "PeerList(*peers)",
    "peer_count": "PeerCount(peers)",
    "address_of": "AddressOf(peer)",
    "address_at": "AddressAt(addresses, index)",
    "address_list": "AddressList(*addresses)",
    "address_book_insert": "Insert(peer, address)",
    "address_book_insert_many": "InsertMany(peer, addresses)",
    "address_book_drop": "Drop(peer)",
    "address_book_lookup": "Lookup(peer)",
}

DOCS = {
    "interval": """A Timestamp every `period_ns`. Where a trigger is wanted: `g.threshold(1, tick)`.

        A tick need not wait for the end of the one before; executions of ticks hold half of the node's
        (`limits.max_executions`) at most, each interval its part of that half. A tick beyond it is left out
        and counted (`bb_ticks_skipped_total`).
        """,
    "any": """The first arrival; later ones of the execution are dropped.

        All `any` of one module that name the same `group` share it: the first arrival at one of them passes,
        and nothing else does. Each answer to a request, and each call of the module, has groups of its own.
        """,
    "gate": """`value`, once `trigger` (anything) is there.

        Where `trigger` comes from an input that `value` does not depend on, the host may give it in an invoke
        of its own: what an execution leaves at its end waits in the gate. One trigger lets one value through,
        the newest that waits, or the next to come; values that newer ones replace are counted
        (`gates.replaced`). Snapshots hold what waits.
        """,
    "app_emit": 'An AppEvent with the value. `bb-edge run` prints of Bytes their number: `{"bytes": 2}`.',
    "app_notify": "An AppEvent `name` without a value, when `trigger` (anything) arrives.",
    "incr_metric": """Adds `delta`, 0 or more, to a counter when `trigger` (anything) arrives.

        Metrics show it as `bb_<name>_total`, with underscores for what is not a letter or digit; names that
        begin as the node's own counters do are refused (`ops.failed`), and two that are spelt alike.
        """,
    "peer_list": "Single PeerIds as a PeerIdVec, which `net_out` and `request` take.",
}
"""What a natural name has to say beyond the row of its op."""


def above_zero(graph: Recorder, what: str, value: object) -> int:
    """A count or a time. AttributeValueError for anything but a whole number above 0."""
    number = whole(value)
    if number is not None and 0 < number < 2**63:
        return number
    hint = "write 30 * S or 5 * MS: from bb_host import MS, S" if what.endswith("_ns") else "1 or more"
    takes = "a whole number above 0"
    if number is not None and number >= 2**63:
        takes += ", at most 2**63 - 1"
    raise graph.error(AttributeValueError, f"{what} is {takes}, not {value!r}", hint)


def check_counts(graph: Recorder, row: Row, attrs: dict[str, object]) -> None:
    for name, value in attrs.items():
        if name == "n" or name.endswith("_ns"):
            attrs[name] = above_zero(graph, name, value)


def natural_row(op_type: str) -> Row:
    """The row of a syscall, or of an op of the address book."""
    op = opsets.lookup(keys.SYSCALL_DOMAIN, op_type) or opsets.lookup(keys.ADDRESS_BOOK_DOMAIN, op_type)
    assert op is not None, op_type
    return row_of(op)


# --- ONNX operators

# fmt: off
OPERATORS: dict[str, str] = {
    # arithmetic
    "add": "Add(a, b)", "sub": "Sub(a, b)", "mul": "Mul(a, b)", "div": "Div(a, b)", "pow": "Pow(a, b)",
    "neg": "Neg(x)", "abs": "Abs(x)", "sqrt": "Sqrt(x)", "exp": "Exp(x)", "log": "Log(x)",
    # linear algebra; the required subset's `Dot` is recorded as MatMul
    "matmul": "MatMul(a, b)", "dot": "MatMul(a, b)",
    "gemm": "Gemm(a, b, c=None, alpha=1.0, beta=1.0, trans_a=False, trans_b=False)",
    # activations
    "relu": "Relu(x)", "sigmoid": "Sigmoid(x)", "tanh": "Tanh(x)", "softmax": "Softmax(x, axis=-1)",
    "leaky_relu": "LeakyRelu(x, alpha=0.01)", "gelu": "Gelu(x, approximate='none')",
    # structure
    "reshape": "Reshape(data, shape, allowzero=False)", "transpose": "Transpose(data, perm=None)",
    "concat": "Concat(*inputs, axis)",
    "slice": "Slice(data, starts, ends, axes=None, steps=None)", "squeeze": "Squeeze(data, axes=None)",
    "unsqueeze": "Unsqueeze(data, axes)", "identity": "Identity(x)", "cast": "Cast(x, to)",
    # reductions
    **{
        snake(op): f"{op}(data, axes=None, keepdims=True, noop=False)"
        for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
    },
    # comparison and choice; the required subset's `Scatter` is called ScatterElements since opset 11
    "equal": "Equal(a, b)", "greater": "Greater(a, b)", "less": "Less(a, b)",
    "where": "Where(condition, x, y)",
    "gather": "Gather(data, indices, axis=0)", "scatter": "ScatterElements(data, indices, updates, axis=0)",
    # normalization, convolution, pooling: further attributes as in ONNX
    "batch_normalization": "BatchNormalization(x, scale, b, mean, var, **attrs)",
    "layer_normalization": "LayerNormalization(x, scale, b=None, **attrs)",
    "conv": "Conv(x, w, b=None, **attrs)", "max_pool": "MaxPool(x, kernel_shape, **attrs)",
    "average_pool": "AveragePool(x, kernel_shape, **attrs)", "global_average_pool": "GlobalAveragePool(x)",
}
"""Operators whose attributes may be given in order; every other one is found by its name."""
# fmt: on

FLAGS = ("keepdims", "noop_with_empty_axes", "allowzero", "transA", "transB")
_ONLY_WHERE_SET = ("noop_with_empty_axes", "allowzero")


def convert_flags(graph: Recorder, row: Row, attrs: dict[str, object]) -> None:
    """ONNX's numbers for flags and element types, and a refusal of None where they go."""
    for name in FLAGS:
        if name in attrs:
            value = as_attribute(graph, row.name, name, AttrKind.INT, attrs[name])
            attrs[name] = None if name in _ONLY_WHERE_SET and not value else value
    if row.name == "Cast":
        attrs["to"] = element_number(graph, attrs["to"])
