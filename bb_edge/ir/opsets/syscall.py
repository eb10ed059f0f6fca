"""The domain `ai.bytesandbrains.syscall`, version 1: the framework's own primitives."""

from __future__ import annotations

from bb_edge.ir import keys
from bb_edge.ir.opsets.records import OpKind, Table

_ENTRY = OpKind.ENTRY
_t = Table(keys.SYSCALL_DOMAIN)

# entries
_t.op(
    "Pulse",
    "",
    "trigger:Trigger",
    "",
    "Fires once, after its target's bootstrap; not after a restore.",
    kind=_ENTRY,
)
_t.op(
    "Interval",
    "",
    "tick:Timestamp",
    "period_ns:int",
    "Fires every `period_ns` nanoseconds of monotonic time.",
    kind=_ENTRY,
)
_t.op(
    "EventSource",
    "",
    "event:EventKind",
    "kind:int",
    "Fires once per event of that kind on the node's bus.",
    kind=_ENTRY,
)
_t.op(
    "LifecyclePhase",
    "",
    "trigger:Trigger",
    "phase:int",
    "Fires on `fire_lifecycle(phase)`: Shutdown = 1, Snapshot = 2. `bb-edge run` fires Shutdown when it"
    " stops, and with `--state` Snapshot before each snapshot.",
    kind=_ENTRY,
)
_t.op(
    "Repeat",
    "",
    "round:Tensor<I64>",
    "times:int=0, pause_ns:int=0",
    "Starts rounds: the first after bootstrap, each further one when the execution before has ended; 0 times"
    " = for ever. A round whose requests asked nobody does not count: it runs again under its number, after a"
    " back-off.",
    kind=_ENTRY,
)

_t.op(
    "StopRounds",
    "condition:Tensor<BOOL>",
    "done:Trigger?",
    "",
    "Ends the rounds of the `Repeat` that started the execution, behind this one, where the condition holds.",
    relation="when",
    since=3,
)

# triggers and time
_t.op("OnTrigger", "trigger:Trigger", "trigger:Trigger", "", "Fires on each arrival.")
_t.op(
    "Threshold",
    "inputs:Any*any",
    "trigger:Trigger",
    "n:int",
    "Fires after n arrivals, of whatever executions, and counts anew. Each call of a module has its own"
    " count.",
    own_state=True,
)
_t.op(
    "When",
    "condition:Tensor<BOOL>",
    "trigger:Trigger",
    "",
    "Fires where the condition holds, else not: ops that depend on it do not run in that execution then.",
    relation="when",
    since=3,
)
_t.op(
    "After",
    "trigger:Trigger",
    "trigger:Trigger",
    "delay_ns:int",
    "Passes the trigger on after `delay_ns` nanoseconds.",
    may_suspend=True,
)
_t.op(
    "Sleep",
    "trigger:Trigger",
    "trigger:Trigger",
    "duration_ns:int",
    "Passes the trigger on after `duration_ns` nanoseconds; other ops go on meanwhile.",
    may_suspend=True,
)
_t.op(
    "DeadlineMatch",
    "then:Trigger*any, timeout:Trigger*any",
    "winner:Trigger",
    "",
    "Passes the first of its two inputs that fires, once per execution.",
)
_t.op(
    "Clock",
    "trigger:Trigger",
    "now:Timestamp",
    "",
    "Returns wall time in nanoseconds: monotonic time plus the offset that the host gave.",
)
_t.op(
    "Elapsed",
    "since:Timestamp, until:Timestamp",
    "ns:Tensor<I64>",
    "",
    "Returns the nanoseconds from one timestamp to another, 0-D; below 0 where `until` is the earlier one.",
)
_t.op(
    "RngU64",
    "trigger:Trigger",
    "value:Tensor<U64>",
    "",
    "Returns 64 bits of the node's seeded generator, 0-D.",
)

# flow
_t.op(
    "Any",
    "inputs:T*any",
    "value:T",
    "group:string=",
    "Passes the first arrival and drops later ones; ops of one group share it.",
)
_t.op(
    "Gate",
    "value:T, trigger:Any",
    "value:T",
    "across:int?",
    "Passes the value once the trigger is there. `across` (set by the compiler where the host gives the"
    " trigger by itself): across executions, each trigger lets one value through, the newest or the next.",
    own_state=True,
)
_t.op("PassThrough", "value:T", "value:T", "", "Returns its input, of any type.")
_t.op("Tee", "value:T", "outputs:T*", "fanout:int", "Returns its input `fanout` times.")
_t.op(
    "Constant",
    "",
    "value:T",
    "value:any",
    "Returns a constant, which is made at installation.",
    kind=OpKind.SOURCE,
    relation="constant",
)

