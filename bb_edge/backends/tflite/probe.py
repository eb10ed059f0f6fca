"""Which TFLite interpreter runs on this machine: found by running a model of one operator on each."""

from __future__ import annotations

import base64
import importlib
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

__all__ = ["INTERPRETERS", "Interpreter", "attempt", "interpreter"]

INTERPRETERS = (("ai_edge_litert", "ai-edge-litert"), ("tflite_runtime", "tflite-runtime"))
"""(package, distribution), in the order of preference."""

NOT_INSTALLED = "not installed"

# Relu of float32[1,4].
_MODEL = (
    "c-oU;U|<Mw^D!1-kYEsD5MbZ|@;MklfCb2B0AmRtmH}b~AZ7+)Mj+OK(lZz#^aLpX4p=WA)GQ9LIeZKdzymeM1c>>8"
    "xHz?_EHf`XJ|#6Ru{5Uyte*vlpZx#-AI4?^;u1rM*$}sZOl5((5uyepR{^v|0&XkBP75FwK=T7gZ2**pVFsu@b3kDM"
    "H8VFcGY{fsJ_cT}y)0n+g<*Pxx!`tjLER<*H4EMBOF;jCxH1d~0P`EVKN%Rr!2S@1h8_g414SW5<1+&i4j?uQm=6GN"
    "c^e!"
)


class Interpreter(NamedTuple):
    """The one that runs: `make` is its class, None where none does. `why_not` tells of those tried before."""

    package: str
    make: Callable[..., Any] | None
    why_not: str

    @property
    def version(self) -> str:
        """Of its package; looked up when asked for, which takes as long as loading a small model."""
        from importlib import metadata

        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "of unknown version"

    def __str__(self) -> str:
        found = f"{self.package} {self.version}" if self.make is not None else "no TFLite interpreter"
        return f"{found} (not {self.why_not})" if self.why_not else found


@lru_cache(maxsize=1)
def interpreter() -> Interpreter:
    """The first of INTERPRETERS that computes the probe model rightly. Looked for once per process."""
    reasons: list[str] = []
    for package, distribution in INTERPRETERS:
        make, wrong = attempt(package)
        if make is not None:
            return Interpreter(distribution, make, "; ".join(reasons))
        reasons.append(f"{distribution}: {wrong}")
    return Interpreter("", None, "; ".join(reasons))


def attempt(package: str) -> tuple[Callable[..., Any] | None, str]:
    """A package's class, or None and why it does not run here."""
    try:
        make = importlib.import_module(f"{package}.interpreter").Interpreter
        wrong = _wrong(make)
    except ModuleNotFoundError as error:
        # A package that lacks one of its own requirements is there, and broken.
        absent = error.name in (package, f"{package}.interpreter")
        return None, NOT_INSTALLED if absent else f"{type(error).__name__}: {error}"
    # SystemError from NumPy's ABI, OSError from the loader: whatever it is, the next one is tried.
    except Exception as error:  # noqa: BLE001
        text = str(error).splitlines()
        return None, f"{type(error).__name__}: {text[0] if text else 'no reason given'}"
    return (None, wrong) if wrong else (make, "")


def _wrong(make: Callable[..., Any]) -> str:
    """Runs the probe; what is wrong with it, or an empty text."""
    model = zlib.decompress(base64.b85decode("".join(_MODEL)))
    found = make(model_content=model, num_threads=1)
    found.allocate_tensors()
    found.set_tensor(found.get_input_details()[0]["index"], np.array([[-1, 2, -3, 4]], np.float32))
    found.invoke()
    result = found.get_tensor(found.get_output_details()[0]["index"])
    return "" if np.array_equal(result, [[0, 2, 0, 4]]) else "computes a wrong result"
