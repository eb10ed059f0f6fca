"""How a bias per channel is best added to whole planes."""

from __future__ import annotations

import numpy as np

from .spec import Array

#: Bytes of a result up to which a known bias is kept once per element: adding two arrays of one shape takes
#: half the time of adding a column, and no buffers. Larger ones would cost more memory than they save time.
SPREAD_BYTES = 40 * 1024


def spread(bias: Array | None, shape: tuple[int, ...], known: bool) -> Array | None:
    """Return a bias as it is best added to an array of ``shape``.

    bias[M,1…] → shape, as a copy that is made now, where the bias is ``known`` and the copy small; else the
    bias itself, whose values may still change.
    """
    if bias is None or not known or bias.itemsize * int(np.prod(shape)) > SPREAD_BYTES:
        return bias
    return np.ascontiguousarray(np.broadcast_to(bias, shape))
