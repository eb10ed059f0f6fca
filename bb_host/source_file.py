"""What `bb-host` is given: a program file in Python, or a model in ONNX."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import linecache
import os
import re
import reprlib
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

from bb_edge.ir.errors import BBError
from bb_host.author_lines import is_ours
from bb_host.diagnostics import ProgramWarning
from bb_host.errors import SourceFileError
from bb_host.onnx_io.files import load_weights, read_onnx

if TYPE_CHECKING:
    from bb_host.compiler.driver import Compiler

ENTRY = "program"
"""The function that a program file defines."""


@dataclass(frozen=True, slots=True)
class Source:
    """`module` is a recorded Program or a ModelProto; `compiler` is None where the file names none.

    `warnings` are those of recording it here, and what the file's own recording and compiling issued.
    """

    module: Any
    compiler: Compiler | None = None
    warnings: tuple[ProgramWarning, ...] = ()


def read_source(path: Path) -> Source:
    """Reads `FILE.py` or `FILE.onnx`. SourceFileError, or the author's own typed error."""
    if path.suffix == ".onnx":
        return Source(read_model(path))
    if path.suffix != ".py":
        raise SourceFileError(f"neither .py nor .onnx: {path.name!r}", str(path), "name a program or a model")
    here = os.getcwd()
    try:
        with _issued() as issued:
            source = _read_program(path)
    finally:
        os.chdir(here)  # what the file does with its folder does not move the command line's paths
    return replace(source, warnings=(*issued, *getattr(source.module, "warnings", ())))


