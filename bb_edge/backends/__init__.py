"""The Backend contract over bb_kernels and over a TFLite interpreter."""

from __future__ import annotations
