"""By hand: python tests/exploration/run.py [--worlds N] [--plan NAME]. Durable delivery in small worlds.

Goes through each plan of explored/plans.py breadth first, N worlds of each at most, and stops at the first
world in which a promise is broken. 0 goes through all there are, which does not end where messages stay for
ever (PLANS); a world takes 0.1 to 0.3 milliseconds, and one or two kilobytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from explored.plans import LARGE, PLANS, SMALL  # noqa: E402
from explored.searches import explore  # noqa: E402
from explored.worlds import Broken  # noqa: E402


def main(args: list[str]) -> int:
    """Goes through the plans; 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--worlds", type=int, default=50_000, help="of each plan, 0 for all (default 50000)")
    parser.add_argument("--plan", default="", help="only plans whose name has this in it")
    given = parser.parse_args(args)
    for plan in (*SMALL, *LARGE, *PLANS):
        if given.plan not in plan.name:
            continue
        began = time.monotonic()
        try:
            found = explore(plan, given.worlds or sys.maxsize)
        except Broken as broken:
            print(f"{plan.name}: {broken}")
            return 1
        seconds = time.monotonic() - began
        extent = "all" if found.whole else "the first"
        print(
            f"{plan.name}: {extent} {found.worlds} worlds, {found.events} events, {found.settled} of them"
            f" settled, {seconds:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
