"""`ai.bytesandbrains.syscall` v1: the framework's primitives (ir_and_dsl.txt part 5a, semantics §3)."""

from __future__ import annotations

from bb_edge.ir import keys
from bb_edge.ir.opsets.records import OpKind, Table

_ENTRY = OpKind.ENTRY
_t = Table(keys.SYSCALL_DOMAIN)

# entries
_t.op("Pulse", "", "trigger:Trigger", "", "Once, after its target's bootstrap; not on restore.", kind=_ENTRY)
_t.op("Interval", "", "tick:Timestamp", "period_ns:int", "Every `period_ns` of monotonic time.", kind=_ENTRY)
_t.op("EventSource", "", "event:EventKind", "kind:int", "Once per bus event of that kind.", kind=_ENTRY)
_t.op(
    "LifecyclePhase",
    "",
    "trigger:Trigger",
    "phase:int",
    "On `fire_lifecycle(phase)`: Shutdown = 1, Snapshot = 2.",
    kind=_ENTRY,
)
_t.op(
    "Repeat",
    "",
    "round:Tensor<I64>",
    "times:int=0, pause_ns:int=0",
    "Rounds: after bootstrap, and again when the execution that it started has ended; 0 times = for ever.",
    kind=_ENTRY,
)

# triggers and time
_t.op("OnTrigger", "trigger:Trigger", "trigger:Trigger", "", "Fires on each arrival.")
_t.op(
    "Threshold",
    "inputs:Any*any",
    "trigger:Trigger",
    "n:int",
    "After n arrivals, whatever the execution; re-arms.",
)
_t.op("After", "trigger:Trigger", "trigger:Trigger", "delay_ns:int", "Delays a trigger.", may_suspend=True)
_t.op("Sleep", "trigger:Trigger", "trigger:Trigger", "duration_ns:int", "Async timer.", may_suspend=True)
_t.op(
    "DeadlineMatch",
    "then:Trigger*any, timeout:Trigger*any",
    "winner:Trigger",
    "",
    "The first of its two inputs to fire, once per execution.",
)
_t.op("Clock", "trigger:Trigger", "now:Timestamp", "", "Wall time: monotonic time plus the offset handed in.")
_t.op("RngU64", "trigger:Trigger", "value:Tensor<U64>", "", "64 bits of the node's seeded generator, 0-D.")

# flow
_t.op(
    "Any",
    "inputs:T*any",
    "value:T",
    "group:string=",
    "The first arrival passes, later ones are dropped; ops of one group share it.",
)
_t.op("Gate", "value:T, trigger:Any", "value:T", "", "Passes the value once the trigger is there.")
_t.op("PassThrough", "value:T", "value:T", "", "Identity on any type.")
_t.op("Tee", "value:T", "outputs:T*", "fanout:int", "The input, `fanout` times.")
_t.op(
    "Constant",
    "",
    "value:T",
    "value:any",
    "Materialized at install.",
    kind=OpKind.SOURCE,
    relation="constant",
)

# state that belongs to the op, not to the execution; bounded
_t.op(
    "Limit.Acquire",
    "trigger:Trigger",
    "trigger:Trigger",
    "name:string, n:int",
    "Semaphore: fires once one of `n` permits is free.",
    may_suspend=True,
)
_t.op("Limit.Release", "trigger:Trigger", "", "name:string", "Gives the execution's permit back.")
_t.op("Serialize.Enqueue", "value:Any", "trigger:Trigger", "queue:string", "Appends to a FIFO.")
_t.op(
    "Serialize.Dequeue",
    "trigger:Trigger",
    "value:Any",
    "queue:string",
    "Takes from a FIFO.",
    may_suspend=True,
)
_t.op("Hold.Stash", "value:Any", "", "slot:string", "Keeps the value; a newer one replaces it.")
_t.op("Hold.Flush", "trigger:Trigger", "value:Any", "slot:string", "Releases the value that is held.")

# correlation
_t.op("CorrelateTag", "trigger:Trigger", "token:CorrelationToken", "", "Mints a fresh correlation token.")

# host
_t.op("AppEmit", "value:Any", "", "name:string", "An AppEvent with a payload.")
_t.op("AppNotify", "trigger:Any", "", "name:string", "An AppEvent without one.")
_t.op("Record", "value:Any", "", "name:string", "Into the node's telemetry ring of that name.")
_t.op("IncrMetric", "trigger:Any", "", "name:string, delta:int=1", "Adds to the node's counter of that name.")

# placed by the compiler
_t.op(
    "GateDispatch",
    "value:T, gate:Any*?",
    "value:T",
    "",
    "Passes the value once its gates are there.",
    inserted=True,
)
_t.op(
    "GateManyDispatch",
    "value:T, gates:Any*",
    "value:T",
    "",
    "Passes the value once all gates are.",
    inserted=True,
)
_t.op(
    "MintDispatch",
    "trigger:Trigger",
    "token:CorrelationToken",
    "",
    "Mints a token for an edge.",
    inserted=True,
)
_t.op(
    "DeadlineCheck",
    "value:T",
    "value:T",
    "deadline_ns:int",
    "Passes the value while its execution's deadline has not passed; else drops it, counted.",
    inserted=True,
)

OPSETS = {keys.SYSCALL_DOMAIN: _t.opset()}
