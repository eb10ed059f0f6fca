"""A federation of real processes at a real broker, whose nodes and broker are killed and stopped at will."""

from __future__ import annotations
