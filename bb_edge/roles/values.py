"""The values in slots that are neither arrays nor ids, from `ir`, because the wire carries them too."""

from __future__ import annotations

from bb_edge.ir.values import TRIGGER, Composite, Trigger

__all__ = ["TRIGGER", "Composite", "Trigger"]
