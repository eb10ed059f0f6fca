"""Writes what a node's polls report: events to stdout, everything else as lines of the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from bb_edge.cli.render import Output, step_record, utc_time
from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason

if TYPE_CHECKING:
    from bb_edge.cli.peer_names import PeerNames
    from bb_edge.node import Node
    from bb_edge.transport.base import Transport


MOST_LISTED = 10
"""Entries of a list that a line holds: of a thousand peers that are missing the others are counted."""
ENOUGH = MissingReason.ENOUGH.text
"""Why peers are missing that nobody needed."""
ANSWERED = frozenset(
    why.text
    for why in (
        *(MissingReason.FAILED, MissingReason.REFUSED, MissingReason.FAULT_HERE, MissingReason.TOO_LARGE),
        *(MissingReason.NOTHING, MissingReason.OUT_OF_TIME, MissingReason.DECLINED),
    )
)
"""Why peers are missing that have answered."""
WRITTEN_AGAIN = frozenset(("outbox", "journal", "snapshot"))
"""What of a state folder is tried again until the disk takes it; then there is a `StorageRecovered`."""
MAX_FAILURE = 200
"""Letters of a failure in a presence: a line of text, as many bytes as the rest of it."""
MAX_LAST_WORD = 60
"""Letters by which a failure may be shorter than that, so that it ends with a whole word: an id has 46."""


class StepLog:
    """Takes each step that is not an envelope, as the driver's `report`.

    `unfinished` is the number of `Repeat` ops with an end that have not come to it.
    """

    def __init__(
        self,
        name: str,
        node: Node,
        transport: Transport,
        output: Output,
        names: PeerNames,
        tell: Callable[[str, object], object],
    ) -> None:
        """`tell` adds a fact to the node's presence: what failed last, for `bb-edge peers`."""
        self._name = name
        self._node = node
        self._transport = transport
        self._output = output
        self._names = names
        self._tell = tell
        self._failure = ""  # the last one, without its time
        self._refused: set[str] = set()  # what of the state the disk refuses, and was logged
        self._waiting: set[str] = set()  # targets that were logged as waiting for a bootstrap
        self.unfinished = node.open_rounds
        self.in_vain = 0
        """Rounds in a row that have reached nobody."""
        self._uncounted: tuple[str, ...] = ()  # why answers that came to the last request do not count

    def __call__(self, step: steps.EngineStep) -> None:
        output = self._output
        if isinstance(step, steps.AppEvent):
            self._event(step)
        elif isinstance(step, steps.RoundsCompleted):
            self.unfinished -= 1
            failed = self._node.counters.get("rounds.failed", 0)
            if failed:
                output.log(
                    "warning", "rounds completed", target=step.target, rounds=step.rounds, failed=failed
                )
            else:
                output.log("info", "rounds completed", target=step.target, rounds=step.rounds)
        elif isinstance(step, steps.BootstrapStarted | steps.BootstrapComplete):
            self._waiting.clear()
            self._bootstrap(step)
        elif isinstance(step, steps.WaitingOnBootstrap):
            level = "debug" if step.target in self._waiting else "info"
            self._waiting.add(step.target)
            output.log(level, "waiting for a bootstrap", target=step.target, op=step.op)
        elif isinstance(step, steps.StorageFailed) and step.what in self._refused:
            pass  # it is counted, and said once until the disk has taken it
        else:
            if isinstance(step, steps.StorageFailed) and step.what in WRITTEN_AGAIN:
                self._refused.add(step.what)
            elif isinstance(step, steps.StorageRecovered):
                self._refused.clear()
            if isinstance(step, steps.RoundBackedOff):
                self.in_vain = step.reached_nobody
            elif isinstance(step, steps.RequestClosed):
                self._uncounted = tuple(why for _, why in step.missing if why in ANSWERED)
            kind, level = type(step).__name__, _level(step)
            # Asked first: in a flood, the fields of a line cost more than the line that is not written.
            if output.tells(level) and output.admits(level, kind, self._about(step)):
                output.line(level, kind, **self._fields(step))
                if isinstance(step, steps.OpFailed):
                    self._failed(f"{step.op}: {step.text}")
                elif isinstance(step, steps.StorageFailed):
                    self._failed(f"{step.what}: {step.error}")
                elif isinstance(step, steps.StateRolledBack):
                    self._failed(f"{step.peer}: {step.text}")
                elif isinstance(step, steps.AnswerRefused):
                    self._failed(f"{step.peer} refuses its answers: {step.reason}")
                elif isinstance(step, steps.OutboundDropped) and step.durable:
                    self._failed(f"a durable envelope to {step.peer} is lost")
            if isinstance(step, steps.OpFailed):
                self._traceback(step)

    def in_vain_text(self, most: int) -> str:
        """Why a run gives up after that many rounds in a row, none of which anybody has a part in."""
        if not self._uncounted:
            return f"{most} rounds in a row have reached nobody"
        whys = ", ".join(f"{count} {why}" for why, count in Counter(self._uncounted).items())
        return f"no answer counts in {most} rounds in a row; those of the last request: {whys}"

    def _failed(self, what: str) -> None:
        """Tells what failed, where it is something else than before; the presence has its first time."""
        if what != self._failure:
            self._failure = what
            self._tell("failure", shortened(f"{utc_time()} {what}"))

    def _about(self, step: steps.EngineStep) -> str:
        """Whom a line is about, for its limit: a peer, else an op, else a target."""
        peer = getattr(step, "peer", None)
        if isinstance(peer, PeerId):
            return self._names(peer)
        return str(getattr(step, "op", "") or getattr(step, "target", ""))

    def _fields(self, step: steps.EngineStep) -> dict[str, object]:
        """The fields of a step, as its line has them: peers by name, in texts as well."""
        names = self._names
        record = step_record(step, names)
        del record["step"]
        if isinstance(step, steps.StateRolledBack):
            record["text"] = step.text
        for name, value in list(record.items()):
            if isinstance(value, str) and name not in ("peer", "other"):  # which are peers as a whole
                record[name] = names.in_text(value)
            elif isinstance(value, list) and len(value) > MOST_LISTED:
                record[name] = value[:MOST_LISTED]
                record[f"{name}_omitted"] = len(value) - MOST_LISTED
        return record

    def _event(self, step: steps.AppEvent) -> None:
        record = step_record(step, self._names)
        del record["step"]
        record = {"event": step.topic, "time": utc_time(), "node": self._name, **record}
        if step.omitted_bytes:
            self._output.log(
                "warning",
                f"{step.topic}: the value is left out because it is larger than app_event_bytes",
                kind="value left out",
                target=step.target,
                bytes=step.omitted_bytes,
                app_event_bytes=self._node.config.app_event_bytes,
            )
        else:
            del record["omitted_bytes"]
        # The traffic so far, so that a host sees what a round costs.
        wire = self._transport.counters
        self._output.record(record | {key: wire[key] for key in ("sent_bytes", "received_bytes")})

    def _bootstrap(self, step: steps.BootstrapStarted | steps.BootstrapComplete) -> None:
        from bb_edge.engine.entries.bootstrap import seconds

        whose = {"target": step.target} | ({"slot": step.slot} if step.slot else {})
        if isinstance(step, steps.BootstrapStarted):
            self._output.log("info", "bootstrap started", **whose)
        elif not step.failed:
            self._output.log("info", "bootstrap done", **whose)
        else:
            self._failed(f"bootstrap of {step.slot or step.target}: {step.reason}")
            again = {"next_try": f"in {seconds(step.wait_ns)}"} if step.wait_ns else {}
            self._output.log(
                "error", "bootstrap failed", **whose, **again, error=self._names.in_text(step.reason)
            )

    def _traceback(self, step: steps.OpFailed) -> None:
        """Logs the traceback of an op that failed in a component's code, at level debug."""
        if step.origin and self._output.tells("debug") and step.error.__traceback__ is not None:
            import traceback

            self._output.log("debug", f"traceback of {step.op}:")
            for line in "".join(traceback.format_exception(step.error)).splitlines():
                self._output.log("debug", f"  {line}")


