"""The framework's own ops under their natural names: `g.app_emit`, `g.after`, `g.any`, …"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir import keys, opsets
from bb_host.dsl.catalog_ops import call_op
from bb_host.dsl.errors import AttributeValueError
from bb_host.dsl.misuse import typed_calls
from bb_host.dsl.output import Output, Value
from bb_host.dsl.recorder import After, Recorder

if TYPE_CHECKING:
    from bb_edge.ir.opsets import OpDef

SHUTDOWN = 1
SNAPSHOT = 2


def _row(name: str, domain: str = keys.SYSCALL_DOMAIN) -> OpDef:
    found = opsets.lookup(domain, name)
    assert found is not None, name
    return found


@typed_calls
class SyscallOps(Recorder):
    """What `Graph` has of the syscall and address book opsets. Times are nanoseconds (`S`, `MS`, `US`)."""

    def _one(self, op: str, *args: object, after: After = None, **attrs: object) -> Output:
        return call_op(self, _row(op), args, attrs, after=after)[0]

    def _none(self, op: str, *args: object, after: After = None, **attrs: object) -> None:
        call_op(self, _row(op), args, attrs, after=after)

    def _above_zero(self, what: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63:
            raise self.error(AttributeValueError, f"{what} is a whole number above 0, not {value!r}")
        return value

    # --- entries: each firing starts an execution

    def pulse(self) -> Output:
        """A trigger once, after the target's bootstrap; not on restore."""
        return self._one("Pulse")

    def interval(self, period_ns: int) -> Output:
        """A Timestamp every `period_ns`."""
        return self._one("Interval", period_ns=self._above_zero("period_ns", period_ns))

    def event_source(self, kind: int) -> Output:
        """An EventKind per bus event of that kind."""
        return self._one("EventSource", kind=kind)

    def lifecycle_phase(self, phase: int) -> Output:
        """A trigger when the host fires that phase: Shutdown = 1, Snapshot = 2."""
        if phase not in (SHUTDOWN, SNAPSHOT):
            raise self.error(AttributeValueError, f"phase is 1 (shutdown) or 2 (snapshot), not {phase!r}")
        return self._one("LifecyclePhase", phase=phase)

    # --- triggers and time

    def on_trigger(self, trigger: Output, after: After = None) -> Output:
        """A trigger on each arrival."""
        return self._one("OnTrigger", trigger, after=after)

    def threshold(self, n: int, *inputs: Output, after: After = None) -> Output:
        """A trigger after `n` arrivals on any of `inputs`, whatever the execution; re-arms."""
        return self._one("Threshold", *inputs, n=self._above_zero("n", n), after=after)

    def after(self, trigger: Output, delay_ns: int, after: After = None) -> Output:
        """The trigger, `delay_ns` later, in the same execution."""
        return self._one("After", trigger, delay_ns=self._above_zero("delay_ns", delay_ns), after=after)

    def sleep(self, trigger: Output, duration_ns: int, after: After = None) -> Output:
        """The trigger, `duration_ns` later, as an asynchronous op."""
        return self._one(
            "Sleep", trigger, duration_ns=self._above_zero("duration_ns", duration_ns), after=after
        )

    def deadline_match(self, then: Output, timeout: Output, after: After = None) -> Output:
        """The first of the two triggers, once per execution."""
        return self._one("DeadlineMatch", then, timeout, after=after)

    def clock(self, trigger: Output, after: After = None) -> Output:
        """Wall time as a Timestamp."""
        return self._one("Clock", trigger, after=after)

    def rng_u64(self, trigger: Output, after: After = None) -> Output:
        """64 bits of the node's seeded generator, 0-D U64."""
        return self._one("RngU64", trigger, after=after)

    # --- flow

    def any(self, *inputs: Output, group: str = "", after: After = None) -> Output:
        """The first arrival; later ones of the execution are dropped.

        All `any` of one module that name the same `group` share it: the first arrival at one of them passes,
        and nothing else does. Each answer to a request, and each call of the module, has groups of its own.
        """
        return self._one("Any", *inputs, group=group or None, after=after)

    def gate(self, value: Value, trigger: Output, after: After = None) -> Output:
        """`value`, once `trigger` (anything) is there."""
        return self._one("Gate", value, trigger, after=after)

    def pass_through(self, value: Value, after: After = None) -> Output:
        """The value itself, of any type."""
        return self._one("PassThrough", value, after=after)

    def tee(self, value: Value, fanout: int, after: After = None) -> tuple[Output, ...]:
        """The value, `fanout` times."""
        return call_op(self, _row("Tee"), (value,), {"fanout": fanout}, after=after)

    # --- state of the op, bounded, across executions

    def limit_acquire(self, name: str, trigger: Output, n: int, after: After = None) -> Output:
        """The trigger, once one of the `n` permits of semaphore `name` is free; permits end with the
        execution.
        """
        return self._one("Limit.Acquire", trigger, name=name, n=self._above_zero("n", n), after=after)

    def limit_release(self, name: str, trigger: Output, after: After = None) -> None:
        """Gives the execution's permit back."""
        self._none("Limit.Release", trigger, name=name, after=after)

    def serialize_enqueue(self, queue: str, value: Value, after: After = None) -> Output:
        """Appends to a FIFO. Yields a trigger."""
        return self._one("Serialize.Enqueue", value, queue=queue, after=after)

    def serialize_dequeue(self, queue: str, trigger: Output, after: After = None) -> Output:
        """The oldest value of a FIFO."""
        return self._one("Serialize.Dequeue", trigger, queue=queue, after=after)

    def hold_stash(self, slot: str, value: Value, after: After = None) -> None:
        """Keeps a value; a newer one replaces it."""
        self._none("Hold.Stash", value, slot=slot, after=after)

    def hold_flush(self, slot: str, trigger: Output, after: After = None) -> Output:
        """Releases the value that is held."""
        return self._one("Hold.Flush", trigger, slot=slot, after=after)

    def correlate_tag(self, trigger: Output, after: After = None) -> Output:
        """A fresh CorrelationToken."""
        return self._one("CorrelateTag", trigger, after=after)

    # --- to the host

    def app_emit(self, name: str, value: Value, after: After = None) -> None:
        """An AppEvent `name` with the value."""
        self._none("AppEmit", value, name=name, after=after)

    def app_notify(self, name: str, trigger: Output, after: After = None) -> None:
        """An AppEvent `name` without a value, when `trigger` (anything) arrives."""
        self._none("AppNotify", trigger, name=name, after=after)

    def record(self, name: str, value: Value, after: After = None) -> None:
        """Into the node's telemetry ring `name`."""
        self._none("Record", value, name=name, after=after)

    def incr_metric(self, name: str, trigger: Output, delta: int = 1, after: After = None) -> None:
        """Adds `delta` to the node's counter `name` when `trigger` (anything) arrives."""
        self._none("IncrMetric", trigger, name=name, delta=delta, after=after)

    # --- address book

    def address_book_insert(self, peer: Output, address: Output, after: After = None) -> None:
        """Adds a peer, or one more address of it."""
        call_op(self, _row("Insert", keys.ADDRESS_BOOK_DOMAIN), (peer, address), {}, after=after)

    def address_book_insert_many(self, peer: Output, addresses: Output, after: After = None) -> None:
        """The same for several addresses."""
        call_op(self, _row("InsertMany", keys.ADDRESS_BOOK_DOMAIN), (peer, addresses), {}, after=after)

    def address_book_lookup(self, peer: Output, after: After = None) -> Output:
        """All addresses of a peer, in order."""
        return call_op(self, _row("Lookup", keys.ADDRESS_BOOK_DOMAIN), (peer,), {}, after=after)[0]
