"""The short way through the engine's loop, for operators that compute one value from one or two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.engine.program.graph_slot import EAGER_MASK
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.roles.containment import contained

if TYPE_CHECKING:
    from bb_edge.engine.run.scheduler import Scheduler


def run_lane(engine: Scheduler, execution: Execution, frame: Frame, op: BoundOp, limit: int) -> int:
    """Runs an op with a lane, and those with one that follow upon it alone, at most `limit` more of them.

    Does what `Engine._run` does with such ops, in the same order, without what they do not need: no context,
    no way through the queue from one op to its only successor. Returns how many more ran.
    """
    ready = execution.ready
    values, waiting, consumers = frame.values, frame.waiting, frame.consumers
    special, mask = frame.special, EAGER_MASK
    done = 0
    following: BoundOp | None = op
    while following is not None:
        op, following = following, None
        run, first, second, site = op.lane  # type: ignore[misc]
        try:
            result = run(None, values[first]) if second < 0 else run(None, values[first], values[second])
        # The border to users' backends, as in `Engine._run`.
        except BaseException as error:  # noqa: BLE001
            engine.op_failed(execution, op, contained(error))
            break
        for read in op.frees:
            values[read] = None
        values[site] = result
        for consumer, weight in consumers[site]:
            index = consumer.index
            left = waiting[index] - weight
            waiting[index] = left
            if not left:
                if following is None and not ready and done < limit and consumer.lane is not None:
                    following = consumer
                    done += 1
                else:
                    ready.append((frame, consumer))
            elif not left & mask:
                engine.pull(frame, consumer)
        if special:
            engine.pass_on(frame, site, result)
    return done
