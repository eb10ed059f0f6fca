"""The command `bb-edge`: runs artifacts on a device and examines them.

`run` and `peers` use the network, and `doctor` does if it is given a broker.
"""

from __future__ import annotations

import sys

# start.py says what SIGTERM means once this module is there, so nothing that takes time is imported with it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from bb_edge.cli.stopping import StopAtStart


VERBS = ("run", "inspect", "check", "bench", "doctor", "export", "peers", "outbox", "init")


def parser(verb: str = "") -> argparse.ArgumentParser:
    """Builds the parser of `bb-edge`, with one verb per module of this package.

    Where `verb` is one of them it has no other: a node that runs holds the code of no other verb.
    """
    from importlib import import_module

    from bb_edge import __version__
    from bb_edge.command_line import Parser

    top = Parser(prog="bb-edge", description="Run compiled programs on a device.")
    top.add_argument("--version", action="version", version=f"bb-edge {__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name in (verb,) if verb in VERBS else VERBS:
        import_module(f"bb_edge.cli.{name}").add_parser(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code.

    Errors that we raise are printed, with exit code 1, or what `run` says. A wrong command line is 2, an
    interrupt 130. `run` ends with 0 where SIGTERM comes, however early: the verbs are imported after the
    handler is there, which takes seconds on a small board.
    """
    from bb_edge.cli.stopping import TOLD, StopAsked, StopAtStart

    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] != ["run"]:
        return _main(words, None)
    try:
        with StopAtStart() as stop:
            try:
                return _main(words, stop)
            except Exception:
                stop.check()  # code of others may have made another error of it
                raise
    except StopAsked:
        print(TOLD, file=sys.stderr)
        return 0


def _main(words: Sequence[str], stop: StopAtStart | None) -> int:
    from bb_edge.cli.arguments import ArgumentError
    from bb_edge.cli.endings import Exit, nobody_reads, tell
    from bb_edge.cli.stopping import INTERRUPTED, INTERRUPTED_TOLD, StopAsked
    from bb_edge.ir.errors import BBError

    arguments = parser(words[0] if words else "").parse_args(words)
    arguments.stop = stop
    try:
        code: int = arguments.run(arguments)
        if stop is None:
            sys.stdout.flush()  # else the interpreter does, and complains by itself
        return code
    except BrokenPipeError:
        if stop is not None:
            raise
        nobody_reads()
        return Exit.FAILED
    except (BBError, MemoryError, OSError) as error:
        if stop is not None:
            stop.check()
        tell(error, debug=getattr(arguments, "log_level", None) == "debug")
        return Exit.USAGE if isinstance(error, ArgumentError) else Exit.FAILED
    except StopAsked:
        raise
    except KeyboardInterrupt:
        print(INTERRUPTED_TOLD, file=sys.stderr)
        return INTERRUPTED
