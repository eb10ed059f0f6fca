"""Who is there, who is slow, and who drops out: functions of seed, client and time, not of who asks."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path

from bb_edge.input_files import FileRefused, read_regular
from bb_edge.transport.in_process import keyed_number
from bb_host.errors import ScenarioError
from bb_host.whole_numbers import with_plain_fields

NS = 1_000_000_000
MOST_TRACE_BYTES = 256 << 20
_WHOLE = 1 << 64


@dataclass(frozen=True, slots=True)
class Conditions:
    """What happens to clients. Times are nanoseconds; shares and chances are from 0 to 1.

    Clients are up for `up_share` of each `up_period_ns`, each from an instant of its own on; `trace` has
    spans (from, to) instead, by the name of a node (`gateway-1`) or the number of a client, and those that it
    does not name are always up. Clients by number are those of the class `Client`, or of the only one that
    has several nodes. `slow_share` of the clients need `slow_by_ns` more for whatever they send. Whoever
    takes a request drops out with `dropout_chance`, for `dropout_ns`.
    """

    up_share: float = 1.0
    up_period_ns: int = 600 * NS
    trace: Mapping[int | str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    slow_share: float = 0.0
    slow_by_ns: int = 0
    dropout_chance: float = 0.0
    dropout_ns: int = 30 * NS

    def __post_init__(self) -> None:
        with_plain_fields(self, *(each.name for each in fields(self)))

    @property
    def alike(self) -> bool:
        """Whether all clients are up all the time, and none is slower than others."""
        return self.up_share >= 1 and not self.trace and self.slow_share <= 0

    def is_slow(self, seed: int, client: int) -> bool:
        """Whether the client is one of the slow ones."""
        return self.slow_share > 0 and keyed_number(seed, "slow", client) < self.slow_share * _WHOLE

    def drops_out(self, seed: int, client: int, request: int) -> bool:
        """Whether the client drops out when it takes its request of that number."""
        chance = self.dropout_chance
        return chance > 0 and keyed_number(seed, "dropout", client, request) < chance * _WHOLE

    def changes(self, seed: int, client: int, *named: int | str) -> Iterator[tuple[int, bool]]:
        """Yields (time, up) for each change of one client, in order; it begins with time 0.

        `named` is what `trace` may call it.
        """
        spans = next((self.trace[name] for name in named if name in self.trace), None)
        if self.trace:
            yield 0, spans is None or any(begin <= 0 < end for begin, end in spans)
            for begin, end in spans or ():
                if begin > 0:
                    yield begin, True
                yield end, False
            return
        if self.up_share >= 1:
            yield 0, True
            return
        period, up_for = self.up_period_ns, round(self.up_share * self.up_period_ns)
        shift = keyed_number(seed, "up", client) % period  # how far it is in its period at time 0
        yield 0, shift < up_for
        for number in count():
            if (end := number * period + up_for - shift) > 0:
                yield end, False
            if (begin := (number + 1) * period - shift) > 0:
                yield begin, True


def read_trace(path: Path) -> dict[int | str, list[tuple[int, int]]]:
    """Reads lines `client,from,to` in seconds: when each client, `7` or `client-7`, or `gateway-7` is up.

    Raises ScenarioError, with the line.
    """
    try:
        text = read_regular(path, MOST_TRACE_BYTES).decode("utf-8-sig")
    except FileRefused as error:
        raise ScenarioError(error.what, str(path), error.hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot be read: {error}", str(path)) from error
    found: dict[int | str, list[tuple[int, int]]] = {}
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if not row or row[0].strip().startswith("#") or (number == 1 and row[0].strip() == "client"):
            continue
        try:
            client, begin, end = _named(row[0].strip()), float(row[1]), float(row[2])
            if not 0 <= begin < end < 1e9:
                raise ValueError
        except (ValueError, IndexError):
            raise ScenarioError(
                f"{','.join(row)!r} is not a span",
                f"{path}:{number}",
                "write client,from,to, in seconds: 7,0,3600 or gateway-7,0,3600",
            ) from None
        spans = found.setdefault(client, [])
        if spans and round(begin * NS) < spans[-1][1]:
            raise ScenarioError(
                f"{row[0].strip()} is up from {begin} s on before its last span has ended",
                f"{path}:{number}",
                "give the spans of a client in their order, without overlaps",
            )
        spans.append((round(begin * NS), round(end * NS)))
    if not found:
        raise ScenarioError("it names no client", str(path), "write lines client,from,to, in seconds")
    return found


def _named(text: str) -> int | str:
    """`7` and `client-7` are the client of that number, `gateway-7` a node of another class."""
    name, _, number = text.rpartition("-")
    if not number.isdecimal() or (not name and text != number):
        raise ValueError
    return int(number) if name in ("", "client") else text
