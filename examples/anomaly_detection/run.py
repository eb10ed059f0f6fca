"""Pumps, their server and a broker on this machine: they learn what is normal, and say what is not.

    python examples/anomaly_detection/run.py

Every node is a process of its own, as it would be on boards. This script is the loggers, too: it appends to
each pump's `live.csv` once a round, and goes on when all pumps have looked at what it wrote before.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
if __package__ in (None, ""):
    sys.path.insert(0, str(HERE.parent))

from anomaly_detection import sensors  # noqa: E402
from anomaly_detection.federation import WATCHED, program  # noqa: E402
from anomaly_detection.report import Watch, plot, quality, table  # noqa: E402
from bb_edge.ir.errors import BBError  # noqa: E402
from federated_digits.brokers import BrokerError, OwnBroker, start_broker  # noqa: E402
from federated_digits.processes import Child, ChildError, Ended, Events, Interrupted, Line  # noqa: E402

SERVER = "server"
BLOCK = 40
"""Rows that a logger writes at once; less than `WATCHED`, so that none is overlooked."""
QUIET_ROUNDS = 3
"""Rounds before the loggers go on: the pumps have learned something by then."""
ROWS_PER_FAULT = 80


class DemoError(Exception):
    """The example cannot go on; the message says why."""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description="Pumps that learn together what is normal, and say what is not.")
    p.add_argument("--rounds", type=int, default=15, help="default 15, at least 4")
    p.add_argument("--pumps", type=int, default=3, help="default 3")
    p.add_argument("--seed", type=int, default=1, help="of the readings, the faults and the model (1)")
    p.add_argument("--broker", metavar="URL", help="an MQTT broker that runs already: mqtt://HOST:PORT")
    p.add_argument("--own-broker", choices=("mosquitto", "amqtt"), default="", help="which one to start")
    p.add_argument("--out", type=Path, default=Path("build/anomaly_detection"), metavar="DIR")
    p.add_argument("--deadline", type=float, default=300.0, metavar="SECONDS", help="give up after (300)")
    return p


class Demo:
    """One run: its processes, its loggers, and what the nodes have said."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.out: Path = arguments.out
        self.events = Events()
        self.deadline = time.monotonic() + arguments.deadline
        self.nodes: list[Child] = []
        self.own_broker: OwnBroker | None = None
        self.watches: dict[str, Watch] = {}
        self.losses: dict[int, float] = {}
        self._answers: dict[int, list[float]] = {}
        self._round = 0
        self._written = WATCHED

    @property
    def rows(self) -> int:
        """Rows of each live file at the end: a block per round, once the pumps have learned something."""
        return WATCHED + BLOCK * (self.arguments.rounds - QUIET_ROUNDS)

    # --- starting -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything but the ending. Raises DemoError, ChildError, BrokerError, BBError."""
        from bb_host.build import compile_edge

        a = self.arguments
        if a.rounds <= QUIET_ROUNDS or a.pumps < 1:
            raise DemoError(f"at least {QUIET_ROUNDS + 1} rounds and one pump")
        shutil.rmtree(self.out / "pumps", ignore_errors=True)
        for number in range(a.pumps):
            self._install_sensors(f"pump-{number}", number)
        module, compiler = program(a.seed, rounds=a.rounds, pumps=a.pumps)
        compile_edge(module, compiler, self.out)
        if a.broker:
            url, version = a.broker, "auto"
        else:
            self.own_broker = start_broker(self.out / "broker", self.events, a.own_broker)
            url, version = self.own_broker.url, self.own_broker.mqtt_version
        print(f"broker at {url}; {a.pumps} pumps and a server; logs in {self.out / 'logs'}")
        federation = f"pumps-{random.SystemRandom().getrandbits(32):08x}"
        common = ("--broker", url, "--federation", federation, "--mqtt-version", version, "--budget", "host")
        for number, name in enumerate(self.watches):
            folder = self.out / "pumps" / name
            files = (f"history.path={folder}/history.csv", f"normal.path={folder}/history.csv")
            sets = [word for file in (*files, f"live.path={folder}/live.csv") for word in ("--set", file)]
            self._start(name, "Pump", *common, *sets, "--seed", str(number))
        self._start(SERVER, "Server", *common, "--seed", str(a.pumps))
        self._watch()

    def _install_sensors(self, name: str, number: int) -> None:
        seed, history = self.arguments.seed, 2 * sensors.DAY
        folder = self.out / "pumps" / name
        sensors.write(folder, sensors.record(number, seed, history), "history.csv")
        faults = self.rows // ROWS_PER_FAULT
        live = sensors.record(number, seed, self.rows, first=history, faults=faults)
        self.watches[name] = Watch(live)
        (folder / "live.csv").write_text(sensors.header() + "".join(live.lines(0, WATCHED)))

    def _start(self, name: str, target: str, *more: str) -> None:
        artifact = self.out / f"AnomalyDetection.{target}.edge.onnx"
        run = (sys.executable, "-m", "bb_edge.cli", "run", artifact, "--target", target, "--peer", name)
        self.nodes.append(Child(name, (*run, *more), self.out / "logs" / f"{name}.log", self.events))

    # --- watching -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until all rounds are done and all rows were looked at. Raises DemoError."""
        while self._round < self.arguments.rounds or self._written < self.rows or not self._all_looked_at():
            event = self.events.next(self.deadline)
            if event is None:
                done = f"{self._round} of {self.arguments.rounds} rounds are done"
                raise DemoError(
                    f"{self.arguments.deadline:.0f} s are over, {done}; "
                    f"the logs are in {self.out / 'logs'}, --deadline gives it more time"
                )
            if isinstance(event, Ended):
                raise DemoError(f"{event.child.name} ended (code {event.code}):\n{event.child.tail}")
            self._heard(event)
            self._log_on()

    def _heard(self, line: Line) -> None:
        name, value = line.record.get("event"), line.record.get("value")
        if not isinstance(value, list):
            return
        if name == "answer":
            number, loss = value
            self._answers.setdefault(int(number), []).append(float(loss))
        elif name == "round" and value[1]:
            self._round = int(value[0])
            answers = self._answers[self._round]
            self.losses[self._round] = sum(answers) / len(answers)
            print(f"round {self._round:>3}/{self.arguments.rounds}  loss {self.losses[self._round]:.4f}")
        elif name == "scored":
            self._scored(line.child.name, value)

    def _scored(self, name: str, value: list[object]) -> None:
        """The pump, its newest row, the limit, and which rows lie beyond it."""
        _peer, newest, limit, times, errors = value
        watch = self.watches[name]
        assert isinstance(newest, int) and isinstance(limit, float)
        assert isinstance(times, list) and isinstance(errors, list)
        watch.newest = max(watch.newest, newest)
        for at, error in zip(times, errors, strict=True):
            if at not in watch.alerts:
                watch.alerts[at] = error
                if at - sensors.STEP_S not in watch.alerts:  # a line per fault, not per row
                    when = datetime.fromtimestamp(at, timezone.utc)
                    print(
                        f"ALERT {name} at {when:%Y-%m-%d %H:%M}: error {error:.2f}, the limit is {limit:.2f}"
                    )

    def _all_looked_at(self) -> bool:
        return all(w.newest >= w.recording.times[self._written - 1] for w in self.watches.values())

    def _log_on(self) -> None:
        """Appends the next rows, once a round has passed and all pumps have looked at those before."""
        due = WATCHED + BLOCK * max(0, self._round - QUIET_ROUNDS)
        if self._written >= due or not self._all_looked_at():
            return
        for name, watch in self.watches.items():
            with (self.out / "pumps" / name / "live.csv").open("a") as file:
                file.writelines(watch.recording.lines(self._written, self._written + BLOCK))
        self._written += BLOCK

    # --- ending ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends every process."""
        for node in self.nodes:
            node.signal(signal.SIGTERM)
        for node in self.nodes:
            node.end()
        if self.own_broker is not None:
            self.own_broker.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all rounds were done, 1 with a message when something failed, 130 when it was interrupted."""
    demo = Demo(parser().parse_args(argv))

    def interrupt(number: int, _frame: FrameType | None) -> None:
        demo.events.put(Interrupted(signal.Signals(number).name))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    code, message = 0, ""
    try:
        demo.run()
    except (DemoError, ChildError, BrokerError, BBError) as error:
        code, message = 1, str(error)
    except Interrupted as error:
        code, message = 130, f"{error}: ending all processes"
    demo.stop()
    if message:
        print(f"anomaly_detection: {message}", file=sys.stderr)
        return code
    found = quality(demo.watches)
    print(f"\n{table(found, demo.losses, demo.rows * len(demo.watches))}")
    picture = demo.out / "anomalies.png"
    title = f"{len(demo.watches)} pumps: {found.found} of {found.faults} faults found"
    if plot(demo.watches, demo.losses, picture, title):
        print(f"\npicture: {picture}")
    else:
        print("\nno picture: matplotlib is not installed (pip install matplotlib)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
