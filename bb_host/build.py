"""`--target edge`: from a module or a model to one artifact per target, in memory and on disk.

1. compile (unless it is compiled; an ordinary model is cleaned up) → 2. the passes of `pipeline.py` → 3. per
target: source map, budget and report. Everything is checked before anything is written: ONNX's checker on
every model, the device's own `load`, and the device's RAM and flash where they are given. Files appear whole
or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from google.protobuf.message import DecodeError

from bb_edge.input_files import FileRefused, read_artifact
from bb_edge.ir.plain_values import from_json
from bb_edge.new_files import remedy_of
from bb_host.compiler.driver import Compiler, as_program
from bb_host.diagnostics import ProgramWarning, issue
from bb_host.errors import EdgeError, NothingToQuantizeError, OverwriteError
from bb_host.ir.program import Program
from bb_host.ir.proto import from_proto, to_bytes
from bb_host.ir.spelling import module_of
from bb_host.onnx_io.files import read_onnx
from bb_host.onnx_io.model import at_least_opset
from bb_host.passes.analysis.identity import accepting
from bb_host.passes.analysis.kept_values import kept_bytes
from bb_host.passes.device.budget import Budget, Limits, budget_of, refuse
from bb_host.passes.device.memory_plan import PlannedGraph
from bb_host.passes.device.pipeline import (
    PORTABLE_PASSES,
    SHARED_PASSES,
    TARGET_PASSES,
    DeviceOptions,
    TargetProgram,
    check,
)
from bb_host.passes.device.quantize import Accuracy, Quantization
from bb_host.passes.device.quantize.qdq import PAIRS_OPSET
from bb_host.passes.device.strip import targets_of
from bb_host.passes.one_pass import Observer, Pass, PassReport, summed
from bb_host.passes.runner import run_passes
from bb_host.passes.tensor.clean_work import clean_work
from bb_host.passes.tensor.collapse import Collapsed
from bb_host.plain import compile_plain, is_plain
from bb_host.report.source_map import source_map, to_json
from bb_host.report.targets import TargetReport, describe_target
from bb_host.tflite.lower import BackendChoice
from bb_host.tflite.lowered import Lowering

DevicePass: TypeAlias = "Pass[TargetProgram, DeviceOptions]"


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
    its one artifact). `passes` are reports of all passes that ran, those of several targets summed.
    `name` is what files are named after; `structure` tells ordinary models apart: a digest of their ops,
    names and shapes, empty for programs.
    """

    module: str
    program: Program
    data: bytes
    artifacts: tuple[Artifact, ...]
    passes: tuple[PassReport, ...] = ()
    name: str = ""
    structure: str = ""

    @property
    def warnings(self) -> tuple[ProgramWarning, ...]:
        """What recording, the bindings and the passes warn about, each once, by file and line."""
        return self.program.warnings

    @property
    def files(self) -> dict[str, bytes]:
        """File names and contents."""
        found = {f"{file_name(self.name or self.module)}.onnx": self.data} if self.data else {}
        for artifact in self.artifacts:
            found[artifact.file] = artifact.data
            found[_map_name(artifact.file)] = artifact.source_map
        return found

    def write(self, out_dir: str | Path, source: Path | None = None, force: bool = False) -> list[Path]:
        """Writes all files, or none: each is written beside its place and then put there.

        `source` is the file that was compiled; the source maps note it, relative to the folder. EdgeError
        where the folder cannot be written, or the source would be replaced; OverwriteError where a file of
        another program or model would be, unless `force`.
        """
        folder = Path(out_dir)
        files = self.files
        if folder.exists() and not folder.is_dir():
            raise EdgeError(
                "it is a file, and results go to a folder", str(folder), "name a folder: -o build"
            )
        if source is not None and source.resolve().parent == folder.resolve() and source.name in files:
            raise EdgeError("the result would take its place", str(source), "choose another output folder")
        origin = "" if source is None else _relative(source, folder)
        for artifact in self.artifacts:
            name = _map_name(artifact.file)
            files[name] = _with_origin(files[name], origin, self.structure)
        if not force:
            self._refuse_overwriting(folder, origin)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _write_all(folder, files)
        except OSError as error:
            where = str(error.filename or folder)
            raise EdgeError(error.strerror or str(error), where, remedy_of(error)) from error

    def _refuse_overwriting(self, folder: Path, origin: str) -> None:
        known = False
        for name in [a.file for a in self.artifacts] + [n for n in self.files if n.endswith(".onnx")]:
            path = folder / name
            if known or not path.exists():  # what one artifact shows holds for the portable model beside it
                continue
            theirs = _origin_of(path)
            same_source = bool(origin) and origin == theirs.get("source")
            unnamed = not origin or not theirs.get("source")
            same = theirs.get("module") == self.module
            same = same and theirs.get("structure", self.structure) == self.structure
            if not same_source and not (unnamed and same):
                whose = theirs.get("source") or theirs.get("module")
                what = f"it was compiled from {whose}" if whose else "it is not a result of bb-host compile"
                raise OverwriteError(
                    f"a file of that name is there, and {what}",
                    str(path),
                    "give the result another name (--name NAME) or folder (-o), or replace it (--force)",
                )
            known = bool(theirs.get("source"))


