"""`bb-host simulate`: what its command line has. What it does is `bb_host.simulate.command`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bb_edge.user_modules import add_load


def add_simulate(verbs: Any) -> None:
    """Adds the verb `simulate`."""
    p = verbs.add_parser(
        "simulate",
        help="run a program with any number of nodes, in simulated time",
        description="Compiles a program and runs its nodes in simulated time: one of each class, and as many"
        " clients as asked for. The seed decides every bit, for any number of workers"
        " (docs/how-to/simulate.md).",
    )
    p.add_argument("file", type=Path, metavar="FILE.py", help="a file with a function program()")
    p.add_argument("--clients", type=int, metavar="N", help="nodes of the class Client, or of the only class")
    p.add_argument(
        "--nodes", action="append", default=[], metavar="CLASS=N", help="nodes of another class (repeatable)"
    )
    p.add_argument(
        "--large",
        action="append",
        default=[],
        metavar="CLASS",
        help="its nodes have a server's budget of memory, not a device's (repeatable)",
    )
    p.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="CLASS=FILE",
        help="its nodes have the budget and limits of this configuration of `bb-edge run` (repeatable)",
    )
    p.add_argument(
        "--data", action="append", default=[], metavar="SLOT=FILE.npz", help="rows to deal to clients"
    )
    p.add_argument(
        "--deal",
        action="append",
        default=[],
        metavar="[SLOT=]RULE",
        help="how: iid (the default), dirichlet:ALPHA, label:COUNT, column:NAME, draw:ROWS, same",
    )
    p.add_argument("--labels", metavar="NAME", help="the array that dirichlet and label deal by (default y)")
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="[CLASS.]SLOT.KEY=VALUE",
        help="configure a slot of all its nodes, or of those of one class",
    )
    p.add_argument("--seed", type=int, metavar="N", help="0 without")
    p.add_argument(
        "--for",
        dest="seconds",
        type=float,
        metavar="SECONDS",
        help="of simulated time, then it ends (earlier where its rounds are over)",
    )
    p.add_argument("--latency", type=float, default=5.0, metavar="MS", help="of every envelope (default 5)")
    p.add_argument("--jitter", type=float, default=0.0, metavar="MS", help="up to so much more (default 0)")
    p.add_argument(
        "--available",
        metavar="SHARE[:SECONDS]",
        help="clients are up for this share of each period (default 600 s); or TRACE.csv: client,from,to",
    )
    p.add_argument("--slow", metavar="SHARE:SECONDS", help="this share of the clients sends so much later")
    p.add_argument(
        "--dropouts", metavar="CHANCE[:SECONDS]", help="who takes a request is gone by this chance (for 30 s)"
    )
    p.add_argument("--workers", type=int, default=1, metavar="W", help="processes or actors (default 1)")
    p.add_argument("--on", choices=("processes", "ray"), default="processes", help="where workers run")
    p.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=A,B,…",
        help="a run for each value of seed, clients, deal, [CLASS.]SLOT.KEY; several: for each combination",
    )
    p.add_argument("--plot", metavar="TOPIC:I=NAME,…", help="numbers of an event to show")
    p.add_argument("-o", "--out", type=Path, metavar="FOLDER", help="events.jsonl, summary.json, picture.png")
    p.add_argument(
        "--save-model",
        metavar="[[CLASS.]SLOT=]FILE.onnx",
        help="write the model that the server ends with, as an ONNX file",
    )
    p.add_argument("--json", action="store_true", help="events and summaries as lines of JSON")
    p.add_argument("--quiet", action="store_true", help="no line of progress")
    add_load(p)
    p.set_defaults(run=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
    from bb_host.simulate.command import run

    return run(arguments)
