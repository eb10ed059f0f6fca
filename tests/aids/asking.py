"""A server that asks its clients, joined in process: each client's codec can be put into a mood."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from arrays import f32
from kinds_of_steps import of
from times import S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.roles import Codec
from bb_edge.transport.in_process import Simulation
from bb_edge.wire import envelope
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import RESPONSE


class Moody(Codec):
    """`compress` fails, or gives nothing, or too much, or float64, as its node is told."""

    TYPE_NAME: ClassVar[str] = "test.Moody"

    def __init__(self) -> None:
        self.mood = "well"
        self.refused: PeerId | None = None

    @classmethod
    def construct(cls, env: Any) -> Moody:
        return cls()

    def compress(self, ctx: Any, t: Any) -> Any:
        if self.mood == "fails":
            raise ValueError("out of memory " * 20)
        if self.mood == "is empty":
            return t[:0]
        if self.mood == "widens":
            return t.astype(np.float64)
        return np.zeros(200_000, np.float32) if self.mood == "grows" else t

    def decompress(self, ctx: Any, code: Any) -> Any:
        if self.refused is not None and ctx.execution.source == self.refused:
            raise ValueError("never of this one")
        if self.mood in ("refuses", "refuses once"):
            self.mood = "refuses" if self.mood == "refuses" else "well"
            raise ValueError("not this")
        return code


PROGRAM = """
program Demo {module=Demo, targets="Server,Client", binding.Server.peers="peer_selector|bb.PresenceSelector|1", binding.Client.codec="codec|test.Moody|1", binding.Server.codec="codec|test.Moody|1"}
function program.Server(x: F32[2]) -> () {entry=1, partition=Server}
  slot peers: peer_selector peer_class=Client
  slot codec: codec
  all: PeerIdVec = role.peer_selector.CurrentView() {slot=peers}
  req: WireReqId = wire.SendReqBatched(x, all, all) {wire.wire_id=1, wire.site_ids=aa, deadline_ns=5000000000, wire.answer_mode=each, port=ask ENOUGH}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(req) {wire.wire_id=2, wire.request=1}
  a: Tensor, who: PeerIdVec = wire.RecvResp() {wire.wire_id=2, wire.request=1, wire.site_ids=bb}
  b: Tensor = role.compressor.Decompress(a) {slot=codec}
  syscall.AppEmit<name="answer">(b)
  syscall.AppEmit<name="missing">(missing)
function program.Client() -> () {entry=1, partition=Client}
  slot codec: codec
  x: F32[2], sender: PeerIdVec, req: WireReqId = wire.RecvReq() {wire.wire_id=1, wire.site_ids=aa}
  y: Tensor = role.compressor.Compress(x) {slot=codec}
  h: Trigger = wire.SendResp(y, sender, req) {wire.wire_id=2, wire.site_ids=bb, wire.request=1}
"""

SLOWLY = """  t: Trigger = syscall.OnTrigger(x)
  late: Trigger = syscall.Sleep<duration_ns=2000000000>(t)
  z: Tensor = syscall.GateDispatch(y, late)
  h: Trigger = wire.SendResp(z,"""
"""The end of a client that replies 2 s after it was asked."""


def changed(enough: int = 0, changes: Sequence[tuple[str, str]] = ()) -> str:
    """The program, where so many answers are enough, with some texts in it replaced."""
    text = PROGRAM.replace(" ENOUGH", f", enough={enough}" if enough else "")
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    return text


class Mute:
    """A client that takes part in everything, and whose answers never leave while it is mute.

    One that is `late` loses only what it says first: the repetition leaves a second later.
    """

    def __init__(self, node, late=False) -> None:
        self.mute, self.late = True, late
        self._poll = node.poll
        node.poll = self.poll

    def poll(self, now_ns):
        found = self._poll(now_ns)
        if not self.mute:
            return found
        return [s for s in found if not (isinstance(s, steps.SendEnvelope) and self._answers(s))]

    def _answers(self, step):
        answers = envelope.decode(step.body + step.payload, HOST_CAPS).kind == RESPONSE
        return answers and not (self.late and step.resent)


def registry() -> Registry:
    """A registry with `Moody` alone."""
    found = Registry()
    found.register(Moody)
    return found


class Federation:
    """A server and its clients, joined in process; each client's codec can be put into a mood."""

    def __init__(self, data: bytes, clients: int = 2, config: NodeConfig | None = None) -> None:
        self.sim = Simulation(seed=3)
        self.data, self.registry = data, registry()
        more: dict[str, Any] = {"registry": self.registry}
        names = ["server", *(f"c{n}" for n in range(clients))]
        self.server, *self.clients = [
            install(PeerId.from_name(name), (), data, [target], config, seed=seed, **more)
            for seed, (name, target) in enumerate(
                zip(names, ["Server", *["Client"] * clients], strict=True), 1
            )
        ]
        for node in (self.server, *self.clients):
            self.sim.add(node)
        self.sim.run(for_ns=S // 10)

    def again(self, node: Node, target: str) -> Node:
        """The node, restarted from a snapshot of what it holds now."""
        kept, now = node.snapshot(self.sim.now_ns), self.sim.now_ns
        more: dict[str, Any] = {"registry": self.registry, "snapshot": kept, "now_ns": now}
        made = install(node.peer_id, (), self.data, [target], node.config, seed=7, **more)
        self.sim.add(made)
        return made

    def anew(self, node: Node, target: str) -> Node:
        """The node, restarted without any memory, in a new epoch."""
        more: dict[str, Any] = {"registry": self.registry, "now_ns": self.sim.now_ns}
        made = install(node.peer_id, (), self.data, [target], seed=77, **more)
        self.sim.add(made)
        return made

    def ask(self) -> tuple[int, list[tuple[PeerId, str]]]:
        """Asks all; how many ms that took, and who is missing and why."""
        began, before = self.sim.now_ns, len(self.closed)
        self.server.invoke("Server", {"x": f32(1, 2)})
        self.sim.run(until=lambda: len(self.closed) > before)
        step = self.closed[-1]
        assert [peer for peer, _ in step.missing] == list(self.sim.events("missing")[-1].value)
        return (self.sim.now_ns - began) // 1_000_000, list(step.missing)

    @property
    def closed(self) -> list[Any]:
        return of(steps.RequestClosed, (s.step for s in self.sim.seen))

    @property
    def failed(self) -> list[Any]:
        return of(steps.RequestFailed, (s.step for s in self.sim.seen))
