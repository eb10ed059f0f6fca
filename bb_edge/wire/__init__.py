"""Envelope codec and caps, typed values and their codecs, correlation, gate state."""

from __future__ import annotations
