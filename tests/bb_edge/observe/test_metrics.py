"""Metrics: the text format, held by the rules that a scraper follows, and the server around it."""

from __future__ import annotations

import http.client
import re
import socket

import pytest

from bb_edge.observe import catalogue, metrics
from bb_edge.observe.metrics import (
    CYCLE_BUCKETS_NS,
    Cycles,
    MetricsError,
    MetricsServer,
    parse_address,
    render,
)

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\} (\d+)$')


def parsed(text: str) -> dict[str, int]:
    """name{labels} -> value; fails on any line that is neither a sample nor a TYPE after its HELP."""
    found = {}
    typed, helped = set(), set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line[7:].partition(" ")[0])
            continue
        if line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert kind in ("counter", "gauge", "histogram")
            assert name not in typed and name in helped
            typed.add(name)
            continue
        match = SAMPLE.match(line)
        assert match, line
        base = re.sub(r"_(bucket|sum|count)$", "", match[1])
        assert match[1] in typed or base in typed
        found[line.rpartition(" ")[0]] = int(match[3])
    assert text.endswith("\n")
    return found


def test_counters_gauges_and_labels():
    counters = {"ingress.dropped": 3, "pending_async.count": 2, "my metric/ö": 1}
    found = parsed(render(counters, Cycles(), {"node": 'a"b\\c\nd'}))
    label = 'node="a\\"b\\\\c\\nd"'
    assert found[f"bb_ingress_dropped_total{{{label}}}"] == 3
    assert found[f"bb_pending_async_count{{{label}}}"] == 2
    assert found[f"bb_my_metric___total{{{label}}}"] == 1


def test_every_metric_is_there_from_the_start():
    found = parsed(render({}, Cycles(), {"node": "a"}))
    counters = {name for name, m in catalogue.rows() if m.kind != "histogram"} - {catalogue.UP_BY_CLASS}
    assert {f'{name}{{node="a"}}' for name in counters} <= set(found)
    assert not any(found.values())


def test_peers_that_are_up_now():
    found = parsed(render({"peers.up": 9}, Cycles(), {}, {"Client": 3, 'a"b': 1}, 4))
    assert (found["bb_peers_up{}"], found["bb_peers_up_total{}"]) == (4, 9)
    assert found['bb_peers_up_by_class{class="Client"}'] == 3
    assert found['bb_peers_up_by_class{class="a\\"b"}'] == 1


@pytest.mark.parametrize(
    ("value", "text"), [(float("nan"), "NaN"), (float("inf"), "+Inf"), (float("-inf"), "-Inf"), (0.5, "0.5")]
)
def test_numbers_that_json_does_not_have(value, text):
    assert f"bb_loss_total{{}} {text}\n" in render({"loss": value}, Cycles(), {})


def test_cycle_durations_are_a_cumulative_histogram():
    cycles = Cycles()
    for duration in (1, CYCLE_BUCKETS_NS[0], CYCLE_BUCKETS_NS[0] + 1, CYCLE_BUCKETS_NS[-1] + 1):
        cycles.add(duration)
    found = parsed(render({}, cycles, {}))
    assert found['bb_cycle_duration_ns_bucket{le="10000"}'] == 2
    assert found['bb_cycle_duration_ns_bucket{le="100000"}'] == 3
    assert found['bb_cycle_duration_ns_bucket{le="+Inf"}'] == 4 == found["bb_cycle_duration_ns_count{}"]
    assert found["bb_cycle_duration_ns_longest{}"] == CYCLE_BUCKETS_NS[-1] + 1


@pytest.fixture
def server():
    found = MetricsServer("127.0.0.1", 0, {"node": "a"})
    yield found
    found.close()


def get(server, path: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def test_the_last_snapshot_is_served(server):
    server.publish({"a.b": 1}, {}, 0)
    server.publish({"a.b": 2}, {}, 0)
    status, kind, body = get(server, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=0.0.4")
    assert parsed(body)['bb_a_b_total{node="a"}'] == 2
    assert get(server, "/metrics?x=1")[0] == 200
    assert get(server, "/")[0] == 404


def test_counters_begin_with_the_process_and_gauges_are_what_they_are(server):
    """A kill takes a node's counters back to its snapshot: a rate over them must not see that."""
    server.before = {"rounds.ended": 40, "my.total": 7, "executions.active": 3}
    server.publish({"rounds.ended": 42, "my.total": 7, "executions.active": 3, "ops.failed": 1}, {}, 0)
    found = parsed(get(server, "/metrics")[2])
    assert found['bb_rounds_ended_total{node="a"}'] == 2
    assert found['bb_my_total_total{node="a"}'] == 0
    assert found['bb_executions_active{node="a"}'] == 3
    assert found['bb_ops_failed_total{node="a"}'] == 1


def test_health_follows_the_loop(server, monkeypatch):
    server.publish({}, {}, 0)
    assert get(server, "/healthz")[0] == 200
    monkeypatch.setattr(metrics, "UNHEALTHY_AFTER_S", -1.0)  # as if the last turn were too long ago
    assert get(server, "/healthz")[0] == 503


def test_a_snapshot_is_not_due_at_every_turn(server):
    assert server.due(1_000_000_000)
    assert not server.due(1_000_000_001)
    assert server.due(2_000_000_000)


def test_a_visitor_who_talks_nonsense_is_answered_or_hung_up_on(server):
    with socket.create_connection(("127.0.0.1", server.port), 10) as visitor:
        visitor.sendall(b"\x00\xff nonsense\r\n\r\n")
        visitor.recv(100)
    assert get(server, "/metrics")[0] == 200


@pytest.mark.parametrize("silent", [1, 7, 8, 30])
def test_visitors_who_say_nothing_keep_no_probe_waiting(monkeypatch, silent):
    """Each held everybody up for five seconds: a supervisor took the node for dead."""
    monkeypatch.setattr(metrics, "REQUEST_TIMEOUT_S", 600.0)
    server = MetricsServer("127.0.0.1", 0, {})
    visitors = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(silent)]
    try:
        for visitor in visitors:
            visitor.sendall(b"GET /metr")
        probe = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for _ in range(3):
            probe.request("GET", "/healthz")
            assert probe.getresponse().read()
        probe.close()
        if silent > metrics.CLIENTS_AT_ONCE:
            visitors[0].settimeout(60)
            assert visitors[0].recv(1) == b"", "the first is disconnected"
    finally:
        for visitor in visitors:
            visitor.close()
        server.close()


@pytest.mark.parametrize(
    "text, address",
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:1", ("::1", 1)),
        ("h:0", ("h", 0)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", ":9100", "host:", "70000", "-1", "a:b"])
def test_addresses_that_are_none(text):
    with pytest.raises(MetricsError):
        parse_address(text)


def test_an_address_of_another_machine_is_named():
    with pytest.raises(MetricsError, match=r"0.0.0.80:90: .*\(this machine has no such address"):
        MetricsServer("0.0.0.80", 90, {})
    with pytest.raises(MetricsError, match="name an address of this machine"):
        MetricsServer("none.invalid", 9100, {})


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(MetricsError, match=f"{server.port}.*give each node one of its own"):
        MetricsServer("127.0.0.1", server.port, {})
