"""The Backend contract over a TFLite interpreter, of which nothing is imported before a model is prepared."""

from __future__ import annotations
