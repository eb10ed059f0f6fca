"""`--target edge`: from a module or a model to one artifact per target, in memory and on disk.

1. compile (unless it is compiled) → 2. collapse → per target: 3. quantize where asked, 4. strip, 5. lower to
TFLite where asked, 6. plan memory, 7. source map, 8. budget and report. Everything is checked before anything
is written: ONNX's checker on every model, the device's own `load`, and the device's RAM and flash where they
are given. Files appear whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx.checker

from bb_edge.ir import keys
from bb_edge.ir.errors import CompileError
from bb_edge.loading import load
from bb_host.diagnostics import ProgramWarning, issue
from bb_host.edge.budget import Budget, BudgetError, Limits, budget_of, refuse
from bb_host.edge.collapse import collapse
from bb_host.edge.memory_plan import PlannedGraph, plan_program
from bb_host.edge.quantize.errors import NothingToQuantizeError
from bb_host.edge.quantize.qdq import PAIRS_OPSET
from bb_host.edge.quantize.step import quantize_program
from bb_host.edge.report import TargetReport, describe_target
from bb_host.edge.source_map import source_map, to_json
from bb_host.edge.strip import strip, targets_of
from bb_host.edge.tflite.lower import BackendChoice, Lowering, lower_program
from bb_host.program import Program
from bb_host.program_proto import from_proto, to_bytes

if TYPE_CHECKING:
    from bb_host.compiler.driver import Compiler
    from bb_host.compiler.pipeline import PassReport
    from bb_host.edge.quantize import Accuracy, Quantization

__all__ = ["Artifact", "Build", "BudgetError", "EdgeError", "Limits", "build_edge", "compile_edge"]


class EdgeError(CompileError):
    """An artifact that would not be valid, or cannot be written."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One target's artifact. `accuracy` is what int8 changes on the calibration data."""

    target: str
    program: Program
    data: bytes
    source_map: bytes
    report: TargetReport
    planned: tuple[PlannedGraph, ...]
    budget: Budget
    lowering: Lowering
    accuracy: Accuracy | None = None

    @property
    def file(self) -> str:
        """Its file name."""
        return self.report.file


