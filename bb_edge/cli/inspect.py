"""The verb `bb-edge inspect`: shows what an artifact holds, as the device sees it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from bb_edge.cli.arguments import file_name
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load

if TYPE_CHECKING:
    from bb_edge.engine.program.program import Program


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser("inspect", help="show targets, slots, bindings and ops")
    p.add_argument("artifact", type=file_name, help="a compiled .onnx file")
    add_load(p)
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=run)


def describe(program: Program) -> dict[str, object]:
    """Describes a program in values that JSON has. A slot is `registered` if this device has its type."""
    from bb_edge.cli.bootstraps import formals_of, own_bootstraps
    from bb_edge.engine.snapshot import Identity
    from bb_edge.registry import default_registry

    known = frozenset(default_registry().type_names())
    targets = {}
    for target in program.targets.values():
        graph = program.graphs[target.main]
        targets[target.name] = {
            "class": target.peer_class,
            "hears": None if target.hears is None else list(target.hears),
            "asks": None if target.asks is None else list(target.asks),
            "contracts": {
                pair: digest.hex()
                for pair, digest in sorted(program.identity.contracts.items())
                if target.peer_class in pair.split(".")
            },
            "state": Identity(b"", program.module, program.digest, (target.name,)).program.hex(),
            "ops": len(graph.ops),
            "sites": len(graph.sites),
            "inputs": list(graph.inputs),
            "outputs": list(graph.outputs),
            "bootstrap": target.bootstrap is not None,
            "bootstrap_inputs": {name: str(kind) for name, kind in formals_of(program, target).items()},
            "own_bootstraps": list(own_bootstraps(target)),
            "slots": {
                slot: {"role": b.role, "type": b.type_name, "registered": b.type_name in known}
                for slot, b in sorted(target.bindings.items())
            },
        }
    return {
        "module": program.module,
        "bytes": program.size,
        "sha256": program.digest,
        "program": program.identity.program.hex(),
        "accepts": sorted(digest.hex() for digest in program.identity.accepts),
        "functions": len(program.functions),
        "opsets": dict(sorted(program.opsets.items())),
        "targets": targets,
    }


def run(arguments: argparse.Namespace) -> int:
    from bb_edge.loading import load

    load_all(arguments.load)
    program = describe(load(arguments.artifact))
    if arguments.json:
        print(json.dumps(program))
        return 0
    digest = str(program["sha256"])[:16]
    print(f"{arguments.artifact.name}: {program['module']}, {program['bytes']} bytes, sha256 {digest}…")
    if program["program"]:
        accepts: Any = program["accepts"]
        also = f"; takes nodes of {', '.join(one[:16] + '…' for one in accepts)} too" if accepts else ""
        print(f"program {str(program['program'])[:16]}…{also}")
    targets: Any = program["targets"]
    for name, target in targets.items():
        print(f"target {name} (class {target['class']}): {target['ops']} ops, {target['sites']} sites")
        print(f"  state {target['state'][:16]}… (in the files of its state folder)")
        for port in ("inputs", "outputs"):
            if target[port]:
                print(f"  {port}: {', '.join(target[port])}")
        if target["bootstrap"]:
            inputs = ", ".join(f"{port}: {kind}" for port, kind in target["bootstrap_inputs"].items())
            print(f"  bootstrap: {inputs or 'no inputs'}")
        if target["own_bootstraps"]:
            print(f"  bootstrap of slots: {', '.join(target['own_bootstraps'])}")
        for pair, contract in target["contracts"].items():
            print(f"  contract {pair}: {contract[:16]}…")
        for slot, binding in target["slots"].items():
            unknown = "" if binding["registered"] else " (not registered here: give its file with --load)"
            print(f"  slot {slot}: {binding['role']} {binding['type']}{unknown}")
    return 0
