"""The process of the command `bb-edge`.

A service manager may stop a node at any moment, also one that it has just started. So the first thing that
`bb-edge run` does is to say what SIGTERM means, before anything is imported that takes time.
"""

from __future__ import annotations

import signal
import sys

from bb_edge.cli.stopping import end_at_once

_RUNS = sys.argv[1:2] == ["run"]
if _RUNS:
    signal.signal(signal.SIGTERM, end_at_once)


def main() -> int:
    """Runs the command line of this process, and returns its exit code."""
    from bb_edge.cli import main as command

    code = command()
    if _RUNS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends, and its code says how
    return code
