"""Finds the TFLite interpreter of this machine by running a model of one operator on each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

__all__ = ["INTERPRETERS", "MAX_THREADS", "Interpreter", "attempt", "interpreter"]

INTERPRETERS = (("ai_edge_litert", "ai-edge-litert"), ("tflite_runtime", "tflite-runtime"))
"""(module, distribution) of each interpreter, in the order of preference."""

MAX_THREADS = 64
"""Threads that one interpreter may be configured to use.

More than the cores of any board that this runtime is meant for, so a larger number is a typing error.
"""

NOT_INSTALLED = "not installed"

# Relu of float32[1,4], in hex: unpacking a compressed form would take longer than running it.
_MODEL = bytes.fromhex(
    "1c00000054464c3314001800140010000c00000008000000000004001400000014000000180000001c00000020000000"
    "03000000010000002c0000000100000098010000010000009000000001000000dc00000000000e00140010000c000800"
    "000004000e000000000000000c0000001c000000340000000f00000073657276696e675f64656661756c740001000000"
    "04000000e4ffffff01000000040000000200000074310000010000000c00000008000c00080004000800000000000000"
    "040000000100000078000e001800140010000c00080004000e000000380000001000000014000000180000001c000000"
    "010000005000000001000000010000000100000000000000020000009c00000054000000040000006d61696e00000000"
    "0c000e000d000000080004000c000000130000000100000000130a0010000c00080004000a0000000c00000010000000"
    "0000000001000000010000000100000000000000d2ffffff000000011c00000000000000000000000400000002000000"
    "01000000040000000200000074310000000016001800140013000c000800000000000000000007001600000000000001"
    "1c00000000000000000000000400000002000000010000000400000001000000780000000400040004000000"
)


class Interpreter(NamedTuple):
    """The interpreter of this machine: `make` is its class, None if there is none.

    `why_not` says why those that were tried before do not run.
    """

    package: str
    make: Callable[..., Any] | None
    why_not: str

    @property
    def version(self) -> str:
        """The version of its package; the lookup takes as long as loading a small model."""
        from importlib import metadata

        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "of unknown version"

    def __str__(self) -> str:
        name = f"{self.package} {self.version}" if self.make is not None else "no TFLite interpreter"
        return f"{name} (not {self.why_not})" if self.why_not else name


@lru_cache(maxsize=1)
def interpreter() -> Interpreter:
    """The first of INTERPRETERS that computes the probe model correctly; found once per process."""
    reasons: list[str] = []
    for package, distribution in INTERPRETERS:
        make, wrong = attempt(package)
        if make is not None:
            return Interpreter(distribution, make, "; ".join(reasons))
        reasons.append(f"{distribution}: {wrong}")
    return Interpreter("", None, "; ".join(reasons))


def attempt(package: str) -> tuple[Callable[..., Any] | None, str]:
    """Returns (class, "") of an interpreter, or (None, why it does not run here)."""
    try:
        make = importlib.import_module(f"{package}.interpreter").Interpreter
        wrong = _wrong(make)
    except ModuleNotFoundError as error:
        # If a module that the package requires is missing, the package is installed, but broken.
        absent = error.name in (package, f"{package}.interpreter")
        return None, NOT_INSTALLED if absent else f"{type(error).__name__}: {error}"
    # Broken packages raise SystemError (NumPy's ABI), OSError (the loader) and others; the next is tried.
    except Exception as error:  # noqa: BLE001
        text = str(error).splitlines()
        return None, f"{type(error).__name__}: {text[0] if text else 'no reason given'}"
    return (None, wrong) if wrong else (make, "")


def _wrong(make: Callable[..., Any]) -> str:
    """Runs the probe model; returns what is wrong with the interpreter, or an empty text."""
    probe = make(model_content=_MODEL, num_threads=1)
    probe.allocate_tensors()
    probe.set_tensor(probe.get_input_details()[0]["index"], np.array([[-1, 2, -3, 4]], np.float32))
    probe.invoke()
    result = probe.get_tensor(probe.get_output_details()[0]["index"])
    return "" if np.array_equal(result, [[0, 2, 0, 4]]) else "computes a wrong result"
