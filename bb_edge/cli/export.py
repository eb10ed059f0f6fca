"""The verb `bb-edge export`: writes a model's parameters out of a state folder.

It needs neither a node nor the artifact.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bb_edge.cli.arguments import file_name
from bb_edge.ir.errors import BBError
from bb_edge.ir.suggestions import suggestion

if TYPE_CHECKING:
    from bb_edge.engine.snapshot import Identity
    from bb_edge.ir.tensors import Array


class ExportError(BBError):
    """The state folder does not hold the model that is asked for."""


class HeldModel(NamedTuple):
    """A model in a snapshot: its slot, the targets that have the slot, its type and its parameters.

    `untrained` are those of them that each node has for itself and that this one has never trained.
    """

    slot: str
    targets: tuple[str, ...]
    type_name: str
    arrays: dict[str, Array]
    untrained: tuple[str, ...]


class Snapshot(NamedTuple):
    """The models in a state folder; `notes` say what could not be read."""

    identity: Identity
    generation: int
    rounds: int
    models: tuple[HeldModel, ...]
    others: tuple[str, ...]
    notes: tuple[str, ...]


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "export",
        help="write a model's parameters out of a state folder",
        description="Reads the newest snapshot that `bb-edge run --state` has written; the node may be"
        " running. Without -o it lists the models. docs/how-to/models.md says how to make an ONNX file.",
    )
    p.add_argument(
        "--state", type=file_name, required=True, metavar="FOLDER", help="the node's folder, or a copy"
    )
    p.add_argument("--slot", metavar="NAME", help="the model's slot, if there are several")
    p.add_argument("--target", metavar="NAME", help="the model of that target")
    p.add_argument(
        "-o",
        "--out",
        type=file_name,
        metavar="FILE.npz",
        help="the file to write; without it the models are listed",
    )
    p.add_argument("--allow-nan", action="store_true", help="write a model that holds inf or nan, too")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    p.set_defaults(run=run)


def look(folder: Path) -> Snapshot:
    """Reads the models in a state folder, which is not changed.

    Raises ExportError where there is no folder or snapshot, StateError or SnapshotError where the files
    cannot be read.
    """
    from bb_edge.cli.kept_folder import newest

    if not folder.is_dir():
        raise ExportError("there is no such folder", str(folder), "name the folder of bb-edge run --state")
    found = newest(folder, lambda body: _models(body, str(folder)))
    if found is None:
        raise ExportError(
            "it holds no snapshot",
            str(folder),
            "a node writes one when it starts and when it ends; name the folder of bb-edge run --state",
        )
    models, others = found.read
    rounds = int(found.body["core"]["counters"].get("rounds.ended", 0))
    return Snapshot(found.identity, found.opened.generation, rounds, models, others, found.opened.notes)


def _models(body: dict[str, Any], where: str) -> tuple[tuple[HeldModel, ...], tuple[str, ...]]:
    from bb_edge.engine.snapshot import SnapshotDamagedError

    if "slots" not in body:
        raise ExportError(
            "its snapshot was written by an older runtime and does not name its slots",
            where,
            "run the node once with this runtime: it writes a new snapshot when it ends",
        )
    models, others = [], []
    try:
        by_index: dict[int, tuple[str, list[str]]] = {}
        for target, slot, index in body["slots"]:
            by_index.setdefault(index, (slot, []))[1].append(target)
        for index, (slot, targets) in sorted(by_index.items()):
            type_name, state = body["components"][index]
            fields = _fields(state)
            if fields is None:
                others.append(slot)
            else:
                untrained = tuple(map(str, fields.get("personal_untrained", ())))
                models.append(HeldModel(slot, tuple(targets), type_name, _parameters(fields), untrained))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotDamagedError(f"its components cannot be read: {error}", "snapshot") from error
    return tuple(models), tuple(others)


def _fields(state: bytes) -> dict[str, Any] | None:
    """The state of a component that holds named parameters; None of any other."""
    from bb_edge.ir.plain_values import from_cbor

    try:
        fields = from_cbor(state)
    except ValueError:
        return None  # a component may save its state in a form of its own
    if not isinstance(fields, dict) or not {"params", "tensors"} <= fields.keys():
        return None
    return fields


def _parameters(fields: dict[str, Any]) -> dict[str, Array]:
    """The named parameters in a component's state: a vector, `params`, and names and shapes, `tensors`.

    Raises ValueError where the two have different sizes.
    """
    import numpy as np

    from bb_edge.ir.tensors import decode_tensor

    flat = decode_tensor(fields["params"])
    arrays, offset = {}, 0
    for name, shape in fields["tensors"]:
        size = int(np.prod(shape, dtype=np.int64))
        arrays[str(name)] = flat[offset : offset + size].reshape(shape)
        offset += size
    if offset != flat.size:
        raise ValueError(f"{flat.size} parameters, but its tensors have {offset}")
    return arrays


def choose(snapshot: Snapshot, slot: str | None, target: str | None, where: str) -> HeldModel:
    """The model that is asked for. Raises ExportError, which names the models that there are."""
    models: Sequence[HeldModel] = snapshot.models
    if target is not None:
        if target not in snapshot.identity.targets:
            near = suggestion(target, snapshot.identity.targets)
            raise ExportError(f"there is no target {target!r}", where, near)
        models = [m for m in models if target in m.targets]
    names = [m.slot for m in models]
    if slot is None and len(models) == 1:
        return models[0]
    if not models:
        raise ExportError(
            "none of its slots holds a model with named parameters",
            where,
            f"its slots: {', '.join(snapshot.others) or 'none'}; a model of yours can be exported if its"
            " state holds `params` and `tensors` (docs/how-to/models.md)",
        )
    if slot is None:
        raise ExportError(f"it holds {len(models)} models", where, f"--slot {' or --slot '.join(names)}")
    for model in models:
        if model.slot == slot:
            return model
    if slot in snapshot.others:
        raise ExportError(f"slot {slot!r} holds no model with named parameters", where, _models_are(names))
    raise ExportError(f"there is no slot {slot!r}", where, suggestion(slot, names, "models: "))


def _models_are(names: Sequence[str]) -> str:
    return f"models: {', '.join(names)}"


def run(arguments: argparse.Namespace) -> int:
    import sys

    from bb_edge.components.parameter_file import UNTRAINED, broken, pack
    from bb_shims import write_whole

    where = str(arguments.state)
    snapshot = look(arguments.state)
    for note in snapshot.notes:
        print(f"bb-edge: warning: {note}", file=sys.stderr)
    source = {
        "module": snapshot.identity.module,
        "generation": snapshot.generation,
        "rounds": snapshot.rounds,
    }
    if arguments.out is None and arguments.slot is None and arguments.target is None:
        _list(snapshot, source, arguments.json)
        return 0
    model = choose(snapshot, arguments.slot, arguments.target, where)
    if arguments.out is None:
        _list(snapshot._replace(models=(model,)), source, arguments.json)
        return 0
    strange = broken(model.arrays)
    if strange:
        what = f"slot {model.slot!r} holds inf or nan in {', '.join(map(repr, strange))}: it has diverged"
        if not arguments.allow_nan:
            hint = (
                "export a copy of the folder from before, or the last file of --save-model, and train again"
                " from it with a lower learning rate or clip_norm; --allow-nan writes it all the same"
            )
            raise ExportError(what, where, hint)
        print(f"bb-edge: warning: {what}", file=sys.stderr)
    meta = {**source, "slot": model.slot, "targets": list(model.targets), "type": model.type_name}
    if model.untrained:
        meta[UNTRAINED] = list(model.untrained)
        print(f"bb-edge: warning: {_untrained(model)}", file=sys.stderr)
    write_whole(arguments.out, pack(model.arrays, meta))
    if arguments.json:
        print(json.dumps({"file": str(arguments.out), **_record(model), **source}))
    else:
        print(f"{arguments.out}: {_summary(model)}, after {snapshot.rounds} rounds")
    return 0


def _record(model: HeldModel) -> dict[str, object]:
    from bb_edge.components.parameter_file import broken

    return {
        "slot": model.slot,
        "targets": list(model.targets),
        "type": model.type_name,
        "parameters": sum(a.size for a in model.arrays.values()),
        "tensors": {name: list(array.shape) for name, array in model.arrays.items()},
        "personal_untrained": list(model.untrained),
        "not_finite": broken(model.arrays),
    }


def _untrained(model: HeldModel) -> str:
    names = ", ".join(map(repr, model.untrained))
    return (
        f"slot {model.slot!r}: {names}: each node has its own of these (personal), and this one has never"
        " trained them: they are as they were compiled; export the state of a node that trains, for its own"
    )


def _summary(model: HeldModel) -> str:
    count = sum(a.size for a in model.arrays.values())
    return f"slot {model.slot} ({model.type_name}), {count:,} parameters in {len(model.arrays)} tensors"


def _list(snapshot: Snapshot, source: dict[str, object], as_json: bool) -> None:
    from bb_edge.components.parameter_file import broken

    if as_json:
        print(
            json.dumps({**source, "models": [_record(m) for m in snapshot.models], "others": snapshot.others})
        )
        return
    print(f"{snapshot.identity.module}, generation {snapshot.generation}, after {snapshot.rounds} rounds")
    for model in snapshot.models:
        print(f"  {_summary(model)}")
        strange = broken(model.arrays)
        for name, array in model.arrays.items():
            note = "  personal, never trained here" if name in model.untrained else ""
            note += "  holds inf or nan" if name in strange else ""
            print(f"    {name}  {'x'.join(map(str, array.shape)) or 'scalar'}{note}")
    if not snapshot.models:
        print(f"  no model with named parameters (slots: {', '.join(snapshot.others) or 'none'})")
