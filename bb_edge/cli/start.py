"""The process of the command `bb-edge`.

A service manager may stop a node at any moment, also one that it has just started. So the first thing that
`bb-edge run` does is to say what SIGTERM means, before anything is imported that takes time; and that every
verb does is to say what Ctrl-C means.
"""

from __future__ import annotations

import signal
import sys

from bb_edge.cli.stopping import INTERRUPTED, end_at_once, interrupt, tell_interrupted

signal.signal(signal.SIGINT, interrupt)
_RUNS = sys.argv[1:2] == ["run"]
if _RUNS:
    signal.signal(signal.SIGTERM, end_at_once)


def main() -> int:
    """Runs the command line of this process, and returns its exit code."""
    try:
        from bb_edge.cli import main as command

        code = command()
    except KeyboardInterrupt:
        tell_interrupted()
        code = INTERRUPTED
    if _RUNS:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # it ends, and its code says how
    return code
