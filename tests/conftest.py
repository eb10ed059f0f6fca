"""What every test may use: a deterministic hypothesis profile, real MQTT brokers, patience for slow machines.

BB_TEST_PATIENCE=20 multiplies every limit of time by 20: pytest's own and those that tests wait with.
BB_TEST_PROGRAMS=DIR takes compiled programs from another machine (tests/aids/compiled_programs.py).

Fixtures:
    patience          that factor, 1 where none is given
    broker            a running broker, once mosquitto and once amqtt (the test runs twice)
    mosquitto_broker  a running mosquitto, for what only MQTT 5 or broker persistence can show
    start_broker      a function that starts further brokers, for instance
                      `start_broker("mosquitto", config=["persistence_location {folder}/"])`
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent / "aids"))

from brokers import Broker, NoBroker, amqtt, mosquitto

with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    # Same examples on every run and every machine, and no failure because a machine was slow or emulated.
    _COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("fixed", derandomize=True, **_COMMON)
    settings.register_profile("explore", max_examples=2_000, **_COMMON)
    settings.load_profile(os.environ.get("BB_HYPOTHESIS", "fixed"))


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "write anew what tests hold in files: cases of passes, digests of artifacts; with -n 0"
    parser.addoption("--update", action="store_true", help=text)


# `nohup` and jobs in the background ignore these, and what tests start would ignore them too.
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)


PATIENCE = float(os.environ.get("BB_TEST_PATIENCE", "1"))


@pytest.fixture(scope="session")
def patience() -> float:
    """What limits of time are multiplied by on this machine."""
    return PATIENCE


def pytest_runtest_setup() -> None:
    """Subnormal numbers, as hypothesis asks for: a library that was built with -ffast-math, tflite-runtime on
    32-bit ARM for one, takes them from the thread that loads it.
    """
    if sys.float_info.min / 4 == 0.0:
        ctypes.CDLL("libm.so.6").fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """pytest-timeout's limits, multiplied."""
    if PATIENCE == 1:
        return
    usual = float(config.getoption("timeout", None) or config.getini("timeout") or 0)
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit = float(marker.args[0]) if marker is not None and marker.args else usual
        item.add_marker(pytest.mark.timeout(limit * PATIENCE), append=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat the checks that failed before the tests where one looks for the result."""
    if failed := os.environ.get("BB_FAILED_CHECKS"):
        terminalreporter.section("checks that failed before the tests")
        terminalreporter.line(failed)


# ---- brokers


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """`start_broker(kind, config=())` -> a running Broker, ended with the test; `kind` is mosquitto or amqtt.

    `config` holds further lines of mosquitto.conf; `{folder}` in them becomes the broker's own folder.
    """
    started: list[Broker] = []

    def start(kind: str, config: Sequence[str] = ()) -> Broker:
        if config and kind != "mosquitto":
            raise ValueError("config lines are mosquitto's")
        folder = tmp_path / f"broker-{len(started)}"
        folder.mkdir()
        try:
            broker = mosquitto(folder, config) if kind == "mosquitto" else amqtt(folder)
        except NoBroker as error:
            pytest.skip(str(error))
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture(params=["mosquitto", "amqtt"])
def broker(request: pytest.FixtureRequest, start_broker: Callable[..., Broker]) -> Broker:
    """A running broker; the test runs once with each kind."""
    return start_broker(request.param)


@pytest.fixture
def mosquitto_broker(start_broker: Callable[..., Broker]) -> Broker:
    """A running mosquitto."""
    return start_broker("mosquitto")
