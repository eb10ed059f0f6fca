"""What a check of `bb-edge doctor` found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from bb_edge.ir.errors import BBError

_Found = TypeVar("_Found", bound="Finding | None")

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `status` is `ok`, `warning`, `failed` or `skipped`."""

    check: str
    status: str
    detail: str
    data: dict[str, object] = field(default_factory=dict)


def guarded(check: str, look: Callable[[], _Found]) -> _Found | Finding:
    """Runs a check; our own errors become its finding."""
    from bb_shims import ShimError

    try:
        return look()
    except (BBError, ShimError, OSError) as error:
        return Finding(check, FAILED, str(error))


def mib(count: int) -> str:
    """Bytes as MiB."""
    return f"{count / (1024 * 1024):,.0f} MiB"
