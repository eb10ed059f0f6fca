"""What is said where a node cannot be written down, or cannot take a snapshot."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from busy_nodes import NODES
from peers import SELF
from plays import Moment, played
from snapshots import body_of, resealed, sealed

from bb_edge import NodeConfig, install
from bb_edge.engine.older_snapshots import OLDEST
from bb_edge.engine.snapshot import (
    VERSION,
    Identity,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotForeignError,
    SnapshotVersionError,
)
from bb_edge.ir.errors import BBError
from bb_edge.ir.values import TRIGGER
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.roles import Codec
from bb_edge.wire import cbor

TEXT = """
program Demo {module=Demo}
function program.Main(x: Any, go: Trigger) -> () {entry=1, partition=self}
  late: Trigger = syscall.Sleep<duration_ns=3000000>(go)
  y: Any = syscall.GateDispatch(x, late)
  syscall.AppEmit<name="y">(y)
  round: I64[] = syscall.Repeat<times=2, pause_ns=5000000>()
  syscall.AppNotify<name="round">(round)
"""
BEFORE = "use the one before it"
FOREIGN = "give the node the state folder that is its own, or move this one aside to start anew"


@pytest.fixture
def make(compile_text):
    data = compile_text(TEXT)

    def made(snapshot: bytes | None = None) -> Node:
        return install(SELF, (), data, ["Main"], NodeConfig.edge(), seed=5, snapshot=snapshot)

    return made


def said(make, snapshot: bytes) -> tuple[type, str, str, str]:
    with pytest.raises(SnapshotError) as caught:
        make(snapshot)
    error = caught.value
    return type(error), error.what, error.where, error.hint


def test_bytes_that_are_no_snapshot_or_not_whole(make):
    data = make().snapshot(1)
    body = data[50:]
    cut = (SnapshotDamagedError, "it is not a snapshot, or it is cut off", "snapshot", BEFORE)
    for bad in (b"", data[:49], b"X" + data[1:], data[1:]):
        assert said(make, bad) == cut
    wrong = (SnapshotDamagedError, "its checksum is wrong", "snapshot", BEFORE)
    changed = bytes([*data[:20], data[20] ^ 1, *data[21:]])
    for bad in (
        *(data[:-1], data + b"\x00", data[:50], changed),
        *(sealed(body, size=len(body) + 1), sealed(body, size=len(body) + (1 << 56))),
    ):
        assert said(make, bad) == wrong
    assert said(make, sealed(b""))[1].startswith("its body is damaged: ")
    assert said(make, sealed(cbor.dumps({}))) == (
        *(SnapshotDamagedError, "its body is damaged: 'identity'"),
        *("snapshot", ""),
    )
    make(sealed(body))


@pytest.mark.parametrize("version", [VERSION + 1, 0x100, 0x200, 0xFFFF])
def test_what_a_newer_runtime_wrote(make, version):
    data = sealed(make().snapshot(1)[50:], version)
    what = f"schema version {version}, this runtime reads {OLDEST} to {VERSION}"
    assert said(make, data) == (SnapshotVersionError, what, "snapshot", "update the runtime")


@pytest.mark.parametrize("version", [0, OLDEST - 1])
def test_what_an_older_runtime_wrote(make, version):
    """Rows have other columns since: they would be read as something else, not only refused."""
    data = sealed(make().snapshot(1)[50:], version)
    what = f"schema version {version}, this runtime reads {OLDEST} to {VERSION}"
    hint = "run the runtime that wrote it, or move the state folder aside to start anew"
    assert said(make, data) == (SnapshotVersionError, what, "snapshot", hint)


def test_what_another_node_wrote(make):
    body = body_of(make().snapshot(1))
    assert body["identity"][:2] == [SELF.to_bytes(), "Demo"]
    for at, what, other in (
        (0, "peer", b"x"),
        (1, "module", "x"),
        (1, "module", None),
        (2, "artifact", "x"),
        (3, "targets", ["x"]),
    ):
        identity = [*body["identity"][:at], other, *body["identity"][at + 1 :]]
        assert said(make, sealed(cbor.dumps({**body, "identity": identity}))) == (
            *(SnapshotForeignError, f"it is of another {what}"),
            *("snapshot", FOREIGN),
        )


def test_the_digest_of_a_program_tells_artifacts_and_targets_apart_and_no_peers():
    one = Identity(b"a", "Demo", "d1", ("Main",))
    assert replace(one, peer=b"b").program == one.program
    others = [replace(one, **change) for change in ({"module": "X"}, {"digest": "d2"}, {"targets": ("X",)})]
    assert len({one.program, *(other.program for other in others)}) == 4
    assert {len(other.program) for other in others} == {32}


def test_a_part_that_does_not_fit_is_named(make):
    body = body_of(make().snapshot(1))
    for name, value, what in (
        ("now_ns", "x", "ValueError: "),
        ("now_ns", None, "TypeError: "),
        ("cycle", {**body["cycle"], "rounds": []}, "ValueError: "),
        ("cycle", {**body["cycle"], "rounds": body["cycle"]["rounds"] * 2}, "ValueError: "),
        ("components", [*body["components"], ["bb.FedAvg", b""]], "ValueError: "),
        ("components", [["bb.FedAvg", b""]], "ValueError: the state of a bb.FedAvg for a bb.NumPyBackend"),
        ("claims", [[0, 0], *body["claims"][1:]], "ValueError: claims of another number of components"),
    ):
        kind, text, where, _ = said(make, sealed(cbor.dumps({**body, name: value})))
        assert (kind, where) == (SnapshotDamagedError, "snapshot")
        assert text.startswith(f"its part {name!r} does not fit: {what}")


def test_a_value_without_a_written_form_is_named_with_what_to_do(make):
    node = make()
    node.invoke("Main", {"x": object(), "go": TRIGGER})
    node.poll(1)
    with pytest.raises(SnapshotError) as caught:
        node.snapshot(2)
    error = caught.value
    assert (type(error), error.what) == (SnapshotError, "executions: a object cannot be written down")
    assert (error.where, error.hint) == ("snapshot", "register a codec for its type")


class Stubborn(Codec):
    """Cannot be written down, and does not say where."""

    TYPE_NAME: ClassVar[str] = "test.Stubborn"
    where: ClassVar[str] = ""

    @classmethod
    def construct(cls, env: Any) -> Stubborn:
        return cls()

    def serialize(self) -> bytes:
        raise BBError("it has lost count", self.where, "count anew")

    def restore(self, state: bytes) -> None: ...

    def compress(self, ctx: Any, t: Any) -> Any:
        return t

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code


@pytest.mark.parametrize(("where", "expected"), [("", ""), ("its counter", "its counter: ")])
def test_a_component_that_cannot_be_written_down_is_heard(compile_text, where, expected):
    text = (
        'program Demo {module=Demo, binding.Main.c="codec|test.Stubborn|1"}\n'
        "function program.Main(x: F32[2]) -> (y) {entry=1, partition=self}\n"
        "  slot c: codec\n  y: F32[2] = role.compressor.Compress(x) {slot=c}\n"
    )
    registry = Registry()
    registry.register(type("Placed", (Stubborn,), {"where": where}))
    node = install(SELF, (), compile_text(text), ["Main"], registry=registry, seed=1)
    with pytest.raises(SnapshotError) as caught:
        node.snapshot(1)
    error = caught.value
    said = f"components: test.Stubborn.serialize: {expected}it has lost count, at "
    assert error.what.startswith(said)
    assert (error.where, error.hint) == ("slot 'c'", "count anew")
    node.invoke("Main", {"x": np.ones(2, np.float32)})
    assert node.poll(2), "and the node goes on"


# --- damage -------------------------------------------------------------------------------------------

Path = tuple[Any, ...]

ROWS = """
bootstraps.* bootstraps.*.*:length claims claims.* components components.* control.*
core.generators core.generators.* core.ids core.rings.* core.rng
cycle.rounds cycle.rounds.* cycle.ticks.*
executions executions.*.*.bootstrap_of executions.*.*.flags executions.*.*.frames.* executions.*.*.numbers
executions.*.*.frames.*.*.* executions.*.*.parked.* executions.*.*.parked.*.*
executions.*.*.ready.* executions.*.*.ready.*.*
executions.*.*.cause:length executions.*.*.source:length
ingress.accepted.* ingress.entries.* ingress.notices.* ingress.raw.* ingress.completions.*:length
links.links.*.*.* neighbours.addresses.* neighbours.backoff.* neighbours.health.failures.*
neighbours.imposed.* neighbours.peers.* ops.* ops.*.*
outbound.unwritten.* parked parked.*.* parked.*.*.*
requests requests.*.*.ask requests.*.*.asked.* requests.*.*.by_req_id.*
requests.*.*.collector requests.*.*.frame requests.*.*.gated.* requests.*.*.op requests.*.*.region
requests.*.*.waiting.*:length timers timers.*.*
"""
"""Lists of a known length: one that is shorter, longer, or no list is damage.

