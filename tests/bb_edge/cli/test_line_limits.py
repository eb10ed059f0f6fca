"""Limits on log lines: first lines at once, then one line per minute and kind that says how many more."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from bb_edge.cli.line_limits import MAX_KINDS, PER_KIND, PER_SUBJECT, SAMPLES, WINDOW_NS, LineLimits
from bb_edge.cli.peer_names import PeerNames
from bb_edge.cli.render import Output
from bb_edge.cli.step_log import MAX_FAILURE, StepLog, shortened
from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from tests.aids.peers import numbered


@dataclass
class Clock:
    now_ns: int = 5

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> LineLimits:
    return LineLimits(clock)


def admitted(limits: LineLimits, kind: str, about: str, lines: int) -> int:
    return sum(limits.admit("warning", kind, about) for _ in range(lines))


def test_a_flood_about_one_subject(limits: LineLimits, clock: Clock) -> None:
    assert admitted(limits, "K", "a", 10_000) == PER_SUBJECT
    assert admitted(limits, "K", "b", 1) == 1  # others are still heard
    assert limits.due(clock.now_ns + WINDOW_NS - 1) == []
    clock.now_ns += WINDOW_NS
    (summary,) = limits.due(clock.now_ns)
    assert str(summary) == "K: and 9,990 more in 60 s: a 9,990"
    assert (summary.level, limits.omitted) == ("warning", 9_990)


def test_a_flood_about_ten_thousand_subjects(limits: LineLimits, clock: Clock) -> None:
    assert sum(limits.admit("warning", "K", f"peer {n}") for n in range(10_000)) == PER_KIND
    (summary,) = limits.due(clock.now_ns + WINDOW_NS)
    assert summary.lines == 10_000 - PER_KIND
    assert str(summary).startswith("K: and 9,950 more in 60 s: others 9,694, ")


def test_what_goes_on_gets_samples_until_it_is_quiet(limits: LineLimits, clock: Clock) -> None:
    for minute in range(3):
        written = sum(limits.admit("warning", "K", f"peer {n % 100}") for n in range(1_000))
        assert written == (SAMPLES if minute else PER_KIND)
        clock.now_ns += WINDOW_NS
        assert len(limits.due(clock.now_ns)) == 1
    clock.now_ns += WINDOW_NS
    assert limits.due(clock.now_ns) == []
    assert admitted(limits, "K", "peer 1", 100) == PER_SUBJECT


def test_a_flood_of_kinds_shares_one_limit(limits: LineLimits, clock: Clock) -> None:
    written = sum(limits.admit("warning", f"kind {n}") for n in range(10_000))
    assert written <= MAX_KINDS + PER_KIND
    (summary,) = limits.due(clock.now_ns + WINDOW_NS)
    assert (summary.kind, summary.lines) == ("others", 10_000 - written)


def test_the_end_tells_what_was_left_out(limits: LineLimits) -> None:
    admitted(limits, "K", "a", PER_SUBJECT + 1)
    assert [summary.lines for summary in limits.close()] == [1]


def test_a_log_says_how_many_lines_it_left_out() -> None:
    out, err = io.StringIO(), io.StringIO()
    output = Output(True, "info", out, err)
    for number in range(100):
        output.log("warning", f"chunk {number}", kind="chunk", peer="kitchen")
        output.log("debug", f"chunk {number}", kind="chunk", peer="kitchen")
    output.close()
    lines = [json.loads(line) for line in err.getvalue().splitlines()]
    assert [line["message"] for line in lines[:-1]] == [f"chunk {n}" for n in range(PER_SUBJECT)]
    assert lines[-1]["message"] == "chunk: and 90 more in 1 s: kitchen 90"
    assert output.omitted == 90


def test_debug_lines_have_no_limit() -> None:
    err = io.StringIO()
    output = Output(False, "debug", io.StringIO(), err)
    for _ in range(1_000):
        output.log("debug", "detail")
    assert err.getvalue().count("detail") == 1_000


# --- names ------------------------------------------------------------------------------------------------

KITCHEN, HALL = PeerId.from_name("kitchen"), PeerId.from_name("hall")


def names(**claims: object) -> PeerNames:
    metas = {PeerId.from_name(peer): {"name": claim} for peer, claim in claims.items()}
    return PeerNames(lambda peer: metas.get(peer, {}), ["own"])


def test_a_peer_is_shown_by_its_name_and_id() -> None:
    shown = names(kitchen="kitchen")
    assert shown(KITCHEN) == f"kitchen ({KITCHEN})"
    assert shown(HALL) == str(HALL)
    assert shown(PeerId.from_name("own")).startswith("own (Qm")


@pytest.mark.parametrize("claim", ["kitchen\n2026 error", "", "x" * 65, 7, None, ["kitchen"]])
def test_a_name_that_is_no_name_is_not_shown(claim: object) -> None:
    assert names(hall=claim)(HALL) == str(HALL)


def test_a_name_that_is_not_the_peers_own_is_a_claim() -> None:
    assert names(hall="kitchen")(HALL) == f"{HALL} (calls itself 'kitchen')"


def test_ids_in_texts_get_their_names_and_topics_stay_whole() -> None:
    shown = names(kitchen="kitchen")
    assert shown.in_text(f"peer {KITCHEN}: too slow") == f"peer kitchen ({KITCHEN}): too slow"
    topic = f"bb/home/{KITCHEN}/from/{HALL}"
    assert shown.in_text(topic) == topic
    assert shown.in_text(f"of {HALL}, x{KITCHEN}") == f"of {HALL}, x{KITCHEN}"


class Quiet:
    """What a log asks of a node and its transport."""

    open_rounds = 0
    counters: ClassVar = {"sent_bytes": 0, "received_bytes": 0}


def test_steps_and_events_name_peers() -> None:
    out, err = io.StringIO(), io.StringIO()
    told: list[tuple[str, str]] = []
    output, shown = Output(True, "info", out, err), names(kitchen="kitchen")
    log = StepLog("own", Quiet(), Quiet(), output, shown, lambda *fact: told.append(fact))  # type: ignore[arg-type]
    log(steps.WireReceiveFailed(KITCHEN, "TypeMismatch", "another type"))
    log(steps.OpFailed("T", 1, "op", ValueError(f"of {KITCHEN}"), "slot 'agg'"))
    log(steps.AppEvent("T", 1, "round", [1, (KITCHEN, HALL)]))
    log(steps.OpFailed("T", 2, "op", ValueError(f"of {KITCHEN}"), "slot 'agg'"))
    ((fact, text),) = told
    assert fact == "failure" and "Z op: slot 'agg': ValueError: of Qm" in text
    wire, op, _ = (json.loads(line) for line in err.getvalue().splitlines())
    assert (wire["message"], wire["peer"]) == ("WireReceiveFailed", f"kitchen ({KITCHEN})")
    assert f"of kitchen ({KITCHEN})" in op["error"]
    assert json.loads(out.getvalue())["value"] == [1, [f"kitchen ({KITCHEN})", str(HALL)]]


def test_both_peers_that_ask_by_turns_are_shown_once_by_their_names() -> None:
    err = io.StringIO()
    log = StepLog(
        "own", Quiet(), Quiet(), Output(True, "info", io.StringIO(), err), names(kitchen="kitchen"), None
    )  # type: ignore[arg-type]
    log(steps.AskedByTurns(HALL, KITCHEN, "Server", "stop one"))
    (line,) = [json.loads(line) for line in err.getvalue().splitlines()]
    assert (line["level"], line["peer"], line["other"]) == ("warning", str(HALL), f"kitchen ({KITCHEN})")


@pytest.mark.parametrize(
    ("step", "level"),
    [
        (steps.RequestClosed("T", 1, "ask", 2, 1, "deadline", ((KITCHEN, "deadline"),)), "warning"),
        (steps.RequestClosed("T", 1, "ask", 2, 1, "all settled", ((KITCHEN, "nothing"),)), "warning"),
        (steps.RequestClosed("T", 1, "ask", 2, 1, "enough", ((KITCHEN, "enough"),)), "info"),
        (steps.RequestClosed("T", 1, "ask", 2, 2, "all settled"), None),
        (steps.RoundBackedOff("T", 3, 10, "nobody answered", 2), "warning"),
        (steps.RoundWaits("T", 3, "Client", 0, 1, (KITCHEN,)), "warning"),
        (steps.RoundWaits("T", 3, "Client", 0, 1), "info"),
        (steps.RoundWaits("T", 3, "Client", 0, 1, again=True), "warning"),
        (steps.AnswerRefused(KITCHEN, "inf or nan", "train"), "warning"),
        (steps.NobodyHeard(KITCHEN, "Relay", "nobody answered", "look at them"), "warning"),
        (steps.ValueBeganAnew("Server", "velocity", "float32[2]", "float32[3]"), "warning"),
        (steps.LayoutUndeclared(KITCHEN, "Server", "agg", (2,), "give sent="), "warning"),
        (
            steps.ContributionsClipped("Server", "1 of 9 contributions was shortened", 1, 40.0, (KITCHEN,)),
            "warning",
        ),
        (steps.ContributionsDominate("Server", "1 of 9 counts far more", 1, 1e4, (KITCHEN,)), "warning"),
        (steps.ContributionsGivenUp("Server", "round 3 was never aggregated", 2, (KITCHEN,)), "warning"),
    ],
)
def test_what_keeps_rounds_from_their_end_is_a_warning_with_its_reason(
    step: steps.EngineStep, level: str | None
) -> None:
    err = io.StringIO()
    output = Output(True, "info", io.StringIO(), err)
    StepLog("own", Quiet(), Quiet(), output, names(kitchen="kitchen"), lambda *_: None)(step)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in err.getvalue().splitlines()]
    assert [line["level"] for line in lines] == ([] if level is None else [level])
    if str(KITCHEN) in str(step):
        assert all(f"kitchen ({KITCHEN})" in str(line) for line in lines)


def test_a_presence_tells_who_refuses_the_answers_of_the_node() -> None:
    told: list[tuple[str, str]] = []
    output, shown = Output(True, "info", io.StringIO(), io.StringIO()), names(kitchen="kitchen")
    log = StepLog("own", Quiet(), Quiet(), output, shown, lambda *fact: told.append(fact))  # type: ignore[arg-type]
    log(steps.AnswerRefused(KITCHEN, "a contribution holds inf or nan", "train"))
    ((fact, text),) = told
    assert fact == "failure" and text.endswith(
        f" {KITCHEN} refuses its answers: a contribution holds inf or nan"
    )


@pytest.mark.parametrize(
    ("text", "end"),
    [("a " * 100, "a a"), ("word " * 60, "word …"), ("x" * 300, "x …"), (f"{'y ' * 80}{HALL} is out", "y …")],
)
def test_a_failure_is_cut_between_words(text: str, end: str) -> None:
    short = shortened(text)
    assert len(short) <= MAX_FAILURE and short.endswith(end)
    assert short == text.strip() or text.startswith(short.removesuffix(" …"))


def test_a_flood_of_refused_envelopes_is_bounded() -> None:
    err = io.StringIO()
    output = Output(False, "info", io.StringIO(), err)
    log = StepLog("own", Quiet(), Quiet(), output, names(kitchen="kitchen"), lambda *_: None)  # type: ignore[arg-type]
    for number in range(10_000):
        log(steps.WireReceiveFailed(KITCHEN, "Malformed", f"byte {number}"))
        log(steps.IngressDropped(numbered(number), "1024 peers are up already"))
    output.close()
    lines = err.getvalue().splitlines()
    assert len(lines) == PER_SUBJECT + PER_KIND + 2
    assert f"kitchen ({KITCHEN}) 9,990" in err.getvalue()
