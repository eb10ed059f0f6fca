"""What machines that write each other run, and the component that has each of them remember what came."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any, ClassVar

import numpy as np

from bb_edge import load
from bb_edge.engine.program.program import Program
from bb_edge.registry import default_registry
from bb_edge.roles import Codec
from simulated import programs

assert programs.AIDS  # has the path of the aids, which this needs

from texts import compiled  # noqa: E402


class Notebook(Codec):
    """Numbers in the order in which they came; a snapshot has them all, in a few bytes."""

    TYPE_NAME: ClassVar[str] = "simulated.Notebook"
    shared: ClassVar[bool] = True

    def __init__(self) -> None:
        self._numbers: list[float] = []

    @classmethod
    def construct(cls, env: Any) -> Notebook:
        return cls()

    def serialize(self) -> bytes:
        return np.asarray(self._numbers, "<f4").tobytes()

    def restore(self, state: bytes) -> None:
        self._numbers = np.frombuffer(state, "<f4").tolist()

    def compress(self, ctx: Any, t: Any) -> Any:
        """Writes a number down."""
        self._numbers.append(float(t[0]))
        return t

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code

    @property
    def numbers(self) -> Counter[int]:
        """How often each number was written down."""
        return Counter([int(number) for number in self._numbers])


if Notebook.TYPE_NAME not in default_registry().type_names():
    default_registry().register(Notebook)

SLOTS = ("heard", "asked", "answered", "asks", "closed")
"""Letters that came, questions that came, answers that came, own questions, and those that are over."""
SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101, durable=1"
ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, durable=1"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101, durable=1"


@functools.cache
def program(deadline_ns: int) -> Program:
    """The program of all machines; `deadline_ns` is for the answers to what they ask."""
    bindings = ", ".join(f'binding.Post.{s}="codec|simulated.Notebook|{n}"' for n, s in enumerate(SLOTS, 1))
    slots = "\n".join(f"  slot {slot}: codec" for slot in SLOTS)
    batch = f"wire.answer_mode=each, deadline_ns={deadline_ns}"
    text = f"""
program Letters {{module=Letters, {bindings}}}
function program.Post(x: F32[1], to: PeerIdVec, q: F32[1], ask: PeerIdVec) -> () {{entry=1, partition=Post}}
{slots}
  h: Trigger = wire.Send(x, to) {{{SAY}}}
  z: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  c1: F32[1] = role.compressor.Compress(z) {{slot=heard}}
  c2: F32[1] = role.compressor.Compress(q) {{slot=asks}}
  r: WireReqId = wire.SendReqBatched(q, ask, ask) {{{ASK}, {batch}}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  over: F32[1] = syscall.GateDispatch(q, closed)
  c3: F32[1] = role.compressor.Compress(over) {{slot=closed}}
  syscall.Record<name="missing">(missing)
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  c4: F32[1] = role.compressor.Compress(y) {{slot=answered}}
  x2: F32[1], s2: PeerIdVec, r2: WireReqId = wire.RecvReq() {{{ASK}}}
  c5: F32[1] = role.compressor.Compress(x2) {{slot=asked}}
  k: Trigger = wire.SendResp(x2, s2, r2) {{{REPLY}}}
"""
    return load(compiled(text))
