"""The back half of --target edge: collapse, plan memory, lower, quantize, strip, report."""

from __future__ import annotations
