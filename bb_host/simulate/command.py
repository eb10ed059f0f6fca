"""The verb `simulate`: compiles, runs the scenarios that are asked for, and shows what came of them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from bb_edge.cli.endings import Exit
from bb_edge.components.stored_samples import NOT_FINITE
from bb_edge.engine.program.program import OUTPUT_OP, Program
from bb_edge.ir.suggestions import suggestion
from bb_edge.loading import load
from bb_edge.registry import UnregisteredConcreteError, default_registry, forgotten_register, load_all
from bb_edge.short_deadlines import short_deadlines
from bb_host.apart import apart
from bb_host.errors import RoundsInVain, ScenarioError
from bb_host.simulate.accounts import Event, Trouble
from bb_host.simulate.asked import CompiledTarget, scenario_of, swept
from bb_host.simulate.conditions import NS
from bb_host.simulate.report import Columns, ProgressLine, event_record, last_numbers, not_finite, summary
from bb_host.simulate.results import Results
from bb_host.simulate.room import check_room, open_sizes
from bb_host.simulate.run import Outcome, simulate
from bb_host.simulate.saved import FLAG, SavedModel, saved_model
from bb_host.simulate.scenario import Scenario

MOST_SHOWN = 8
"""Numbers in the last line of a run: it stays a line; `summary.json` has all of them."""


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb; returns its exit code. Raises ScenarioError and what compiling and installing raise."""
    load_all(arguments.load)
    saves = arguments.save_model is not None
    artifacts, modules, path, portable = apart(_compiled, arguments.file, tuple(arguments.load), saves)
    sys.path[:0] = [folder for folder in path if folder not in sys.path]  # workers import from there, too
    programs = [load(artifact.data) for artifact in artifacts]
    base = scenario_of(arguments, artifacts, modules)
    saved: SavedModel | None = None
    if saves:
        if arguments.sweep:
            raise ScenarioError("each run would write the file anew", FLAG, "leave out --sweep")
        saved = saved_model(arguments.save_model, base.groups, programs, portable)
        base = dataclasses.replace(base, models=((saved.peer_class, saved.slot),))
        portable = b""
    if arguments.plot is not None:  # before hours have passed
        _check_columns(Columns.parse(arguments.plot), programs)
    if arguments.seconds is not None and not 0 < arguments.seconds < 1e9:
        raise ScenarioError(f"{arguments.seconds} s", "--for", "give seconds above 0")
    runs: dict[str, tuple[Outcome, dict[str, Any]]] = {}
    scenarios = list(swept(base, arguments))
    for _, scenario in scenarios:  # before the first of them runs
        for group, program in zip(scenario.groups, programs, strict=True):
            check_room(group, program)
    results = Results(arguments.out)
    for label, scenario in scenarios:
        runs[label] = _run(label, scenario, arguments, results, artifacts)
        if runs[label][0].counters.get("outbound.too_large"):
            for group, program in zip(scenario.groups, programs, strict=True):
                for note in open_sizes(group, program):
                    print(f"bb-host: {note}", file=sys.stderr)
        told = runs[label][1]
        results.add(told)
        if arguments.json:
            print(json.dumps({"summary": told}), flush=True)
    _finish(runs, arguments, results)
    if saved is not None:
        ((outcome, _),) = runs.values()
        print(f"bb-host: {saved.write(outcome.models[saved.peer_class, saved.slot])}", file=sys.stderr)
    in_vain = [label for label, (outcome, _) in runs.items() if _failed(outcome)]
    return Exit.NO_RESULT if in_vain else Exit.DONE


def _failed(outcome: Outcome) -> bool:
    """Whether an op has failed in each round that has ended."""
    return 0 < outcome.counters.get("rounds.ended", 0) == outcome.counters.get("rounds.failed", 0)


def _check_columns(columns: Columns, programs: Sequence[Program]) -> None:
    """ScenarioError for a topic that no node of the program says anything under, and for a part that its
    bundles do not have.
    """
    parts: dict[str, set[float]] = {}  # by topic; without end where it is not a bundle
    for graph in (graph for program in programs for graph in program.graphs.values()):
        bundles = {op.outputs[0]: len(op.inputs) for op in graph.ops if op.op_type == "Bundle"}
        for op in graph.ops:
            if op.op_type in ("AppEmit", "AppNotify", OUTPUT_OP):
                name = op.attrs["name"]
                topic = name.decode() if isinstance(name, bytes) else str(name)
                parts.setdefault(topic, set()).add(bundles.get(op.inputs[0], inf) if op.inputs else inf)
    topic = columns.topic
    if topic not in parts:
        hint = suggestion(topic, sorted(parts), "topics: ") or "it has none: record g.app_emit(TOPIC, value)"
        raise ScenarioError(f"the program emits nothing under {topic!r}", "--plot", hint)
    most = max(parts[topic])
    if beyond := [index for index in columns.names if index >= most]:
        raise ScenarioError(
            f"the events of {topic!r} have {most} parts, and none at {beyond[0]}",
            "--plot",
            f"count from 0: 0 to {most - 1:.0f}",
        )


