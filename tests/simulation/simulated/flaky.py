"""A data source whose node can be broken for a while, or whose data are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from bb_edge.components import ArrayDataSource

WHY = "broken on purpose"


class Flaky(ArrayDataSource):
    """Fails while `broken()` is true; its batches hold no numbers while `spoiled()` is."""

    TYPE_NAME: ClassVar[str] = "simulated.Flaky"
    broken: Callable[[], bool] = staticmethod(lambda: False)
    spoiled: Callable[[], bool] = staticmethod(lambda: False)

    def next_batch(self, ctx: Any) -> Any:
        if self.broken():
            raise RuntimeError(WHY)
        found = super().next_batch(ctx)
        if self.spoiled():
            x, *others = found
            return (np.full_like(x, np.nan), *others)
        return found
