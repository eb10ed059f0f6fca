"""The backends of this runtime: on NumPy kernels (`bb_kernels`), and on a TFLite interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from bb_edge.backends.numpy_backend import NumPyBackend
    from bb_edge.backends.tflite.backend import TFLiteBackend
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "bb_edge.backends.numpy_backend": "NumPyBackend",
            "bb_edge.backends.tflite.backend": "TFLiteBackend",
        },
    )

__all__ = ["NumPyBackend", "TFLiteBackend", "backend_class"]


def backend_class(type_name: str) -> type[NumPyBackend | TFLiteBackend] | None:
    """The backend class of a TYPE_NAME; None if it is not one of ours. Imports only that backend."""
    if type_name == "bb.NumPyBackend":
        from bb_edge.backends.numpy_backend import NumPyBackend

        return NumPyBackend
    if type_name == "bb.TFLiteBackend":
        from bb_edge.backends.tflite.backend import TFLiteBackend

        return TFLiteBackend
    return None
