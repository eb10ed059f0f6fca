"""Which line of a user's own code an error comes from."""

from __future__ import annotations

import os

_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OURS = tuple(os.path.join(_PACKAGES, name) + os.sep for name in ("bb_edge", "bb_host"))


def fault_line(error: BaseException) -> str:
    """Returns `file.py:12`, the innermost line of a user's own code in an error's traceback, or "".

    The user's own code is what lies in the folder of the first frame that is neither ours nor Python's
    import machinery: an error deep in a library names the user's line that called it.
    """
    import traceback  # only errors need it

    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", *_OURS)) and f"{os.sep}importlib{os.sep}" not in frame.filename
    ]
    if not frames:
        return ""
    folder = os.path.dirname(os.path.realpath(frames[0].filename)) + os.sep
    own = [frame for frame in frames if os.path.realpath(frame.filename).startswith(folder)]
    return f"{shown_path(own[-1].filename)}:{own[-1].lineno}"


def shown_path(file: str) -> str:
    """Returns a file's path as a user would type it: a relative one below the working directory."""
    here = os.getcwd() + os.sep
    real = os.path.realpath(file)
    return real[len(here) :] if real.startswith(here) else real


def line_of(method: object) -> str:
    """Returns `file.py:12`, where a function or method is written, or "" where that is not known."""
    import inspect  # only errors need it

    try:
        code = inspect.unwrap(getattr(method, "__func__", method)).__code__  # type: ignore[arg-type]
    except (AttributeError, ValueError):
        return ""
    return f"{shown_path(code.co_filename)}:{code.co_firstlineno}"
