"""The command `bb-edge`: runs artifacts on a device and examines them.

`run` uses the network, and `doctor` does if it is given a broker.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bb_edge import __version__
from bb_edge.cli import bench, check, doctor, export, inspect, run
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
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code.

    Errors that we raise are printed, with exit code 1. A wrong command line is 2, an interrupt 130.
    """
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        return code
    except BBError as error:
        if getattr(arguments, "log_level", None) == "debug" and error.__cause__ is not None:
            import traceback

            traceback.print_exception(
                error.__cause__
            )  # the author of a component needs the lines of its own code
        print(f"bb-edge: error: {error}", file=sys.stderr)
    except MemoryError as error:
        detail = f": {error}" if str(error) else ""
        print(
            f"bb-edge: error: not enough memory{detail} (lower the limits of the configuration, or raise"
            " those of the service)",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        print("bb-edge: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        print(f"bb-edge: error: {text or type(error).__name__}", file=sys.stderr)
    return 1
