"""Loads an artifact: parses and checks its bytes once, and makes a Program that nodes can share."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from bb_edge.engine.errors import LoadError
from bb_edge.engine.program.build import build_graph
from bb_edge.engine.program.nodes import metadata
from bb_edge.engine.program.program import Binding, FunctionKey, GraphSlot, Program, Target
from bb_edge.input_files import read_artifact
from bb_edge.ir import keys
from bb_edge.ir.class_names import (
    CLASS_NAME_RULE,
    EVERY_CLASS,
    SELF_CLASS,
    class_of_module,
    is_class_name,
)
from bb_edge.ir.errors import BBError
from bb_edge.ir.onnx_pb2 import AttributeProto, FunctionProto, ModelProto, NodeProto
from bb_edge.ir.seals import SealError, check_seal, is_sealed
from bb_edge.wire.programs import ProgramClaim

__all__ = ["DamagedArtifact", "IncompatibleRuntime", "LoadError", "MissingPassport", "load", "load_as"]

MAX_FUNCTIONS = 10_000
"""Functions of an artifact; far more than programs have, and a bound on what hostile bytes can cost."""

_DIGEST = re.compile("(?:[0-9a-f]{32}){1,2}")

MAX_SUBGRAPH_DEPTH = 32
"""How deep bodies of If and Loop may nest; real models have one or two levels."""


class DamagedArtifact(LoadError):
    """The bytes are not an ONNX model, or break the rules of one."""


class MissingPassport(LoadError):
    """The model was not compiled: its metadata holds no passport."""


class IncompatibleRuntime(LoadError):
    """The artifact needs a version of the passport or of an opset that this runtime does not have."""


P = TypeVar("P", bound=Program)


def load(data: bytes | str | os.PathLike[str]) -> Program:
    """Parses, checks and resolves an artifact, given as its bytes or its path.

    Raises DamagedArtifact, MissingPassport, IncompatibleRuntime or LoadError, and nothing else, whatever the
    bytes. Of a path also FileRefused, where it is not a regular file, and OSError where it cannot be read.
    """
    return load_as(Program, data)


def load_as(kind: type[P], data: bytes | str | os.PathLike[str]) -> P:
    """Does what `load` does, and gives the program as a subclass of Program."""
    if not isinstance(data, str | os.PathLike):
        return _load(kind, data)
    try:
        return _load(kind, read_artifact(data))
    except LoadError as error:
        if error.where == "artifact":
            error.where = path = os.fspath(data)
            if path.endswith(".py"):
                error.hint = f"it is a program's source: bb-host compile {path}, and give what that writes"
        raise


def _load(kind: type[P], data: bytes) -> P:
    if not data:
        raise DamagedArtifact("the artifact is empty", "artifact")
    data = bytes(data)
    try:
        # First of all: damage would be told as whatever it happens to look like.
        digest = check_seal(data).whole if is_sealed(data) else None
    except SealError as error:
        raise DamagedArtifact(error.what, error.where, error.hint) from error
    try:
        model = ModelProto.FromString(data)
    except (DecodeError, RuntimeError, SystemError, ValueError) as error:  # SystemError: protobuf 3.20
        raise DamagedArtifact("not a serialized ONNX model", "artifact", "copy the file again") from error
    try:
        return _program(kind, model, data, digest)
    except LoadError:
        raise
    except BBError as error:
        raise DamagedArtifact(error.what, error.where or "artifact", error.hint) from error
    except (UnicodeDecodeError, ValueError, OverflowError, MemoryError) as error:
        raise DamagedArtifact(f"{type(error).__name__}: {error}", "artifact") from error


def _program(kind: type[P], model: ModelProto, data: bytes, digest: str | None) -> P:
    """`digest` is that of the whole file, if its seal was checked."""
    used = _check_texts(model)
    meta = {entry.key: entry.value for entry in model.metadata_props}
    passport = meta.get(keys.COMPILED_KEY)
    if passport is None:
        raise MissingPassport(
            "it has no passport", "artifact", "compile the model first: bb-host compile … --target edge"
        )
    if passport not in (keys.COMPILED_VERSION, keys.SEALED_VERSION):
        raise IncompatibleRuntime(
            f"its passport has version {passport!r}, this runtime takes {keys.COMPILED_VERSION!r} and"
            f" {keys.SEALED_VERSION!r}",
            "artifact",
            "compile it with the matching bb-host",
        )
    if digest is None and (passport == keys.SEALED_VERSION or keys.DIGEST_KEY in meta):
        check_seal(data)
    _check_opsets(model, used)
    if len(model.functions) > MAX_FUNCTIONS:
        raise DamagedArtifact(f"it has {len(model.functions)} functions, {MAX_FUNCTIONS} at most", "artifact")
    functions: dict[FunctionKey, FunctionProto] = {}
    for function in model.functions:
        key = (function.domain, function.name)
        if key in functions:
            raise DamagedArtifact(f"function {function.name!r} is declared twice", "artifact")
        functions[key] = function
    opsets = {o.domain: o.version for o in model.opset_import}
    for function in model.functions:
        for o in function.opset_import:
            opsets[o.domain] = max(o.version, opsets.get(o.domain, 0))
    graphs = {
        key: build_graph(function, metadata(function).get(keys.ENTRY_KEY) == "1")
        for key, function in functions.items()
        if function.domain not in (keys.BACKEND_DOMAIN, keys.COMPONENT_DOMAIN)
    }
    targets = _targets(meta, graphs, functions)
    if not targets:
        raise DamagedArtifact("it holds no partition", "artifact", "compile the program again")
    return kind(
        meta.get(keys.MODULE_KEY, ""),
        targets,
        graphs,
        functions,
        opsets,
        len(data),
        digest or hashlib.sha256(data).hexdigest(),
        _identity(meta),
        meta.get(keys.STRIPPED_KEY) == "1",
    )


def _identity(meta: Mapping[str, str]) -> ProgramClaim:
    """Which program it is of, as the artifact says. DamagedArtifact for a malformed digest."""
    program = meta.get(keys.PROGRAM_KEY, "")
    accepts = [one for one in meta.get(keys.ACCEPTS_KEY, "").split(",") if one]
    prefix = keys.CONTRACT_PREFIX
    contracts = {key[len(prefix) :]: value for key, value in meta.items() if key.startswith(prefix)}
    for digest in (*accepts, *contracts.values(), *filter(None, (program,))):
        if not _DIGEST.fullmatch(digest):
            raise DamagedArtifact(
                f"{digest[:80]!r} is not a digest", "its program", "compile the program again"
            )
    return ProgramClaim(
        bytes.fromhex(program),
        frozenset(map(bytes.fromhex, accepts)),
        {pair: bytes.fromhex(digest) for pair, digest in contracts.items()},
    )


def _check_opsets(model: ModelProto, used: Sequence[set[str]]) -> None:
    """Checks the versions of our domains; backends check those of ONNX.

    Raises IncompatibleRuntime for a version that this runtime does not know, and for a domain that a function
    uses and nothing imports.
    """
    imported: dict[str, int] = {}
    for o in (*model.opset_import, *(o for f in model.functions for o in f.opset_import)):
        imported[o.domain] = max(o.version, imported.get(o.domain, 0))
    for domain, version in imported.items():
        known = _known_version(domain)
        if known is not None and not 0 < version <= known:
            raise IncompatibleRuntime(
                f"it needs {domain} version {version}, this runtime knows version {known}",
                "artifact",
                "update the runtime on the device, or compile the program with the bb-host of this runtime",
            )
    for function, domains in zip(model.functions, used, strict=True):
        for domain in sorted(domains):
            alias = keys.ONNX_DOMAIN_ALIAS if domain == keys.ONNX_DOMAIN else domain
            if domain not in imported and alias not in imported:
                raise IncompatibleRuntime(
                    f"it uses {alias} without naming a version",
                    f"function {function.name!r}",
                    "compile the program again: an artifact imports every opset that it uses",
                )


def _known_version(domain: str) -> int | None:
    """The version of one of our domains in this runtime, 0 if it lacks the domain; None for other domains."""
    if domain in _CALLED:
        return 1
    if not domain.startswith(f"{keys.PREFIX}."):
        return None
    from bb_edge.ir.opsets import opset  # programs of tensor ops only start faster without the catalog

    table = opset(domain)
    return 0 if table is None else table.version


_CALLED = frozenset(
    (
        *(keys.BACKEND_DOMAIN, keys.COMPONENT_DOMAIN, keys.MODULE_DOMAIN, keys.PROGRAM_DOMAIN),
        keys.TFLITE_DOMAIN,
    )
)
"""Domains whose functions are in the artifact; there is one version of how they are called."""


def _check_texts(model: ModelProto) -> list[set[str]]:
    """Checks that all text fields are UTF-8, and returns the domains of each function's nodes.

    protobuf may give a field that is not UTF-8 as bytes. Raises DamagedArtifact for one.
    """
    texts: list[object] = []
    used: list[set[str]] = []
    for entry in model.metadata_props:
        texts += (entry.key, entry.value)
    texts += [o.domain for o in model.opset_import]
    for function in model.functions:
        texts += (function.name, function.domain, *function.input, *function.output, *function.attribute)
        texts += [o.domain for o in function.opset_import]
        for entry in function.metadata_props:
            texts += (entry.key, entry.value)
        for attr in function.attribute_proto:
            texts += (attr.name, *(t.name for t in attr.g.initializer))
            texts += [text for e in attr.g.metadata_props for text in (e.key, e.value)]
        for info in function.value_info:
            texts += (info.name, info.type.denotation)
        domains: set[str] = set()
        _node_texts(function.node, texts, 0, domains)
        used.append(domains)
    if not all(isinstance(text, str) for text in texts):
        raise DamagedArtifact("it holds a text that is not UTF-8", "artifact", "copy the file again")
    return used


def _node_texts(nodes: Iterable[NodeProto], texts: list[object], depth: int, domains: set[str]) -> None:
    if depth > MAX_SUBGRAPH_DEPTH:
        raise DamagedArtifact(f"subgraphs nest deeper than {MAX_SUBGRAPH_DEPTH}", "artifact")
    for node in nodes:
        domain = node.domain
        domains.add(domain)
        texts += (node.name, node.op_type, domain, *node.input, *node.output)
        for entry in node.metadata_props:
            texts += (entry.key, entry.value)
        for attr in node.attribute:
            texts.append(attr.name)
            if attr.type == AttributeProto.GRAPH:
                _node_texts(attr.g.node, texts, depth + 1, domains)
                texts += [v.name for v in (*attr.g.input, *attr.g.output)]


def _targets(
    meta: Mapping[str, str],
    graphs: Mapping[FunctionKey, GraphSlot],
    functions: Mapping[FunctionKey, FunctionProto],
) -> dict[str, Target]:
    bindings: dict[str, dict[str, Binding]] = {}
    for key, value in meta.items():
        if key.startswith(keys.BINDING_PREFIX):
            target, _, slot = key[len(keys.BINDING_PREFIX) :].rpartition(".")
            parts = value.split("|")
            if not target or len(parts) != 3 or not parts[2].isdigit():
                raise DamagedArtifact(f"binding {value!r} is not <role>|<type>|<slot id>", f"metadata {key}")
            bindings.setdefault(target, {})[slot] = Binding(parts[0], parts[1], int(parts[2]))
    targets: dict[str, Target] = {}
    for function_key, graph in graphs.items():
        if not graph.is_entry:
            continue
        name = graph.name
        bootstrap = (function_key[0], name + keys.BOOTSTRAP_SUFFIX)
        targets[name] = Target(
            name,
            main=function_key,
            bootstrap=bootstrap if bootstrap in graphs else None,
            bindings=bindings.get(name, {}),
            states={a.name: a for a in functions[function_key].attribute_proto},
            **_classes(
                name, graph.meta, meta.get(keys.HEARS_PREFIX + name), meta.get(keys.ASKS_PREFIX + name)
            ),
        )
    return targets


def _classes(target: str, of_main: Mapping[str, str], heard: str | None, asked: str | None) -> dict[str, Any]:
    """The classes that a target names, as they stand on the wire. DamagedArtifact for an invalid class name.

    Where the artifact does not say what is `asked` for, all that is heard is.

    The class `self` of a target that is named otherwise is the only one of its program: its peers know it by
    the module's name, which is the target's too.
    """
    prefix = keys.SLOT_PEER_CLASS_PREFIX
    own = of_main.get(keys.PARTITION_KEY, SELF_CLASS)
    alone = class_of_module(target) if own == SELF_CLASS else SELF_CLASS

    def on_the_wire(name: str) -> str:
        if not is_class_name(name):
            raise DamagedArtifact(
                f"{name!r} is not a valid name for a class", f"target {target}", CLASS_NAME_RULE
            )
        return alone if name == SELF_CLASS else name

    def all_of(text: str | None) -> tuple[str, ...] | None:
        if text is None or text == EVERY_CLASS:
            return None
        return tuple(on_the_wire(name) for name in text.split(",") if name)

    return {
        "peer_class": on_the_wire(own),
        "peer_classes": {
            key[len(prefix) :]: on_the_wire(value) for key, value in of_main.items() if key.startswith(prefix)
        },
        "hears": all_of(heard),
        "asks": all_of(heard if asked is None else asked),
    }
