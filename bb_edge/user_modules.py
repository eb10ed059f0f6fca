"""Imports the modules of users that register components, from `--load` or from a configuration.

A name that ends in `.py` or holds a `/` is a file; any other is the dotted name of a module. The folder of
the file and the working directory are appended to the module search path: a module there is found, but never
instead of an installed one.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from bb_edge.input_files import refuse_special
from bb_edge.ir.errors import BBError
from bb_edge.ir.fault_lines import fault_line, shown_path
from bb_edge.ir.suggestions import suggestion

__all__ = ["UserModuleError", "add_load", "import_user_module", "is_file_name"]


class UserModuleError(BBError):
    """A module cannot be loaded; `where` is the line at fault, or the module's name if there is no line."""


def add_load(parser: argparse.ArgumentParser) -> None:
    """Adds `--load` to the parser of a verb that opens an artifact or a program."""
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a file, or a module by its dotted name, that registers components (repeatable)",
    )


def is_file_name(name: str) -> bool:
    """Whether the name is that of a file; else it is the dotted name of a module."""
    return name.endswith(".py") or "/" in name or os.sep in name


def import_user_module(name: str) -> ModuleType:
    """Imports a file or a module, once.

    Raises UserModuleError at the line at fault, whatever the code of the module raises, and FileRefused for a
    FIFO or a device.
    """
    if not name:
        raise UserModuleError("the name is empty", "--load", "give FILE.py or the name of a module")
    if is_file_name(name):
        return _import_file(name)
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserModuleError(
            "it is not the name of a module", f"--load {name}", "give FILE.py or a dotted name"
        )
    _search_also(os.getcwd())
    importlib.invalidate_caches()
    return _guarded(lambda: importlib.import_module(name), name)


def _import_file(name: str) -> ModuleType:
    path = Path(os.path.realpath(os.path.expanduser(name)))
    if path.is_dir():
        raise UserModuleError(
            "it is a folder", name, "give one of its files, or a package by its dotted name"
        )
    refuse_special(path)  # a FIFO would be waited for
    if not path.is_file():
        files = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = suggestion(path.name, files)
        hint = near if near.endswith("?") else f"it was looked for at {path}"
        raise UserModuleError("there is no such file", name, hint)
    if path.suffix != ".py":
        raise UserModuleError("it is not a .py file", name, "give FILE.py or the dotted name of a module")
    for module in list(sys.modules.values()):
        file = module.__dict__.get("__file__") if isinstance(module, ModuleType) else None
        if (
            isinstance(file, str)
            and os.path.basename(file) == path.name
            and os.path.realpath(file) == str(path)
        ):
            return module
    _search_also(str(path.parent))
    module_name = _name_for(path)
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UserModuleError("Python cannot import it", name, "give FILE.py or the dotted name of a module")
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    sys.modules[module_name] = module  # dataclasses and pickle look the module of a class up
    before = set(sys.modules)
    try:
        _guarded(lambda: loader.exec_module(module), name)
        _refuse_strangers(path, [m for n, m in list(sys.modules.items()) if n not in before])
    except BBError:
        del sys.modules[module_name]  # half a module is of no use: the next attempt reads the file again
        raise
    return module


def _refuse_strangers(path: Path, new: Iterable[ModuleType]) -> None:
    """Raises UserModuleError where a file imports a neighbour and gets the module of another folder.

    Python keeps one module per name, so of two folders with a module of that name the first one wins.
    """
    folder = path.parent
    files = [path, *(Path(f) for m in new if isinstance(f := m.__dict__.get("__file__"), str))]
    for file in files:
        if file.parent != folder or file.suffix != ".py":
            continue
        for line, wanted in _imports(file):
            own = folder / f"{wanted}.py"
            loaded = getattr(sys.modules.get(wanted), "__file__", None)
            if not isinstance(loaded, str) or not own.is_file() or os.path.realpath(loaded) == str(own):
                continue
            if os.path.dirname(os.path.realpath(loaded)) in _searched:
                raise UserModuleError(
                    f"it imports {wanted!r}, but gets {shown_path(loaded)} and not {shown_path(str(own))}",
                    f"{shown_path(str(file))}:{line}",
                    "give one of the two files another name",
                )


def _imports(file: Path) -> list[tuple[int, str]]:
    """The lines and modules of a file's absolute imports."""
    import ast  # only for users' files

    imports = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            imports.append((node.lineno, node.module.partition(".")[0]))
    return imports


_searched: set[str] = set()
"""The folders of the files that were loaded."""


def _search_also(folder: str) -> None:
    _searched.add(folder)
    if folder not in sys.path:
        sys.path.append(folder)


def _name_for(path: Path) -> str:
    """The module name of a file: its own name unless another module has it (`json.py` is not json)."""
    stem = path.stem
    try:
        spec = importlib.util.find_spec(stem) if stem.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    same = spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == str(path)
    return stem if stem not in sys.modules and same else f"bb_loaded_{stem}"


def _guarded(load: Callable[[], object], name: str) -> ModuleType:
    """Runs the code of a module. Raises UserModuleError for whatever it raises."""
    try:
        return load()  # type: ignore[return-value]
    except SyntaxError as error:
        place = f"{shown_path(error.filename)}:{error.lineno}" if error.filename and error.lineno else name
        raise UserModuleError(f"SyntaxError: {error.msg}", place, "correct that line") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and _is_asked_for(error.name, name):
            hint = f"give a file (--load ./{name.rpartition('.')[2]}.py) or a module that Python can find; "
            raise UserModuleError(
                f"there is no module {error.name!r}",
                f"--load {name}",
                f"{hint}it also looks in {os.getcwd()}",
            ) from error
        raise UserModuleError(
            _what(error), fault_line(error) or f"--load {name}", _remedy(error, name)
        ) from error


def _is_asked_for(missing: str | None, name: str) -> bool:
    """Whether the missing module is the one that the user named, or a package above it."""
    return missing is not None and (name == missing or name.startswith(f"{missing}."))


def _what(error: BaseException) -> str:
    if isinstance(error, BBError):
        return error.what
    if isinstance(error, SystemExit):
        return "it exits the process when it is imported"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _remedy(error: BaseException, name: str) -> str:
    if isinstance(error, BBError):
        return error.hint or "correct that line"
    if isinstance(error, SystemExit):
        return "put the code that runs it under `if __name__ == '__main__':`"
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name} on this machine, or import it where it is needed"
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "load the package by its dotted name instead of the file"
    return "correct that line"
