"""`train_when`: under which conditions of the board a node takes requests that train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir.errors import BBError

if TYPE_CHECKING:
    from bb_edge.node import Node
    from bb_edge.run_config import RunConfig
    from bb_shims import Board, Conditions


class ConditionsRefused(BBError):
    """A condition of `train_when` does not exist, or this board has no sensor for it."""


def conditions_of(config: RunConfig, board: Board) -> Conditions | None:
    """Returns the conditions that a configuration names; None without any. ConditionsRefused."""
    if not config.train_when:
        return None
    from bb_shims import COOL_CELSIUS, IDLE_LOAD, Conditions, ShimError

    celsius = COOL_CELSIUS if config.cool_celsius is None else config.cool_celsius
    load = IDLE_LOAD if config.idle_load is None else config.idle_load
    try:
        return Conditions(board, config.train_when, celsius, load)
    except ShimError as error:
        hint = "name only what the board tells: bb-edge doctor shows its sensors"
        raise ConditionsRefused(str(error), config.called("train_when"), hint) from error


def without_effect(config: RunConfig, node: Node) -> list[str]:
    """Returns a warning for what `train_when` does not hold back in the program of a node."""
    called, training = config.called("train_when"), node.inspect().training
    if not any(row["request"] for row in training):
        return [f"{called} has no effect: no request that comes to this node trains a model"]
    why = "it trains, and no request starts it (ask bb.BoardConditions there)"
    return [f"{called} does not hold back {row['op']}: {why}" for row in training if not row["request"]]
