"""What docs/how-to/reports.md promises holds for its program while hub and sensor go and come back.

That its commands run as they stand there is held by tests/pages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bb_edge.observe.catalogue import METRICS, shown
from federated_digits.processes import Line

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "reports.md"
pytestmark = [pytest.mark.broker, pytest.mark.slow]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def farm(tmp_path):
    """The folder of the page's program, compiled; a report each 50 ms."""
    for text in blocks("python"):
        name = re.match(r"# (\S+\.py)\n", text)
        assert name is not None, "a block begins with the name of its file"
        (tmp_path / name[1]).write_text(text.replace("60 * S", "S // 20"))
    command = [sys.executable, "-c", "import sys; from bb_host.cli import main; sys.exit(main(sys.argv[1:]))"]
    first = blocks("console")[0].splitlines()[0].removeprefix("$ ")
    assert first == "bb-host compile farm.py -o build/"
    done = subprocess.run([*command, *first.split()[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "temp").write_text("21500\n")
    return tmp_path


def test_what_the_page_says_holds(farm, mosquitto_broker, federation):
    f = federation(mosquitto_broker)
    hub_file, sensor_file = (farm / "build" / f"Farm.{name}.edge.onnx" for name in ("Hub", "Sensor"))
    flags = ("--load", str(farm / "farm_parts.py"), "--set", f"thermometer.path={farm / 'temp'}")

    def reports() -> list[list]:
        lines = [e.record for e in f.heard if isinstance(e, Line) and e.record.get("event") == "report"]
        return [line["value"] for line in lines]

    def until(number: int, what: str) -> None:
        f.wait(
            lambda e: (
                isinstance(e, Line) and e.record.get("event") == "report" and e.record["value"][1] >= number
            ),
            what,
        )

    sensor = f.run("barn", sensor_file, "Sensor", *f.state("barn"), *flags)
    hub = f.run("hub", hub_file, "Hub", *f.state("hub"))
    until(3, "reports")
    assert f.end(hub)[0] == 0
    seen = max(value[1] for value in reports())
    listed = [sys.executable, "-m", "bb_edge.cli", "outbox", *f.state("barn")]
    while subprocess.run(listed, capture_output=True, text=True).stdout.count(" send ") < 5:
        pass  # the hub is away, and the device goes on
    assert f.end(sensor)[0] == 0
    hub = f.run("hub", hub_file, "Hub", *f.state("hub"))
    sensor = f.run("barn", sensor_file, "Sensor", *f.state("barn"), *flags)
    until(seen + 10, "what was read meanwhile")
    f.end(sensor)
    f.end(hub)
    numbers = [value[1] for value in reports()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1)), "each once, none is missing"
    assert all(value[0][0].startswith("barn (Qm") and value[2] == [21.5] for value in reports())


def test_the_numbers_that_the_page_names_are_there():
    there = {shown(name, metric.kind) for name, metric in METRICS.items()}
    named = set(re.findall(r"`(bb_\w+)`", PAGE.read_text()))
    assert named and named <= there, named - there
