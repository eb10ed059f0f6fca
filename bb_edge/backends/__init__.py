"""The Backend contract over bb_kernels and over a TFLite interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_edge.backends.numpy_backend import NumPyBackend

__all__ = ["NumPyBackend"]


def __getattr__(name: str) -> object:
    if name == "NumPyBackend":
        from bb_edge.backends.numpy_backend import NumPyBackend

        return NumPyBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