@dataclass(frozen=True, slots=True)
class Build:
    """What compiling gave: the portable model, and an artifact per target.

    `data` is the portable model's file, empty where there is none (an ordinary ONNX model goes straight to
    its one artifact). `passes` are the compiler's reports, empty for a model that was compiled before;
    `steps_ns` times the back half.
    """

    module: str
    program: Program
    data: bytes
    artifacts: tuple[Artifact, ...]
    passes: tuple[PassReport, ...] = ()
    steps_ns: Mapping[str, int] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[ProgramWarning, ...]:
        """What recording, the bindings and the passes warn about, each once, by file and line."""
        return self.program.warnings

    @property
    def files(self) -> dict[str, bytes]:
        """File names and contents."""
        found = {f"{_file_name(self.module)}.onnx": self.data} if self.data else {}
        for artifact in self.artifacts:
            found[artifact.file] = artifact.data
            found[artifact.file.removesuffix(".onnx") + ".map.json"] = artifact.source_map
        return found

    def write(self, out_dir: str | Path, keep: Sequence[Path] = ()) -> list[Path]:
        """Writes all files, or none: each is written beside its place and then put there.

        EdgeError where the folder cannot be written, or a file of `keep` (the source) would be replaced.
        """
        folder = Path(out_dir)
        for path in keep:
            if path.resolve().parent == folder.resolve() and path.name in self.files:
                raise EdgeError("the result would take its place", str(path), "choose another output folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _write_all(folder, self.files)
        except OSError as error:
            raise EdgeError(error.strerror or str(error), str(error.filename or folder)) from error


def compile_edge(
    source: Any,
    compiler: Compiler | None = None,
    out_dir: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    max_batch: int | None = None,
    limits: Limits | None = None,
    backend: BackendChoice = "numpy",
    quantization: Quantization | None = None,
) -> Build:
    """Compiles a module (or a recorded, compiled or ordinary ONNX model) for devices.

    With `out_dir` the files are written there: `<Module>.onnx`, and per target
    `<Module>.<Target>.edge.onnx` and `.edge.map.json`. `shapes` fixes inputs of an ordinary ONNX model,
    `max_batch` is what memory is planned for where a batch is open, `limits` are the device's,
    `quantization` says what is stored in int8 or float16.
    `backend` is what runs tensor work: `tflite` lowers all that it can, `auto` what gains by it.
    Raises typed errors (`BBError`), BudgetError over a limit. Issues the program's warnings through Python's
    `warnings`; `build_edge` leaves them in its result.
    """
    build = build_edge(
        source,
        compiler,
        shapes,
        max_batch=max_batch,
        limits=limits,
        backend=backend,
        quantization=quantization,
    )
    issue(build.warnings)
    if out_dir is not None:
        build.write(out_dir)
    return build


def build_edge(
    source: Any,
    compiler: Compiler | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    portable: bool = False,
    max_batch: int | None = None,
    limits: Limits | None = None,
    backend: BackendChoice = "numpy",
    quantization: Quantization | None = None,
) -> Build:
    """`compile_edge` without files; `portable` stops at the compiled model."""
    limits = limits or Limits()
    if max_batch is not None and max_batch < 1:
        raise EdgeError(f"a batch of {max_batch}", "max_batch", "it is at least 1")
    if portable and (limits.ram is not None or limits.flash is not None):
        raise EdgeError("the portable model is for no device", "limits", "RAM and flash are a target's")
    if portable and quantization is not None:
        raise EdgeError("the portable model is for no device", "quantization", "weights are a target's")
    in_pairs = quantization is not None and quantization.mode == "int8"
    program, passes = _compiled(source, compiler, shapes, PAIRS_OPSET if in_pairs else 0)
    module = program.meta.get(keys.MODULE_KEY) or program.name
    steps: dict[str, int] = {}
    data = b""
    if keys.STRIPPED_KEY not in program.meta:
        with _timed(steps, "to_proto"):
            data = to_bytes(program)
        with _timed(steps, "check"):
            _check(data, f"module {module}")
    if portable:
        return Build(module, program, data or to_bytes(program), (), passes, steps)
    with _timed(steps, "collapse"):
        collapsed = collapse(program)
    artifacts = []
    empty: list[NothingToQuantizeError] = []
    targets = targets_of(program)
    for target in targets:
        source_program, accuracy = collapsed.program, None
        if quantization is not None:
            with _timed(steps, "quantize"):
                try:
                    source_program, accuracy = quantize_program(source_program, target, quantization)
                except NothingToQuantizeError as error:  # another target of the program may have weights
                    empty.append(error)
                    if len(empty) == len(targets):
                        raise
        with _timed(steps, "strip"):
            stripped = strip(source_program, target)
        with _timed(steps, "lower"):
            lowered, lowering = lower_program(stripped.program, target, backend)
        with _timed(steps, "plan"):
            final, planned = plan_program(lowered, target, max_batch)
            artifact = to_bytes(final)
        with _timed(steps, "check"):
            _check(artifact, f"target {target}")
        with _timed(steps, "report"):
            mapped = to_json(source_map(source_program, collapsed.origins, stripped, artifact))
            file = f"{_file_name(module)}.{_file_name(target)}.edge.onnx"
            budget = budget_of(
                final, target, artifact, planned, limits, models=lowering.models, max_batch=max_batch
            )
            report = describe_target(program, final, target, artifact, file, planned, budget, lowering)
        artifacts.append(
            Artifact(target, final, artifact, mapped, report, planned, budget, lowering, accuracy)
        )
    refuse([artifact.budget for artifact in artifacts], limits)
    return Build(module, program, data, tuple(artifacts), passes, steps)


def _compiled(
    source: Any, compiler: Compiler | None, shapes: Mapping[str, Sequence[int]] | None, opset: int
) -> tuple[Program, tuple[PassReport, ...]]:
    """`opset` is the oldest that an ordinary model may be in; an older one is converted."""
    from bb_host.compiler.driver import Compiler, as_program
    from bb_host.onnx_model import at_least_opset
    from bb_host.plain import compile_plain, is_plain

    if hasattr(source, "graph") and hasattr(source, "metadata_props"):
        if is_plain(source):
            return compile_plain(at_least_opset(source, opset), shapes=shapes), ()
        source = from_proto(source)
    if shapes:
        raise EdgeError("shapes are given for a program", "shapes", "they fix inputs of ordinary ONNX models")
    program = as_program(source)
    if keys.STRIPPED_KEY in program.meta:
        raise EdgeError("it is an edge artifact already", f"model {program.name}", "give the portable model")
    if keys.COMPILED_KEY in program.meta:
        return program, ()
    compilation = (Compiler() if compiler is None else compiler).run(program)
    return compilation.program, compilation.passes


def _check(data: bytes, where: str) -> None:
    try:
        onnx.checker.check_model(data)
    except (onnx.checker.ValidationError, ValueError) as error:  # it leaks UnicodeDecodeError and others
        raise EdgeError(
            f"ONNX's checker refuses it: {error}", where, "report it: the program is at fault"
        ) from error
    load(data)


@contextlib.contextmanager
def _timed(steps: dict[str, int], name: str) -> Iterator[None]:
    begun = time.perf_counter_ns()
    yield
    steps[name] = steps.get(name, 0) + time.perf_counter_ns() - begun


# --- files ----------------------------------------------------------------------------------------


def _file_name(name: str) -> str:
    """A name as a file name can hold it, on every system."""
    return re.sub(r"[^\w.-]+", "_", name).lstrip(".") or "module"


def _write_all(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    written: list[tuple[str, Path]] = []
    try:
        for name, data in files.items():
            handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
            written.append((temporary, folder / name))
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(handle)
            os.chmod(temporary, 0o644)  # mkstemp gives it to its owner alone
        for temporary, place in written:
            os.replace(temporary, place)
    finally:
        for temporary, _ in written:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    return [place for _, place in written]