def _run(
    label: str,
    scenario: Scenario,
    arguments: argparse.Namespace,
    results: Results,
    artifacts: Sequence[CompiledTarget],
) -> tuple[Outcome, dict[str, Any]]:
    line = None if arguments.quiet else ProgressLine()

    def told(event: Event) -> None:
        write(event)
        if line is not None:
            line.clear()
        if arguments.json:
            print(json.dumps(event_record(event)), flush=True)
        elif not arguments.sweep:
            print(
                f"{event.at_ns / 1e9:10.3f} s  {event.node:12} {event.topic}  {json.dumps(event.value)}",
                flush=True,
            )

    def busy(text: str) -> None:
        if line is not None:
            line.clear()
            print("\n".join([f"bb-host: {text}", *_lines_in(text, artifacts)]), file=sys.stderr, flush=True)

    began = time.monotonic()
    with results.events_of(label) as write:
        try:
            outcome = simulate(
                scenario,
                arguments.workers,
                arguments.on,
                for_ns=None if arguments.seconds is None else round(arguments.seconds * NS),
                event=told,
                watch=line,
                busy=busy,
            )
        except RoundsInVain as error:
            asked = _lines_of_requests(artifacts)
            error.what += f"; {' and '.join(asked)} say whom they ask" if asked else ""
            short = dict.fromkeys(s for each in artifacts for s in short_deadlines(load(each.data)))
            error.what += "".join(f"; {deadline}" for deadline in short)
            raise
        except ScenarioError as error:
            error.what += "".join(f"; {found.strip()}" for found in _lines_in(error.what, artifacts))
            raise
        finally:
            if line is not None:
                line.clear()
    counts = {group.peer_class: group.count for group in scenario.groups}
    about = {"run": label, "seed": scenario.seed, "nodes": counts, "workers": arguments.workers}
    named = None if arguments.plot is None else Columns.parse(arguments.plot)
    found = {
        **summary(outcome, time.monotonic() - began, about),
        "last": last_numbers(outcome.events, named),
    }
    for kind, trouble in outcome.trouble.items():
        print(f"bb-host: {label or 'the run'}: {kind} {trouble}", file=sys.stderr)
        if lines := _lines_of(kind, trouble, artifacts):
            found["trouble"][kind]["source"] = lines
            print("\n".join(f"    {line}" for line in lines), file=sys.stderr)
    if _failed(outcome):
        ended = outcome.counters["rounds.ended"]
        why = "what is told above says which, and why"
        print(
            f"bb-host: {label or 'the run'}: an op has failed in each of {ended:,} rounds: {why}",
            file=sys.stderr,
        )
    if arguments.seconds is not None and outcome.simulated_ns < round(arguments.seconds * NS):
        print(
            f"bb-host: {label or 'the run'}: it ended at {outcome.simulated_ns / 1e9:,.3f} s, when its rounds"
            f" were over: --for {arguments.seconds:g} lengthens no run (write more rounds for that:"
            " g.rounds(…))",
            file=sys.stderr,
        )
    if outcome.waits:
        print(f"bb-host: {label or 'the run'}: {outcome.waits}", file=sys.stderr)
    notes = outcome.trouble.get("DataNotes")
    no_rows = "RoundBackedOff" in outcome.trouble and any(map(_reads_batches, artifacts))
    if strange := not_finite(outcome.events, notes is not None and NOT_FINITE in notes.text, no_rows):
        print(f"bb-host: {label or 'the run'}: {strange}", file=sys.stderr)
    return outcome, found


def _finish(
    runs: Mapping[str, tuple[Outcome, dict[str, Any]]], arguments: argparse.Namespace, results: Results
) -> None:
    """The table, and the picture."""
    events = {label: outcome.events for label, (outcome, _) in runs.items()}
    everything = [event for mine in events.values() for event in mine]
    columns = Columns.of(everything) if arguments.plot is None else Columns.parse(arguments.plot)
    if arguments.plot is not None and columns is not None and (missing := columns.without(everything)):
        print(f"bb-host: --plot: no event of {columns.topic!r} has a number at {missing}", file=sys.stderr)
    if not arguments.json:
        for label, (outcome, told) in runs.items():
            last = _last(columns, outcome.events, only=arguments.plot is not None)
            print(
                f"{label + ': ' if label else ''}{told['simulated_s']:,.2f} s simulated in "
                f"{told['seconds']:,.1f} s, {outcome.awake:,} nodes woke, "
                f"{outcome.sent_bytes / 1e6:,.2f} MB sent; last: {last}; trace {outcome.trace[:16]}"
            )
    if not results.draw(columns, events):
        print("bb-host: no picture: matplotlib is not installed", file=sys.stderr)


