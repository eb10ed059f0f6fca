"""The hint for a name that does not exist: the nearest name that does, or all of them."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_LISTED = 40
"""Names listed at most: a longer list does not help at the end of a line."""


def suggestion(name: object, known: Iterable[str], listed: str = "known: ") -> str:
    """Returns `did you mean 'softmax'?`, or `known: relu, …` where no name is near.

    Returns "" where nothing is known. `listed` comes before the list. Names are compared without case and
    underscores first, by likeness then.
    """
    import difflib  # only errors need it

    names = list(dict.fromkeys(known))
    if isinstance(name, str):
        plain = {_plain(candidate): candidate for candidate in reversed(names)}  # the first of two wins
        near = difflib.get_close_matches(_plain(name), plain, 1, cutoff=0.7)
        if near:
            return f"did you mean {plain[near[0]]!r}?"
    if not names:
        return ""
    shown = sorted(names)
    more = f", … ({len(shown)} in all)" if len(shown) > _MOST_LISTED else ""
    return f"{listed}{', '.join(shown[:_MOST_LISTED])}{more}"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(".", "").lower()
