"""`bb-edge export`: the parameters of a model out of a state folder; needs neither node nor artifact."""

from __future__ import annotations

import argparse
import json
import os
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
    """A state folder that holds no such model."""


class Held(NamedTuple):
    """A model in a snapshot: the slot, the targets that have it, its type and its parameters by name."""

    slot: str
    targets: tuple[str, ...]
    type_name: str
    arrays: dict[str, Array]


class Snapshot(NamedTuple):
    """What a state folder holds of models. `notes` say what could not be read."""

    identity: Identity
    generation: int
    rounds: int
    models: tuple[Held, ...]
    others: tuple[str, ...]
    notes: tuple[str, ...]


class _ReadOnly:
    """The files of a folder for a reader that takes no lock: of a copy, or beside a node that runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def write_atomic(self, name: str, data: bytes) -> None:
        raise PermissionError(f"{name}: read only")

    def append(self, name: str, data: bytes, sync: bool) -> None:
        raise PermissionError(f"{name}: read only")

    def remove(self, name: str, sync: bool) -> None:
        raise PermissionError(f"{name}: read only")


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "export",
        help="write a model's parameters out of a state folder",
        description="Reads the newest snapshot that `bb-edge run --state` has written; the node may run or"
        " not. Without -o it lists what there is. docs/models.md leads on to an ONNX file.",
    )
    p.add_argument(
        "--state", type=file_name, required=True, metavar="FOLDER", help="the node's folder, or a copy"
    )
    p.add_argument("--slot", metavar="NAME", help="the model's slot, where there are several")
    p.add_argument("--target", metavar="NAME", help="the model of that target")
    p.add_argument(
        "-o", "--out", type=file_name, metavar="FILE.npz", help="where to; omitted: list the models"
    )
    p.add_argument("--json", action="store_true", help="say what was found, or written, as JSON")
    p.set_defaults(run=run)


def look(folder: Path) -> Snapshot:
    """The models in a state folder. ExportError, StateError, SnapshotError; the folder stays as it is."""
    from bb_edge.engine.snapshot import SnapshotDamagedError, look_into
    from bb_edge.state.store import StateStore

    if not folder.is_dir():
        raise ExportError("no such folder", str(folder), "name the folder of bb-edge run --state")
    store = StateStore(_ReadOnly(folder), (OSError,))
    found = store.open()
    while True:
        if found.snapshot is None:
            raise ExportError(
                "it holds no snapshot",
                str(folder),
                "a node writes one when it starts and when it ends; name the folder of bb-edge run --state",
            )
        try:
            identity, body = look_into(found.snapshot)
            models, others = _models(body, str(folder))
        except SnapshotDamagedError as error:
            found = store.fall_back(str(error))
            continue
        rounds = int(body["core"]["counters"].get("rounds.ended", 0))
        return Snapshot(identity, found.generation, rounds, models, others, found.notes)


def _models(body: dict[str, Any], where: str) -> tuple[tuple[Held, ...], tuple[str, ...]]:
    from bb_edge.engine.snapshot import SnapshotDamagedError

    if "slots" not in body:
        raise ExportError(
            "its snapshot does not name its slots: an older runtime wrote it",
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
            arrays = _parameters(state)
            if arrays is None:
                others.append(slot)
            else:
                models.append(Held(slot, tuple(targets), type_name, arrays))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotDamagedError(f"its components do not fit: {error}", "snapshot") from error
    return tuple(models), tuple(others)


def _parameters(state: bytes) -> dict[str, Array] | None:
    """The named parameters in what a component wrote: `params`, one vector, and `tensors`, names and shapes.

    None for components that hold no such. ValueError where the two do not fit.
    """
    import cbor2
    import numpy as np

    from bb_edge.ir.tensors import decode_tensor

    try:
        fields = cbor2.loads(state)
    except (cbor2.CBORError, ValueError, EOFError, RecursionError):
        return None  # a component of somebody's own, with bytes of its own
    if not isinstance(fields, dict) or not {"params", "tensors"} <= fields.keys():
        return None
    flat = decode_tensor(fields["params"])
    found, offset = {}, 0
    for name, shape in fields["tensors"]:
        size = int(np.prod(shape, dtype=np.int64))
        found[str(name)] = flat[offset : offset + size].reshape(shape)
        offset += size
    if offset != flat.size:
        raise ValueError(f"{flat.size} parameters, its tensors have {offset}")
    return found


def choose(found: Snapshot, slot: str | None, target: str | None, where: str) -> Held:
    """The model that is asked for. ExportError names those that there are."""
    models: Sequence[Held] = found.models
    if target is not None:
        if target not in found.identity.targets:
            raise ExportError(f"no target {target!r}", where, suggestion(target, found.identity.targets))
        models = [m for m in models if target in m.targets]
    names = [m.slot for m in models]
    if slot is None and len(models) == 1:
        return models[0]
    if not models:
        raise ExportError(
            "no slot of it holds a model with named parameters",
            where,
            f"its slots: {', '.join(found.others) or 'none'}; a model of yours takes part with"
            " `params` and `tensors` in its state (docs/models.md)",
        )
    if slot is None:
        raise ExportError(f"it holds {len(models)} models", where, f"--slot {' or --slot '.join(names)}")
    for model in models:
        if model.slot == slot:
            return model
    if slot in found.others:
        raise ExportError(f"slot {slot!r} holds no model with named parameters", where, _models_are(names))
    raise ExportError(f"no slot {slot!r}", where, suggestion(slot, names, "models: "))


def _models_are(names: Sequence[str]) -> str:
    return f"models: {', '.join(names)}"


def run(arguments: argparse.Namespace) -> int:
    import sys

    from bb_edge.components.parameter_file import pack

    where = str(arguments.state)
    found = look(arguments.state)
    for note in found.notes:
        print(f"bb-edge: warning: {note}", file=sys.stderr)
    source = {
        "module": found.identity.module,
        "generation": found.generation,
        "rounds": found.rounds,
    }
    if arguments.out is None and arguments.slot is None and arguments.target is None:
        _list(found, source, arguments.json)
        return 0
    model = choose(found, arguments.slot, arguments.target, where)
    if arguments.out is None:
        _list(found._replace(models=(model,)), source, arguments.json)
        return 0
    meta = {**source, "slot": model.slot, "targets": list(model.targets), "type": model.type_name}
    _write(arguments.out, pack(model.arrays, meta))
    if arguments.json:
        print(json.dumps({"file": str(arguments.out), **_record(model), **source}))
    else:
        print(f"{arguments.out}: {_say(model)}, after {found.rounds} rounds")
    return 0


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _record(model: Held) -> dict[str, object]:
    return {
        "slot": model.slot,
        "targets": list(model.targets),
        "type": model.type_name,
        "parameters": sum(a.size for a in model.arrays.values()),
        "tensors": {name: list(array.shape) for name, array in model.arrays.items()},
    }


def _say(model: Held) -> str:
    count = sum(a.size for a in model.arrays.values())
    return f"slot {model.slot} ({model.type_name}), {count:,} parameters in {len(model.arrays)} tensors"


def _list(found: Snapshot, source: dict[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps({**source, "models": [_record(m) for m in found.models], "others": found.others}))
        return
    print(f"{found.identity.module}, generation {found.generation}, after {found.rounds} rounds")
    for model in found.models:
        print(f"  {_say(model)}")
        for name, array in model.arrays.items():
            print(f"    {name}  {'x'.join(map(str, array.shape)) or 'scalar'}")
    if not found.models:
        print(f"  no model with named parameters (slots: {', '.join(found.others) or 'none'})")