def _last(columns: Columns | None, events: Sequence[Event], only: bool) -> str:
    """The last numbers of a run in words, of several nodes their mean: the columns', and those of the other
    topics unless the columns `only` are asked for.
    """
    numbers = last_numbers(events, columns)
    shown = {} if columns is None else {name: name for name in columns.names.values()}
    for event in () if only else {event.topic: event for event in events}.values():
        if columns is None or event.topic != columns.topic:
            alone = not isinstance(event.value, list)
            shown |= {name: event.topic if alone else name for name in last_numbers((event,))}
    there = [f"{told} {float(numbers[name]):.6g}" for name, told in shown.items() if name in numbers]
    more = f", and {len(there) - MOST_SHOWN:,} more" if len(there) > MOST_SHOWN else ""
    nodes = 0 if columns is None else len(columns.rows(events))
    last = ", ".join(there[:MOST_SHOWN]) or "no numbers"
    return last + more + (f" (mean of {nodes:,} nodes)" if nodes > 1 else "")


# --- what is compiled -------------------------------------------------------------------------------------


def _reads_batches(artifact: CompiledTarget) -> bool:
    """Whether it has rounds, and reads the answers to a request as one batch."""
    graphs = load(artifact.data).graphs.values()
    rounds = any(op.op_type == "Repeat" for graph in graphs for op in graph.ops)
    return rounds and any(graph.stacks for graph in graphs)


def _lines_of_requests(artifacts: Sequence[CompiledTarget]) -> list[str]:
    """The author's lines that choose peers and ask them, in targets that have rounds."""
    from bb_host.report.symbolize import SourceMap

    maps = [SourceMap(artifact.source_map) for artifact in artifacts]
    choose = ("Sample", "Send", "SendReq", "SendReqBatched")
    found = [line for one in maps if one.lines_of("Repeat") for line in one.lines_of(*choose)]
    return sorted(
        dict.fromkeys(found), key=lambda line: (*line.rpartition(":")[:1], int(line.rpartition(":")[2]))
    )


def _lines_of(kind: str, trouble: Trouble, artifacts: Sequence[CompiledTarget]) -> list[str]:
    """The author's lines of the op that a failure names first: artifacts hold none."""
    from bb_host.report.symbolize import SourceMap  # brings parts of the compiler along

    for artifact in artifacts:
        if kind == "OpFailed" and trouble.text.startswith(f"{artifact.target}, "):
            return [str(found) for found in SourceMap(artifact.source_map).find(trouble.text)]
    return []


def _lines_in(text: str, artifacts: Sequence[CompiledTarget]) -> list[str]:
    """The author's lines of the ops that a text names behind their targets."""
    from bb_host.report.symbolize import SourceMap

    return [
        f"    {found}"
        for artifact in artifacts
        for named in re.findall(rf"\b{re.escape(artifact.target)}, ([\w.]+)", text)
        for found in SourceMap(artifact.source_map).find(named)
    ]


def _compiled(
    file: Path, loaded: Sequence[str], portable: bool
) -> tuple[list[CompiledTarget], list[str], list[str], bytes]:
    """Each target of a program's file; its own modules; where those are found; the whole program, if asked.

    Only here the compiler is imported, in a process that does not stay.
    """
    from bb_host.build import build_edge
    from bb_host.compiler import Compiler
    from bb_host.diagnostics import in_order
    from bb_host.source_file import read_source

    load_all(loaded)
    if file.suffix == ".onnx":
        raise ScenarioError("a model has nobody to talk to", str(file), "give the file of a program: FILE.py")
    source = read_source(file)
    build = build_edge(source.module, source.compiler or Compiler())
    for warning in in_order((*source.warnings, *build.warnings)):
        print(warning.render("warning"), file=sys.stderr)
    found = []
    for artifact in build.artifacts:
        target = load(artifact.data).targets[artifact.target]
        found.append(CompiledTarget(target.peer_class, artifact.target, artifact.data, artifact.source_map))
    modules = _own_modules([load(artifact.data) for artifact in found])
    return found, modules, list(sys.path), build.data if portable else b""


def _own_modules(programs: Sequence[Program]) -> list[str]:
    """The files and modules with components of the user's own, which a program's file may have imported.

    Each worker is a process that imports them anew.
    """
    found = []
    for program in programs:
        for target in program.targets.values():
            for slot, binding in target.bindings.items():
                try:
                    kind = default_registry().lookup(binding.type_name)
                except UnregisteredConcreteError as error:
                    remedy = forgotten_register(binding.type_name)
                    if remedy:
                        where = f"slot {slot!r} of {target.name}"
                        raise ScenarioError(error.what, where, remedy) from error
                    continue  # a worker tells of it, with the slot
                module = sys.modules[kind.__module__]
                name, file = module.__name__, getattr(module, "__file__", None)
                if not name.startswith("bb_edge.") and file:
                    found.append(name if "." in name else file)
    return found
