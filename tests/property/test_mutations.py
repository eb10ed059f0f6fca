"""Damaged programs either compile or are refused by a typed error that says where; nothing else comes out."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

import onnx
from google.protobuf.message import DecodeError

from bb_edge.ir.errors import CompileError
from bb_host import Compiler
from federated_digits.federation import program as digits

pytestmark = pytest.mark.filterwarnings("ignore::bb_host.diagnostics.ProgramWarning")
"""Programs made at random compute what nothing reads."""

ROUNDS = int(os.environ.get("BB_MUTATIONS", "300"))
_WORDS = ("", "x", "self", "Server", "Client", "0", "-1", "99999999999999999999", "a,b", "=", "\N{SNOWMAN}")


# ---- mutations of protos: each changes `model` in place, or does nothing


def _function(model: onnx.ModelProto, rng: random.Random):
    return rng.choice(model.functions) if model.functions else onnx.FunctionProto()


def _node(model: onnx.ModelProto, rng: random.Random):
    function = _function(model, rng)
    return rng.choice(function.node) if function.node else onnx.NodeProto()


def _drop(items, rng: random.Random) -> None:
    if items:
        del items[rng.randrange(len(items))]


def _repeat(items, rng: random.Random) -> None:
    if items:
        items.append(rng.choice(items))


def _rename(items, rng: random.Random, words) -> None:
    if items:
        items[rng.randrange(len(items))] = rng.choice(words)


def _values(model, rng):
    function = _function(model, rng)
    return [*function.input, *(n for node in function.node for n in node.output), *_WORDS]


def _shuffle_nodes(model, rng):
    function = _function(model, rng)
    nodes = list(function.node)
    rng.shuffle(nodes)
    del function.node[:]
    function.node.extend(nodes)


def _metadata(model, rng):
    holder = rng.choice([model, _function(model, rng), _node(model, rng), _node(model, rng)])
    if not holder.metadata_props:
        return
    entry = rng.choice(holder.metadata_props)
    others = [p.value for node in _function(model, rng).node for p in node.metadata_props]
    kind = rng.randrange(3)
    if kind == 0:
        entry.value = rng.choice([*_WORDS, *others])
    elif kind == 1:
        entry.key = rng.choice(
            [p.key for p in _node(model, rng).metadata_props] + ["ai.bytesandbrains.x", ""]
        )
    else:
        holder.metadata_props.remove(entry)


def _attribute(model, rng):
    node = _node(model, rng)
    if not node.attribute:
        return
    attribute = rng.choice(node.attribute)
    kind = rng.randrange(5)
    if kind == 0:
        attribute.name = rng.choice(["axis", "to", "deadline_ns", "n", "", "value", "then_branch"])
    elif kind == 1:
        attribute.i = rng.choice([-(2**63), -1, 0, 7, 2**63 - 1])
    elif kind == 2:
        attribute.type = rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 13])
    elif kind == 3:
        attribute.t.CopyFrom(onnx.TensorProto(data_type=rng.choice([0, 1, 7, 16, 99]), dims=[-1, 3]))
    else:
        node.attribute.remove(attribute)


def _type(model, rng):
    function = _function(model, rng)
    if not function.value_info:
        return
    info = rng.choice(function.value_info)
    kind = rng.randrange(5)
    if kind == 0:
        info.type.CopyFrom(rng.choice(function.value_info).type)
    elif kind == 1:
        info.type.tensor_type.elem_type = rng.choice([0, 1, 7, 9, 16, 99])
    elif kind == 2:
        info.type.tensor_type.shape.dim.add(dim_value=rng.choice([-5, 0, 3]))
    elif kind == 3:
        info.type.Clear()
    else:
        info.name = rng.choice(_values(model, rng))


def _opset(model, rng):
    imports = rng.choice([model, _function(model, rng)]).opset_import
    if imports:
        entry = rng.choice(imports)
        entry.version = rng.choice([-1, 0, 1, 5, 10_000])
        if rng.random() < 0.3:
            entry.domain = rng.choice(["", "ai.onnx", "user", entry.domain])


def _slot(model, rng):
    function = _function(model, rng)
    rng.choice([_drop, _repeat])(rng.choice([function.attribute, function.attribute_proto]), rng)


def _function_itself(model, rng):
    kind = rng.randrange(3)
    if kind == 0:
        _drop(model.functions, rng)
    elif kind == 1:
        _repeat(model.functions, rng)
    else:
        _function(model, rng).name = rng.choice([*_WORDS, "Affine", "Random"])


MUTATIONS: list[Callable[[onnx.ModelProto, random.Random], object]] = [
    lambda m, r: _drop(_function(m, r).node, r),
    lambda m, r: _repeat(_function(m, r).node, r),
    _shuffle_nodes,
    lambda m, r: _drop(_node(m, r).input, r),
    lambda m, r: _repeat(_node(m, r).input, r),
    lambda m, r: _rename(_node(m, r).input, r, _values(m, r)),
    lambda m, r: _drop(_node(m, r).output, r),
    lambda m, r: _repeat(_node(m, r).output, r),
    lambda m, r: _rename(_node(m, r).output, r, _values(m, r)),
    lambda m, r: setattr(
        _node(m, r), "op_type", r.choice(["Add", "Send", "Recv", "If", "", _node(m, r).op_type])
    ),
    lambda m, r: setattr(
        _node(m, r), "domain", r.choice(["", "user", _node(m, r).domain, _node(m, r).domain])
    ),
    _metadata,
    _metadata,
    _metadata,
    _attribute,
    _attribute,
    _type,
    _type,
    _opset,
    _slot,
    lambda m, r: _drop(r.choice([_function(m, r).input, _function(m, r).output]), r),
    lambda m, r: _repeat(r.choice([_function(m, r).input, _function(m, r).output]), r),
    _function_itself,
]


def _sources(random_module) -> list[tuple[bytes, Compiler]]:
    module, compiler = digits(rounds=2, local_steps=1)
    made = [(module.build().SerializeToString(), compiler)]
    made += [(random_module(seed).build().SerializeToString(), Compiler()) for seed in range(8)]
    return made


def _verdict(compiler: Compiler, model: onnx.ModelProto) -> str:
    """`compiles`, or the name of the typed error."""
    try:
        compiled = compiler.compile(model)
    except CompileError as error:
        assert error.what
        assert "\n" not in str(error)
        return type(error).__name__
    assert compiled.functions
    return "compiles"


def test_damaged_protos_compile_or_are_refused(random_module):
    rng = random.Random(3)
    sources = _sources(random_module)
    verdicts: dict[str, int] = {}
    for number in range(ROUNDS):
        data, compiler = rng.choice(sources)
        model = onnx.ModelProto.FromString(data)
        for _ in range(rng.randint(1, 3)):
            rng.choice(MUTATIONS)(model, rng)
        try:
            verdict = _verdict(compiler, model)
        except Exception as error:
            raise AssertionError(f"mutation {number}: {type(error).__name__}: {error}") from error
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    assert verdicts["compiles"] >= ROUNDS // 10
    assert len(verdicts) >= 8


def test_damaged_bytes_compile_or_are_refused(random_module):
    rng = random.Random(4)
    sources = _sources(random_module)
    refused = 0
    for number in range(ROUNDS):
        data, compiler = rng.choice(sources)
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(damaged))
            if rng.random() < 0.6:
                damaged[at] ^= 1 << rng.randrange(8)
            elif rng.random() < 0.5:
                del damaged[at : at + rng.randint(1, 40)]
            else:
                damaged[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
        try:
            model = onnx.ModelProto.FromString(bytes(damaged))
        except DecodeError:
            refused += 1
            continue
        try:
            refused += _verdict(compiler, model) != "compiles"
        except Exception as error:
            raise AssertionError(f"damage {number}: {type(error).__name__}: {error}") from error
    assert refused > 0
