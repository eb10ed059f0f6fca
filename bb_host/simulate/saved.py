"""`bb-host simulate --save-model`: the model that a run ends with, as an ONNX file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bb_edge.components.parameter_file import broken
from bb_edge.engine.program.program import Program
from bb_edge.ir import keys
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.tensors import Array
from bb_host.apart import apart
from bb_host.errors import ScenarioError
from bb_host.simulate.scenario import Group

FLAG = "--save-model"
_PLACE = re.compile(r"([\w-]+\.)?[\w-]+")
_NAMED = re.compile(r"(?:(?:(?P<group>[\w-]+)\.)?(?P<slot>[\w-]+)=)?(?P<path>.+)")


class SavedModel(NamedTuple):
    """The model to save: class, slot, file, and the ONNX model before it is trained."""

    peer_class: str
    slot: str
    path: Path
    untrained: bytes

    def write(self, parameters: Mapping[str, Array]) -> str:
        """Writes the model with these parameters; returns a line about it. ScenarioError for inf and nan."""
        if strange := broken(parameters):
            raise ScenarioError(
                f"the model in slot {self.slot!r} was not saved: it holds inf or nan in"
                f" {', '.join(map(repr, strange))}",
                f"{FLAG} {self.path}",
                "run it with a lower learning rate or with clip_norm, and look at what it is trained on",
            )
        written = apart(_write, self.untrained, dict(parameters), self.path)
        return f"the model of slot {self.slot!r} is in {', '.join(written)}"


def saved_model(
    text: str, groups: Sequence[Group], programs: Sequence[Program], portable: bytes
) -> SavedModel:
    """Which model `[[CLASS.]SLOT=]FILE.onnx` means; `portable` is the compiled program.

    ScenarioError where there is none, or several, or the file cannot be written.
    """
    place, equals, file = text.partition("=")
    if equals and "/" not in place and not _PLACE.fullmatch(place):
        hint = f"write {FLAG} CLASS.SLOT=FILE.onnx, SLOT=FILE.onnx or FILE.onnx"
        raise ScenarioError(f"{place!r} is not a class and a slot", FLAG, hint)
    if equals and not file:
        *_, peer_class, slot = (None, *place.split("."))
        chosen = ".".join(_chosen(peer_class, slot, groups, programs))
        raise ScenarioError(f"{text!r} names no file", FLAG, f"write {FLAG} {chosen}=FILE.onnx")
    named = _NAMED.fullmatch(text)
    path = Path(text if named is None else named["path"])
    if named is None or path.suffix != ".onnx":
        raise ScenarioError(f"{path.name!r} is not the name of a model", FLAG, f"write {path.stem}.onnx")
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {str(path.parent)!r}"
        raise ScenarioError(what, f"{FLAG} {path}", "name a file in a folder that is there")
    peer_class, slot = _chosen(named["group"], named["slot"], groups, programs)
    target = next(group.target for group in groups if group.peer_class == peer_class)
    return SavedModel(peer_class, slot, path, apart(_untrained, portable, slot, target))


def _chosen(
    peer_class: str | None, slot: str | None, groups: Sequence[Group], programs: Sequence[Program]
) -> tuple[str, str]:
    pairs = list(zip(groups, programs, strict=True))
    classes = [group.peer_class for group in groups]
    if peer_class is not None and peer_class not in classes:
        hint = suggestion(peer_class, classes, "its classes: ")
        raise ScenarioError(f"the program has no class {peer_class!r}", FLAG, hint)
    models = {
        (group.peer_class, name): group.count for group, program in pairs for name in _models(group, program)
    }
    if not models:
        raise ScenarioError("the program has no model", FLAG, "leave the flag out")
    if slot is not None and slot not in {name for _, name in models}:
        hint = suggestion(slot, sorted({name for _, name in models}), "models: ")
        raise ScenarioError(f"no slot {slot!r} holds a model", FLAG, hint)
    found = [
        place
        for place, count in models.items()
        if count == 1 and peer_class in (None, place[0]) and slot in (None, place[1])
    ]
    with_rounds = {group.peer_class for group, program in pairs if _has_rounds(program)}
    if len(found) > 1 and peer_class is None:  # with one client, that is a class of one node as well
        found = [place for place in found if place[0] in with_rounds] or found
    if not found:
        counts = ", ".join(f"{group.peer_class} {group.count:,}" for group in groups)
        what = f"no class of one node has {'a model' if slot is None else f'the model {slot!r}'} ({counts})"
        raise ScenarioError(what, FLAG, "each node has one of its own: emit what you need of it")
    if len(found) > 1:
        places = " or ".join(f"{FLAG} {'.'.join(place)}=FILE.onnx" for place in found)
        raise ScenarioError(f"{len(found)} models may be meant", FLAG, f"write {places}")
    return found[0]


def _models(group: Group, program: Program) -> list[str]:
    bindings = program.targets[group.target].bindings
    return [slot for slot, binding in bindings.items() if binding.role == keys.ROLE_MODEL]


def _has_rounds(program: Program) -> bool:
    return any(op.op_type == "Repeat" for graph in program.graphs.values() for op in graph.ops)


# Both need the onnx package, and so run in a process that does not stay.


def _untrained(portable: bytes, slot: str, target: str) -> bytes:
    """The model of a slot as an ONNX file. LearnError where it has none."""
    import onnx

    from bb_host.learn.exchange import slot_model

    model = slot_model(onnx.ModelProto.FromString(portable), slot, FLAG, target)
    return bytes(model.SerializeToString(deterministic=True))


def _write(untrained: bytes, parameters: Mapping[str, Array], path: Path) -> list[str]:
    import onnx

    from bb_host.learn.exchange import export_model, write_model

    model = onnx.ModelProto.FromString(untrained)
    export_model(model, parameters, f"{FLAG} {path}")
    return [str(file) for file in write_model(model, path)]
