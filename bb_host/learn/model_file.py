"""An ONNX file as what a slot is bound to: `Compiler().bind_model("model", "net.onnx")`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bb_host.errors import LearnError
from bb_host.learn.trainable import Construction, TrainableModel, TrainableSettings, make_trainable


class ModelFile:
    """A model as `trainable` makes it with its defaults, or one that only runs where it has no gradient.

    It gives no warning that matters only when the model is trained: `trainable` does.
    """

    def __init__(self, model: TrainableModel) -> None:
        self.model = model

    def construct(self, slot: str) -> Construction:
        """As `TrainableModel.construct`; an artifact gets the graphs that its program reads."""
        return self.model.construct(slot)


def open_model_file(path: str | Path, config: Mapping[str, Any] | None = None) -> ModelFile:
    """Reads an ONNX file. Raises LearnError, which names the file.

    `config` are keys of GraphModel, and `output`, the one of several that is trained and answered.
    """
    rest = dict(config or {})
    arguments = {
        key: rest.pop(key) for key in ("learning_rate", "momentum", "optimizer", "output") if key in rest
    }
    settings = TrainableSettings(config=rest, **arguments)
    try:
        return ModelFile(make_trainable(path, settings))
    except LearnError:
        return ModelFile(make_trainable(path, settings._replace(learning=False)))
