"""What `bb-host` does with models: lists what is learned, takes trained parameters in, and puts them back."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bb_edge.ir.errors import BBError

if TYPE_CHECKING:
    from bb_host.diagnostics import ProgramWarning
    from bb_host.source_file import Source


_UNUSED: tuple[tuple[str, str, object], ...] = (
    ("target", "--target", "edge"),
    ("out", "--out", Path("build")),
    ("shape", "--shape", []),
    ("max_batch", "--max-batch", None),
    ("ram", "--ram", None),
    ("flash", "--flash", None),
    ("interpreter", "--interpreter", None),
    ("quantize", "--quantize", None),
    ("calibrate", "--calibrate", None),
    ("keep_float", "--keep-float", []),
    ("like_litert", "--like-litert", False),
    ("backend", "--backend", "auto"),
    ("name", "--name", None),
    ("force", "--force", False),
    ("params", "--params", []),
    ("timings", "--timings", False),
    ("explain", "--explain", None),
)
"""Options of `bb-host compile` that a list of what is learned has no use for, with their defaults."""

Show = Callable[[Sequence["ProgramWarning"]], "tuple[list[ProgramWarning], bool]"]
"""Prints warnings; gives those, and whether one of them is an error."""


def add_trainable(p: argparse.ArgumentParser) -> None:
    """Adds --trainable to `bb-host compile`, and the options that go with it."""
    p.add_argument(
        "--trainable",
        action="store_true",
        help="write nothing; list what of a model a program would train, and why (docs/how-to/models.md)",
    )
    p.add_argument(
        "--train-last",
        type=int,
        metavar="N",
        help="with --trainable: train the last N layers only",
    )
    for option, effect in (
        ("freeze", "do not train"),
        ("train", "train"),
        ("personal", "do not send"),
        ("sent", "send, though they are not trained,"),
    ):
        p.add_argument(
            f"--{option}",
            action="append",
            default=[],
            metavar="PATTERN",
            help=f"with --trainable: {effect} the initializers of that name or glob (repeatable)",
        )

    p.add_argument(
        "--output",
        metavar="NAME",
        help="with --trainable: the output that is trained, or an inner value such as the logits",
    )
    p.add_argument(
        "--loss",
        metavar="NAME",
        help="with --trainable: warn and refuse as for that loss (docs/how-to/models.md lists them)",
    )
    p.add_argument(
        "--batch-norm",
        metavar="HOW",
        help="with --trainable: `update` for statistics that batches update",
    )


_LISTED: Mapping[str, str] = {
    "freeze": "frozen",
    "train": "train",
    "train_last": "train_last",
    "personal": "personal",
    "sent": "sent",
    "loss": "loss",
    "batch_norm": "batch_norm",
    "output": "output",
}
"""Options of a list of what is learned, and what `trainable` calls them."""


def refuse_unlisted(arguments: argparse.Namespace) -> None:
    """BBError where options of --trainable are given without it."""
    idle = [f"--{name.replace('_', '-')}" for name in _LISTED if getattr(arguments, name) not in ([], None)]
    if idle:
        names = ", ".join(f"{_LISTED[name]}=…" for name in _LISTED if f"--{name.replace('_', '-')}" in idle)
        hint = f"add --trainable to see what they do; in a program: trainable(file, {names})"
        raise BBError("nothing is trained here", ", ".join(idle), hint)


def list_trainable(arguments: argparse.Namespace, show: Show) -> int:
    """Lists what a model learns. The list comes before the refusal where the model cannot be trained."""
    from bb_host.learn import import_onnx
    from bb_host.learn.parameters import render
    from bb_host.learn.trainable import TrainableSettings, make_trainable

    if arguments.file.suffix != ".onnx":
        hint = "print(trainable(file).table()) lists what it binds"
        raise BBError("it lists an ONNX model, not a program", f"--trainable {arguments.file}", hint)
    if unused := [option for name, option, default in _UNUSED if getattr(arguments, name) != default]:
        hint = "leave them out, or compile without --trainable"
        raise BBError("--trainable only lists, and does not use them", ", ".join(unused), hint)
    given = {argument: getattr(arguments, option) for option, argument in _LISTED.items()}
    chosen = {argument: value for argument, value in given.items() if value not in (None, [])}
    patterns = {a: value for a, value in chosen.items() if a not in ("loss", "batch_norm")}
    refusal: BBError | None = None
    try:
        model = make_trainable(arguments.file, TrainableSettings(**chosen))
    except BBError as error:
        try:
            refusal, listed = error, import_onnx(arguments.file, **patterns).initializers
        except BBError:
            raise error from None
    else:
        listed = model.initializers
    if not arguments.json:
        print(render(listed), flush=True)
    if refusal is not None:
        raise refusal
    learned = {"initializers": [{**asdict(i), "count": i.count} for i in listed]}
    shown, refused = show([w.at(str(arguments.file)) for w in model.warnings()])
    if arguments.json:
        print(json.dumps({**learned, "warnings": [w.to_dict() for w in shown]}))
    return int(refused)


def started_from(source: Source, texts: Sequence[str]) -> Source:
    """The source with the parameters of each `[SLOT=]FILE.npz`, one per slot."""
    from bb_host.compiler.driver import as_program
    from bb_host.ir.sparse_tensors import densified
    from bb_host.learn.exchange import export_model, model_slot, read_parameters, with_parameters
    from bb_host.plain import is_plain

    started: dict[str, str] = {}
    for text in texts:
        slot, equals, path = text.partition("=")
        if not equals or Path(text).is_file():
            slot, path = "", text
        given = read_parameters(path).arrays
        if hasattr(source.module, "graph") and is_plain(source.module):
            if slot:
                hint = f"leave it out: --params {path}"
                raise BBError(f"slot {slot!r} of an ordinary model", "--params", hint)
            _once(started, "", path, "the model")
            model = densified(source.module)
            export_model(model, given, path)
            source = replace(source, module=model)
            continue
        program, compiler = as_program(source.module), source.compiler
        name = model_slot(program, compiler, slot or None, path)
        _once(started, name, path, f"slot {name!r}")
        program, compiler = with_parameters(program, compiler, name, given, path)
        source = replace(source, module=program, compiler=compiler)
    return source


def named_by_file(where: str, file: Path, model: Any) -> str:
    """Where an error about an ordinary model is: the file, for its graph is called `main_graph` mostly."""
    from bb_host.plain import is_plain, target_name

    if not is_plain(model) or str(file) in where:
        return where
    for name in (model.graph.name, target_name(model.graph.name), target_name(file.stem)):
        if where.startswith(prefix := f"model {name!r}"):
            where = where.removeprefix(prefix).removeprefix(", ")
            break
    return ", ".join(filter(None, (str(file), where)))


def _once(started: dict[str, str], name: str, path: str, what: str) -> None:
    if name in started:
        raise BBError(
            f"{what} starts from two files: {started[name]}, {path}", "--params", "give one of them"
        )
    started[name] = path


def add_export(verbs: Any) -> None:
    """Adds the verb `export`."""
    p = verbs.add_parser(
        "export",
        help="put trained parameters back into an ONNX file",
        description="Writes NET.onnx with the parameters in it that a federation has trained: an ordinary"
        " model. docs/how-to/models.md shows the way there.",
    )
    p.add_argument("file", type=Path, help="the ONNX file that was trained, or a compiled program")
    p.add_argument(
        "--params", type=Path, required=True, metavar="FILE.npz", help="of bb-edge export, or saved"
    )
    p.add_argument("--slot", metavar="NAME", help="of a compiled program: the slot that holds the model")
    p.add_argument("-o", "--out", type=Path, required=True, metavar="OUT.onnx")
    p.add_argument("--json", action="store_true", help="say what was written as JSON")
    p.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from bb_edge.components.parameter_file import UNTRAINED
    from bb_host.ir.sparse_tensors import densified
    from bb_host.learn.exchange import (
        export_model,
        has_external_data,
        read_parameters,
        slot_model,
        write_model,
    )
    from bb_host.plain import is_plain
    from bb_host.source_file import read_model

    out: Path = arguments.out
    if out.suffix != ".onnx":
        raise BBError(f"{out.name!r} is not the name of a model", "-o", f"write it as {out.stem}.onnx")
    for given in (arguments.file, arguments.params):
        if out.resolve() == given.resolve():
            raise BBError("the result would take its place", str(given), "write it to another file")
    model = densified(read_model(arguments.file))  # what was learned is sparse no more
    parameters = read_parameters(arguments.params)
    where = str(arguments.params)
    if not is_plain(model):
        model = slot_model(model, arguments.slot, str(arguments.file))
    elif arguments.slot:
        raise BBError("an ordinary model has no slots", "--slot", "leave it out")
    external = has_external_data(arguments.file)
    if untrained := parameters.meta.get(UNTRAINED):
        names = ", ".join(map(repr, untrained))
        print(
            f"bb-host: warning: {where}: {names}: personal parameters that its node has never trained: they"
            " are as they were compiled",
            file=sys.stderr,
        )
    count = export_model(model, parameters.arrays, where)
    written = write_model(model, out, external)
    entries = sum(array.size for array in parameters.arrays.values())
    if arguments.json:
        record = {"files": [str(p) for p in written], "tensors": count, "parameters": entries}
        print(json.dumps({**record, "from": parameters.meta}))
    else:
        rest = len(model.graph.initializer) - count
        kept = f", {rest} initializers as they were" if rest else ""
        print(f"{', '.join(map(str, written))}: {entries:,} parameters in {count} tensors{kept}")
    return 0
