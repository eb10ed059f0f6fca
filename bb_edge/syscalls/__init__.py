"""The framework's own ops, one module per family of the catalog."""

from __future__ import annotations
