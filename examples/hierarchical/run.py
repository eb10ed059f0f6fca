"""A hierarchy on this machine: sites with a broker and a gateway each, bridged to the server's broker.

The same clients learn in a second federation without gateways, for comparison.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
if __package__ in (None, ""):
    sys.path.insert(0, str(HERE.parent))

import local_run  # noqa: E402
from bb_edge import PeerId  # noqa: E402
from federated_digits import data  # noqa: E402

KINDS = {"tiers": "clients ask nobody but their gateway", "flat": "the server asks every client"}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="hierarchical", description="Two tiers of averaging, on this machine.")
    p.add_argument("--rounds", type=int, default=20, help="default 20")
    p.add_argument("--sites", type=int, default=2, help="default 2")
    p.add_argument("--clients", type=int, default=3, help="of each site (default 3)")
    local_run.add_options(p, "build/hierarchical")
    return p


def write_data(clients: int, seed: int, folder: Path) -> tuple[Path, list[Path]]:
    """The exam's digits, and the shard of each client; shards differ in size, so that weights matter."""
    x, y = data.load_digits()
    split = data.split(y, clients, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    exam = folder / "exam.npz"
    np.savez(exam, x=x[split.test], y=y[split.test])
    shards = []
    for number, rows in enumerate(split.shards):
        own = rows[: max(data.BATCH, len(rows) * (number + 1) // clients)]
        shards.append(folder / f"client-{number}.npz")
        np.savez(shards[-1], x=x[own], y=y[own])
    return exam, shards


def shared_topics(gateway: str) -> list[str]:
    """What a site and the center have to hear of each other: clients stay within their site."""
    server, own = (PeerId.from_name(name).to_text() for name in ("tiers", gateway))
    return [
        "presence/Gateway/# both",
        "presence/Server/# both",
        "rollcall/# both",
        f"{server}/# out",
        f"{own}/# in",
    ]


def score_of(node: str, value: object) -> tuple[int, float, float]:
    """Round, accuracy and samples of an event `round`; RunError for a value of another form.

    A round that nobody answered has no samples, and is tried again: gateways whose clients are not up yet
    have nothing to answer with.
    """
    if not (isinstance(value, list) and len(value) == 5):
        raise local_run.RunError(f"{node} says {value}, expected [round, loss, accuracy, samples, missing]")
    return int(value[0]), float(value[2]), float(value[3])


def main(argv: Sequence[str] | None = None) -> int:
    a = parser().parse_args(argv)
    scores: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
    samples: dict[str, float] = {}

    def body(run: local_run.LocalRun) -> None:
        from bb_host.build import compile_edge
        from hierarchical.tiers import program

        count = a.sites * a.clients
        exam, shards = write_data(count, a.seed, a.out / "data")
        began = time.monotonic()
        for flat, asked in ((False, a.sites), (True, count)):
            module, compiler = program(flat, a.seed, rounds=a.rounds, asked=asked, children=a.clients)
            compile_edge(module, compiler, a.out)
        run.note(f"compiled twice in {time.monotonic() - began:.2f} s")
        run.start_broker()
        gateways = [f"gateway-{site}" for site in range(a.sites)]
        urls = [run.start_site(f"site-{n}", shared_topics(g), "tiers") for n, g in enumerate(gateways)]
        if not all(urls):
            run.note("one broker for all: this one has no bridges. Each client is asked by all gateways,")
            run.note("and answers the first of each round")

        for site, gateway in enumerate(gateways):
            file = a.out / "Tiers.Gateway.edge.onnx"
            run.start(gateway, file, "Gateway", group="tiers", url=urls[site])
        for number, shard in enumerate(shards):
            # The same seed for both: they draw the same batches, so that both learn the same.
            own = ("--set", f"shard.path={shard}", "--seed", str(1000 + number))
            url = urls[number % a.sites]
            file = a.out / "Tiers.Client.edge.onnx"
            run.start(f"client-{number}", file, "Client", *own, group="tiers", url=url)
            run.start(f"flat-client-{number}", a.out / "Flat.Client.edge.onnx", "Client", *own, group="flat")
        # A gateway whose clients are not there yet has nothing to answer with, and the round goes on without.
        clients = [[f"client-{n}" for n in range(site, count, a.sites)] for site in range(a.sites)]
        run.until_up(dict(zip(gateways, clients, strict=True)))
        for kind in KINDS:
            file = a.out / f"{kind.title()}.Server.edge.onnx"
            run.start(kind, file, "Server", "--set", f"test.path={exam}", "--until-done", group=kind)
        run.note(f"started: {a.sites} sites of {a.clients} clients, and {count} clients without gateways")

        for node, record in run.heard(list(KINDS)):
            if record.get("event") == "round":
                number, accuracy, counted = score_of(node, record.get("value"))
                if not counted:
                    continue
                scores[node][number], samples[node] = accuracy, counted
                if all(number in rounds for rounds in scores.values()):
                    both = "  ".join(f"{kind} {rounds[number]:.3f}" for kind, rounds in scores.items())
                    run.progress(number, a.rounds, both)

    def finish() -> None:
        print("\naccuracy at the end, and samples that counted:")
        for kind, text in KINDS.items():
            print(f"  {kind:<6} {scores[kind][a.rounds]:.3f}  {samples[kind]:.0f}  {text}")
        curves = [(text, list(scores[kind]), list(scores[kind].values())) for kind, text in KINDS.items()]
        title = f"{a.sites} sites of {a.clients} clients"
        local_run.show_picture(curves, a.out / "hierarchical.png", title, "round", "accuracy")

    return local_run.run(a, body, finish)


if __name__ == "__main__":
    sys.exit(main())
