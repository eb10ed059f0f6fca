"""By hand: ./dev abuse [--durable | --tiers] [--seeds N] [--brokers N]. Nodes and brokers, killed."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "aids"),
    *(str(HERE.parent.parent / p) for p in (".", "kernels", "firmware_shims", "examples")),
]

from abused.flood import BUDGET, Flood  # noqa: E402
from abused.reports import ReportWorld  # noqa: E402
from abused.tiers import TierWorld  # noqa: E402
from abused.world import World  # noqa: E402


def flood(seconds: float) -> int:
    """What a node holds while one client sends it ten times its budget and more."""
    with tempfile.TemporaryDirectory(prefix="bb-flood-") as folder:
        found = Flood(Path(folder)).run(seconds, 10 * BUDGET)
    before, during, after = found.reports
    print(
        f"{found.sent_bytes / 1e6:.0f} MB sent at a budget of {BUDGET / 1e6:.1f} MB; the node grew by "
        f"{found.grown_bytes / 1e6:.1f} MB from {found.rest_bytes / 1e6:.1f} MB; "
        f"reports of another client: {before} before, {during} during, {after} after; "
        f"{found.counters.get('ingress.turned_away', 0)} times that an envelope was turned away"
    )
    return int(found.grown_bytes > 1.1 * BUDGET or not during)


def reports(seed: int, faults: int, brokers: int) -> bool:
    """Durable reports of three devices to a hub; whether each was counted, once."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bb-abuse-") as folder:
        world = ReportWorld(Path(folder), brokers=brokers)
        try:
            world.abuse(seed, faults)
            world.settle()
        finally:
            world.close()
    wrong = world.wrong()
    told, heard = sum(world.told.values()), sum(map(len, world.heard.values()))
    kinds = dict(Counter(done.partition(" ")[2] for done in world.done))
    took = time.monotonic() - started
    print(
        f"seed {seed}: {told} reports told, {heard} heard, {world.rolled_back} roll-backs said, "
        f"{took:.0f} s; {kinds}; {'; '.join(wrong) or 'as it must be'}",
        flush=True,
    )
    return not wrong


def tiers(seed: int, faults: int, brokers: int, clients: int, rounds: int) -> bool:
    """Gateways, their clients and bridged brokers; whether each contribution was counted once, or missed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bb-abuse-") as folder:
        world = TierWorld(Path(folder), clients, rounds, brokers=brokers)
        try:
            world.abuse(seed, faults)
        finally:
            world.close()
    wrong = world.wrong()
    kinds = dict(Counter(re.sub(r"-\d+", "", done) for done in world.done))
    print(
        f"seed {seed}: {len(world.told)} rounds, {world.full} with all, {world.counted} contributions "
        f"counted, {time.monotonic() - started:.0f} s; {kinds}; {'; '.join(wrong) or 'as it must be'}",
        flush=True,
    )
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev abuse", description=__doc__)
    parser.add_argument("--durable", action="store_true", help="state folders, and nothing may be lost")
    parser.add_argument("--reports", action="store_true", help="durable reports, folders put back and mixed")
    parser.add_argument("--tiers", action="store_true", help="gateways at brokers of their own; 3 brokers")
    parser.add_argument("--brokers", type=int, default=1, help="so many mosquittos, bridged to the first")
    parser.add_argument("--clients", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the folder with the logs")
    parser.add_argument("--flood", type=float, metavar="SECONDS", help="one hostile client instead")
    args = parser.parse_args()
    if args.flood:
        return flood(args.flood)
    seeds = range(args.seed, args.seed + args.seeds)
    if args.reports:
        return int(not all([reports(seed, args.faults, args.brokers) for seed in seeds]))
    if args.tiers:
        brokers = max(3, args.brokers)
        return int(not all([tiers(s, args.faults, brokers, args.clients, args.rounds) for s in seeds]))
    failed = 0
    for seed in seeds:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bb-abuse-") as folder:
            world = World(Path(folder), args.clients, args.rounds, durable=args.durable, brokers=args.brokers)
            try:
                world.abuse(seed, args.faults)
            finally:
                world.close()
            wrong = world.wrong()
            took = time.monotonic() - started
            full = sum(round(v[0][2]) == args.clients for v in world.told.values())
            kinds = dict(Counter(re.sub(r"-\d+", "", done) for done in world.done))
            print(
                f"seed {seed}: {len(world.told)} rounds, {full} with all, "
                f"{len(world.reported)} reports of {len(world.due)} sent, {took:.0f} s; "
                f"{kinds}; {'; '.join(wrong) or 'as it must be'}",
                flush=True,
            )
            failed += bool(wrong)
            if wrong and args.keep:
                kept = Path(tempfile.mkdtemp(prefix="bb-abuse-kept-"))
                for path in Path(folder).glob("*.log"):
                    (kept / path.name).write_bytes(path.read_bytes())
                print(f"  {world.done}\n  logs: {kept}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
