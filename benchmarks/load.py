"""A server of many clients, as a process of its own: what it hears, how long it takes, what memory it needs.

    python benchmarks/load.py [--clients N] [--kb SIZE] [--rounds N] [--durable] [-- OPTIONS OF bb-edge run]
    python benchmarks/load.py --bare 3 [--clients N] [--kb SIZE] [--rounds N]

A `bb-edge run` process with the bounds of a small board, on a mosquitto with its own defaults, averages what
all clients answer to its parameters. The clients are one other process (`load_clients.py`). Memory is that of
the server above what it was with all clients but one up, before the first round; VmHWM is reset then.
`--bare` runs it in turns with a server of paho and NumPy (`bare_load.py`), and compares the processor's time
per answer, from the second round on.
"""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    folders = ("kernels", "firmware_shims", "examples")
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in folders)]

from bb_edge.components import FedAvg, GraphModel, PresenceSelector  # noqa: E402
from bb_host import AggregatorSlot, Compiler, ModelSlot, Module, PeerSelectorSlot, S  # noqa: E402
from bb_host.build import compile_edge  # noqa: E402
from bb_host.dsl import Graph  # noqa: E402
from bb_host.learn import mlp, trainable  # noqa: E402
from federated_digits.brokers import OwnBroker, start_broker  # noqa: E402
from federated_digits.processes import Child, ChildError, Ended, Events, Line  # noqa: E402

SERVER = ("--target", "Server", "--peer", "server")
DEADLINE_S = 120
"""Seconds of a round, and of everything else that is waited for."""


class Load(Module):
    """Rounds of nothing but parameters: the clients add nothing, and the server averages."""

    name, home = "Load", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Server")

    def __init__(self, clients: int, rounds: int, durable: bool) -> None:
        super().__init__()
        self.asked, self.rounds, self.durable = clients, rounds, durable

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds) as start:
            peers = self.clients.sample(g, n=self.asked, min=self.asked, after=start)
            params = self.model.params(g, after=start)
            r = g.request("global", peers, params, deadline_ns=DEADLINE_S * S, durable=self.durable)
            done = self.model.load_parameters(g, r.value)
            r.reply(self.model.params(g, after=done))
            self.agg.contribute(g, r.answer, peer=r.answer.sender)
            new, total = self.agg.aggregate(g, after=r.closed)
            self.model.load_parameters(g, new)
            g.app_emit("round", g.bundle([start.round, total, r.missing]))


