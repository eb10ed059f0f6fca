"""The version of this runtime."""

from __future__ import annotations

RUNTIME_VERSION = "0.1.0"
"""That of the package; presence carries it, so that a fleet's versions can be seen."""
