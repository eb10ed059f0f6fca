"""The framework's own ops under their natural names: `g.app_emit`, `g.after`, `g.any`, …"""

from __future__ import annotations

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets import OpDef
from bb_edge.ir.suggestions import suggestion
from bb_host.dsl.catalog_ops import Done, call_done, call_op, number_type
from bb_host.dsl.misuse import typed_calls
from bb_host.dsl.output import Output, Value
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import AttributeValueError

SHUTDOWN = 1
SNAPSHOT = 2


def _row(name: str, domain: str = keys.SYSCALL_DOMAIN) -> OpDef:
    found = opsets.lookup(domain, name)
    assert found is not None, name
    return found


@typed_calls
class SyscallOps(Recorder):
    """What `Graph` has of the syscall and address book opsets. Times are nanoseconds (`S`, `MS`, `US`)."""

    def _one(self, op: str, *args: object, after: After = UNORDERED, **attrs: object) -> Output:
        return call_op(self, _row(op), args, attrs, after=after)[0]

    def _done(self, op: str, *args: object, after: After = UNORDERED, **attrs: object) -> Done:
        return call_done(self, _row(op), args, attrs, after=after)

    def _book(self, op: str, *args: object, after: After = UNORDERED) -> Output:
        return call_op(self, _row(op, keys.ADDRESS_BOOK_DOMAIN), args, {}, after=after)[0]

    def _enter(self, op: str, *args: object, after: After = UNORDERED) -> Done:
        return call_done(self, _row(op, keys.ADDRESS_BOOK_DOMAIN), args, {}, after=after)

    def _above_zero(self, what: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63:
            return value
        hint = "write 30 * S or 5 * MS: from bb_host import MS, S" if what.endswith("_ns") else "1 or more"
        takes = "a whole number above 0"
        if isinstance(value, int) and value >= 2**63:
            takes += ", at most 2**63 - 1"
        raise self.error(AttributeValueError, f"{what} is {takes}, not {value!r}", hint)

    # --- entries: each firing starts an execution

    def pulse(self) -> Output:
        """A trigger once, after the target's bootstrap; not on restore."""
        return self._one("Pulse")

    def interval(self, period_ns: int) -> Output:
        """A Timestamp every `period_ns`. Where a trigger is wanted: `g.threshold(1, tick)`."""
        return self._one("Interval", period_ns=self._above_zero("period_ns", period_ns))

    def event_source(self, kind: str | int) -> Output:
        """An EventKind per bus event of that kind: `"peer_up"`, `"peer_down"`, `"op_failure"`,
        `"wire_receive_error"`, `"bootstrap_complete"`, `"state_rolled_back"` (this node's state is older than
        what it did), `"peer_rolled_back"`, `"peer_began_anew"`, or the number of a component's own, from
        1000 on.
        """
        return self._one("EventSource", kind=self._event_kind(kind))

    def is_event(self, event: Output, kind: str | int, *, after: After = UNORDERED) -> Output:
        """Whether an EventKind is that kind, 0-D BOOL."""
        return self.as_tensor(event, after=after).equal(self._event_kind(kind))

    def _event_kind(self, kind: object) -> int:
        from bb_edge.engine.bus import KINDS, Bus

        names = ", ".join(KINDS)
        if isinstance(kind, str):
            if kind not in KINDS:
                raise self.error(AttributeValueError, f"no event is called {kind!r}", suggestion(kind, KINDS))
            return KINDS[kind]
        if not isinstance(kind, int) or isinstance(kind, bool):
            raise self.error(AttributeValueError, f"an event kind is a name, not {kind!r}", names)
        if kind not in KINDS.values() and not Bus.USER <= kind < 2**31:
            raise self.error(
                AttributeValueError,
                f"no event has the number {kind}",
                f"use a name ({names}), or a component's own number from {Bus.USER} on",
            )
        return kind

    def lifecycle_phase(self, phase: int) -> Output:
        """A trigger when the host fires that phase: Shutdown = 1, Snapshot = 2.

        `bb-edge run` fires Shutdown when it is told to stop, and with `--state` Snapshot before each
        snapshot: what the trigger starts and ends at once is in it. Other hosts call `Node.fire_lifecycle`.
        """
        if phase not in (SHUTDOWN, SNAPSHOT):
            raise self.error(
                AttributeValueError,
                f"phase is 1 (shutdown) or 2 (snapshot), not {phase!r}",
                "bootstraps are no phase: record them in Module.bootstrap",
            )
        return self._one("LifecyclePhase", phase=phase)

    # --- triggers and time

    def on_trigger(self, trigger: Output, *, after: After = UNORDERED) -> Output:
        """A trigger on each arrival."""
        return self._one("OnTrigger", trigger, after=after)

    def threshold(self, n: int, *inputs: Output, after: After = UNORDERED) -> Output:
        """A trigger after `n` arrivals on any of `inputs`, whatever the execution; re-arms."""
        return self._one("Threshold", *inputs, n=self._above_zero("n", n), after=after)

    def after(self, trigger: Output, delay_ns: int, *, after: After = UNORDERED) -> Output:
        """The trigger, `delay_ns` later, in the same execution."""
        return self._one("After", trigger, delay_ns=self._above_zero("delay_ns", delay_ns), after=after)

    def sleep(self, trigger: Output, duration_ns: int, *, after: After = UNORDERED) -> Output:
        """The trigger, `duration_ns` later, as an asynchronous op."""
        return self._one(
            "Sleep", trigger, duration_ns=self._above_zero("duration_ns", duration_ns), after=after
        )

    def deadline_match(self, then: Output, timeout: Output, *, after: After = UNORDERED) -> Output:
        """The first of the two triggers, once per execution."""
        return self._one("DeadlineMatch", then, timeout, after=after)

    def clock(self, trigger: Output, *, after: After = UNORDERED) -> Output:
        """Wall time as a Timestamp."""
        return self._one("Clock", trigger, after=after)

    def rng_u64(self, trigger: Output, *, after: After = UNORDERED) -> Output:
        """64 bits of the node's seeded generator, 0-D U64."""
        return self._one("RngU64", trigger, after=after)

    def elapsed(self, since: Output, until: Output, *, after: After = UNORDERED) -> Output:
        """Nanoseconds from one Timestamp to another, 0-D I64; below 0 where `until` is the earlier one."""
        return self._one("Elapsed", since, until, after=after)

    # --- numbers

    def as_tensor(self, value: Output, *, after: After = UNORDERED) -> Output:
        """The number of a Scalar, Timestamp (ns, I64), EventKind (I64) or CorrelationToken (U64), 0-D."""
        own = self.own(value)
        return self._one("AsTensor", own, to=number_type(self, own).elem_type, after=after)

    def as_scalar(self, value: Value, *, after: After = UNORDERED) -> Output:
        """A tensor of one element as a Scalar of its element type: F32, F64, F16, U8 or I32."""
        return self._one("AsScalar", value, after=after)

    # --- flow

    def any(self, *inputs: Output, group: str = "", after: After = UNORDERED) -> Output:
        """The first arrival; later ones of the execution are dropped.

        All `any` of one module that name the same `group` share it: the first arrival at one of them passes,
        and nothing else does. Each answer to a request, and each call of the module, has groups of its own.
        """
        return self._one("Any", *inputs, group=group or None, after=after)

    def gate(self, value: Value, trigger: Output, *, after: After = UNORDERED) -> Output:
        """`value`, once `trigger` (anything) is there.

        Where `trigger` comes from an input that `value` does not depend on, the host may give it in an invoke
        of its own: what an execution leaves at its end waits in the gate. One trigger lets one value through,
        the newest that waits, or the next to come; values that newer ones replace are counted
        (`gates.replaced`). Snapshots hold what waits.
        """
        return self._one("Gate", value, trigger, after=after)

    def pass_through(self, value: Value, *, after: After = UNORDERED) -> Output:
        """The value itself, of any type."""
        return self._one("PassThrough", value, after=after)

    def tee(self, value: Value, fanout: int, *, after: After = UNORDERED) -> tuple[Output, ...]:
        """The value, `fanout` times."""
        return call_op(self, _row("Tee"), (value,), {"fanout": fanout}, after=after)

    # --- state of the op, bounded, across executions

    def limit_acquire(self, name: str, trigger: Output, n: int, *, after: After = UNORDERED) -> Output:
        """The trigger, once one of the `n` permits of semaphore `name` is free; permits end with the
        execution.
        """
        return self._one("Limit.Acquire", trigger, name=name, n=self._above_zero("n", n), after=after)

    def limit_release(self, name: str, trigger: Output, *, after: After = UNORDERED) -> Done:
        """Gives the execution's permit back."""
        return self._done("Limit.Release", trigger, name=name, after=after)

    def serialize_enqueue(self, queue: str, value: Value, *, after: After = UNORDERED) -> Output:
        """Appends to a FIFO. Yields a trigger."""
        return self._one("Serialize.Enqueue", value, queue=queue, after=after)

    def serialize_dequeue(self, queue: str, trigger: Output, *, after: After = UNORDERED) -> Output:
        """The oldest value of a FIFO."""
        return self._one("Serialize.Dequeue", trigger, queue=queue, after=after)

    def hold_stash(self, slot: str, value: Value, *, after: After = UNORDERED) -> Done:
        """Keeps a value; a newer one replaces it."""
        return self._done("Hold.Stash", value, slot=slot, after=after)

    def hold_flush(self, slot: str, trigger: Output, *, after: After = UNORDERED) -> Output:
        """Releases the value that is held."""
        return self._one("Hold.Flush", trigger, slot=slot, after=after)

    def correlate_tag(self, trigger: Output, *, after: After = UNORDERED) -> Output:
        """A fresh CorrelationToken."""
        return self._one("CorrelateTag", trigger, after=after)

    # --- to the host

    def app_emit(self, name: str, value: Value, *, after: After = UNORDERED) -> Done:
        """An AppEvent `name` with the value. `bb-edge run` prints of Bytes their number: `{"bytes": 2}`."""
        return self._done("AppEmit", value, name=name, after=after)

    def app_notify(self, name: str, trigger: Output, *, after: After = UNORDERED) -> Done:
        """An AppEvent `name` without a value, when `trigger` (anything) arrives."""
        return self._done("AppNotify", trigger, name=name, after=after)

    def record(self, name: str, value: Value, *, after: After = UNORDERED) -> Done:
        """Into the node's telemetry ring `name`."""
        return self._done("Record", value, name=name, after=after)

    def incr_metric(self, name: str, trigger: Output, delta: int = 1, *, after: After = UNORDERED) -> Done:
        """Adds `delta`, 0 or more, to the program's counter `name` when `trigger` (anything) arrives.

        Metrics show it as `bb_<name>_total`, with underscores for what is no letter or digit; names that
        begin as the node's own counters do are refused (`ops.failed`), and two that are spelt alike.
        """
        return self._done("IncrMetric", trigger, name=name, delta=delta, after=after)

    # --- peers and addresses

    def own_peer(self, *, after: After = UNORDERED) -> Output:
        """This node, as a PeerId."""
        return self._book("OwnPeer", after=after)

    def own_addresses(self, *, after: After = UNORDERED) -> Output:
        """Where this node is reached, as an AddressVec; never empty."""
        return self._book("OwnAddresses", after=after)

    def peer_at(self, peers: Output, index: Value, *, after: After = UNORDERED) -> Output:
        """One peer of a PeerIdVec, counted from 0, or from the end below 0.

        The op fails where there is none.
        """
        return self._one("PeerAt", peers, index, after=after)

    def peer_list(self, *peers: Output, after: After = UNORDERED) -> Output:
        """Single PeerIds as a PeerIdVec, which `net_out` and `request` take."""
        return self._one("PeerList", *peers, after=after)

    def peer_count(self, peers: Output, *, after: After = UNORDERED) -> Output:
        """How many peers a PeerIdVec has, 0-D I64."""
        return self._one("PeerCount", peers, after=after)

    def address_of(self, peer: Output, *, after: After = UNORDERED) -> Output:
        """The address that names a peer, `/p2p/<peer>`: what brokers route by."""
        return self._book("AddressOf", peer, after=after)

    def address_at(self, addresses: Output, index: Value, *, after: After = UNORDERED) -> Output:
        """One address of an AddressVec, counted as by `peer_at`."""
        return self._book("AddressAt", addresses, index, after=after)

    def address_list(self, *addresses: Output, after: After = UNORDERED) -> Output:
        """Single Multiaddresses as an AddressVec."""
        return self._book("AddressList", *addresses, after=after)

    def address_book_insert(self, peer: Output, address: Output, *, after: After = UNORDERED) -> Done:
        """Adds a peer, or one more address of it."""
        return self._enter("Insert", peer, address, after=after)

    def address_book_insert_many(self, peer: Output, addresses: Output, *, after: After = UNORDERED) -> Done:
        """The same for several addresses."""
        return self._enter("InsertMany", peer, addresses, after=after)

    def address_book_drop(self, peer: Output, *, after: After = UNORDERED) -> Done:
        """One reference to a peer less: what `address_book_insert` added is gone."""
        return self._enter("Drop", peer, after=after)

    def address_book_lookup(self, peer: Output, *, after: After = UNORDERED) -> Output:
        """All addresses of a peer, in order. The op fails where none is known."""
        return self._book("Lookup", peer, after=after)
