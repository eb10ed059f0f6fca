"""The whole federation on this machine: compile, start a broker, a server and its clients, watch them learn.

Every node is a process of its own, as it would be on boards; they meet at the broker alone, in any order.
"""

from __future__ import annotations

import argparse
import random
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
if __package__ in (None, ""):
    sys.path.insert(0, str(HERE.parent))

from bb_edge.ir.errors import BBError  # noqa: E402
from federated_digits import data  # noqa: E402
from federated_digits.brokers import BrokerError, OwnBroker, start_broker  # noqa: E402
from federated_digits.processes import Child, ChildError, Ended, Events, Interrupted, Line  # noqa: E402
from federated_digits.report import Outcome, Progress, Round, plot, table  # noqa: E402

SERVER = "server"


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="./dev demo", description="A federation of digit classifiers on this machine."
    )
    p.add_argument("--rounds", type=int, default=20, help="default 20")
    p.add_argument("--clients", type=int, default=4, help="default 4")
    p.add_argument(
        "--alpha",
        type=float,
        help="deal by a Dirichlet distribution: 100 is nearly even, 0.1 leaves each client a few digits",
    )
    p.add_argument("--seed", type=int, default=1, help="of the split and the model (default 1)")
    p.add_argument("--model", choices=("mlp", "softmax"), default="mlp", help="default mlp: 64-32-10")
    p.add_argument("--steps", type=int, default=44, help="local steps of 32 digits per round (default 44)")
    p.add_argument("--broker", metavar="URL", help="an MQTT broker that runs already: mqtt://HOST:PORT")
    p.add_argument("--own-broker", choices=("mosquitto", "amqtt"), default="", help="which one to start")
    p.add_argument(
        "--durable", action="store_true", help="nodes keep their state on disk: kill one, and it goes on"
    )
    p.add_argument("--out", type=Path, default=Path("build/federated_digits"), metavar="DIR")
    p.add_argument("--deadline", type=float, default=300.0, metavar="SECONDS", help="give up after (300)")
    return p


def compile_artifacts(arguments: argparse.Namespace, out: Path) -> tuple[Path, Path]:
    """Compiles the program; the server's and the clients' artifact."""
    from bb_host.build import compile_edge
    from federated_digits.federation import program

    module, compiler = program(
        arguments.model,
        arguments.seed,
        max(map(len, deal(arguments).shards)),
        rounds=arguments.rounds,
        clients=arguments.clients,
        local_steps=arguments.steps,
        at_least=arguments.clients,
        durable=arguments.durable,
    )
    compile_edge(module, compiler, out)
    return out / "FederatedDigits.Server.edge.onnx", out / "FederatedDigits.Client.edge.onnx"


def deal(arguments: argparse.Namespace) -> data.Split:
    """Which digits are the server's, and which each client's."""
    _, y = data.load_digits()
    return data.split(y, arguments.clients, alpha=arguments.alpha, seed=arguments.seed)


def write_data(arguments: argparse.Namespace, out: Path) -> tuple[Path, tuple[Path, ...]]:
    """Deals the digits; the server's test file and one shard per client."""
    x, y = data.load_digits()
    return data.write_shards(out, x, y, deal(arguments))


def node_command(
    artifact: Path, target: str, name: str, broker: str, federation: str, *more: str
) -> list[str | Path]:
    """`bb-edge run` for one node."""
    return [
        *(sys.executable, "-m", "bb_edge.cli", "run", artifact, "--target", target, "--peer", name),
        *("--broker", broker, "--federation", federation, "--budget", "host", "--summary"),
        *more,
    ]


