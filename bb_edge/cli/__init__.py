"""The command `bb-edge`: runs artifacts on a device and examines them.

`run` and `peers` use the network, and `doctor` does if it is given a broker.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bb_edge import __version__
from bb_edge.cli import bench, check, doctor, export, inspect, peers, run
from bb_edge.cli.endings import INTERRUPTED, Exit, tell
from bb_edge.ir.errors import BBError


def parser() -> argparse.ArgumentParser:
    """Builds the parser of `bb-edge`, with one verb per module of this package."""
    top = argparse.ArgumentParser(prog="bb-edge", description="Run compiled programs on a device.")
    top.add_argument("--version", action="version", version=f"bb-edge {__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    run.add_parser(verbs)
    inspect.add_parser(verbs)
    check.add_parser(verbs)
    bench.add_parser(verbs)
    doctor.add_parser(verbs)
    export.add_parser(verbs)
    peers.add_parser(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code.

    Errors that we raise are printed, with exit code 1, or what `run` says. A wrong command line is 2, an
    interrupt 130.
    """
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        return code
    except (BBError, MemoryError, OSError) as error:
        tell(error, debug=getattr(arguments, "log_level", None) == "debug")
        return Exit.FAILED
    except KeyboardInterrupt:
        print("bb-edge: interrupted", file=sys.stderr)
        return INTERRUPTED
