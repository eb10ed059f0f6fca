"""Durable federations of real processes: killed at any moment, they go on where they were, and count once."""

from __future__ import annotations

import random
import resource
import signal
import time
from pathlib import Path

import pytest
from node_processes import id_of

from bb_edge.ir.ids import PeerId
from bb_edge.state import record_framing, segment_rows
from federated_digits.processes import Ended, Line

pytestmark = [pytest.mark.broker, pytest.mark.slow]

DEBUG = ("--log-level", "debug")


@pytest.fixture
def durable(federation):
    """`durable(broker, **options)`: a federation whose three clients and server have folders of their own."""

    class Durable:
        def __init__(self, broker, **options: int) -> None:
            self.f = federation(broker, **({"at_least": 3, "durable": True} | options))

        def client(self, number: int):
            return self.f.client(number, *self.f.state(f"client-{number}"), *DEBUG)

        def server(self, *more: str):
            return self.f.server(*self.f.state("server"), *DEBUG, *more)

        def answers(self, server, count: int) -> None:
            """Returns once the server's open request has so many answers on disk, or more."""
            told = sum(isinstance(e, Line) and "event" in e.record for e in self.f.heard)
            seen = closed = 0

            # A process has two streams, and they come in no order: the log may still be in an earlier round.
            def is_it(event) -> bool:
                nonlocal seen, closed
                if isinstance(event, Line) and event.child is server and event.error:
                    closed += "RequestClosed" in event.text
                    seen = 0 if "RequestClosed" in event.text else seen + (" Journal" in event.text)
                return closed >= told and seen >= count

            self.f.wait(is_it, f"{count} answers are journaled", since=0)
            folder = Path(self.f.state("server")[1])
            while journaled(folder) < count:  # they wait some milliseconds for further ones
                time.sleep(0.005)

    return Durable


def journaled(folder: Path) -> int:
    """How many answers the newest journal of a folder holds."""
    number, newest = max((int(file.name.partition("-")[2]), file) for file in folder.glob("journal-*"))
    parsed = record_framing.parse(newest.read_bytes(), record_framing.JOURNAL, number, newest.name)
    return len(segment_rows.split(parsed.bodies, newest.name)[0])


def test_a_server_killed_in_a_round_goes_on_in_it_with_the_answers_that_it_had(mosquitto_broker, durable):
    d = durable(mosquitto_broker, rounds=0)
    clients = [d.client(number) for number in range(3)]
    server = d.server()
    d.f.full_round()
    clients[2].signal(signal.SIGSTOP)
    d.answers(server, 2)
    rounds = [e.record["value"][0] for e in d.f.heard if isinstance(e, Line) and "event" in e.record]
    server.signal(signal.SIGKILL)
    assert d.f.ended(server) == -signal.SIGKILL
    server = d.server()
    restored = d.f.says(server, "restored")
    # Two, or all three where the stopped one had just answered.
    assert "journal=2" in restored or "journal=3" in restored
    clients[2].signal(signal.SIGCONT)
    assert d.f.full_round()[0] in (max(rounds), max(rounds) + 1)
    assert d.f.full_round()[4] == []
    code, summary = d.f.end(server)
    assert code == 0
    assert summary["counters"]["state.failures"] == 0


def test_a_client_killed_when_its_answer_is_on_disk_gives_it_after_its_restart(mosquitto_broker, durable):
    d = durable(mosquitto_broker, rounds=0)
    for number in (0, 1):
        d.client(number)
    client = d.client(2)
    d.server()
    last = d.f.full_round()
    for _ in range(3):
        d.f.says(client, "PersistOutbox")
        client.signal(signal.SIGKILL)
        assert d.f.ended(client) == -signal.SIGKILL
        client = d.client(2)
        d.f.says(client, "restored")
        found = d.f.full_round()
        assert found[0] > last[0]
        assert found[4] == []
        last = found


def test_a_broker_killed_and_restarted_loses_no_round(broker, durable):
    # On a busy machine amqtt takes long to start, and a node that waits for its next dial must not be late.
    d = durable(broker, rounds=0, pause_ms=20, deadline_ns=600 * 10**9)
    for number in range(3):
        d.client(number)
    server = d.server()
    d.f.full_round()
    for _ in range(2):
        broker.kill()
        d.f.says(server, "lost")
        broker.start()
        for _ in range(3):
            d.f.full_round()
    # All that was told: one more round may have ended before its broker did.
    told = [e.record["value"] for e in d.f.heard if isinstance(e, Line) and "event" in e.record]
    numbers = [value[0] for value in told]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [value[3] for value in told] == [d.f.artifacts.samples] * len(told)


