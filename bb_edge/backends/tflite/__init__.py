"""The backend on a TFLite interpreter, which is imported when the first model is prepared."""

from __future__ import annotations
