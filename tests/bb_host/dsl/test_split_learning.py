"""The worked example of the specification, compared node by node.

Where this runtime settles things otherwise, `DIFFERENCES` says so: each entry must be needed, and
nothing else may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import cbor2

from bb_edge.ir import keys
from bb_host import AggregatorSlot, BackendSlot, CodecSlot, Graph, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.ir.program import Program
from bb_host.ir.proto import to_proto
from bb_host.ir.spelling import written


class SplitLearning(Module):
    name, domain = "SplitLearning", "user.app"

    backend = BackendSlot("backend")
    model = ModelSlot("model", "burn_integration::BurnModel", {"hidden": 32})
    codec = CodecSlot("codec", "framework_compressors::ProductQuantization", {"m": 8, "n": 16})
    gossip = PeerSelectorSlot("gossip", "framework_peer_selector::Cyclone", {"c": 20, "h": 1, "s": 9})
    aggregator = AggregatorSlot("aggregator", "framework_aggregators::WeightAggregator")

    def body(self, g: Graph) -> None:
        enc_in, _sender, _trigger = g.wire.recv("activations", "F32", trigger=True)
        dec_in = self.codec.decompress(g, enc_in)
        dec_out = self.model.forward(g, dec_in)
        enc_out = self.codec.compress(g, dec_out)
        peers = self.gossip.sample(g, 5)
        req_id = g.wire.send_req_batched("gradients", peers, enc_out, deadline_ns=10 * S)
        _closed, _missing, batched_grads = g.wire.recv_resp_batched(req_id, "F32")
        dec_grads = self.codec.decompress(g, batched_grads)
        avg_grad, _total = self.aggregator.aggregate(g, dec_grads)
        self.model.step(g, avg_grad)
        self.model.backward(g, avg_grad)


WIRE, CODEC, MODEL = keys.WIRE_DOMAIN, keys.ROLE_COMPRESSOR_DOMAIN, keys.ROLE_MODEL_DOMAIN
PQ, NET = "framework_compressors::ProductQuantization", "burn_integration::BurnModel"
ONE_SHOT, BARRIER = "framework_wire::NoBarrierOneShot", "framework_wire::BarrierNetworkReqResp"

# op_type, domain, inputs, outputs, attributes, concrete type; every instance is 0
SEED: list[tuple[str, str, list[str], list[str], dict[str, Any], str]] = [
    ("Recv", WIRE, [], ["site_1", "site_2"], {"payload_type": "F32"}, ONE_SHOT),
    ("Decompress", CODEC, ["site_2"], ["site_3"], {}, PQ),
    ("Forward", MODEL, ["site_3"], ["site_4"], {}, NET),
    ("Compress", CODEC, ["site_4"], ["site_5"], {}, PQ),
    ("Sample", keys.ROLE_PEER_SELECTOR_DOMAIN, [], ["site_6"], {"n": 5}, "framework_peer_selector::Cyclone"),
    ("SendReqBatched", WIRE, ["site_5", "site_6"], ["site_7", "site_8"], {}, BARRIER),
    ("RecvRespBatched", WIRE, ["site_7"], ["site_9", "site_10"], {}, BARRIER),
    ("Decompress", CODEC, ["site_10"], ["site_11"], {}, PQ),
    (
        "Aggregate",
        keys.ROLE_AGGREGATOR_DOMAIN,
        ["site_11"],
        ["site_12"],
        {},
        "framework_aggregators::WeightAggregator",
    ),
    ("Step", MODEL, ["site_12"], ["site_13"], {}, NET),
    ("Backward", MODEL, ["site_12"], ["site_14"], {}, NET),
]

# Our value by the example's name; the names themselves are ours.
NAMES = {
    "site_1": "activations_trigger_1",
    "site_2": "activations_1",
    "site_3": "decompress_1",
    "site_4": "forward_1",
    "site_5": "compress_1",
    "site_6": "sample_1",
    "site_7": "gradients_req_1",
    "site_9": "gradients_closed_1",
    "site_10": "gradients_responses_1",
    "site_11": "decompress_2",
    "site_12": "aggregate_result_1",
    "site_13": "step_1",
    "site_14": "backward_1",
}

NO_WIRE_COMPONENT = "wire ops belong to the engine, no component is bound to them (part 5b says so too)"
DIFFERENCES: dict[tuple[int, str], tuple[Any, str]] = {
    (0, "outputs"): (
        ["activations_1", "activations_sender_1", "activations_trigger_1"],
        "§6: a Recv yields payload…, sender, and the trigger last",
    ),
    (0, "concrete_type"): (None, NO_WIRE_COMPONENT),
    (5, "inputs"): (["compress_1", "sample_1", "sample_1"], "§6: the gated and the asked peers"),
    (5, "outputs"): (["gradients_req_1"], "§6: responses come out of RecvRespBatched alone"),
    (5, "attributes"): ({"deadline_ns": 10 * S}, "§2: a request has a deadline"),
    (5, "concrete_type"): (None, NO_WIRE_COMPONENT),
    (6, "outputs"): (
        ["gradients_closed_1", "gradients_missing_1", "gradients_responses_1"],
        "§6: closed, missing, responses",
    ),
    (6, "concrete_type"): (None, NO_WIRE_COMPONENT),
    (8, "outputs"): (["aggregate_result_1", "aggregate_total_1"], "§8: the total weight beside the result"),
}


class Field:
    """How a field of a recorded node is read."""

    READERS: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "op_type": lambda op: op.op_type,
        "domain": lambda op: op.domain,
        "inputs": lambda op: list(op.inputs),
        "outputs": lambda op: list(op.outputs),
        "attributes": lambda op: {
            k: v if isinstance(v, int) else v.node.id[7:-1] for k, v in op.attrs.items()
        },
        "concrete_type": lambda op: written(op.facts).get(keys.CONCRETE_TYPE_KEY),
    }


def test_node_by_node(record: Callable[..., Program]) -> None:
    ops = record(SplitLearning()).functions[0].ops
    assert len(ops) == len(SEED)
    found: dict[tuple[int, str], Any] = {}
    for i, (op, seed) in enumerate(zip(ops, SEED, strict=True)):
        op_type, domain, inputs, outputs, attributes, concrete = seed
        expected = {
            "op_type": op_type,
            "domain": domain,
            "inputs": [NAMES[n] for n in inputs],
            "outputs": [NAMES.get(n, n) for n in outputs],
            "attributes": attributes,
            "concrete_type": concrete,
        }
        for field, reader in Field.READERS.items():
            if reader(op) != expected[field]:
                found[i, field] = reader(op)
        assert written(op.facts).get(keys.INSTANCE_KEY) == (None if op.domain == WIRE else "0")
    assert found == {place: ours for place, (ours, _why) in DIFFERENCES.items()}
    assert all(why for _ours, why in DIFFERENCES.values())


def test_the_function_around_them(record: Callable[..., Program]) -> None:
    model = to_proto(record(SplitLearning()))
    function = model.functions[0]
    assert (function.name, function.domain) == ("SplitLearning", "user.app")
    assert list(function.attribute) == ["backend"]
    assert list(function.input) == list(function.output) == []
    # §1b: AttributeProto has no metadata, so types stand in the function's; construction state is CBOR.
    states = {a.name: cbor2.loads(a.s) for a in function.attribute_proto}
    assert states == {
        "model": {"hidden": 32},
        "codec": {"m": 8, "n": 16},
        "gossip": {"c": 20, "h": 1, "s": 9},
        "aggregator": {},
    }
    meta = {e.key: e.value for e in function.metadata_props}
    assert {name: meta[keys.CONCRETE_TYPE_PREFIX + name] for name in states} == {
        "model": NET,
        "codec": PQ,
        "gossip": "framework_peer_selector::Cyclone",
        "aggregator": "framework_aggregators::WeightAggregator",
    }
    # §1b: the graph holds a name and nothing else, ONNX's domain is spelled "".
    assert (model.graph.name, len(model.graph.node)) == ("SplitLearning", 0)
    imported = {o.domain: o.version for o in model.opset_import}
    assert imported == {
        "": 21,
        "user.app": 1,
        **dict.fromkeys((WIRE, CODEC, MODEL, keys.ROLE_PEER_SELECTOR_DOMAIN), 1),
        keys.ROLE_AGGREGATOR_DOMAIN: 2,  # its Contribute knows what was sent
    }
    types = {i.name: i.type for i in function.value_info}
    assert types["activations_1"].tensor_type.elem_type == 1