# values that are not tensors
_t.op(
    "AsTensor",
    "value:Any",
    "number:Tensor",
    "to:int",
    "The number that a scalar, timestamp, event kind or correlation token is, 0-D.",
    relation="as_tensor",
)
_t.op(
    "AsScalar",
    "value:Tensor",
    "scalar:Scalar",
    "",
    "Returns a tensor of one element as a scalar of its element type: F32, F64, F16, U8 or I32.",
    relation="as_scalar",
)
_t.op(
    "PeerAt",
    "peers:PeerIdVec, index:Tensor<I64>",
    "peer:PeerId",
    "",
    "Returns one peer of a list, counted from 0, or from the end below 0. Fails where there is none.",
)
_t.op("PeerList", "peers:PeerId*", "list:PeerIdVec", "", "Returns single peers as a list.")
_t.op("PeerCount", "peers:PeerIdVec", "count:Tensor<I64>", "", "Returns how many peers a list has, 0-D.")
_t.op(
    "MissingReasons",
    "missing:PeerIdVec",
    "reasons:Tensor<I64>",
    "",
    "Returns why each missing peer of a request is, as numbers of `bb_host.MissingReason`, [peers].",
    since=2,
)

# state that belongs to the op, not to the execution; bounded
_t.op(
    "Limit.Acquire",
    "trigger:Trigger",
    "trigger:Trigger",
    "name:string, n:int",
    "Takes one of `n` permits, and fires once it has one; permits end with the execution.",
    may_suspend=True,
)
_t.op(
    "Limit.Release", "trigger:Trigger", "done:Trigger?", "name:string", "Gives the execution's permit back."
)
_t.op("Serialize.Enqueue", "value:Any", "trigger:Trigger", "queue:string", "Appends to a FIFO.")
_t.op(
    "Serialize.Dequeue",
    "trigger:Trigger",
    "value:Any",
    "queue:string",
    "Takes the oldest value of a FIFO, once it has one.",
    may_suspend=True,
)
_t.op("Hold.Stash", "value:Any", "done:Trigger?", "slot:string", "Keeps the value; a newer one replaces it.")
_t.op("Hold.Flush", "trigger:Trigger", "value:Any", "slot:string", "Releases the value that is held.")

# correlation
_t.op("CorrelateTag", "trigger:Trigger", "token:CorrelationToken", "", "Mints a fresh correlation token.")

# host
_t.op("AppEmit", "value:Any", "done:Trigger?", "name:string", "Gives the host an AppEvent with a payload.")
_t.op(
    "AppNotify",
    "trigger:Any",
    "done:Trigger?",
    "name:string",
    "Gives the host an AppEvent without a payload.",
)
_t.op(
    "Record",
    "value:Any",
    "done:Trigger?",
    "name:string",
    "Writes the value into the node's telemetry ring of that name.",
)
_t.op(
    "IncrMetric",
    "trigger:Any",
    "done:Trigger?",
    "name:string, delta:int=1",
    "Adds `delta` to the node's counter of that name.",
)

# control flow: bodies are functions of the program
_t.op(
    "Loop",
    "trips:Tensor<I64>?, going:Tensor<BOOL>?, values:Any*?",
    "done:Trigger, results:Any*?",
    "body:any, carried:int=0, condition:int=0",
    "Runs its body again and again in the same execution, `trips` times at most and while `going` holds; all"
    " ops of one iteration are done before the next begins. The body takes the iteration (I64, from 0),"
    " whether it goes on (BOOL), the `carried` values and what else it reads; it yields, with `condition`,"
    " whether it goes on, then the next carried values, then rows. The results are the last carried values,"
    " then the rows, stacked.",
    may_suspend=True,
    relation="loop",
    since=3,
)
_t.op(
    "If",
    "condition:Tensor<BOOL>, values:Any*?",
    "done:Trigger, results:Any*?",
    "then_branch:any, else_branch:any",
    "Runs one of its two branches in the same execution. Each takes the condition and what both read, and"
    " yields as many values as the other; once all ops of the branch are done, these are the results.",
    may_suspend=True,
    relation="if",
    since=3,
)
_t.op(
    "BodyEnd",
    "values:Any*",
    "",
    "yields:int",
    "Ends a body or a branch, once all of its ops are done: the first `yields` values are what it yields, the"
    " others say that ops have run.",
    inserted=True,
    since=3,
)

# placed by the compiler
_t.op(
    "GateDispatch",
    "value:T, gate:Any*?",
    "value:T",
    "",
    "Passes the value once its gates have fired.",
    inserted=True,
)
_t.op(
    "GateManyDispatch",
    "value:T, gates:Any*",
    "value:T",
    "",
    "Passes the value once all gates have fired.",
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
    "Passes the value until its execution's deadline; later values are dropped and counted.",
    inserted=True,
)

OPSETS = {keys.SYSCALL_DOMAIN: _t.opset()}
