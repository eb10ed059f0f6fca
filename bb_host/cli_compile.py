"""`bb-host compile`: from a program file or a model to what devices run, and what it says of that."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bb_edge.ir.errors import BBError
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load
from bb_host.cli_models import add_trainable, list_trainable, named_by_file, refuse_unlisted, started_from

if TYPE_CHECKING:
    from bb_host.build import Build
    from bb_host.diagnostics import Policy, ProgramWarning
    from bb_host.passes.one_pass import Observer
    from bb_host.report.explain import Run
    from bb_host.source_file import Source


def add_compile(verbs: Any) -> None:
    """Adds the verb `compile`."""
    p = verbs.add_parser("compile", help="compile a program file or a model")
    p.add_argument("file", type=Path, help="FILE.py with a function program(), or FILE.onnx")
    p.add_argument(
        "--target",
        choices=("edge", "portable"),
        default="edge",
        help="edge: one stripped file per target as well; portable: the compiled model alone",
    )
    p.add_argument("-o", "--out", type=Path, default=Path("build"), help="folder for the results")
    p.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="fix an input of an ordinary ONNX model",
    )
    p.add_argument(
        "--max-batch", type=int, metavar="N", help="plan memory for batches of N where the batch is open"
    )
    p.add_argument("--ram", type=_size, metavar="SIZE", help="refuse what needs more: 32M, 512K, bytes")
    p.add_argument("--flash", type=_size, metavar="SIZE", help="refuse an artifact that is larger")
    p.add_argument(
        "--interpreter",
        type=_size,
        metavar="SIZE",
        help="RAM of Python and the runtime on the device, instead of the estimate",
    )
    p.add_argument(
        "--quantize", choices=("int8", "fp16"), help="int8 (needs --calibrate), or weights as float16"
    )
    p.add_argument(
        "--calibrate", type=Path, metavar="DATA.npz", help="samples by input name, first axis counts"
    )
    p.add_argument(
        "--keep-float", action="append", default=[], metavar="NAME,…", help="layers that int8 leaves in float"
    )
    p.add_argument(
        "--like-litert",
        action="store_true",
        help="int8 as LiteRT's own quantizer makes it, to compare: biases and ranges as they come",
    )
    p.add_argument(
        "--backend",
        choices=("auto", "numpy", "tflite"),
        default="auto",
        help="what runs tensor work: tflite lowers all that it can, auto (default) what gains by it, and"
        " keeps a fallback for devices without an interpreter",
    )
    p.add_argument(
        "-W",
        dest="warnings",
        action="append",
        type=_warning_option,
        default=[],
        metavar="ACTION[=CODE]",
        help="error or ignore: all warnings, or those of one code; repeatable (docs/reference/warnings.md)",
    )
    p.add_argument(
        "--name",
        metavar="NAME",
        help="name of the files (default: the module's; of an ordinary model the file's, which also names its"
        " target)",
    )
    p.add_argument(
        "--force", action="store_true", help="replace files that were compiled from another program or model"
    )
    p.add_argument(
        "--params",
        action="append",
        default=[],
        metavar="[SLOT=]FILE.npz",
        help="start from the parameters of `bb-edge export` or `--save-model` (repeatable, once per slot)",
    )
    add_trainable(p)
    p.add_argument(
        "--accepts",
        action="append",
        type=Path,
        default=[],
        metavar="OLD.onnx",
        help="take nodes that still run this compiled version of the program as peers (repeatable)",
    )
    p.add_argument("--json", action="store_true", help="the report as JSON")
    p.add_argument("--timings", action="store_true", help="time per pass")
    p.add_argument(
        "--explain",
        metavar="PASS",
        help="write nothing; show the program before and after a pass (name or 1-17), or with `backend`"
        " what TFLite runs, and for each op that stays why",
    )
    add_load(p)
    p.set_defaults(run=_compile)


def _compile(arguments: argparse.Namespace) -> int:
    from bb_host.build import build_edge
    from bb_host.diagnostics import Policy
    from bb_host.passes.device.budget import Limits
    from bb_host.passes.tensor.shapes import parse_shapes
    from bb_host.source_file import read_source

    policy = Policy.parse(arguments.warnings)
    if arguments.name is not None and _sound_name(arguments.name) != arguments.name:
        hint = f"write letters, digits, '.', '-' and '_': --name {_sound_name(arguments.name)}"
        raise BBError(f"{arguments.name!r} is not a valid name for files", "--name", hint)
    _check_options(arguments)
    load_all(arguments.load)
    if arguments.trainable:
        return list_trainable(arguments, lambda found: show_warnings(found, policy))
    refuse_unlisted(arguments)
    source = started_from(read_source(arguments.file), arguments.params)

    def build_with(observe: Observer | None = None) -> Build:
        return build_edge(
            source.module,
            source.compiler,
            parse_shapes(arguments.shape) or None,
            portable=arguments.target == "portable",
            max_batch=arguments.max_batch,
            limits=Limits(arguments.ram, arguments.flash, arguments.interpreter),
            backend=arguments.backend,
            quantization=_quantization(arguments),
            name=arguments.name or _plain_name(source, arguments.file),
            accepts=[read_source(path).module for path in arguments.accepts],
            observe=observe,
        )

    if arguments.explain is not None and arguments.explain != "backend":
        return _explain(source, arguments.explain, lambda observe: build_with(observe).passes)
    try:
        build = build_with()
    except BBError as error:
        show_warnings(source.warnings, policy)  # a warning may name the cause
        if arguments.file.suffix == ".onnx":
            error.where = named_by_file(error.where, arguments.file, source.module)
        raise
    shown, refused = show_warnings((*source.warnings, *build.warnings), policy)
    if refused:
        return 1
    if arguments.explain is not None:
        for artifact in build.artifacts:
            print(f"{artifact.target}:\n{artifact.lowering.explain() or 'nothing is lowered'}")
        return 0
    written = build.write(arguments.out, arguments.file, arguments.force)
    if arguments.json:
        print(json.dumps({**_report(build, written), "warnings": [w.to_dict() for w in shown]}))
    else:
        _print_report(build, written, arguments)
    return 0


def _print_report(build: Build, written: Sequence[Path], arguments: argparse.Namespace) -> None:
    """Prints the written files, and what was asked to be shown of them."""
    from bb_host.report.targets import table, timings

    print(f"{build.module}: {', '.join(str(path) for path in written if path.suffix == '.onnx')}")
    if build.artifacts:
        print(table([a.report for a in build.artifacts]))
    for artifact in build.artifacts:
        if artifact.accuracy is not None:
            print(f"\n{artifact.target}, {artifact.accuracy.table()}")
    if arguments.ram is not None or arguments.flash is not None:
        for artifact in build.artifacts:
            print(f"\n{artifact.budget.table()}")
    if arguments.timings:
        print(timings(build.passes))


def _check_options(arguments: argparse.Namespace) -> None:
    """Options that the others leave without an effect are refused before anything is read."""
    portable = arguments.target == "portable"
    for option, idle in (
        ("--backend", portable and arguments.backend != "auto"),
        ("--max-batch", portable and arguments.max_batch is not None),
        ("--explain backend", portable and arguments.explain == "backend"),
    ):
        if idle:
            hint = "leave out one of them: the portable form is not made for a backend, nor planned"
            raise BBError(f"{option} has no effect with --target portable", "bb-host compile", hint)
    if arguments.explain is not None and arguments.json:
        raise BBError("--explain has no form as JSON", "bb-host compile", "leave out --json")


def _plain_name(source: Source, file: Path) -> str:
    """An ordinary model is called as its file is: the graph in it is called `main_graph` in every export."""
    from bb_host.plain import is_plain

    return file.stem if file.suffix == ".onnx" and is_plain(source.module) else ""


def _sound_name(name: str) -> str:
    from bb_host.build import file_name

    return file_name(name)


def show_warnings(found: Iterable[ProgramWarning], policy: Policy) -> tuple[list[ProgramWarning], bool]:
    """Prints warnings to stderr, each once; returns those, and whether one of them is an error by `-W`."""
    from bb_host.diagnostics import in_order

    actions = [(warning, policy.action(warning)) for warning in in_order(found)]
    for warning, action in actions:
        if action != "ignore":
            print(warning.render("error" if action == "error" else "warning"), file=sys.stderr)
    shown = [warning for warning, action in actions if action != "ignore"]
    return shown, any(action == "error" for _, action in actions)


def _quantization(arguments: argparse.Namespace) -> Any:
    from bb_host.errors import QuantizeError
    from bb_host.passes.device.quantize import Quantization, read_calibration

    keep = [name for text in arguments.keep_float for name in text.split(",") if name]
    if arguments.quantize is None:
        if arguments.calibrate is not None or keep or arguments.like_litert:
            raise QuantizeError(
                "nothing is quantized", "--calibrate, --keep-float, --like-litert", "add --quantize int8"
            )
        return None
    if arguments.quantize == "int8" and arguments.calibrate is None:
        raise QuantizeError("int8 needs samples", "--quantize", "give them with --calibrate DATA.npz")
    data = {} if arguments.calibrate is None else read_calibration(arguments.calibrate)
    return Quantization(arguments.quantize, data, keep, arguments.like_litert)


def _explain(source: Any, name: str, build: Run) -> int:
    from bb_host.compiler import Compiler
    from bb_host.report.explain import explain

    found = explain(source.module, source.compiler or Compiler(), name, build)
    print(found)
    if found.refused is not None:  # by a later pass: what was asked for comes first
        raise found.refused
    return 0


def _report(build: Any, written: Sequence[Path]) -> dict[str, Any]:
    return {
        "module": build.module,
        "program": build.program.facts.program,
        "files": [str(path) for path in written],
        "bytes": {path.name: path.stat().st_size for path in written},
        "targets": [a.report.to_dict() for a in build.artifacts],
        "accuracy": {a.target: a.accuracy.to_dict() for a in build.artifacts if a.accuracy is not None},
        "passes": [
            {"name": p.name, "ns": p.duration_ns, "seam_ns": p.seam_ns, "counters": dict(p.counters)}
            for p in build.passes
        ],
    }


# --- types of options -----------------------------------------------------------------------------


def _warning_option(text: str) -> str:
    from bb_host.diagnostics import Policy

    try:
        Policy.parse([text])
    except BBError as error:
        raise argparse.ArgumentTypeError(f"{error.what} ({error.hint})") from None
    return text


def _size(text: str) -> int:
    from bb_host.columns import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
