"""The concrete components that ship with the runtime."""

from __future__ import annotations
