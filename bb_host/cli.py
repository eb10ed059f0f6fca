"""`bb-host`: compile programs for devices, and look at what is in a model. Every verb works offline."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bb_edge.command_line import Parser
from bb_edge.ir.errors import BBError
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load
from bb_host.cli_acl import add_acl
from bb_host.cli_init import add_init
from bb_host.cli_models import (
    add_export,
    add_trainable,
    list_trainable,
    named_by_file,
    refuse_unlisted,
    started_from,
)
from bb_host.cli_simulate import add_simulate

if TYPE_CHECKING:
    from bb_host.build import Build
    from bb_host.diagnostics import Policy, ProgramWarning
    from bb_host.passes.one_pass import Observer
    from bb_host.report.explain import Run
    from bb_host.source_file import Source

DISTRIBUTION = "bytesandbrains-edge"
_AT_LINE = re.compile(r"(?P<line>.+?:\d+)(?:, (?P<rest>.+))?")


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def parser() -> argparse.ArgumentParser:
    """The command line of `bb-host`."""
    top = Parser(prog="bb-host", description="Compile programs for devices.")
    top.add_argument("--version", action="version", version=f"bb-host {_version()}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
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
    add_export(verbs)
    add_acl(verbs)
    add_simulate(verbs)
    add_init(verbs)
    p = verbs.add_parser("inspect", help="show what a program or an ordinary model holds")
    p.add_argument("file", type=Path, help="a recorded, compiled, edge or ordinary .onnx, or a program file")
    p.add_argument("--json", action="store_true")
    add_load(p)
    p.set_defaults(run=_inspect)
    p = verbs.add_parser("graph", help="draw partitions, ops and wire edges")
    p.add_argument(
        "file",
        type=Path,
        help="a recorded, compiled, edge or ordinary .onnx, or a program file (compiled first)",
    )
    p.add_argument(
        "-o", "--out", type=Path, required=True, help="OUT.svg, .png, .pdf, or .dot (Graphviz notation)"
    )
    p.add_argument("--recorded", action="store_true", help="a program file as it was recorded")
    p.add_argument("--partitions", action="store_true", help="partitions only, without their ops")
    add_load(p)
    p.set_defaults(run=_graph)
    p = verbs.add_parser("symbolize", help="lead a device's log back to the lines of the program")
    p.add_argument("map", type=Path, help="the artifact's .edge.map.json")
    p.add_argument("log", type=Path, nargs="?", help="what `bb-edge run` wrote (default: standard input)")
    p.add_argument("--json", action="store_true", help="a JSON object per line that names an op")
    p.set_defaults(run=_symbolize)
    p = verbs.add_parser("version", help="versions of what compiling depends on")
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=_versions)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. Typed errors are printed at the author's line, exit code 1; a wrong command line: 2.

    130 where it was interrupted, as shells have it.
    """
    arguments = parser().parse_args(argv)
    if arguments.run not in (_versions, _symbolize) and importlib.util.find_spec("onnx") is None:
        print(
            f"bb-host: error: the package onnx is missing (pip install '{DISTRIBUTION}[host]')",
            file=sys.stderr,
        )
        return 1
    try:
        code: int = arguments.run(arguments)
        return code
    except BBError as error:
        print(error_line(error), file=sys.stderr)
        table = getattr(error, "table", "")  # of a program that does not fit
        if table:
            print(table, file=sys.stderr)
    except KeyboardInterrupt:
        print("bb-host: interrupted", file=sys.stderr)
        return 130
    except SystemExit as error:  # of components' or passes' own code: nobody may take it for success
        hint = "a component, a pass or a module of the program called sys.exit(); raise an error instead"
        print(f"bb-host: error: the process was ended by exit({error.code!r}) ({hint})", file=sys.stderr)
    except BrokenPipeError:  # the reader has seen enough: `bb-host inspect … | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the interpreter flushes it at the end)
    except OSError as error:
        print(f"bb-host: error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
    return 1


def error_line(error: BBError) -> str:
    """`file.py:12: error: …` where the error has the author's line, else `bb-host: error: …`."""
    at = _AT_LINE.fullmatch(error.where)
    if at is None:
        return f"bb-host: error: {error}"
    what = f"{at['rest']}: {error.what}" if at["rest"] else error.what
    hint = f" ({error.hint})" if error.hint else ""
    return " ".join(f"{at['line']}: error: {what}{hint}".splitlines())


# --- verbs ----------------------------------------------------------------------------------------


def _compile(arguments: argparse.Namespace) -> int:
    from bb_host.build import build_edge
    from bb_host.diagnostics import Policy
    from bb_host.passes.device.budget import Limits
    from bb_host.passes.tensor.shapes import parse_shapes
    from bb_host.report.targets import table, timings
    from bb_host.source_file import read_source

    policy = Policy.parse(arguments.warnings)
    if arguments.name is not None and _sound_name(arguments.name) != arguments.name:
        hint = f"write letters, digits, '.', '-' and '_': --name {_sound_name(arguments.name)}"
        raise BBError(f"{arguments.name!r} is no name for files", "--name", hint)
    _check_options(arguments)
    load_all(arguments.load)
    if arguments.trainable:
        return list_trainable(arguments, lambda found: _show(found, policy))
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
        _show(source.warnings, policy)  # a warning may name the cause
        if arguments.file.suffix == ".onnx":
            error.where = named_by_file(error.where, arguments.file, source.module)
        raise
    shown, refused = _show((*source.warnings, *build.warnings), policy)
    if refused:
        return 1
    if arguments.explain is not None:
        for artifact in build.artifacts:
            print(f"{artifact.target}:\n{artifact.lowering.explain() or 'nothing is lowered'}")
        return 0
    written = build.write(arguments.out, arguments.file, arguments.force)
    if arguments.json:
        print(json.dumps({**_report(build, written), "warnings": [w.to_dict() for w in shown]}))
        return 0
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
    return 0


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


def _show(found: Iterable[ProgramWarning], policy: Policy) -> tuple[list[ProgramWarning], bool]:
    """Prints warnings to stderr, each once; returns those, and whether one of them is an error by `-W`."""
    from bb_host.diagnostics import in_order

    actions = [(warning, policy.action(warning)) for warning in in_order(found)]
    for warning, action in actions:
        if action != "ignore":
            print(warning.render("error" if action == "error" else "warning"), file=sys.stderr)
    shown = [warning for warning, action in actions if action != "ignore"]
    return shown, any(action == "error" for _, action in actions)


def _warning_option(text: str) -> str:
    from bb_host.diagnostics import Policy

    try:
        Policy.parse([text])
    except BBError as error:
        raise argparse.ArgumentTypeError(f"{error.what} ({error.hint})") from None
    return text


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


def _size(text: str) -> int:
    from bb_host.columns import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _inspect(arguments: argparse.Namespace) -> int:
    from onnx import ModelProto

    from bb_host.compiler.driver import as_program
    from bb_host.diagnostics import Policy
    from bb_host.plain import is_plain
    from bb_host.report.inspection import describe, describe_model, render
    from bb_host.source_file import read_source

    load_all(arguments.load)
    source = read_source(arguments.file)
    size = arguments.file.stat().st_size if arguments.file.suffix == ".onnx" else 0
    if isinstance(source.module, ModelProto) and is_plain(source.module):
        found = describe_model(source.module, size)
    else:
        program = as_program(source.module)
        _show((*source.warnings, *program.warnings), Policy())
        found = describe(program, size)
    print(json.dumps(found) if arguments.json else render(found, arguments.file.name))
    return 0


def _graph(arguments: argparse.Namespace) -> int:
    from onnx import ModelProto

    from bb_host.compiler import Compiler
    from bb_host.compiler.driver import as_program
    from bb_host.diagnostics import Policy
    from bb_host.plain import is_plain
    from bb_host.report.drawing import program_of_model, write_drawing
    from bb_host.source_file import read_source

    load_all(arguments.load)
    source = read_source(arguments.file)
    plain = isinstance(source.module, ModelProto) and is_plain(source.module)
    program = program_of_model(source.module) if plain else as_program(source.module)
    if not plain and arguments.file.suffix == ".py" and not arguments.recorded:
        program = (source.compiler or Compiler()).run(program).program
    _show((*source.warnings, *program.warnings), Policy())
    written, remark = write_drawing(program, arguments.out, ops=False if arguments.partitions else None)
    print(remark or written)
    return 0


def _symbolize(arguments: argparse.Namespace) -> int:
    from bb_edge.input_files import read_artifact
    from bb_host.report.symbolize import SourceMap

    found = SourceMap(read_artifact(arguments.map), str(arguments.map))
    with contextlib.ExitStack() as stack:
        # A log that was cut in the middle of a character is a log all the same.
        log = (
            sys.stdin
            if arguments.log is None
            else stack.enter_context(arguments.log.open(encoding="utf-8", errors="replace"))
        )
        lines = known = 0
        for line, sources in found.annotated(iter(log)):
            lines, known = lines + 1, known + bool(sources)
            if arguments.json:
                if sources:
                    print(json.dumps({"line": line, "sources": [asdict(source) for source in sources]}))
                continue
            print(line, flush=True)
            for source in sources:
                print(f"    {source}", flush=True)
    if lines and not known:
        print(
            f"bb-host: no line names an op of {found.module} on {found.target}: is {arguments.map} the map of"
            " the artifact that ran?",
            file=sys.stderr,
        )
    return 0


def _versions(arguments: argparse.Namespace) -> int:
    names = (DISTRIBUTION, "onnx", "numpy", "protobuf", "cbor2", "flatbuffers")
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    if arguments.json:
        print(json.dumps(found))
        return 0
    for name, version in found.items():
        print(f"{name} {version or 'not installed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