def compile_edge(
    source: Any,
    compiler: Compiler | None = None,
    out_dir: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    max_batch: int | None = None,
    limits: Limits | None = None,
    backend: BackendChoice = "numpy",
    quantization: Quantization | None = None,
    name: str = "",
    force: bool = False,
    accepts: Sequence[Any] = (),
) -> Build:
    """Compiles a module (or a recorded, compiled or ordinary ONNX model) for devices.

    With `out_dir` the files are written there: `<Module>.onnx`, and per target
    `<Module>.<Target>.edge.onnx` and `.edge.map.json`; an ordinary model's one artifact is
    `<name>.edge.onnx`. `name` replaces the module's in names of files, and names an ordinary model (its
    graph's name where it is empty). Files of another program or model are replaced with `force` only.
    `shapes` fixes inputs of an ordinary ONNX model,
    `max_batch` is what memory is planned for where a batch is open, `limits` are the device's,
    `quantization` says what is stored in int8 or float16.
    `accepts` are compiled models of other versions of the program: nodes that run them are taken as peers.
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
        name=name,
        accepts=accepts,
    )
    issue(build.warnings)
    if out_dir is not None:
        build.write(out_dir, force=force)
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
    name: str = "",
    accepts: Sequence[Any] = (),
    observe: Observer | None = None,
) -> Build:
    """`compile_edge` without files; `portable` stops at the compiled model.

    `observe` sees what each pass gets and gives: a Program, a Function of an ordinary model, a TargetProgram.

    `accepts` are compiled models of other versions of the program: nodes that run them are taken as peers.
    """
    limits = limits or Limits()
    if max_batch is not None and max_batch < 1:
        raise EdgeError(f"a batch of {max_batch}", "max_batch", "it is at least 1")
    if portable and (limits.ram is not None or limits.flash is not None):
        raise EdgeError("the portable model is for no device", "limits", "RAM and flash are a target's")
    if portable and quantization is not None:
        raise EdgeError("the portable model is for no device", "quantization", "weights are a target's")
    in_pairs = quantization is not None and quantization.mode == "int8"
    reports: list[PassReport] = []
    opset = PAIRS_OPSET if in_pairs else 0
    program = _compiled(source, compiler, shapes, opset, name, observe, reports)
    if accepts:
        program = accepting(program, [as_program(model) for model in accepts])
    module = program.facts.module or program.name
    structure = _structure(source) if program.facts.stripped else ""
    base = file_name(name or module)
    options = DeviceOptions(backend, quantization, max_batch)

    def run(passes: Sequence[DevicePass], unit: TargetProgram) -> TargetProgram:
        unit, found, _ = run_passes(passes, unit, options, check, observe)
        reports.extend(found)
        return unit

    data = b""
    if not program.facts.stripped:
        data = run(PORTABLE_PASSES, TargetProgram(program)).data
    if portable:
        return Build(module, program, data or to_bytes(program), (), summed(reports), base, structure)
    shared = run(SHARED_PASSES, TargetProgram(program))
    cleaned = clean_work(Collapsed(shared.program, shared.origins), observe, reports)
    shared = dataclasses.replace(shared, program=cleaned.program, origins=cleaned.origins)
    artifacts = []
    empty: list[NothingToQuantizeError] = []
    targets = targets_of(program)
    for target in targets:
        done = run(TARGET_PASSES, dataclasses.replace(shared, target=target))
        if done.not_quantized is not None:
            empty.append(done.not_quantized)
        # The only target of an ordinary model is called as the model is.
        file = f"{base}.edge.onnx" if structure else f"{base}.{file_name(target)}.edge.onnx"
        artifacts.append(_artifact(program, done, file, limits, max_batch))
    if targets and len(empty) == len(targets):
        raise empty[-1]
    if max_batch is not None and not any(map(_is_batched, artifacts)):
        raise EdgeError(
            f"--max-batch {max_batch} has nothing to plan for: no batch is open in {module}",
            "max_batch",
            "leave it out; the shapes of inputs say how large a batch is",
        )
    refuse([artifact.budget for artifact in artifacts], limits)
    return Build(module, program, data, tuple(artifacts), summed(reports), base, structure)


def _artifact(
    portable: Program, done: TargetProgram, file: str, limits: Limits, max_batch: int | None
) -> Artifact:
    assert done.stripped is not None and done.unstripped is not None and done.loaded is not None
    final, target, data = done.program, done.target, done.data
    planned, lowering = done.planned, done.lowering
    mapped = to_json(source_map(done.unstripped, done.origins, done.stripped, data))
    models, kept = lowering.models, tuple(kept_bytes(portable, target))
    budget = budget_of(final, target, data, done.loaded, planned, limits.interpreter, models, max_batch, kept)
    report = describe_target(portable, final, target, data, file, planned, budget, lowering)
    return Artifact(target, final, data, mapped, report, planned, budget, lowering, done.accuracy)


def _is_batched(artifact: Artifact) -> bool:
    """Whether a stated largest batch went into a plan, or may be fed to a flatbuffer of an open batch."""
    return any(plan.batched for plan in artifact.planned) or any(
        m.open_batch for m in artifact.lowering.models
    )


def _compiled(
    source: Any,
    compiler: Compiler | None,
    shapes: Mapping[str, Sequence[int]] | None,
    opset: int,
    name: str,
    observe: Observer | None,
    reports: list[PassReport],
) -> Program:
    """`opset` is the oldest that an ordinary model may be in; an older one is converted."""
    if hasattr(source, "graph") and hasattr(source, "metadata_props"):
        if is_plain(source):
            model = at_least_opset(source, opset)
            return compile_plain(model, name, shapes, observe=observe, reports=reports)
        source = from_proto(source)
    if shapes:
        raise EdgeError("shapes are given for a program", "shapes", "they fix inputs of ordinary ONNX models")
    program = as_program(source)
    if program.facts.stripped:
        raise EdgeError("it is an edge artifact already", f"model {program.name}", "give the portable model")
    if program.facts.compiled:
        return program
    compilation = (Compiler() if compiler is None else compiler).run(program, observe)
    reports += compilation.passes
    return compilation.program


def file_name(name: str) -> str:
    """A name as a file name can hold it, on every system."""
    return re.sub(r"[^\w.-]+", "_", name).lstrip(".") or "module"


def _map_name(artifact: str) -> str:
    return artifact.removesuffix(".onnx") + ".map.json"


def _relative(source: Path, folder: Path) -> str:
    """The source as seen from the folder, so that a tree that is moved as a whole stays the same."""
    try:
        return Path(os.path.relpath(source.resolve(), folder.resolve())).as_posix()
    except ValueError:  # another drive
        return source.resolve().as_posix()


def _with_origin(source_map: bytes, origin: str, structure: str) -> bytes:
    more = {key: text for key, text in (("source", origin), ("structure", structure)) if text}
    return to_json({**json.loads(source_map), **more}) if more else source_map


def _origin_of(path: Path) -> dict[str, str]:
    """What a file says it was compiled from: its source map where there is one, else its own metadata."""
    try:
        content: Any = from_json(read_artifact(path.with_name(_map_name(path.name))))
        return {key: str(content.get(key, "")) for key in ("module", "source", "structure")}
    except (FileRefused, OSError, ValueError, AttributeError):
        pass  # no source map: the file itself knows less
    try:
        model = read_onnx(path)
        module = module_of(model)
    except (FileRefused, OSError, ValueError, DecodeError):
        return {}
    return {"module": module} if module else {}


def _structure(model: onnx.ModelProto) -> str:
    """A digest of an ordinary model without its weights: training it again leaves it as it is."""
    graph, digest = model.graph, hashlib.sha256()
    rows = [[n.op_type, *n.input, *n.output] for n in graph.node]
    rows += [[t.name, *map(str, t.dims)] for t in graph.initializer]
    rows += [[v.name] for v in (*graph.input, *graph.output)]
    for row in rows:
        digest.update(("\0".join(row) + "\n").encode())
    return digest.hexdigest()[:16]


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
