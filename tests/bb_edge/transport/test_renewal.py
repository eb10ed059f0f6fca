"""Certificates that end while a node runs: warnings, how often they come, and the gauges."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from certificates import OPENSSL, Authority

from bb_edge.transport.broker import Broker
from bb_edge.transport.certificate import Certificate
from bb_edge.transport.renewal import LOOK_S, REPEAT_S, CertificateWatch

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="no openssl on this machine")
DAY_S = 86400.0


class Watched:
    """A watch with clocks of its own, and what it has said."""

    def __init__(self, broker: Broker, wall_s: float) -> None:
        self.now, self.wall_s = 1000.0, wall_s
        self.lines: list[tuple[str, str]] = []
        self.watch = CertificateWatch(broker, self._log, lambda: self.now, lambda: self.wall_s)

    def _log(self, level: str, message: str, *, kind: str = "", **_more: object) -> None:
        assert kind == "certificate"
        self.lines.append((level, message))

    def pass_time(self, seconds: float, turns: int = 1) -> list[tuple[str, str]]:
        """Moves both clocks on, in so many turns of the loop; gives what was logged meanwhile."""
        before = len(self.lines)
        for _ in range(turns):
            self.now += seconds / turns
            self.wall_s += seconds / turns
            self.watch.beat()
        return self.lines[before:]


@pytest.fixture
def files(tmp_path):
    """The certificate and key of a node, and their authority; all end after 40 days."""
    authority = Authority(tmp_path, days=40)
    return *map(str, authority("kitchen")), str(authority("ca")[0])


def test_an_end_is_said_once_a_day_and_the_days_that_are_left_are_counted(files) -> None:
    certificate, key, _ = files
    ends_s = Certificate.of(certificate).ends_s
    broker = Broker.from_url("mqtts://h", cert_file=certificate, key_file=key)
    node = Watched(broker, ends_s - 32 * DAY_S)
    assert node.lines == []
    assert node.watch.counters["certificate.seconds_left"] == 32 * DAY_S
    assert node.pass_time(DAY_S, turns=100) == []
    [(level, line)] = node.pass_time(2 * DAY_S, turns=60)
    assert level == "warning" and f"{certificate} (broker.cert) ends on 20" in line
    assert "renew it before" in line
    # Rounding of the turns may shift the 24 hours by one of them.
    assert len(node.pass_time(10 * REPEAT_S, turns=1000)) in (9, 10)
    ended = [line for _, line in node.pass_time(20 * DAY_S, turns=2000) if "has ended on" in line]
    assert len(ended) in (1, 2, 3) and "set this machine's clock" in ended[0]
    assert node.watch.counters["certificate.seconds_left"] < 0


def test_a_certificate_that_begins_later_is_a_clock_that_is_wrong(files) -> None:
    certificate, key, _ = files
    begins_s = Certificate.of(certificate).begins_s
    broker = Broker.from_url("mqtts://h", cert_file=certificate, key_file=key)
    node = Watched(broker, begins_s - 3600)
    assert "begins on" in node.lines[0][1] and "set this machine's clock" in node.lines[0][1]
    node.wall_s += 7200  # the clock is set
    assert node.pass_time(LOOK_S) == [("info", "the certificates in the files are in force")]


def test_a_renewed_file_is_seen_within_a_minute_and_half_of_one_changes_nothing(files, tmp_path) -> None:
    certificate, key, _ = files
    ends_s = Certificate.of(certificate).ends_s
    whole = Path(certificate).read_bytes()
    node = Watched(Broker.from_url("mqtts://h", cert_file=certificate, key_file=key), ends_s + 3600)
    assert "has ended" in node.lines[0][1]
    Path(certificate).write_bytes(whole[: len(whole) // 2])
    assert node.pass_time(LOOK_S) == []
    assert node.watch.counters["certificate.seconds_left"] == -3600 - LOOK_S
    Path(certificate).unlink()
    assert node.pass_time(LOOK_S) == []
    Path(certificate).write_bytes(whole)
    node.wall_s = ends_s - 31 * DAY_S  # as if it were one that ends later
    assert node.pass_time(LOOK_S) == [("info", "the certificates in the files are in force")]
    assert node.watch.counters["certificate.seconds_left"] == 31 * DAY_S - LOOK_S


def test_an_authority_serves_until_the_last_of_its_certificates_ends(files, tmp_path) -> None:
    _, _, authority = files
    ends_s = Certificate.of(authority).ends_s
    node = Watched(Broker.from_url("mqtts://h", ca_file=authority), ends_s - DAY_S)
    assert f"{authority} (broker.ca) ends on 20" in node.lines[0][1] and len(node.lines) == 1
    assert node.watch.counters["certificate.ca_seconds_left"] == DAY_S
    # The one that ends first stands first, and what stands between is not read.
    (tmp_path / "next").mkdir()
    later = Authority(tmp_path / "next", days=90)("ca")[0]
    Path(authority).write_text(f"# the old one\n{Path(authority).read_text()}\n{later.read_text()}")
    assert node.pass_time(LOOK_S)[0][0] == "info"
    assert node.watch.counters["certificate.ca_seconds_left"] > 50 * DAY_S


def test_who_has_no_certificate_has_nothing_to_renew() -> None:
    node = Watched(Broker.from_url("mqtt://h"), 0.0)
    assert node.pass_time(2 * DAY_S) == []
    assert {*node.watch.counters.values()} == {math.inf}
