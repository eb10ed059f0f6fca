"""Methods of slots that are more than the row of their op: they choose among ops, or check arguments."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from bb_edge.ir import keys, opsets
from bb_edge.ir.shares import WHOLE
from bb_host.dsl.calls import CatalogRow, Choice, row_of
from bb_host.dsl.output import Output
from bb_host.dsl.recorder import Recorder
from bb_host.errors import AttributeValueError, ValueTypeError
from bb_host.whole_numbers import whole


class SlotCall(NamedTuple):
    """What a method has beyond the row of its op. `signature` is the row's where it is None."""

    signature: str | None = None
    choose: Choice | None = None
    doc: str = ""


_Chosen = tuple[CatalogRow, tuple[Any, ...]]


def _row(domain: str, op_type: str) -> CatalogRow:
    op = opsets.lookup(domain, op_type)
    assert op is not None, op_type
    return row_of(op)


_FORWARD, _FORWARD_KEYED, _BACKWARD, _BACKWARD_KEYED, _BACKWARD_INPUT = (
    _row(keys.ROLE_MODEL_DOMAIN, name)
    for name in ("Forward", "ForwardKeyed", "Backward", "BackwardKeyed", "BackwardInput")
)
_CONTRIBUTE = _row(keys.ROLE_AGGREGATOR_DOMAIN, "Contribute")
_SAMPLE, _SAMPLE_SHARE = (_row(keys.ROLE_PEER_SELECTOR_DOMAIN, name) for name in ("Sample", "SampleShare"))


def _forward(graph: Recorder, inputs: tuple[Any, ...], attrs: dict[str, object]) -> _Chosen:
    return (_FORWARD, inputs[:1]) if inputs[1] is None else (_FORWARD_KEYED, inputs)


def _backward(graph: Recorder, inputs: tuple[Any, ...], attrs: dict[str, object]) -> _Chosen:
    grad, key, input_grad = inputs
    if not isinstance(input_grad, bool):
        raise graph.error(
            AttributeValueError,
            f"backward: input_grad is {input_grad!r}, expected True or False",
            "write input_grad=True, and read what backward gives",
        )
    if input_grad:
        return _BACKWARD_INPUT, (grad, key)
    return (_BACKWARD, (grad,)) if key is None else (_BACKWARD_KEYED, (grad, key))


def _contribute(graph: Recorder, inputs: tuple[Any, ...], attrs: dict[str, object]) -> _Chosen:
    if inputs[1] is not None and not isinstance(inputs[1], Output):
        _check_weight(graph, inputs[1])
    return _CONTRIBUTE, inputs


def _check_weight(graph: Recorder, weight: object) -> None:
    """ValueTypeError for a number that no aggregator weighs with."""
    numbers = (
        np.asarray(weight) if isinstance(weight, (int, float, list, tuple, np.ndarray, np.generic)) else None
    )
    if numbers is None or numbers.dtype.kind not in "biuf":
        return  # recording says what is wrong with it
    if numbers.size != 1 or not 0 < float(numbers.reshape(())) < float("inf"):
        raise graph.error(
            ValueTypeError,
            f"a weight is one number, finite and above 0, not {weight!r}",
            "the number of samples, for example",
        )


def _sample(graph: Recorder, inputs: tuple[Any, ...], attrs: dict[str, object]) -> _Chosen:
    least = whole(attrs["min"])
    if least is None or least < 0:
        raise graph.error(
            AttributeValueError,
            f"sample: min={attrs['min']!r} is not a number of peers",
            "a whole number from 0: fewer peers than that are not taken at all",
        )
    attrs["min"] = least or None
    (fraction,) = inputs
    if fraction is None:
        return _SAMPLE, ()
    attrs["share"] = _billionths(graph, fraction)
    return _SAMPLE_SHARE, ()


def _billionths(graph: Recorder, fraction: object) -> int:
    """The share that a device multiplies with, of the decimal that the author wrote.

    Rounded down, so that 1/3 of 3 peers is one: the device rounds up. AttributeValueError for no fraction.
    """
    share = 0
    if isinstance(fraction, (int, float, np.integer, np.floating)) and not isinstance(fraction, bool):
        share = int(Decimal(str(fraction)) * WHOLE) if 0 < fraction <= 1 else 0
    if share < 1:
        raise graph.error(
            AttributeValueError,
            f"sample: fraction={fraction!r} is not a share of the peers",
            "a number above 0, and 1 at most: fraction=0.1 takes a tenth of the peers that are up",
        )
    return share


SLOT_CALLS = {
    "ModelSlot.forward": SlotCall(
        "input, *, key=None",
        _forward,
        """The output. What a `backward` reads is kept for the execution, or under `key` beyond it.

        A key is an integer, as `r.round` is, a peer, bytes, or a bundle of those. Activations under a key go
        when a `backward` of the same key has used them, or when newer ones need their place: the device's
        `kept_keys` and `kept_key_bytes` bound them.
        """,
    ),
    "ModelSlot.backward": SlotCall(
        "grad, *, key=None, input_grad=False",
        _backward,
        """Adds dL/dparameters to the model's gradient, given dL/doutput of the last `forward`; yields a cmd.

        It is about the `forward` of the same execution, or with `key` about that of the same key. With
        `input_grad` it yields dL/dinput, in the input's shape and dtype, in place of the cmd: with that
        whoever has sent the input goes on.
        """,
    ),
    "AggregatorSlot.contribute": SlotCall(
        "contribution, weight=None, peer=None, round=None, *, sent=None",
        _contribute,
        """Counts once per (round, peer), first wins. `weight`, above 0, and `round`: 0-D. Yields a cmd.

        `sent` is what the peer was asked with, `params` as a rule: a contribution of another shape is
        refused, and an aggregator that clips clips the difference to it.
        """,
    ),
    "PeerSelectorSlot.sample": SlotCall(
        "n, min=0, *, fraction=None",
        _sample,
        """`n` peers at random, fewer where fewer are up, none where fewer than `min` are up.

        `fraction=0.1` takes a tenth of those that are up each time, rounded up, but `min` at least and `n` at
        most: 3 of 21, and with `min=5` 5 of them.
        """,
    ),
}
