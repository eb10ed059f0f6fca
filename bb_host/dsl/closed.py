"""Bodies and branches that have been recorded: nothing is recorded with their values any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from bb_host.author_lines import authoring_error, short_line
from bb_host.dsl.drafts import Draft
from bb_host.dsl.output import Output
from bb_host.errors import ForeignValueError


class Closed:
    """What stands as the graph of such values. `remedy` says how they come out of it."""

    parent = None

    def __init__(self, described: str, remedy: str) -> None:
        self._described = described
        self.remedy = remedy
        self.may_go_unread: list[Output] = []

    def describe(self) -> str:
        return self._described

    def onnx_op(self, op_type: str, args: Sequence[Any], **attrs: object) -> NoReturn:
        own = next(value for value in args if isinstance(value, Output) and value.graph is self)
        raise authoring_error(
            ForeignValueError,
            f"{op_type} reads {own!r} of {self._described}, {short_line(own.line)}, which is over",
            self.remedy,
        )

    def by_element(self, symbol: str, left: Any, right: Any) -> NoReturn:
        self.onnx_op(symbol, (left, right))

    def unpacking(self, about: str) -> None:
        """Nothing is taken apart here."""

    def close(self, values: Iterable[Output], drafts: Iterable[Draft]) -> None:
        """Has nothing read these values, and what these ops give, any more."""
        for value in values:
            value.graph = self
        for draft in drafts:
            for value in draft.outputs:
                value.graph = self
