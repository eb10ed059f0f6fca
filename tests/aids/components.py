"""Components that tests watch: one that answers when it is told to, and one that writes down who wrote."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from bb_edge.registry import default_registry
from bb_edge.roles import Codec, Model


class Slow(Codec):
    """Answers when a test says so."""

    TYPE_NAME: ClassVar[str] = "test.Slow"

    def __init__(self) -> None:
        self.open: list[Any] = []

    @classmethod
    def construct(cls, env: Any) -> Slow:
        return cls()

    def compress(self, ctx: Any, t: Any) -> Any:
        self.open.append((ctx.later(10**12), t))
        return self.open[-1][0]

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code


class Restartable(Slow):
    """The same, and what it has not answered may be asked again."""

    restartable: ClassVar[bool] = True


@contextlib.contextmanager
def forgotten_components() -> Iterator[None]:
    """Classes that are registered in the block leave the default registry with it.

    So do modules that were imported in it and registered some: who imports them again registers them again.
    """
    registry = default_registry()
    before, modules = set(registry.type_names()), set(sys.modules)
    try:
        yield
    finally:
        for name in set(registry.type_names()) - before:
            module = registry.lookup(name).__module__
            registry.forget(name)
            if module not in modules:
                sys.modules.pop(module, None)


def slow(restartable: bool) -> type[Slow]:
    return Restartable if restartable else Slow


class Diary(Model):
    """An unshared component that writes down who wrote."""

    TYPE_NAME: ClassVar[str] = "test.Diary"

    def __init__(self) -> None:
        self.log: list[float] = []

    @classmethod
    def construct(cls, env: Any) -> Diary:
        return cls()

    def serialize(self) -> bytes:
        return np.asarray(self.log, "<f4").tobytes()

    def restore(self, data: bytes) -> None:
        self.log = np.frombuffer(data, "<f4").tolist()

    def forward(self, ctx: Any, input: Any) -> Any:
        return input

    def apply_delta(self, ctx: Any, delta: Any) -> None:
        self.log.append(float(delta[0]))

    def load_parameters(self, ctx: Any, params: Any) -> None:
        self.log.append(-float(params[0]))

    def params(self, ctx: Any) -> Any:
        return np.zeros(1, np.float32)
