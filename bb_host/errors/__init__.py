"""Every error of the host, one class per reason: `from bb_host.errors import BudgetError`."""

from __future__ import annotations

from bb_edge.ir.errors import BBError
from bb_host.errors.files import *  # noqa: F403
from bb_host.errors.programs import *  # noqa: F403

__all__ = [
    name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, BBError)
]
