"""The Backend contract over bb_kernels and over a TFLite interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_edge.backends.numpy_backend import NumPyBackend
    from bb_edge.backends.tflite.backend import TFLiteBackend

__all__ = ["NumPyBackend", "TFLiteBackend", "backend_class"]


def backend_class(type_name: str) -> type[NumPyBackend | TFLiteBackend] | None:
    """The backend of that TYPE_NAME, if it is one that ships; loads no other."""
    if type_name == "bb.NumPyBackend":
        from bb_edge.backends.numpy_backend import NumPyBackend

        return NumPyBackend
    if type_name == "bb.TFLiteBackend":
        from bb_edge.backends.tflite.backend import TFLiteBackend

        return TFLiteBackend
    return None


def __getattr__(name: str) -> object:
    found = backend_class(f"bb.{name}")
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
