"""The walks of one request through a device and of one op through recording: which of our functions are
called, in order.

    python benchmarks/walk.py

A node that has answered such requests before takes a best-effort request with one F32[2], computes Add(x, x)
and replies. Counted are calls of Python functions in bb_edge, bb_kernels and bb_shims, from `deliver_inbound`
to the end of the `poll` that gives the reply: how many, in how many files, and how often the next call is in
another file than the last. Bodies of comprehensions do not count, because newer Pythons inline them.

An op is recorded beside others of its kind, from the author's call to the value that it returns; there the
functions of bb_host count too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType, ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("kernels", "firmware_shims"))]

import numpy as np  # noqa: E402

import bb_edge  # noqa: E402
import bb_host  # noqa: E402
import bb_kernels  # noqa: E402
import bb_shims  # noqa: E402
from bb_edge import NodeConfig, PeerId, install  # noqa: E402
from bb_edge.engine.steps import SendEnvelope  # noqa: E402
from bb_edge.ir import keys  # noqa: E402
from bb_edge.ir.address import Address, site_suffix  # noqa: E402
from bb_edge.node import Node  # noqa: E402
from bb_edge.wire import envelope  # noqa: E402
from bb_edge.wire.codecs import encode_value  # noqa: E402
from bb_host import AggregatorSlot, Graph, ModelSlot, Module, Output  # noqa: E402
from bb_host.ir.proto import to_proto  # noqa: E402
from tests.aids.program_text import parse  # noqa: E402

WARM_UP = 8
"""Requests before the one that is counted: plans, pools and tables have found their size by then."""

_PORT = "wire.wire_id={0}, wire.site_ids=a{0}, wire.type_hashes=101"
PROGRAM = f"""program Walk {{module=Walk}}
function program.Main() -> () {{entry=1, partition=Main}}
  x: F32[2], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{_PORT.format(1)}}}
  y: F32[2] = Add(x, x)
  h: Trigger = wire.SendResp(y, s, r) {{{_PORT.format(2)}}}
"""
ASKER = PeerId.from_name("asker")
INLINED = frozenset(("<listcomp>", "<dictcomp>", "<setcomp>"))


class Call(NamedTuple):
    """One call: the file, as a path that begins with its package, and the function's name."""

    file: str
    function: str


class Walk(NamedTuple):
    """All calls of one request, in order."""

    calls: tuple[Call, ...]

    @property
    def files(self) -> int:
        return len({call.file for call in self.calls})

    @property
    def changes(self) -> int:
        """How often a call is in another file than the one before."""
        return sum(one.file != other.file for one, other in pairwise(self.calls))

    def __str__(self) -> str:
        lines = [f"{len(self.calls)} calls, {self.files} files, {self.changes} changes of file"]
        for number, (file, calls) in enumerate(groupby(self.calls, lambda call: call.file), 1):
            names = [(name, len(list(run))) for name, run in groupby(call.function for call in calls)]
            functions = ", ".join(name if times == 1 else f"{name} ×{times}" for name, times in names)
            lines.append(f"{number:3} {file}: {functions}")
        return "\n".join(lines)


def answering_node() -> Node:
    """A node that knows who asks it."""
    model = to_proto(parse(PROGRAM))
    model.metadata_props.add(key=keys.COMPILED_KEY, value=keys.COMPILED_VERSION)
    model.metadata_props.add(key=f"{keys.BINDING_PREFIX}Main.backend", value="backend|bb.NumPyBackend|1")
    node = install(PeerId.from_name("walker"), (), model.SerializeToString(), ["Main"], NodeConfig(), seed=1)
    address = Address.empty().with_peer(ASKER).to_bytes()
    node.peer_presence(ASKER, True, (address,), {}, epoch=1, classes=("Asker",))
    node.poll(1)
    return node


def ours(filename: str, packages: Sequence[ModuleType]) -> str:
    """The file's path from its package on; "" for files of others."""
    for package in packages:
        folder = Path(package.__file__ or "").parent
        if filename.startswith(f"{folder}/"):
            return str(Path(filename).relative_to(folder.parent))
    return ""


@contextmanager
def followed(*packages: ModuleType) -> Iterator[list[Call]]:
    """The calls of functions in these packages while the block runs."""
    calls: list[Call] = []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name not in INLINED and (file := ours(code.co_filename, packages)):
            calls.append(Call(file, code.co_name))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def request(number: int) -> bytes:
    type_hash, payload = encode_value(np.ones(2, np.float32))
    fill = envelope.Fill(site_suffix(0xA1), payload, False, type_hash)
    message = envelope.Envelope(fills=[fill], kind=envelope.REQUEST, wire_req_id=number, epoch=1, seq=number)
    return envelope.encode(message)


def walk() -> Walk:
    """The walk of the first request after the warm-up."""
    node = answering_node()
    for number in range(1, WARM_UP + 1):
        node.deliver_inbound(request(number), ASKER)
        node.poll(1 + number)
    data = request(WARM_UP + 1)
    with followed(bb_edge, bb_kernels, bb_shims) as calls:
        node.deliver_inbound(data, ASKER)
        steps = node.poll(2 + WARM_UP)
    assert [type(step) for step in steps if isinstance(step, SendEnvelope)] == [SendEnvelope], steps
    return Walk(tuple(calls))


class Recorded(Module):
    """Records an op, and notes the calls that it takes after the warm-up."""

    model = ModelSlot("model")
    agg = AggregatorSlot("agg")

    def __init__(self, act: Callable[[Recorded, Graph, Output], object]) -> None:
        super().__init__()
        self.act = act
        self.calls: list[Call] = []

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", (4,))
        for _ in range(WARM_UP):
            self.act(self, g, x)
        with followed(bb_edge, bb_host, bb_kernels) as calls:
            self.act(self, g, x)
        self.calls = calls


RECORDED: dict[str, Callable[[Recorded, Graph, Output], object]] = {
    "self.model.forward(g, x)": lambda self, g, x: self.model.forward(g, x),
    "self.model.step(g)": lambda self, g, x: self.model.step(g),
    "self.agg.contribute(g, x, weight=x)": lambda self, g, x: self.agg.contribute(g, x, weight=x),
    'g.app_emit("name", x)': lambda self, g, x: g.app_emit("name", x),
    "g.onnx.relu(x)": lambda self, g, x: g.onnx.relu(x),
    "x + x": lambda self, g, x: x + x,
}


def recording(call: str) -> Walk:
    """The walk of one of the calls of `RECORDED`, after the warm-up."""
    module = Recorded(RECORDED[call])
    module.record()
    return Walk(tuple(module.calls))


if __name__ == "__main__":
    print(walk())
    for spelt in RECORDED:
        print(f"\n{spelt}: {recording(spelt)}")
