"""By hand: ./dev fuzz --kind envelopes --count 1000000 --jobs 2. What fails is kept in tests/fuzz/corpus."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent.parent / p) for p in (".", "kernels", "firmware_shims"))]

from hostile import campaign, subjects  # noqa: E402


def work(task: tuple[str, int, int, int]) -> campaign.Result:
    kind, index, count, seed = task
    try:
        subject = subjects.KINDS[kind][index]()
    except campaign.Absent as reason:
        print(f"left out: {reason}", flush=True)
        return campaign.Result(kind)
    result = campaign.run(subject, count, seed)
    for crash in result.crashes:
        print(f"{result.name}: {crash.what}: {crash.keep(HERE / 'corpus', result.name)}", flush=True)
    print(f"seed {seed}: {result.line()}", flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("--kind", choices=[*subjects.KINDS, "all"], default="all")
    parser.add_argument(
        "--count", type=int, default=100_000, help="inputs of each subject (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--seed", type=int, default=0, help="the first seed; each 100,000 inputs have one more"
    )
    args = parser.parse_args()
    kinds = list(subjects.KINDS) if args.kind == "all" else [args.kind]
    share = 100_000
    tasks = [
        (kind, index, min(share, args.count - start), args.seed + start // share)
        for kind in kinds
        for start in range(0, args.count, share)
        for index in range(len(subjects.KINDS[kind]))
    ]
    # One process per task: what protobuf keeps, and what a failure may have broken, ends with it.
    with multiprocessing.get_context("spawn").Pool(args.jobs, maxtasksperchild=1) as pool:
        results = list(pool.imap_unordered(work, tasks))
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    inputs, crashes = sum(r.inputs for r in results), sum(len(r.crashes) for r in results)
    print(
        f"{inputs:,} inputs, {crashes} failures, {sum(r.seconds for r in results):.0f} s, "
        f"largest process {largest} MiB"
    )
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