def shortened(text: str) -> str:
    """A failure as a presence has it: one line, which ends with a whole word where it is cut.

    It is shown where a part of a word would mislead: half a name or number is another one.
    """
    line = " ".join(text.split())
    if len(line) <= MAX_FAILURE:
        return line
    end = line.rfind(" ", MAX_FAILURE - MAX_LAST_WORD, MAX_FAILURE - 1)
    return f"{line[: end if end > 0 else MAX_FAILURE - 2]} …"


def _level(step: steps.EngineStep) -> str:
    """How serious a step is, by its kind and, of some kinds, by what it says."""
    level = _LEVEL.get(type(step), "debug")
    if isinstance(step, steps.RequestClosed):
        if step.missing:
            return "info" if all(why == ENOUGH for _, why in step.missing) else "warning"
        return level if step.asked else "info"  # there was nobody
    if isinstance(step, steps.OutboundDropped) and step.durable:
        return "error"
    if isinstance(step, steps.RoundWaits) and not (step.again or step.failing):
        return "info"  # peers that start at the same time are not there at once
    return level


_LEVEL = {
    steps.OpFailed: "error",
    steps.WireReceiveFailed: "warning",
    steps.PeerResolveFailed: "warning",
    steps.IngressDropped: "warning",
    steps.IngressPutOff: "info",
    steps.OutboundDropped: "warning",
    steps.ExecutionStarved: "warning",
    steps.RequestFailed: "warning",
    steps.AnswerRefused: "warning",
    steps.NobodyHeard: "warning",
    steps.ContributionsGivenUp: "warning",
    steps.ContributionsClipped: "warning",
    steps.ContributionsDominate: "warning",
    steps.LayoutUndeclared: "warning",
    steps.DataLeftOut: "warning",
    steps.DataNoted: "warning",
    steps.ModelNoted: "warning",
    steps.ValueBeganAnew: "warning",
    steps.RequestDeclined: "info",
    steps.RoundBackedOff: "warning",
    steps.RoundWaits: "warning",
    steps.TicksLeftOut: "info",
    steps.PeerUp: "info",
    steps.PeerDown: "info",
    steps.PeerBlocked: "warning",
    steps.ProgramMismatch: "warning",
    steps.ProgramAccepted: "info",
    steps.ClassMismatch: "warning",
    steps.AskedByTurns: "warning",
    steps.PeerRefused: "warning",
    steps.PeersUnheard: "warning",
    steps.PeerRestarts: "warning",
    steps.PeerBeganAnew: "warning",
    steps.RecordExpired: "warning",
    steps.RecordsMissing: "error",
    steps.SentToNobody: "error",
    steps.StateRolledBack: "error",
    steps.PeerFailing: "warning",
    steps.StateForgotten: "warning",
    steps.StateUpgraded: "warning",
    steps.StorageFailed: "error",
    steps.StorageRecovered: "warning",
}
