"""What the log of a run concludes of its steps."""

from __future__ import annotations

import io
from typing import ClassVar

import pytest

from bb_edge.cli.peer_names import PeerNames
from bb_edge.cli.render import Output
from bb_edge.cli.step_log import StepLog
from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId

A, B = PeerId.from_name("a"), PeerId.from_name("b")


class Quiet:
    """What a log asks of a node and its transport."""

    open_rounds = 0
    counters: ClassVar = {"sent_bytes": 0, "received_bytes": 0}


@pytest.mark.parametrize(
    ("whys", "text"),
    [
        (("deadline", "down"), "3 rounds in a row have reached nobody"),
        (
            ("refused", "refused"),
            "no answer counts in 3 rounds in a row; those of the last request: 2 refused",
        ),
        (
            ("fault here", "deadline"),
            "no answer counts in 3 rounds in a row; those of the last request: 1 fault here",
        ),
    ],
)
def test_giving_up_tells_answers_that_do_not_count_from_none(whys: tuple[str, str], text: str) -> None:
    output = Output(False, "info", io.StringIO(), io.StringIO())
    log = StepLog("own", Quiet(), Quiet(), output, PeerNames(lambda _: {}, ["own"]), lambda *_: None)  # type: ignore[arg-type]
    log(steps.RequestClosed("Server", 1, "train", 2, 0, "all settled", tuple(zip((A, B), whys, strict=True))))
    assert log.in_vain_text(3) == text


def test_what_the_disk_refuses_is_one_line_until_it_takes_it_again() -> None:
    written, told = io.StringIO(), list[object]()
    output = Output(False, "info", io.StringIO(), written)
    log = StepLog(
        "own",
        Quiet(),  # type: ignore[arg-type]
        Quiet(),  # type: ignore[arg-type]
        output,
        PeerNames(lambda _: {}, ["own"]),
        lambda _, value: told.append(value),
    )
    full = OSError("full")
    for what in ("outbox", "journal", "outbox", "outbox", "snapshot", "snapshot", "tidying up", "tidying up"):
        log(steps.StorageFailed(what, full))
    log(steps.StorageRecovered(6, 3_000_000_000))
    log(steps.StorageFailed("outbox", full))
    lines = written.getvalue().splitlines()
    kinds = [line.split()[3] + " " + line.partition("what=")[2].partition(" error")[0] for line in lines]
    assert kinds == [
        *("StorageFailed outbox", "StorageFailed journal", "StorageFailed snapshot"),
        *(
            "StorageFailed tidying up",
            "StorageFailed tidying up",
            "StorageRecovered ",
            "StorageFailed outbox",
        ),
    ]
    assert "failures=6 lasted_ns=3000000000" in lines[5]
    assert len(told) == 5, "the presence has what failed last, each time that it is something else"


def test_a_report_that_is_lost_is_an_error_with_its_round_and_another_send_a_warning() -> None:
    written, told = io.StringIO(), list[object]()
    output = Output(False, "info", io.StringIO(), written)
    log = StepLog(
        "own",
        Quiet(),  # type: ignore[arg-type]
        Quiet(),  # type: ignore[arg-type]
        output,
        PeerNames(lambda _: {}, ["own"]),
        lambda _, what: told.append(what),
    )
    for number in (7, 8):
        log(steps.OutboundDropped(A, "no room", durable=True, round=number))
    log(steps.OutboundDropped(B, "outbound queue full"))
    lost, _, dropped = written.getvalue().splitlines()
    assert " error " in lost and lost.endswith(
        f"OutboundDropped peer={A} reason=no room durable=True round=7"
    )
    assert " warning " in dropped and dropped.endswith(f"peer={B} reason=outbound queue full")
    (failure,) = told
    assert str(failure).endswith(f"a durable envelope to {A} is lost")
