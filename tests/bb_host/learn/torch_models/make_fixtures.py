"""Makes the fixtures of this folder: small PyTorch models as both exporters write them, and their gradients.

Run with PyTorch 2.13, onnx, onnxscript and NumPy: `python make_fixtures.py [NAME …]`. Each model gives
`NAME.dynamo.onnx`, `NAME.script.onnx` and `NAME.raw.onnx` (dynamo with `optimize=False`), some also
`NAME.opset24.onnx`, as far as PyTorch exports it so; and for each a `.npz`: the input `x`, the output's
gradient `seed`, the output `y`, and per learned initializer, under its name with `d:` before it, the
gradient that PyTorch computes in float64. Of a model of several outputs the last is trained, and `output` is
its name.
"""

from __future__ import annotations

import copy
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


class Recurrent(nn.Module):
    """A recurrent layer of two directions, batch first, then a layer on its sequence and its last state."""

    def __init__(self, layer: type[nn.RNNBase], layers: int = 1) -> None:
        super().__init__()
        self.rnn = layer(3, 4, num_layers=layers, batch_first=True, bidirectional=layers == 1)
        width = 8 if layers == 1 else 4
        self.head = nn.Linear(2 * width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequence, last = self.rnn(x)
        state = last[0] if isinstance(last, tuple) else last
        kept = (
            state.transpose(0, 1).flatten(1) if state.shape[0] > 1 and sequence.shape[-1] == 8 else state[-1]
        )
        return self.head(torch.cat([sequence.mean(1), kept], 1))


class UNet(nn.Module):
    def __init__(self, mode: str, norm: Callable[[int], nn.Module] = lambda c: nn.Identity()) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, padding=1)
        self.norm1 = norm(4)
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.norm2 = norm(4)
        self.up = nn.Upsample(scale_factor=2, mode=mode)
        self.out = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.silu(self.norm1(self.down(x)))
        b = F.relu(self.norm2(self.inner(F.avg_pool2d(a, 2))))
        return self.out(torch.cat([a, self.up(b)], 1))


