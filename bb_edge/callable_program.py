"""`bb_edge.load`: an artifact as a Program that can also be called like a function."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bb_edge.engine.program.program import Program
from bb_edge.loading import load_as

if TYPE_CHECKING:
    from bb_edge.inference import Model

__all__ = ["CallableProgram", "load"]


class CallableProgram(Program):
    """A Program whose only target can be called.

    >>> model = load("build/classify.edge.onnx")    # doctest: +SKIP
    >>> y = model(x)                                # doctest: +SKIP
    >>> y = model.run({"x": x})["y"]                # doctest: +SKIP

    The first call installs the target on a node of its own, without peers. Where the artifact has several
    targets, or the cold start matters, give the artifact itself to `bb_edge.open_model`.
    """

    __slots__ = ("_model",)

    def __call__(self, *arrays: object, **named: object) -> Any:
        """Runs the target on arrays, in order or by name, as `bb_edge.inference.Model` does."""
        return self._opened()(*arrays, **named)

    def run(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Runs the target on inputs by name, and returns all outputs by name, as `Model.run` does."""
        return self._opened().run(inputs)

    def _opened(self) -> Model:
        model: Model | None = getattr(self, "_model", None)
        if model is None:
            from bb_edge.inference import open_model  # programs that are installed do not need it

            model = open_model(self)
            object.__setattr__(self, "_model", model)
        return model


def load(data: bytes | str | os.PathLike[str]) -> CallableProgram:
    """Loads an artifact, given as its bytes or its path, as `bb_edge.loading.load` does."""
    return load_as(CallableProgram, data)
