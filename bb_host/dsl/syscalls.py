"""The framework's own ops under their natural names: `g.app_emit`, `g.after`, `g.any`, …

Most are rows of a table (`call_tables.NATURAL_NAMES`); here are those that take what no attribute holds.
"""

from __future__ import annotations

from bb_edge.ir.suggestions import suggestion
from bb_host.dsl.call_tables import NATURAL_NAMES, natural_row
from bb_host.dsl.calls import record_call
from bb_host.dsl.misuse import typed_calls
from bb_host.dsl.named_calls import Syscalls
from bb_host.dsl.output import Output, Value
from bb_host.dsl.relations import number_type
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import AttributeValueError
from bb_host.whole_numbers import whole

SHUTDOWN = 1
SNAPSHOT = 2


@typed_calls
class SyscallOps(Syscalls):
    """What `Graph` has of the syscall and address book opsets. Times are nanoseconds (`S`, `MS`, `US`)."""

    def _one(self, op: str, *args: object, after: After = UNORDERED, **attrs: object) -> Output:
        return record_call(self._graph, natural_row(op), args, attrs, after=after)[0]

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
                raise self._graph.error(
                    AttributeValueError, f"no event is called {kind!r}", suggestion(kind, KINDS)
                )
            return KINDS[kind]
        number = whole(kind)
        if number is None:
            raise self._graph.error(AttributeValueError, f"an event kind is a name, not {kind!r}", names)
        if number not in KINDS.values() and not Bus.USER <= number < 2**31:
            raise self._graph.error(
                AttributeValueError,
                f"no event has the number {kind}",
                f"use a name ({names}), or a component's own number from {Bus.USER} on",
            )
        return number

    def lifecycle_phase(self, phase: int) -> Output:
        """A trigger when the host fires that phase: Shutdown = 1, Snapshot = 2.

        `bb-edge run` fires Shutdown when it is told to stop, and with `--state` Snapshot before each
        snapshot: what the trigger starts and ends at once is in it. Other hosts call `Node.fire_lifecycle`.
        """
        if phase not in (SHUTDOWN, SNAPSHOT):
            raise self._graph.error(
                AttributeValueError,
                f"phase is 1 (shutdown) or 2 (snapshot), not {phase!r}",
                "a bootstrap is not a phase: record it in Module.bootstrap",
            )
        return self._one("LifecyclePhase", phase=phase)

    def as_tensor(self, value: Output, *, after: After = UNORDERED) -> Output:
        """The number of a Scalar, Timestamp (ns, I64), EventKind (I64) or CorrelationToken (U64), 0-D."""
        own = self._graph.own(value)
        return self._one("AsTensor", own, to=number_type(self._graph, own).elem_type, after=after)

    def tee(self, value: Value, fanout: int, *, after: After = UNORDERED) -> tuple[Output, ...]:
        """The value, `fanout` times."""
        return tuple(record_call(self._graph, natural_row("Tee"), (value,), {"fanout": fanout}, after=after))


NAMES = (*NATURAL_NAMES, "tee", "event_source", "is_event", "lifecycle_phase", "as_tensor")
"""The calls that a graph has too."""