class Sized(nn.Module):
    """Resizes to the size of another value, mirrors edges, takes every other column."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 3, 3, padding=1, padding_mode="reflect")
        self.b = nn.Conv2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        small = self.b(h[:, :, ::2, 1::2])
        return F.interpolate(small, size=x.shape[-2:], mode="bicubic") + h[:, :2].flip(-1)


class Encoder(nn.Module):
    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(x)).mean(1))


class Quantized(nn.Module):
    """Fake quantization as in quantization-aware training: weights per channel, activations per tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.fc = nn.Linear(3 * 16, 3)
        self.register_buffer("scale_w", torch.tensor([0.02, 0.01, 0.004]))
        self.register_buffer("zero_w", torch.zeros(3, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = torch.fake_quantize_per_channel_affine(
            self.conv.weight, self.scale_w.float(), self.zero_w, 0, -128, 127
        )
        h = F.relu(F.conv2d(x, w, self.conv.bias))
        h = torch.fake_quantize_per_tensor_affine(h, 0.008, 0, 0, 255).flatten(1)
        w = torch.fake_quantize_per_tensor_affine(self.fc.weight, 0.004, 0, -128, 127)
        return F.linear(h, w, self.fc.bias)


class Products(nn.Module):
    """Einsum, cumulative sums, gathering along an axis, norms."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(4, 6), nn.Linear(4, 6)
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain
        q, k = (layer(x).unflatten(-1, (2, 3)) for layer in (self.q, self.k))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, F.normalize(k, dim=-1)).tril()
        scores = scores.cumsum(-1) / (1 + torch.logsumexp(scores, -1, keepdim=True))
        return F.mish(scores) + F.selu(scores).norm(dim=-1, keepdim=True)


class Modern(nn.Module):
    """What newer opsets have operators of their own for: attention, a root mean square, Swish."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.norm = nn.RMSNorm(8)
        self.mix = nn.Linear(8, 24)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.silu(self.embed(x))
        q, k, v = self.mix(self.norm(h)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h + found.transpose(1, 2).flatten(2))


class Sampled(nn.Module):
    """A spatial transformer: maps that are learned turn the image before it is looked at."""

    def __init__(self, size: tuple[int, int] = (6, 5)) -> None:
        super().__init__()
        self.size = size
        self.turn = nn.Linear(30, 6)
        self.look = nn.Conv2d(1, 2, 3)
        self.head = nn.Linear(24, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.turn(x.flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(maps, (x.shape[0], 1, *self.size), align_corners=False)
        return self.head(torch.tanh(self.look(F.grid_sample(x, grid, align_corners=False))).flatten(1))


class Folded(nn.Module):
    """Patches of an image that overlap, changed and added back into one."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(9, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = F.unfold(x, 3, padding=1, stride=2).transpose(1, 2)
        return F.fold(torch.tanh(self.mix(patches)).transpose(1, 2), (5, 6), 3, padding=1, stride=2)


class Heads(nn.Module):
    """Two outputs: an embedding, and the scores that are trained; a third of a head that is not."""

    outputs = ("embedding", "spare", "scores")

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 5)
        self.spare = nn.Linear(5, 3)
        self.scores = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = F.gelu(self.trunk(x))
        return F.normalize(h, dim=-1), self.spare(h), self.scores(h)


class Cells(nn.Module):
    """Cells that are called step by step, from states of zeros in the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRUCell(3, 4), nn.LSTMCell(4, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, out = x.new_zeros(x.shape[0], 4), x.new_zeros(x.shape[0], 3)
        cell = out
        for t in range(x.shape[1]):
            h = self.gru(x[:, t], h)
            out, cell = self.lstm(h, (out, cell))
        return self.head(out)


class Response(nn.Module):
    """A response normalization, which PyTorch computes by a pool over the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.LocalResponseNorm(3, alpha=0.5)
        self.head = nn.Linear(4 * 12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(F.silu(self.conv(x))).flatten(1))


class Added(nn.Module):
    """Entries that are added at places, in zeros of the batch's size."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 4)
        self.head = nn.Linear(5, 2)
        self.register_buffer("places", torch.tensor([[0, 4, 4, 2]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = x.new_zeros(x.shape[0], 5).scatter_add(1, self.places.expand(x.shape[0], 4), self.dense(x))
        return self.head(torch.tanh(added))


class Decoder(nn.Module):
    """Attention to another sequence: one matrix has the weights of the query, and those of key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True)
        self.head = nn.Linear(8, 2)
        self.register_buffer("mask", torch.triu(torch.full((4, 4), float("-inf")), 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        return self.head(self.layer(h, h.flip(1), tgt_mask=self.mask))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gru": (lambda: Recurrent(nn.GRU), (2, 5, 3)),
    "gru_stacked": (lambda: Recurrent(nn.GRU, 2), (2, 4, 3)),
    "lstm": (lambda: Recurrent(nn.LSTM), (2, 5, 3)),
    "rnn": (lambda: Recurrent(nn.RNN), (2, 5, 3)),
    "unet_nearest": (lambda: UNet("nearest"), (2, 1, 8, 8)),
    "unet_bilinear": (lambda: UNet("bilinear"), (2, 1, 8, 8)),
    "group_norm": (lambda: UNet("nearest", lambda c: nn.GroupNorm(2, c)), (2, 1, 8, 8)),
    "instance_norm": (lambda: UNet("nearest", lambda c: nn.InstanceNorm2d(c, affine=True)), (2, 1, 8, 8)),
    "sized": (Sized, (2, 1, 6, 8)),
    "encoder_post": (lambda: Encoder(False), (2, 4, 3)),
    "encoder_pre": (lambda: Encoder(True), (2, 4, 3)),
    "quantized": (Quantized, (2, 1, 6, 6)),
    "products": (Products, (2, 3, 4)),
    "modern": (Modern, (2, 4, 3)),
    "sampled": (Sampled, (2, 1, 6, 5)),
    "folded": (Folded, (2, 1, 5, 6)),
    "heads": (Heads, (2, 4)),
    "cells": (Cells, (2, 2, 3)),
    "decoder": (Decoder, (2, 4, 3)),
    "response": (Response, (2, 1, 3, 4)),
    "added": (Added, (2, 3)),
}
FORMS = {
    "dynamo": {"dynamo": True},
    "script": {"dynamo": False, "opset_version": 17},
    "script20": {"dynamo": False, "opset_version": 20},
    "raw": {"dynamo": True, "optimize": False},
    "opset24": {"dynamo": True, "opset_version": 24},
}
ONLY = {"opset24": ("modern",), "script20": ("sampled", "folded")}
"""Forms that some models alone are exported in: with the newest operators, and with operators that are new in
that opset."""


def main(names: list[str]) -> None:
    torch.backends.mha.set_fastpath_enabled(False)
    for name in names or MODELS:
        make, shape = MODELS[name]
        torch.manual_seed(sum(map(ord, name)))
        model = make().eval()
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape) * 0.4 + 0.1
        x = torch.randn(shape)
        for kind, options in FORMS.items():
            if name not in ONLY.get(kind, (name,)):
                continue
            try:
                proto = exported(model, x, options)
            except (RuntimeError, torch.onnx.OnnxExporterError) as error:
                print(f"{name}.{kind}: not exported: {type(error).__name__}: {str(error)[:200]}")
                continue
            arrays = gradients(model, x, proto)
            proto_path = HERE / f"{name}.{kind}.onnx"
            proto_path.write_bytes(proto.SerializeToString(deterministic=True))
            np.savez_compressed(HERE / f"{name}.{kind}.npz", **arrays)
            print(f"{name}.{kind}: {proto_path.stat().st_size} bytes, {len(arrays) - 3} gradients")


def exported(model: nn.Module, x: torch.Tensor, options: dict[str, object]) -> onnx.ModelProto:
    """The model's file without the traces of where it was exported."""
    if outputs := getattr(model, "outputs", None):
        options = {**options, "output_names": list(outputs)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if options["dynamo"]:
            found = torch.onnx.export(
                model, (x,), input_names=["x"], dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False, **options,
            )  # fmt: skip
            proto = found.model_proto
        else:
            file = io.BytesIO()
            axes = {"x": {0: "batch"}}
            torch.onnx.export(model, (x,), file, input_names=["x"], dynamic_axes=axes, **options)
            proto = onnx.ModelProto.FromString(file.getvalue())
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for function in proto.functions:
        for node in function.node:
            del node.metadata_props[:]
            node.doc_string = ""
        del function.metadata_props[:]
        del function.value_info[:]
    for info in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        kept = [p for p in info.metadata_props if p.key == KIND]
        del info.metadata_props[:]
        info.metadata_props.extend(kept)
    kept_infos = [i for i in proto.graph.value_info if i.metadata_props]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept_infos)
    del proto.metadata_props[:]
    del proto.graph.metadata_props[:]
    return proto


def gradients(model: nn.Module, x: torch.Tensor, proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The arrays of a fixture: gradients are told to initializers by their values."""
    exact = copy.deepcopy(model).double()
    # Buffers of float32 that steer fake quantization stay what they were.
    out = exact(x.double())
    out = out[-1] if isinstance(out, tuple) else out
    seed = torch.from_numpy(np.random.default_rng(5).standard_normal(tuple(out.shape)))
    (out * seed).sum().backward()
    arrays = {"x": x.numpy(), "seed": seed.numpy(), "y": out.detach().numpy()}
    if outputs := getattr(model, "outputs", None):
        arrays["output"] = np.array(outputs[-1])
    candidates = list(forms(exact))
    for initializer in proto.graph.initializer:
        value = onnx.numpy_helper.to_array(initializer)
        if value.dtype != np.float32 or not value.ndim:
            continue
        for form, gradient in candidates:
            if "spare" in initializer.name:
                continue
            if form.shape == value.shape and np.array_equal(form.astype(np.float32), value):
                arrays[f"d:{initializer.name}"] = gradient
    return arrays


def forms(model: nn.Module) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(value, gradient) of each parameter, in the forms in which exporters write it."""
    for parameter in model.parameters():
        value = parameter.detach().numpy()
        gradient = np.zeros_like(value) if parameter.grad is None else parameter.grad.numpy()
        yield value, gradient
        if value.ndim == 2:
            yield value.T, gradient.T
    for layer in model.modules():
        if isinstance(layer, nn.RNNBase):
            yield from packed(layer)


def packed(layer: nn.RNNBase) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """W, R and B of ONNX, whose gates come in another order than PyTorch's."""
    order = {"GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2], "RNN_TANH": [0]}[layer.mode]

    def gates(parameter: torch.Tensor, grad: bool) -> np.ndarray:
        array = (parameter.grad if grad else parameter.detach()).numpy()
        return np.concatenate([np.split(array, len(order))[k] for k in order])

    for level in range(layer.num_layers):
        found = []
        for grad in (False, True):
            w, r, b = [], [], []
            for suffix in ["", "_reverse"][: 2 if layer.bidirectional else 1]:
                part = {
                    kind: gates(getattr(layer, f"{kind}_l{level}{suffix}"), grad)
                    for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                }
                w.append(part["weight_ih"])
                r.append(part["weight_hh"])
                b.append(np.concatenate([part["bias_ih"], part["bias_hh"]]))
            found.append((np.stack(w), np.stack(r), np.stack(b)))
        yield from zip(*found, strict=True)


if __name__ == "__main__":
    main(sys.argv[1:])
