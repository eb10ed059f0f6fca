"""The option `bb-edge run --save-model`: writes the parameters of a node's models to files.

Files are written while the node runs and when it ends.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.cli.kept import check_folder
from bb_edge.cli.render import Output
from bb_edge.components.parameter_file import UNTRAINED, broken, pack
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.node import Node
    from bb_shims import Board, Storage


LOOK_NS = 1_000_000_000
"""Nanoseconds between checksums of a model's parameters; a million floats take some milliseconds."""


class SaveModelError(BBError):
    """`--save-model` is given for a node without models, or with a folder that cannot be used."""


class _Model:
    """The model of one slot, and which of its parameters are on disk."""

    def __init__(self, slot: str, type_name: str, node: Node) -> None:
        self.slot = slot
        self.type_name = type_name
        self._node = node
        self._crc: int | None = None
        self._updates: int | None = None
        self._looked_ns = 0

    @property
    def _component(self) -> Any:
        return self._node.component(self.slot)  # looked up each time: a failed bootstrap replaces it

    def parameters(self) -> Mapping[str, Array]:
        """The model's parameters by name."""
        arrays: Mapping[str, Array] = self._component.named_parameters()
        return arrays

    @property
    def untrained(self) -> Sequence[str]:
        """Those of the parameters that are personal and that this node has never trained."""
        names: Sequence[str] = getattr(self._component, "personal_untrained", ())
        return names

    @property
    def updates(self) -> int | None:
        """How often the model has changed; None if the component does not count."""
        count: int | None = getattr(self._component, "updates", None)
        return count

    def changed(self, now_ns: int | None = None) -> bool:
        """Returns whether the file on disk is older than the model.

        Components count their updates, but a subclass may forget to. So a checksum of the parameters is
        compared too: once a second, or now if no time is given.
        """
        if self._crc is None or self.updates != self._updates:
            return True
        if now_ns is not None:
            if now_ns - self._looked_ns < LOOK_NS:
                return False
            self._looked_ns = now_ns
        return _crc(self.parameters()) != self._crc

    def written(self, arrays: Mapping[str, Array], updates: int | None) -> None:
        """Notes what has been written to disk."""
        self._updates = updates
        self._crc = _crc(arrays)


def _crc(arrays: Mapping[str, Array]) -> int:
    crc = 0
    for array in arrays.values():
        crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return crc


class SavedModels:
    """Writes `<slot>.npz` per model, whole or not at all, even if the power fails.

    A round is one of the node's own `Repeat`; on a node without one it is an execution (a request that the
    node has answered). `beat` writes after each `every` rounds that changed a model, `finish` at the end.
    """

    def __init__(
        self, node: Node, folder: Path, storage: Storage, models: list[_Model], every: int, output: Output
    ) -> None:
        self._node = node
        self._folder = folder
        self._storage = storage
        self._models = models
        self._every = every
        self._output = output
        self._tick = self._now()
        self._rounds = 0
        self.written = 0
        """The number of files that were written."""

    def _now(self) -> tuple[bool, int]:
        counters = self._node.counters
        own = "rounds.ended" in counters
        return own, counters["rounds.ended"] if own else counters.get("executions.ended", 0)

    def beat(self, now_ns: int) -> None:
        """Counts rounds, and writes if it is time; called once per turn of the driver's loop."""
        tick = self._now()
        if tick == self._tick:
            return
        passed = tick[1] - self._tick[1] if tick[0] == self._tick[0] else 1
        self._tick = tick
        changed = [model for model in self._models if model.changed(now_ns)]
        if not changed:
            return
        self._rounds += passed if tick[0] else 1
        if self._rounds >= self._every:
            self._write(changed)

    def finish(self) -> list[str]:
        """Writes every model that has changed since it was last written; the slots of those that failed."""
        changed = [model for model in self._models if model.changed()]
        self._write(changed)
        return [model.slot for model in changed if model.changed()]

    def _write(self, models: list[_Model]) -> None:
        from bb_shims import StorageError

        self._rounds = 0
        for model in models:
            updates, arrays = model.updates, model.parameters()
            if strange := broken(arrays):
                self._output.log(
                    "error",
                    f"the model in slot {model.slot!r} was not saved: it holds inf or nan in"
                    f" {', '.join(map(repr, strange))}; {self._left(f'{model.slot}.npz')} with a lower"
                    " learning rate or with clip_norm, and look at what it is trained on (a mean over no"
                    " answers is nan)",
                )
                continue
            counters = self._node.counters
            meta: dict[str, object] = {
                "module": self._node.program.module,
                "rounds": counters.get("rounds.ended", 0),
                "slot": model.slot,
                "targets": list(self._node.targets),
                "type": model.type_name,
            }
            if untrained := model.untrained:
                meta[UNTRAINED] = list(untrained)
            try:
                self._storage.write_atomic(f"{model.slot}.npz", pack(arrays, meta))
            except StorageError as error:
                self._rounds = self._every  # the node goes on; the next round tries again
                what = f"the model in slot {model.slot!r} was not saved: {error}"
                self._output.log("error", f"{what}; the next round, and the node's end, try again")
                continue
            with suppress(OSError):  # others may read it, unlike the files of a state folder
                (self._folder / f"{model.slot}.npz").chmod(0o644)
            model.written(arrays, updates)
            self.written += 1

    def _left(self, name: str) -> str:
        """What there is to start again from where a model is not written."""
        from bb_shims import StorageError

        with suppress(StorageError):
            if name in self._storage.list():
                return f"{name} stays as it was. Start again from it"
        return f"there is no {name} from before. Start anew"


def open_saved(
    folder: Path, every: int, state: Path | None, node: Node, board: Board, output: Output, stack: ExitStack
) -> SavedModels:
    """Opens the folder for the models of this node; it is closed with `stack`.

    Raises SaveModelError for a folder or node that cannot be used, and the board's StorageError.
    """
    models = check_saved(folder, state, node)
    storage = board.storage(folder)
    stack.callback(storage.close)
    return SavedModels(node, folder, storage, list(models.values()), every, output)


def check_saved(folder: Path, state: Path | None, node: Node) -> dict[str, _Model]:
    """The models to save, by slot. Raises SaveModelError where there are none or the folder is unfit."""
    check_folder(folder, "--save-model")
    if state is not None and folder.resolve() == state.resolve():
        raise SaveModelError("it is the state folder", f"--save-model {folder}", "name a folder beside it")
    return models_of(folder, node)


def models_of(folder: Path, node: Node) -> dict[str, _Model]:
    """The models that can be saved, by slot. Raises SaveModelError if there are none."""
    models: dict[str, _Model] = {}
    slots = []
    for target in node.targets:
        for slot, binding in node.program.targets[target].bindings.items():
            slots.append(slot)
            component = node.component(slot, target)
            named = getattr(component, "named_parameters", None)
            if binding.role == keys.ROLE_MODEL and named is not None and named() is not None:
                models[slot] = _Model(slot, binding.type_name, node)
    if not models:
        raise SaveModelError(
            "this node has no model with named parameters",
            f"--save-model {folder}",
            f"its slots: {', '.join(slots)}; leave the flag out",
        )
    return models