class Demo:
    """One run: its processes and what they have said."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.out: Path = arguments.out
        self.events = Events()
        self.deadline = time.monotonic() + arguments.deadline
        self.nodes: list[Child] = []
        self.own_broker: OwnBroker | None = None
        self.outcome = Outcome(clients=arguments.clients)
        self.progress = Progress(arguments.rounds)
        self._round_began = 0.0
        self._wire_bytes = 0

    # --- starting -------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Everything but the ending. Raises DemoError, ChildError, BrokerError, DataError, BBError."""
        a, say = self.arguments, self.progress.note
        test, shards = write_data(a, self.out / "data")
        began = time.monotonic()
        server, client = compile_artifacts(a, self.out)
        say(
            f"compiled in {time.monotonic() - began:.2f} s: {server.name} {server.stat().st_size:,} bytes, "
            f"{client.name} {client.stat().st_size:,} bytes"
        )
        if a.broker:
            url, kind, version = a.broker, "a broker that was running", "auto"
        else:
            self.own_broker = start_broker(self.out / "broker", self.events, a.own_broker)
            url, kind, version = self.own_broker.url, self.own_broker.kind, self.own_broker.mqtt_version
        self.outcome.broker = kind
        say(f"broker: {kind} at {url}")
        # What an earlier run left does not matter: at a shared broker a name of its own, on disk new folders.
        shutil.rmtree(self.out / "state", ignore_errors=True)
        federation = f"digits-{random.SystemRandom().getrandbits(32):08x}"
        for number, shard in enumerate(shards):
            name = f"client-{number}"
            own = ("--set", f"shard.path={shard}", "--seed", f"{number}", "--mqtt-version", version)
            self._start(name, node_command(client, "Client", name, url, federation, *own))
        own = ("--set", f"test.path={test}", "--seed", str(len(shards)), "--mqtt-version", version)
        self._start(SERVER, node_command(server, "Server", SERVER, url, federation, *own, "--until-done"))
        say(f"{len(shards)} clients and a server started; logs in {self.out / 'logs'}")
        self._watch()
        return self.outcome

    def _start(self, name: str, command: list[str | Path]) -> None:
        if self.arguments.durable:
            command += ["--state", self.out / "state" / name]
        log = self.out / "logs" / f"{name}.log"
        self.nodes.append(Child(name, command, log, self.events))
        with (self.out / "logs" / "commands.txt").open("a" if len(self.nodes) > 1 else "w") as commands:
            commands.write(shlex.join(map(str, command)) + "\n")

    # --- watching -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until the server has ended; raises DemoError where it should not have, or takes too long."""
        self.progress.status("waiting for the clients …")
        self._round_began = time.monotonic()
        while True:
            event = self.events.next(self.deadline)
            if event is None:
                done = f"{len(self.outcome.rounds)} of {self.arguments.rounds} rounds"
                raise DemoError(
                    f"{self.arguments.deadline:.0f} s are over, {done} are done; "
                    f"the logs are in {self.out / 'logs'}, --deadline gives it more time"
                )
            if isinstance(event, Line):
                self._heard(event)
            elif event.child.name == SERVER and event.code == 0:
                return
            else:
                self._died(event)

    def _heard(self, line: Line) -> None:
        record = line.record
        if "summary" in record:
            self.outcome.summaries[line.child.name] = record
        elif record.get("event") == "round" and line.child.name == SERVER:
            self._round(record)

    def _round(self, record: dict[str, object]) -> None:
        value, now = record.get("value"), time.monotonic()
        if not (isinstance(value, list) and len(value) == 5):
            raise DemoError(f"the server says {record}, five values were expected")
        number, loss, accuracy, samples, missing = value
        if not samples and not missing:
            self.progress.status("waiting for the clients …")
            return  # nobody was there to be asked: the round's number comes again
        wire_bytes = _int(record.get("sent_bytes")) + _int(record.get("received_bytes"))
        found = Round(
            int(number),
            float(loss),
            float(accuracy),
            float(samples),
            len(missing),
            now - self._round_began,
            wire_bytes - self._wire_bytes,
        )
        self._round_began, self._wire_bytes = now, wire_bytes
        self.outcome.rounds.append(found)
        self.progress.round(found)

    def _died(self, event: Ended) -> None:
        name, code = event.child.name, event.code
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        if self.own_broker is not None and event.child is self.own_broker.child:
            raise DemoError(f"the broker ended ({how}):\n{event.child.tail}")
        if name == SERVER or not self.outcome.rounds:
            raise DemoError(f"{name} ended ({how}):\n{event.child.tail}")
        self.progress.note(f"{name} ended ({how}); the federation goes on without it")

    # --- ending ---------------------------------------------------------------------------------------

    def stop(self) -> list[str]:
        """Ends every process in order; the names of those that had to be killed."""
        self.progress.clear()
        for node in self.nodes:
            node.signal(signal.SIGTERM)
        stuck = [node.name for node in self.nodes if not node.end()]
        if self.own_broker is not None:
            self.own_broker.stop()
        for event in self.events.drain():
            if isinstance(event, Line):
                self._heard(event)
        return stuck


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all rounds were done, 1 with a message when something failed, 130 when it was interrupted."""
    arguments = parser().parse_args(argv)
    demo = Demo(arguments)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        demo.events.put(Interrupted(signal.Signals(number).name))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    code, message = 0, ""
    try:
        demo.run()
    except (DemoError, ChildError, BrokerError, data.DataError, BBError) as error:
        code, message = 1, str(error)
    except Interrupted as error:
        code, message = 130, f"{error}: ending all processes"
    stuck = demo.stop()
    if message:
        print(f"demo: {message}", file=sys.stderr)
    if stuck:
        print(f"demo: did not end by themselves and were killed: {', '.join(stuck)}", file=sys.stderr)
        code = code or 1
    if code == 0:
        finish(demo)
    return code


def finish(demo: Demo) -> None:
    """The figures and the picture."""
    outcome = demo.outcome
    print(f"\n{table(outcome)}")
    picture = demo.out / "federation.png"
    dealt = "evenly dealt" if demo.arguments.alpha is None else f"Dirichlet {demo.arguments.alpha:g}"
    if plot(outcome.rounds, picture, f"{outcome.clients} clients, {dealt}: {outcome.accuracy:.1%}"):
        print(f"\npicture: {picture}")
    else:
        print("\nno picture: matplotlib is not installed (pip install matplotlib)")


if __name__ == "__main__":
    sys.exit(main())
