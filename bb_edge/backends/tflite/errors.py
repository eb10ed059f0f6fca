"""The errors of TFLite models and interpreters."""

from __future__ import annotations

from bb_edge.roles.errors import BackendError


class TFLiteModelError(BackendError):
    """A `Model` node or its flatbuffer is damaged, or does not fit the node."""


class TFLiteInterpreterError(BackendError):
    """No TFLite interpreter runs on this machine, and the node has no fallback."""
