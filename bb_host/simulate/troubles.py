"""What a step of a simulated node that a user has to hear of says, and whose trouble it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bb_edge.cli.render import step_record
from bb_edge.engine import steps
from bb_edge.engine.step import EngineStep
from bb_edge.ir.ids import PeerId


def told(step: EngineStep, named: Callable[[PeerId], str]) -> str:
    """What a step tells, as the log of a node has it: `target=Server round=1`; of a failure whose it is."""
    if isinstance(step, steps.OpFailed):
        return f"{step.target}, {step.op}: {step.text}"
    record = step_record(step, named)
    del record["step"]
    return " ".join(f"{name}={value}" for name, value in record.items() if value not in (None, "", []))


def at_fault(step: EngineStep, node: PeerId) -> Sequence[PeerId]:
    """Whose trouble it is: the peers that a step of a node names, else the node's own."""
    if isinstance(step, steps.AnswerRefused | steps.OutboundDropped | steps.IngressDropped):
        return (node,)  # the peer has refused what this node says, or only took part
    peer: PeerId | None = getattr(step, "peer", None)
    peers: Sequence[PeerId] = getattr(step, "peers", ())
    return peers or (node if peer is None else peer,)


def left_out(event: steps.AppEvent) -> str:
    """What an event without its value says, and the limit that it is larger than."""
    return (
        f"{event.topic}: its value of {event.omitted_bytes} bytes is more than limits.app_event_bytes: emit"
        " less, or give the class a larger limit (--large, --config)"
    )
