"""The hint for a name that does not exist: the nearest one that does, or all of them."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_LISTED = 40
"""A longer list is no help at the end of one line."""


def suggestion(name: object, known: Iterable[str], listed: str = "known: ") -> str:
    """`did you mean 'softmax'?`, or `known: relu, …` where no name is near; empty where nothing is known.

    `listed` stands before the list. Names compare without case and underscores first, by likeness then.
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