@contextlib.contextmanager
def _issued() -> Iterator[list[ProgramWarning]]:
    """Gathers the ProgramWarnings that are issued in the block; others pass through."""
    issued: list[ProgramWarning] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ProgramWarning)
        show = warnings.showwarning

        def gather(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if isinstance(message, ProgramWarning):
                issued.append(message)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = gather
        yield issued


def _read_program(path: Path) -> Source:
    module = _import(path)
    entry = getattr(module, ENTRY, None)
    if not callable(entry):
        raise SourceFileError(
            f"no function {ENTRY}()", str(path), "define one that returns (module, compiler)"
        )
    _takes_nothing(entry, path)
    source = _source(_made(entry, path), _returns(entry, path))
    if hasattr(source.module, "record"):  # the author's `body` runs here
        return Source(_call(source.module.record, path), source.compiler)
    return source


def read_model(path: Path) -> Any:
    """The ModelProto in a file, external data included. Raises SourceFileError and FileRefused."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = read_onnx(path)
    except OSError as error:
        raise SourceFileError(error.strerror or str(error), str(path)) from error
    except (DecodeError, ValueError) as error:
        raise SourceFileError("no ONNX model", str(path), "copy the file again") from error
    if not model.graph.node and not model.functions:
        if model.graph.input or model.graph.output:
            what, hint = (
                "its graph has no nodes: it computes nothing",
                "add an Identity, or leave the model out",
            )
            raise SourceFileError(what, str(path), hint)
        what = "it is empty" if not path.stat().st_size else "no graph and no function in it"
        raise SourceFileError(f"no ONNX model: {what}", str(path), "copy or export the file again")
    try:
        load_weights(model, path.parent)
    except (onnx.checker.ValidationError, OSError, ValueError, RuntimeError) as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        hint = "the file of its weights belongs beside it, as it was when it was exported"
        raise SourceFileError(f"its weights cannot be read: {text}", str(path), hint) from error
    return model


def _import(path: Path) -> ModuleType:
    """Imports a file under its own name, with its folder importable, as `python FILE.py` would."""
    if not path.is_file():
        raise SourceFileError("no such file", str(path))
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules else f"bb_program_{path.stem}"  # `json.py` is not json
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    loader = spec.loader
    assert loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look a class's module up
    _call(lambda: loader.exec_module(module), path)
    return module


def _call(function: Any, path: Path) -> Any:
    """Runs the author's code; what it raises becomes an error at the author's line."""
    try:
        return function()
    except BBError:
        raise
    except SyntaxError as error:
        file = error.filename or str(path)
        raise SourceFileError(f"SyntaxError: {error.msg}", file=file, line=error.lineno or 0) from error
    except SystemExit as error:
        file, line = _author_line(error, path)
        said = f": {error.code}" if isinstance(error.code, str) else ""
        raise SourceFileError(
            f"it ends the process when it is compiled{said}",
            hint="raise an error that says why, or put what is for running it under `if __name__ =="
            " '__main__':`",
            file=file,
            line=line,
        ) from error
    except Exception as error:
        file, line = _author_line(error, path)
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        hint = _of_a_shape(error, file, line) or _of_a_relative_import(error, file, line)
        raise SourceFileError(what, hint=hint, file=file, line=line) from error


def _of_a_shape(error: Exception, file: str, line: int) -> str:
    """The remedy for code that counts on the shape of a value of which none is known while recording."""
    if not isinstance(error, TypeError) or "NoneType" not in str(error):
        return ""
    if ".shape" not in linecache.getline(file, line):
        return ""
    return (
        "the .shape of a value is None where nothing says it while the program is recorded: take it on the"
        " device with g.onnx.shape(x), or declare it where the value comes from"
    )


def _of_a_relative_import(error: Exception, file: str, line: int) -> str:
    """The remedy for `from .conf import RATE`: a program's file is imported by itself, in no package."""
    if not isinstance(error, ImportError) or "no known parent package" not in str(error):
        return ""
    code = linecache.getline(file, line).strip()
    neighbour = re.match(r"from \.(\w[\w.]*) import ([^#]*)|from \. import ([^#]*)", code)
    if neighbour is None:
        return "a program's file is in no package, and its folder is importable: name modules from there"
    module, names, modules = neighbour.groups()
    own = (f"from {module} import {names}" if module else f"import {modules}").strip()
    return f"the folder of the program's file is importable: write `{own}`, without the dot"


def _made(entry: Any, path: Path) -> Any:
    """What `program()` returns. SourceFileError where it is `async def`, or a generator: it did not run."""
    found = _call(entry, path)
    if inspect.iscoroutine(found) or inspect.isgenerator(found):
        found.close()
    elif not inspect.isasyncgen(found):
        return found
    code = getattr(entry, "__code__", None)
    raise SourceFileError(
        f"{ENTRY}() is `async def`, or holds a `yield`: calling it runs nothing of it",
        hint=f"write `def {ENTRY}():`, and return (module, compiler)",
        file=code.co_filename if code is not None else str(path),
        line=code.co_firstlineno if code is not None else 0,
    )


def _author_line(error: BaseException, path: Path) -> tuple[str, int]:
    """The innermost frame in the file's own folder; the file itself where there is none.

    What is frozen in Python (`<frozen os>`) is not a file there, and packages may be installed in that
    folder.
    """
    folder = path.resolve().parent

    def is_own(file: str) -> bool:
        found = Path(file).resolve()
        if file.startswith("<") or not found.is_relative_to(folder) or is_ours(file):
            return False
        return not {"site-packages", "dist-packages"} & set(found.relative_to(folder).parts)

    own = [f for f in traceback.extract_tb(error.__traceback__) if is_own(f.filename)]
    return (own[-1].filename, own[-1].lineno or 0) if own else (str(path), 0)


def _takes_nothing(entry: Any, path: Path) -> None:
    """`program()` is called without arguments: SourceFileError where it needs some."""
    try:
        inspect.signature(entry).bind()
    except TypeError as error:
        code = getattr(entry, "__code__", None)
        raise SourceFileError(
            f"{ENTRY}() is called without arguments, and it takes {inspect.signature(entry)}",
            hint="give its arguments defaults, or read them from a file or the environment",
            file=str(path),
            line=code.co_firstlineno if code is not None else 0,
        ) from error
    except ValueError:  # a callable without a signature: the call itself will tell
        return


def _returns(entry: Any, path: Path) -> tuple[str, int]:
    """Where `program()` returns: its last line that does something."""
    code = getattr(entry, "__code__", None)
    if code is None:
        return str(path), 0
    return code.co_filename, max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)


def _source(found: Any, line: tuple[str, int]) -> Source:
    """What `program()` returned, as a source. SourceFileError at its line where it is none."""
    from bb_host.compiler.driver import Compiler, Recordable
    from bb_host.ir.program import Program

    def wrong(what: str, hint: str) -> SourceFileError:
        return SourceFileError(f"{ENTRY}() returns {what}", hint=hint, file=line[0], line=line[1])

    values = found if isinstance(found, tuple) else (found, None)
    if len(values) != 2:
        raise wrong(f"{len(values)} values", "return (module, compiler)")
    module, compiler = values
    for value in values:
        if isinstance(value, type):
            raise wrong(f"the class {value.__name__}", f"return an instance: {value.__name__}(…)")
    if module is None:
        raise wrong("nothing", "return (module, compiler)")
    if isinstance(module, Compiler):
        order = "" if len(values) == 1 or compiler is None else ", in this order"
        raise wrong("a Compiler, which is not a program", f"return (module, compiler){order}")
    if not isinstance(module, Program | Recordable) and not hasattr(module, "metadata_props"):
        raise wrong(f"{reprlib.repr(module)}, which is not a program", "return (module, compiler)")
    if compiler is not None and not isinstance(compiler, Compiler):
        raise wrong(f"{reprlib.repr(compiler)} as the compiler", "return (module, Compiler().bind_…(…))")
    return Source(module, compiler)
