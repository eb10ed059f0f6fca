"""A data source whose node can be broken for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from bb_edge.components import ArrayDataSource

WHY = "broken on purpose"


class Flaky(ArrayDataSource):
    """Fails while `broken()` is true."""

    TYPE_NAME: ClassVar[str] = "simulated.Flaky"
    broken: Callable[[], bool] = staticmethod(lambda: False)

    def next_batch(self, ctx: Any) -> Any:
        if self.broken():
            raise RuntimeError(WHY)
        return super().next_batch(ctx)