def test_any_node_killed_at_any_moment_every_round_is_told_and_counts_nobody_twice(mosquitto_broker, durable):
    rng = random.Random(20)
    d = durable(mosquitto_broker, rounds=25)
    nodes = {f"client-{number}": d.client(number) for number in range(3)}
    nodes["server"] = d.server("--until-done")
    for _ in range(8):
        d.f.wait(Countdown(rng.randint(5, 60)), "something happens")
        name = rng.choice(["server", "client-0", "client-1", "client-2"])
        nodes[name].signal(signal.SIGKILL)
        if d.f.ended(nodes[name]) == 0:
            break  # the server was done
        number = name.rpartition("-")[2]
        nodes[name] = d.server("--until-done") if name == "server" else d.client(int(number))
    assert d.f.ended(nodes["server"]) == 0
    told: dict[int, list[list[object]]] = {}
    for event in d.f.heard:
        value = event.record["value"] if isinstance(event, Line) and "event" in event.record else [0] * 5
        if value[3] or value[4]:  # else nobody was up to be asked: the round's number comes again
            told.setdefault(value[0], []).append(value)
    assert sorted(told) == list(range(1, 26))
    share = {str(PeerId.from_name(name)): count for name, count in d.f.artifacts.shares.items()}
    for values in told.values():
        # After a crash a round may end again, and then who was down the first time may be there. Who was down
        # is missing; everybody else counts, once.
        for value in values:
            assert value[3] == d.f.artifacts.samples - sum(share[id_of(peer)] for peer in value[4])


class Countdown:
    """Holds for the n-th event."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, event: Line | Ended) -> bool:
        self.left -= 1
        return self.left <= 0


def test_a_full_disk_is_told_and_the_federation_goes_on_when_there_is_room(mosquitto_broker, durable):
    d = durable(mosquitto_broker, rounds=0)
    for number in range(3):
        d.client(number)
    server = d.server()
    last = d.f.full_round()
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, hard))
    assert "File too large" in d.f.says(server, "StorageFailed")
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
    found = [d.f.round(lambda v: v[0] > last[0], "rounds go on") for _ in range(4)]
    assert found[-1][3] == d.f.artifacts.samples
    code, summary = d.f.end(server)
    assert code == 0
    assert summary["counters"]["state.failures"] > 0


def test_a_node_that_was_told_to_end_comes_back_without_a_journal(mosquitto_broker, durable):
    d = durable(mosquitto_broker, rounds=0)
    for number in range(3):
        d.client(number)
    server = d.server()
    last = d.f.full_round()
    assert d.f.end(server)[0] == 0
    server = d.server()
    assert "journal=0" in d.f.says(server, "restored")
    assert d.f.full_round()[0] > last[0]


def test_a_server_that_is_done_says_so_again_after_a_restart(mosquitto_broker, durable):
    d = durable(mosquitto_broker, rounds=2)
    for number in range(3):
        d.client(number)
    server = d.server()
    d.f.says(server, "rounds completed")
    d.f.end(server)
    assert d.f.ended(d.server("--until-done")) == 0


def test_one_file_of_another_node_is_refused_and_an_emptied_one_is_told(mosquitto_broker, durable):
    d = durable(mosquitto_broker)
    for number in (0, 1):
        child = d.client(number)
        d.f.says(child, "connected")
        assert d.f.end(child)[0] == 0
    own, other = (Path(d.f.state(f"client-{number}")[1]) for number in (0, 1))
    file = next(path for path in sorted(own.glob("outbox-*")) if (other / path.name).exists())
    file.write_bytes((other / file.name).read_bytes())
    child = d.client(0)
    assert d.f.ended(child) == 3
    told = child.tail.splitlines()[-1]
    assert f"{file.name}: peer {PeerId.from_name('client-1')} wrote it" in told
    assert f"put the node's own {file.name} back" in told
    file.write_bytes(b"")
    child = d.client(0)
    assert file.name in d.f.says(child, "is empty, and no other file says that it held a record")
    assert d.f.end(child)[0] == 0


def test_a_server_without_durable_sends_that_is_killed_loses_the_round_in_which_it_was(
    mosquitto_broker, federation
):
    f = federation(mosquitto_broker, rounds=0, at_least=3, pause_ms=1500)  # longer than the gap of snapshots
    for number in range(3):
        f.client(number)
    server = f.server(*f.state("server"))
    for _ in range(2):
        f.full_round()
        told = f.full_round()[0]
        server.signal(signal.SIGKILL)
        assert f.ended(server) == -signal.SIGKILL
        server = f.server(*f.state("server"))
        ended = int(f.says(server, "restored").partition("rounds_ended=")[2].split()[0])
        assert ended >= told - 1
        assert f.full_round()[0] > ended


def test_a_durable_program_without_a_folder_is_refused(durable):
    d = durable("mqtt://127.0.0.1:1")
    child = d.f.client(0)
    assert d.f.ended(child) == 3
    assert "--state" in child.tail.splitlines()[-1]


def test_a_folder_of_another_node_is_refused(mosquitto_broker, durable):
    d = durable(mosquitto_broker)
    first = d.client(0)
    d.f.says(first, "connected")
    assert d.f.end(first)[0] == 0
    second = d.f.client(1, *d.f.state("client-0"))
    found = d.f.wait(lambda e: isinstance(e, Ended) and e.child is second, "it ends")
    assert found.code == 3
    assert "give this node a folder of its own with --state" in second.tail.splitlines()[-1]
