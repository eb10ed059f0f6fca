"""`bb-host`: compile programs for devices, and look at what is in a model. Every verb works offline."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from bb_edge.command_line import Parser
from bb_edge.ir.errors import BBError
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load
from bb_host.cli_acl import add_acl
from bb_host.cli_compile import add_compile, show_warnings
from bb_host.cli_init import add_init
from bb_host.cli_models import add_export
from bb_host.cli_simulate import add_simulate

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
    add_compile(verbs)
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
        print(
            f"bb-host: error: {error.filename or 'standard output'}: {error.strerror or error}",
            file=sys.stderr,
        )
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


def _inspect(arguments: argparse.Namespace) -> int:
    from onnx import ModelProto

    from bb_host.compiler.driver import as_program
    from bb_host.diagnostics import Policy
    from bb_host.errors import DrawingError
    from bb_host.plain import is_plain
    from bb_host.report.drawing import check_model, check_program
    from bb_host.report.inspection import describe, describe_model, render
    from bb_host.source_file import read_source

    load_all(arguments.load)
    source = read_source(arguments.file)
    size = arguments.file.stat().st_size if arguments.file.suffix == ".onnx" else 0
    plain = isinstance(source.module, ModelProto) and is_plain(source.module)
    if plain:
        found = describe_model(source.module, size)
    else:
        program = as_program(source.module)
        show_warnings((*source.warnings, *program.warnings), Policy())
        found = describe(program, size)
    print(json.dumps(found) if arguments.json else render(found, arguments.file.name), flush=True)
    if not plain:
        check_program(program)
        return 0
    with contextlib.suppress(DrawingError):  # what no backend can read is said above
        check_model(source.module)
    return 0


def _graph(arguments: argparse.Namespace) -> int:
    from onnx import ModelProto

    from bb_host.compiler import Compiler
    from bb_host.compiler.driver import as_program
    from bb_host.diagnostics import Policy
    from bb_host.plain import is_plain
    from bb_host.report.drawing import check_model, check_program, program_of_model, write_drawing
    from bb_host.source_file import read_source

    load_all(arguments.load)
    if arguments.recorded and arguments.file.suffix != ".py":
        what = f"--recorded has no effect: {arguments.file.name} is not a program file"
        raise BBError(what, "bb-host graph", "leave it out: an .onnx is drawn as it is")
    source = read_source(arguments.file)
    plain = isinstance(source.module, ModelProto) and is_plain(source.module)
    program = program_of_model(source.module) if plain else as_program(source.module)
    if not plain and arguments.file.suffix == ".py" and not arguments.recorded:
        program = (source.compiler or Compiler()).run(program).program
    show_warnings((*source.warnings, *program.warnings), Policy())
    write_drawing(program, arguments.out, ops=False if arguments.partitions else None)
    print(arguments.out, flush=True)
    if plain:
        check_model(source.module)
    else:
        check_program(program)
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
