"""Components with ops of their own and nothing to configure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import ProtocolComponent
from bb_edge.roles.settings import Setting

__all__ = ["WithoutSettings"]

Made = TypeVar("Made", bound="WithoutSettings")


class WithoutSettings(ProtocolComponent):
    """A component that takes no keys of a configuration; `_where` is how its errors call its slot."""

    CONFIG: ClassVar[Mapping[str, Setting]] = {}

    def __init__(self, where: str = "") -> None:
        self._where = where

    @classmethod
    def construct(cls: type[Made], env: ComponentEnv) -> Made:
        env.check(cls)
        return cls(env.error("").where)
