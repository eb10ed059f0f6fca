"""Which parameters are trained, and which are sent: the last layers alone, personal ones, untrained ones.

All of it works on the list of a model's initializers, each learned or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from bb_host.errors import ModelImportError
from bb_host.learn.parameters import Initializer, matching


def train_last_layers(
    initializers: Sequence[Initializer],
    layers: Mapping[str, int],
    last: int,
    forced: Collection[str],
    where: str,
) -> tuple[Initializer, ...]:
    """Freezes what is learned before the last layers; what `forced` names stays learned.

    `layers` gives the place of the operator that an initializer belongs to. A layer is an operator with
    parameters, its bias included. ModelImportError where there are fewer layers.
    """
    there = sorted({layers[i.name] for i in initializers if i.learned})
    if not 1 <= last <= len(there):
        raise ModelImportError(
            f"the last {last} layers cannot be trained: it has {len(there)} that are learned",
            where,
            f"train_last is 1 to {len(there)} for it; print(trainable(model).table()) lists them",
        )
    first = there[-last]
    which = "the last layer" if last == 1 else f"the last {last} layers"
    return tuple(
        dataclasses.replace(i, learned=False, frozen=True, why=f"before {which}, {i.why}", readers=())
        if i.learned and layers[i.name] < first and i.name not in forced
        else i
        for i in initializers
    )


def make_sent(
    initializers: Sequence[Initializer],
    patterns: Collection[str],
    names: Collection[str],
    refused: Mapping[str, str],
    where: str,
) -> tuple[Initializer, ...]:
    """Marks what is not trained and sent all the same.

    `names` are those that patterns are about; `refused` says of those that cannot be sent why. A pattern
    passes over these, and over what is trained and thus sent already. ModelImportError where it leaves none.
    """
    by_name = {i.name: i for i in initializers}
    found: set[str] = set()
    for pattern in patterns:
        hits = matching([pattern], names, "send", where)
        fitting = {name for name in hits if not by_name[name].learned and name not in refused}
        if fitting:
            found |= fitting
            continue
        trained = next((name for name in sorted(hits) if by_name[name].learned), None)
        if trained is not None:
            hint = (
                f"freeze it as well (frozen=[{pattern!r}]) for it to be sent alone, or leave it out of sent"
            )
            raise ModelImportError(f"{trained!r} is trained, and sent already", where, hint)
        name = min(hits)
        raise ModelImportError(f"{name!r} cannot be sent: {refused[name]}", where, "leave it out of sent")
    return tuple(
        dataclasses.replace(i, untrained=True, why=f"{i.why}, and sent all the same")
        if i.name in found
        else i
        for i in initializers
    )


def make_personal(
    initializers: Sequence[Initializer], patterns: Collection[str], updated: Collection[str], where: str
) -> tuple[Initializer, ...]:
    """Marks what is trained and stays on its node; `updated` are statistics that batches update.

    ModelImportError for a pattern that matches nothing, or something that is neither learned nor updated, and
    where nothing is left to send.
    """
    if not patterns:
        return tuple(initializers)
    by_name = {i.name: i for i in initializers}
    names = matching(patterns, by_name, "keep personal", where)
    given = any(i.untrained for i in initializers) or not names.issuperset(updated)
    idle = next((by_name[n] for n in sorted(names) if not by_name[n].learned and n not in updated), None)
    if idle is not None:
        hint = "leave it out: what is not learned is not sent either, unless `sent` names it"
        if idle.why.startswith("running "):
            hint = 'batch_norm="update" learns it; without that it is a constant, and not sent'
        raise ModelImportError(
            f"{idle.name!r} cannot be personal, it is not learned: {idle.why}", where, hint
        )
    if names >= {i.name for i in initializers if i.learned} and not given:
        hint = "leave one layer to be shared; a model that nobody shares needs no personal ones"
        raise ModelImportError("all that is learned is personal: nothing is left to send", where, hint)
    return tuple(dataclasses.replace(i, personal=i.name in names) for i in initializers)
