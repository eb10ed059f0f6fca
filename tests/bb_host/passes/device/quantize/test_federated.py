"""int8 for the targets of a federated program: what its data are called, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_host import Compiler, DataSourceSlot, Module, PeerSelectorSlot, S
from bb_host.build import Build, build_edge
from bb_host.errors import CalibrationError, QuantizeError
from bb_host.passes.device.quantize import Quantization

rng = np.random.default_rng(0)
WEIGHTS = rng.normal(size=(4, 3)).astype(np.float32)
SAMPLES = rng.normal(size=(16, 4)).astype(np.float32)


class Screen(Module):
    """Clients put their data through constant weights; the server has none."""

    name, home = "Screen", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    shard = DataSourceSlot("shard", at="Client")

    def __init__(self, weights: bool = True) -> None:
        super().__init__()
        self.weights = weights

    def body(self, g: Any) -> None:
        with g.rounds(times=2) as start:
            peers = self.clients.sample(g, n=2, after=start)
            r = g.request("ask", peers, start.round, deadline_ns=30 * S)
            x, _ = self.shard.next_batch(g, after=r.value)
            r.reply([g.onnx.mat_mul(x, WEIGHTS) if self.weights else g.onnx.relu(x)])
            (seen,) = r.answer
            g.app_emit("seen", seen)


def _build(data: dict[str, Any], keep: tuple[str, ...] = (), weights: bool = True) -> Build:
    compiler = (
        Compiler()
        .bind_peer_selector("clients", "bb.PresenceSelector")
        .bind_data_source("shard", "bb.ArrayDataSource", {"batch_size": 4, "one_hot": 2})
    )
    return build_edge(Screen(weights), compiler, quantization=Quantization("int8", data, keep))


def _missing() -> str:
    """What the refusal calls the client's data."""
    with pytest.raises(CalibrationError) as refused:
        _build({})
    (name,) = [word.strip(",") for word in str(refused.value).split() if word.startswith("Client.")]
    return name


def test_a_target_with_weights_is_quantized_beside_one_without() -> None:
    found = _build({_missing(): SAMPLES})
    kinds = {a.target: {op.op_type for f in a.program.functions for op in f.ops} for a in found.artifacts}
    assert "QuantizeLinear" in kinds["Client"]
    assert "QuantizeLinear" not in kinds["Server"]
    assert {a.target: a.accuracy is not None for a in found.artifacts} == {"Client": True, "Server": False}


def test_a_program_without_weights_is_refused() -> None:
    with pytest.raises(QuantizeError, match="no op has constant weights"):
        _build({}, weights=False)


def test_what_is_missing_is_named_as_the_data_must_name_it() -> None:
    name = _missing()
    with pytest.raises(CalibrationError, match=r"no calibration data for Client\.\S+, and other is given"):
        _build({"other": SAMPLES})
    with pytest.raises(CalibrationError, match="float64"):
        _build({name: SAMPLES.astype(np.float64)})
    with pytest.raises(CalibrationError, match="NaN or infinite"):
        _build({name: SAMPLES * np.float32("nan")})
    with pytest.raises(CalibrationError, match="no samples"):
        _build({name: SAMPLES[:0]})


def test_a_layer_that_no_target_has_is_refused() -> None:
    with pytest.raises(QuantizeError, match="no layer is called 'nope'"):
        _build({_missing(): SAMPLES}, ("nope",))