`*` stands for any place of a list. `:length` marks rows that may be something else: None, or text.
"""

TABLES = """
control core.rings cycle.ticks executions.*.*.frames executions.*.*.parked executions.*.*.permits
executions.*.*.ready ingress.accepted ingress.completions ingress.entries ingress.notices ingress.raw
links.links links.links.*.* neighbours.addresses neighbours.addresses.* neighbours.backoff
neighbours.health.failures neighbours.imposed neighbours.peers neighbours.rtt neighbours.rtt.* ops
outbound.unwritten parked.* requests.* requests.*.*.accepted requests.*.*.asked requests.*.*.by_req_id
requests.*.*.gated requests.*.*.settled requests.*.*.waiting timers.*
"""
"""Lists of any length: a wrong row, or what is not a list, is damage."""


def words(text: str) -> list[str]:
    return text.split()


def at(body: Any, path: Path) -> Any:
    for key in path:
        body = body[key]
    return body


def spelled(path: Path) -> str:
    return ".".join("*" if isinstance(key, int) else key for key in path)


def lists_in(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where lists stand that are not empty."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from lists_in(item, (*path, key))
    elif isinstance(value, list):
        if value:
            yield path
        for index, item in enumerate(value):
            yield from lists_in(item, (*path, index))


@functools.cache
def examples() -> dict[str, tuple[bytes, int, Any, Path]]:
    """By spelled path: the first snapshot that has such a list, its time, how to install it, and where."""
    first: dict[str, tuple[bytes, int, Any, Path]] = {}

    def visit(moment: Moment) -> None:
        written = moment.node.snapshot(moment.now_ns)
        for path in lists_in(body_of(written)):
            first.setdefault(spelled(path), (written, moment.now_ns, moment.install, path))

    for nodes in NODES:
        for seed in range(3):
            played(nodes, seed, visit)
    return first


def refused(written: bytes, now_ns: int, restored: Any, path: Path, value: Any, why: str = "") -> None:
    """The snapshot with this value in this place is damaged, and the error names the section."""
    body = copy.deepcopy(body_of(written))
    at(body, path[:-1])[path[-1]] = value
    with pytest.raises(SnapshotDamagedError) as caught:
        restored(resealed(body), now_ns)
    assert caught.value.what.startswith(f"its part {path[0]!r} does not fit: {why}"), caught.value.what


@pytest.mark.parametrize("name", words(ROWS))
def test_a_row_of_another_shape_is_damage(name: str) -> None:
    name, _, only = name.partition(":")
    written, now_ns, restored, path = examples()[name]
    row = at(body_of(written), path)
    for changed in (row[:-1], [*row, None], *(() if only else ("odd",))):
        refused(written, now_ns, restored, path, changed)


@pytest.mark.parametrize("name", words(TABLES))
def test_a_table_with_a_row_that_is_none_is_damage(name: str) -> None:
    written, now_ns, restored, path = examples()[name]
    table = at(body_of(written), path)
    for changed in ([*table, None], "odd"):
        refused(written, now_ns, restored, path, changed)


@pytest.mark.parametrize("name", ["executions.*.*", "requests.*.*", "cycle", "neighbours", "ingress"])
def test_a_row_without_one_of_its_names_is_damage(name: str) -> None:
    within = next(known for known in examples() if known.startswith(f"{name}."))
    written, now_ns, restored, path = examples()[within]
    path = path[: name.count(".") + 1]
    row = at(body_of(written), path)
    for gone in row.keys() - {"intervals"}:  # which older versions of this schema do not have
        others = {key: value for key, value in row.items() if key != gone}
        refused(written, now_ns, restored, path, others)


def test_whatever_a_whole_snapshot_says_it_is_taken_or_refused_with_a_typed_error() -> None:
    chance = random.Random(7)
    for written, now_ns, restored, path in examples().values():
        if path[0] in ("identity", "slots"):
            continue
        row = at(body_of(written), path)
        body = copy.deepcopy(body_of(written))
        at(body, path[:-1])[path[-1]] = chance.choice([row[::-1], row[:-1], row * 2, {}, 0, -1, None, [None]])
        try:
            restored(resealed(body), now_ns)
        except SnapshotDamagedError:
            continue


@pytest.mark.parametrize(
    ("within", "length", "column", "why"),
    [
        ("executions.*.*.frames.*", 5, 2, "a frame of another graph"),  # how many inputs each op waits for
        ("parked.*.*.*.*.*", 3, 6, "zip() argument 2 is "),  # the inputs of an op that waits for an answer
    ],
)
def test_as_many_values_as_the_program_has_are_read(within: str, length: int, column: int, why: str) -> None:
    written, now_ns, restored, path = examples()[within]
    path = (*path[:length], column)
    row = at(body_of(written), path)
    for changed in (row[:-1], [*row, row[-1]]):
        refused(written, now_ns, restored, path, changed, f"ValueError: {why}")


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [("control.*", 2, "x"), ("control.*", 4, "nothing_like_it"), ("components.*", 0, "bb.Another")],
)
def test_what_the_program_has_not_got_is_damage(name: str, column: int, value: str) -> None:
    written, now_ns, restored, path = examples()[name]
    refused(written, now_ns, restored, (*path, column), value)


def test_other_slots_than_the_artifact_has_are_damage() -> None:
    written, now_ns, restored, path = examples()["slots.*"]
    refused(written, now_ns, restored, (*path, 1), "x", "ValueError: other slots than the artifact's")


def test_a_callable_that_nothing_here_has_is_damage() -> None:
    written, now_ns, restored, path = examples()["timers.*.*"]
    why = "UnknownCallbackError: snapshot: nothing here is called 'nothing'"
    refused(written, now_ns, restored, (*path, 2), "nothing", why)


@pytest.mark.parametrize("written_flag", [False, True])
def test_a_flag_that_only_older_versions_had_keeps_its_place(written_flag: bool) -> None:
    written, now_ns, restored, _ = examples()["executions.*.*.flags"]
    body = body_of(written)
    rows = body["executions"][2]
    before = [row["flags"][:] for row in rows]
    for row in rows:
        row["flags"][2] = written_flag
    again = restored(resealed(body), now_ns)
    assert [row["flags"] for row in body_of(again.snapshot(now_ns))["executions"][2]] == before
    assert before and all(flags[2] is False and len(flags) == 11 for flags in before)


def test_every_damaged_byte_is_noticed() -> None:
    written, now_ns, restored, _ = examples()["ingress.entries.*"]
    chance = random.Random(5)
    for _ in range(300):
        bad = bytearray(written)
        place = chance.choice((chance.randrange(60), chance.randrange(len(bad))))
        bad[place] ^= 1 << chance.randrange(8)
        with pytest.raises((SnapshotDamagedError, SnapshotVersionError)):
            restored(bytes(bad), now_ns)


def test_a_section_of_another_kind_is_damage_or_an_empty_one() -> None:
    first = {path[0]: row for row in examples().values() for path in row[3:]}
    for section, (written, now_ns, restored, path) in first.items():
        if section in ("identity", "slots"):
            continue
        refused(written, now_ns, restored, path[:1], None)
        for value in (7, {}, [[]], {"id": 1}, [1, 2, 3]):
            with contextlib.suppress(SnapshotDamagedError):
                restored(resealed({**body_of(written), section: value}), now_ns)
                assert value in (7, {}), (section, value)
