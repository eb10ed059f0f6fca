"""The checks of the protocol, each taken out: then a small world breaks a promise."""

from __future__ import annotations

import importlib
import sys
from typing import NamedTuple

MODULES = (
    "dedup",
    "marks",
    "durable_rows",
    "durable_flows",
    "durable_saved",
    "durable_sender",
    "durable_receiver",
)
"""In the order in which they are loaded."""


class Guard(NamedTuple):
    """A check: the text of it, once in its module, what stands there without it, and where that shows."""

    name: str
    module: str
    text: str
    without: str
    plan: str
    """Of the plans that are gone through to their end; with `walks` of those that have none."""
    walks: int = 0
    seed: int = 1
    events_each: int = 40


def _sender(name: str, text: str, without: str, plan: str) -> Guard:
    return Guard(name, "durable_sender", text, without, plan)


def _receiver(name: str, text: str, without: str, plan: str) -> Guard:
    return Guard(name, "durable_receiver", text, without, plan)


GUARDS = (
    _sender(
        "an exchange begins a new epoch",
        "self._begin(flow, max(flow.epoch, flow.above) + 1 + self._draw() % (1 << 32))",
        "self._begin(flow, max(flow.epoch, flow.above, 1))",
        "later epochs are lower",
    ),
    Guard(
        "no two histories draw the same epoch",
        "durable_sender",
        "+ 1 + self._draw() % (1 << 32))",
        "+ 1)",
        "both are restored",
        walks=60,
    ),
    _sender(
        "acknowledgements of other epochs say nothing",
        "if ack.epoch != flow.epoch:",
        "if False:",
        "both are restored",
    ),
    _sender(
        "an answer names the question",
        "if took.echo == flow.question.token:",
        "if True:",
        "a sender crashes, and a fault",
    ),
    _sender(
        "a peer that is closed again is asked again",
        "elif flow.state in _UNASKED or (took.echo, took.token) != (flow.question.token, flow.answer):",
        "elif flow.state in _UNASKED:",
        "a sender crashes, and a fault",
    ),
    _sender("what is taken is settled", "if seq in window]", "if False]", "a sender crashes, and a fault"),
    _sender(
        "numbers are of one epoch",
        "if window.epoch == flow.epoch:",
        "if True:",
        "later epochs are lower",
    ),
    _sender("an old receiver is reported", "if lost:", "if False:", "later epochs are lower"),
    _sender(
        "an old sender is reported",
        "if flow.sender_is_old or never_given:",
        "if never_given:",
        "a sender is restored",
    ),
    _sender(
        "an old sender names what has a number",
        "for held in (*flow.open.values(), *flow.waiting)]",
        "for held in flow.waiting]",
        "both are restored",
    ),
    _sender(
        "an old sender names what has none yet",
        "for held in (*flow.open.values(), *flow.waiting)]",
        "for held in flow.open.values()]",
        "a sender is restored",
    ),
    _sender(
        "a receiver that began anew is reported",
        "if flow.heard.epoch and not took.windows:",
        "if False:",
        "a receiver is restored",
    ),
    _sender(
        "rows stay while they are needed",
        "if row.epoch <= known and needed.isdisjoint(row.ids):",
        "if True:",
        "an older receiver",
    ),
    _sender(
        "an epoch counts as begun once its first row is on disk",
        "if flow.state is _MOVING:",
        "if False:",
        "later epochs are lower",
    ),
    Guard(
        "a snapshot has an epoch once its first row is on disk",
        "durable_flows",
        "if self.epoch == self.saved.epoch:\n            return Flow",
        "if True:\n            return Flow",
        "a sender is restored, snapshots",
    ),
    _receiver(
        "nothing is taken before marks open an epoch",
        "if source.state is _CLOSED or (source.state is _OPEN and epoch != source.epoch):",
        "if source.state is _OPEN and epoch != source.epoch:",
        "a receiver is restored",
    ),
    _receiver(
        "one epoch is let in",
        "if source.state is _CLOSED or (source.state is _OPEN and epoch != source.epoch):",
        "if source.state is _CLOSED:",
        "a receiver crashes, and a fault",
    ),
    _receiver(
        "an epoch is opened by who has read the last answer",
        "if (opened.asked, opened.token) != (source.asked, source.answer):",
        "if False:",
        "a sender crashes, and a fault",
    ),
    _receiver(
        "a question closes",
        "source.state = SOURCE.next(source.state, SourceEvent.ASKED)",
        "pass",
        "later epochs are lower",
    ),
    Guard(
        "every question has an answer of its own",
        "durable_receiver",
        "source.asked, source.answer = ask.token, 0",
        "source.asked = ask.token",
        "crashes of both",
        walks=60,
    ),
    _receiver(
        "a source that must ask is told",
        "source.prompt_ns = now_ns + PROMPT_NS\n        self._owe_took(source)",
        "pass",
        "later epochs are lower",
    ),
    _sender(
        "an epoch is above what the peer names",
        "max(flow.epoch, flow.above) + 1 + self._draw()",
        "flow.epoch + 1 + self._draw()",
        "later epochs are lower",
    ),
    _sender(
        "what is published is on disk",
        " or not held.on_disk:",
        ":",
        "a sender crashes that repeats",
    ),
    _sender(
        "what was heard goes into the row that begins an epoch",
        "self._give(flow, records, flow.heard)",
        "self._give(flow, records)",
        "a sender crashes twice, then a receiver is emptied",
    ),
    _receiver(
        "an answer waits for what is held",
        "if not source.owed or any(window.held for window in source.windows.values()):",
        "if not source.owed:",
        "both crash",
    ),
    _receiver(
        "the journal is replayed once",
        "        if window.verdict(seq, base) is not Verdict.NEW:\n            return False\n",
        "",
        "a receiver crashes, snapshots",
    ),
    Guard(
        "what is read of what was heard",
        "durable_rows",
        "flow.heard = row.heard",
        "pass",
        "a sender crashes twice, then a receiver is emptied",
    ),
    Guard(
        "what was heard last counts",
        "durable_rows",
        "if row.first == 1 and row.epoch > before.get(row.peer, Flow()).epoch:",
        "if row.first == 1:",
        "a snapshot, a crash, a restored receiver",
    ),
    Guard(
        "a record's own number counts in the last epoch",
        "durable_rows",
        "if key.epoch and key.epoch == found.flows[key.peer].epoch:",
        "if key.epoch:",
        "both crash",
    ),
    Guard(
        "a record that did not come along is settled",
        "durable_rows",
        "found.settled = numbered.difference(found.numbers)",
        "found.settled = set()",
        "crashes of both",
        walks=60,
        seed=3,
        events_each=110,
    ),
    Guard(
        "only the last epoch gives numbers",
        "durable_rows",
        "        elif row.epoch == flow.epoch:",
        "        else:",
        "crashes of both",
        walks=60,
        seed=3,
        events_each=110,
    ),
    Guard(
        "a base counts once it is on disk",
        "dedup",
        "self.firm = self.firm or _Firm(self.floor)\n                self.firm.base = base",
        "pass",
        "a receiver learns marks",
        walks=20,
        seed=9,
    ),
    Guard(
        "what a base has lifted is acknowledged once it is on disk",
        "dedup",
        "seq in self.held or (firm is not None and seq <= self.floor and seq not in firm)",
        "seq in self.held",
        "a receiver learns marks",
        walks=20,
        seed=9,
    ),
    Guard(
        "a number that a base has passed counts once it is journaled",
        "dedup",
        "firm.bits |= 1 << (seq - firm.floor - 1)",
        "pass",
        "a sender learns marks, a journal fails",
    ),
    Guard(
        "what a base has lifted is told once it is on disk",
        "dedup",
        "if firm is None:",
        "if True:",
        "a sender learns marks, a journal fails",
    ),
)


def take_out(guard: Guard) -> None:
    """Loads the protocol without a check, for the rest of this process."""
    for name in MODULES:
        module = importlib.import_module(f"bb_edge.wire.{name}")
        if name != guard.module:
            importlib.reload(module)
            continue
        assert module.__file__ is not None
        with open(module.__file__, encoding="utf-8") as file:
            source = file.read()
        assert source.count(guard.text) == 1, f"{guard.text!r} is not once in {name}"
        exec(compile(source.replace(guard.text, guard.without), module.__file__, "exec"), module.__dict__)
    for name in ("nodes", "network", "worlds", "searches"):
        if f"explored.{name}" in sys.modules:
            importlib.reload(sys.modules[f"explored.{name}"])
