"""A component whose like on other nodes may call it."""

from __future__ import annotations

from typing import ClassVar

from bb_edge.extend import Array, ComponentEnv, Ctx, Opset, OpTable, PeerId, ProtocolComponent, register


@register
class Called(ProtocolComponent):
    """Hands on what it gets."""

    TYPE_NAME: ClassVar[str] = "test.Called"

    @classmethod
    def construct(cls, env: ComponentEnv) -> Called:
        return cls()

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = OpTable("test.called")
        table.op("HandOn", "x:Tensor", "y:Tensor")
        table.op("Told", "sender:PeerId, payload:Bytes", "", remote=True)
        return table.opset()

    def hand_on(self, ctx: Ctx, x: Array) -> Array:
        return x

    def told(self, ctx: Ctx, sender: PeerId, payload: bytes) -> None:
        """Says nothing to anybody."""
