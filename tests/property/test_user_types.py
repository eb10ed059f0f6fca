"""A type of the user's own, from recording over the wire to the host, and opset imports on the way."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_edge import install, load
from bb_edge.engine.config import NodeConfig
from bb_edge.ir import keys, types
from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Simulation
from bb_edge.wire.codecs import register_codec
from bb_host import Compiler, Module
from bb_host.errors import NotWireEligible, TypeConstraintFailed
from bb_host.ir.proto import from_proto

READING = types.register_type("tests.Reading", types.BYTES, 2)
OTHER = types.register_type("tests.Other", types.BYTES)
register_codec(READING, lambda value: bytes(value).upper(), bytes)


class Tell(Module):
    name = "Tell"
    home = "Sensor"

    def body(self, g):
        seen = g.net_out("reading", g.input("Server", "PeerIdVec"), g.input("reading", READING))
        with g.at("Server"):
            g.app_emit("read", seen)


def test_it_travels_under_its_own_hash():
    model = Compiler().compile(Tell().build())
    onnx.checker.check_model(model)
    stamps = [
        p.value
        for f in model.functions
        for n in f.node
        if n.domain == keys.WIRE_DOMAIN
        for p in n.metadata_props
        if p.key == keys.WIRE_TYPES_KEY
    ]
    assert stamps == [f"{types.compute_wire_hash('tests.Reading', 2):x}"] * 2

    simulation, program = Simulation(), load(model.SerializeToString())
    sensor, server = (
        install(PeerId.from_name(t), (), program, [t], NodeConfig.host(), seed=1)
        for t in ("Sensor", "Server")
    )
    simulation.add(sensor)
    simulation.add(server)
    simulation.run(for_ns=10_000_000)
    sensor.invoke("Sensor", {"Server": (server.peer_id,), "reading": b"21.5 c"})
    simulation.run(for_ns=1_000_000_000)
    assert [bytes(e.value) for e in simulation.events("read")] == [b"21.5 C"]


def test_it_is_not_taken_for_another():
    class Mixed(Module):
        def body(self, g):
            (y,) = g.op(keys.SYSCALL_DOMAIN, "PassThrough", [g.input("x", READING)], [OTHER])
            g.output("y", y)

    with pytest.raises(TypeConstraintFailed, match=r"tests\.Reading"):
        Compiler().compile_program(Mixed())


def test_what_has_no_hash_does_not_travel():
    class Late(Module):
        home = "Sensor"

        def body(self, g):
            now = g.clock(g.input("go", "Trigger"))
            g.app_emit("now", g.net_out("now", g.input("Server", "PeerIdVec"), now))

    with pytest.raises(NotWireEligible):
        Compiler().compile_program(Late())


def test_of_two_imports_of_a_domain_the_highest_holds():
    class Plain(Module):
        def body(self, g):
            g.output("y", g.onnx.relu(g.input("x", np.float32, [2])))

    model = Plain().build()
    for holder in (model, model.functions[0]):
        for version in (13, 26, 18):
            holder.opset_import.add(domain="", version=version)
    program = from_proto(model)
    assert program.opsets[""] == program.functions[0].opsets[""] == 26
    compiled = Compiler().compile(model)
    assert [o.version for o in compiled.functions[0].opset_import if o.domain == ""] == [26]