def parameters(size: int) -> tuple[list[int], int]:
    """The layers of a net whose parameters have some `size` bytes, and their bytes."""
    hidden = max(1, size // 4 // 75)
    return [64, hidden, 10], 4 * (75 * hidden + 10)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured; `size` in bytes, `options` are more of `bb-edge run`."""

    clients: int
    size: int
    rounds: int = 3
    durable: bool = False
    options: tuple[str, ...] = ()
    bare: bool = False
    deadline_s: float = DEADLINE_S


@dataclass(slots=True)
class Found:
    """What came of a run; memory in bytes, times in seconds by round."""

    update: int
    counted: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    base: int = 0
    peaks: list[int] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    broker_log: list[str] = field(default_factory=list)
    repeated: int = 0

    @property
    def above(self) -> float:
        """The peak above the base, in updates."""
        return (max(self.peaks) - self.base) / self.update

    @property
    def processor_us(self) -> float:
        """Microseconds of the server's processor time per answer, in the rounds behind the first."""
        return 1e6 * (self.processor_s[-1] - self.processor_s[0]) / sum(self.counted[1:])


def memory(pid: int, name: str) -> int:
    """VmRSS or VmHWM of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name}")


def processor_s(pid: int) -> float:
    """Seconds that the threads of a process have run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(plan: Plan) -> Found:
    """All rounds. ChildError, BrokerError where something does not start, or ends."""
    events = Events()
    children: list[Child] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        layers, update = parameters(plan.size)
        compiler = (
            Compiler()
            .bind_model("model", GraphModel, trainable(mlp(layers), learning=False))
            .bind_aggregator("agg", FedAvg)
            .bind_peer_selector("clients", PresenceSelector)
        )
        compile_edge(Load(plan.clients, plan.rounds, plan.durable), compiler, folder)
        broker = start_broker(folder / "broker", events, "mosquitto", ["max_queued_messages 1000"])
        try:
            return _rounds(folder, broker, events, children, Found(update), plan)
        finally:
            for child in children:
                child.signal(signal.SIGTERM)
                child.end()
            broker.stop()


def _rounds(
    folder: Path,
    broker: OwnBroker,
    events: Events,
    children: list[Child],
    found: Found,
    plan: Plan,
) -> Found:
    command = (sys.executable, "-m", "bb_edge.cli", "run", folder / "Load.Server.edge.onnx", *SERVER)
    where = ("--broker", broker.url, "--federation", "load", "--metrics", "127.0.0.1:0")
    state = ("--state", folder / "state") if plan.durable else ()
    more = ("--summary", "--until-done", *state, *plan.options)
    words: list[str | Path] = [*command, *where, *more]
    if plan.bare:
        script = Path(__file__).with_name("bare_load.py")
        words = [sys.executable, script, broker.url.rpartition(":")[2], "load", str(plan.clients), "server"]
        words += [str(plan.rounds), folder / "Load.Server.edge.onnx"]
    server = Child("server", words, folder / "server.log", events)
    children.append(server)
    deadline = time.monotonic() + DEADLINE_S
    while (told := re.search(r"http://[^\s\"]+", _next(events, deadline, server).text)) is None:
        pass
    script = Path(__file__).with_name("load_clients.py")
    artifact, durable = folder / "Load.Client.edge.onnx", ["durable"] * plan.durable
    words = [broker.url.rpartition(":")[2], "load", str(plan.clients), "server", artifact, *durable]
    fleet = Child("clients", [sys.executable, script, *words], folder / "clients.log", events)
    children.append(fleet)
    while "up" not in _next(events, deadline, server).record:
        pass
    while not plan.bare and _peers_up(told.group()) < plan.clients - 1:
        if time.monotonic() > deadline:
            raise ChildError(f"the server does not hear of all clients:\n{server.tail}")
        time.sleep(0.1)
    found.base = memory(server.pid, "VmRSS")
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    fleet.signal(signal.SIGUSR1)
    began = time.monotonic()
    while len(found.counted) < plan.rounds or not found.counters:
        line = _next(events, time.monotonic() + plan.deadline_s, server)
        if line.child.name == "mosquitto":
            found.broker_log.append(line.text)
        elif line.record.get("event") == "round":
            now = time.monotonic()
            value = line.record["value"]
            assert isinstance(value, list)
            found.counted.append(int(value[1]))
            found.seconds.append(now - began)
            found.peaks.append(memory(server.pid, "VmHWM"))
            found.processor_s.append(processor_s(server.pid))
            began = now
        elif "summary" in line.record:
            counters = line.record["counters"]
            assert isinstance(counters, dict)
            found.counters = counters
    fleet.signal(signal.SIGTERM)
    while isinstance(event := events.next(deadline + plan.deadline_s), Line | Ended):
        if isinstance(event, Line) and "repeated" in event.record:
            found.repeated = int(str(event.record["repeated"]))
            return found
    return found


def _peers_up(url: str) -> int:
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = re.search(r"^bb_peers_up(?:{[^}]*})? (\d+)$", answer.read().decode(), re.MULTILINE)
    return int(found.group(1)) if found else 0


def _next(events: Events, deadline: float, server: Child) -> Line:
    event = events.next(deadline)
    if isinstance(event, Line):
        return event
    if event is None:
        raise ChildError(f"nothing is said any more; the server's last lines:\n{server.tail}")
    raise ChildError(f"{event.child.name} ended with {event.code}:\n{event.child.tail}")


def compare(plan: Plan, pairs: int) -> None:
    """Prints the processor time per answer of both servers, in turns, and the ratio of the medians."""
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(pairs):
        for times, by_hand in ((ours, False), (bare, True)):
            found = measure(replace(plan, bare=by_hand))
            assert found.counted == [plan.clients] * plan.rounds, found.counted
            times.append(found.processor_us)
    one, other = statistics.median(ours), statistics.median(bare)
    each = ", ".join(f"{a:.0f}/{b:.0f}" for a, b in zip(ours, bare, strict=True))
    print(f"{plan.clients} clients, {plan.size} bytes, processor time per answer:", end=" ")
    print(f"{one:.0f} us, bare {other:.0f} us, {one / other:.2f} ({each})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--kb", type=int, default=1000, help="bytes of the parameters, in thousands")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durable", action="store_true")
    parser.add_argument("--bare", type=int, default=0, metavar="PAIRS", help="compare with paho and NumPy")
    parser.add_argument("options", nargs="*", help="of bb-edge run, behind --")
    words = parser.parse_args()
    if words.bare:
        compare(Plan(words.clients, words.kb * 1000, words.rounds, options=tuple(words.options)), words.bare)
        return
    found = measure(Plan(words.clients, words.kb * 1000, words.rounds, words.durable, tuple(words.options)))
    print(f"{words.clients} clients, {found.update} bytes; base {found.base / 1e6:.1f} MB")
    for counted, seconds, peak in zip(found.counted, found.seconds, found.peaks, strict=True):
        above = (peak - found.base) / found.update
        print(f"counted {counted} in {seconds:.2f} s, peak {above:.2f} updates above the base")
    print(f"answers that clients repeated: {found.repeated}")
    if words.durable:
        written = found.counters["state.bytes_written"] / sum(found.counted)
        syncs = found.counters["state.syncs"] / sum(found.counted)
        print(f"written per contribution: {written / found.update:.2f} updates, {syncs:.2f} syncs")
    for line in found.broker_log[-5:]:
        print("broker:", line)


if __name__ == "__main__":
    main()
