"""A restart that runs a long journal again says how far it is, and when new reports are taken again."""

from __future__ import annotations

from typing import Any

from envelopes import durable_message
from peers import HERE, SELF, A
from times import S

from bb_edge import NodeConfig, install
from bb_edge.cli.replay_progress import EVERY_NS, MESSAGE, ReplayProgress
from bb_edge.engine.net.journal import JournalRecord
from bb_edge.node import Node

HEARD = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101, durable=1"
SLOW = f"""
program Demo {{module=Demo}}
function program.Main() -> () {{entry=1, partition=Main}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{HEARD}}}
  late: Trigger = syscall.Sleep<duration_ns=1000000000>(x)
  syscall.AppNotify<name="heard">(late)
"""


def restarted(compile_text, records: int) -> tuple[Node, ReplayProgress, list[tuple[str, dict[str, Any]]]]:
    config = NodeConfig.edge().with_(max_executions=1, ingress_entries=4, answer_entries=8)
    node = install(SELF, (HERE,), compile_text(SLOW), ["Main"], config, seed=3, durable=True)
    node.replay([JournalRecord(A, durable_message(0xC1, seq + 1), 0).to_bytes() for seq in range(records)])
    lines: list[tuple[str, dict[str, Any]]] = []

    def log(level: str, message: str, **fields: Any) -> None:
        assert level == "info"
        lines.append((message, fields))

    return node, ReplayProgress(lambda: node.counters["journal.waiting"], log), lines


def test_a_long_journal_is_told_at_once_then_now_and_then_and_at_its_end(compile_text):
    node, progress, lines = restarted(compile_text, 30)
    for now_ns in range(S, 40 * S, S // 4):
        node.poll(now_ns)
        progress.beat(now_ns)
    *told, (end, fields) = lines
    assert [message for message, _ in told] == [MESSAGE] * 3
    done = [fields["done"] for _, fields in told]
    assert done == sorted(done) and done[0] < 10 and {fields["records"] for _, fields in told} == {30}
    assert (end, fields["records"]) == ("the journal is replayed", 30)
    assert 2 * EVERY_NS / 1e9 < fields["seconds"] < 40
    assert node.counters["journal.replayed"] == 30


def test_one_that_is_run_at_once_and_none_say_nothing(compile_text):
    for records in (2, 0):
        node, progress, lines = restarted(compile_text, records)
        for now_ns in range(S, 6 * S, S):
            node.poll(now_ns)
            progress.beat(now_ns)
        assert lines == []
        assert node.counters["journal.waiting"] == 0
