"""What a plan asks of K peers is held against the bounds of a node, with numbers, before it runs."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from node_processes import PATIENCE_S
from peers import HERE, A, B

from bb_edge import NodeConfig, PeerId, install
from bb_edge.capacity import (
    LARGEST_PLANNED_JOURNAL,
    Finding,
    Level,
    findings,
    planned_journal,
    refusals,
    tell,
)
from bb_edge.cli import main
from bb_edge.cli.check import verdicts
from bb_edge.engine import steps
from bb_edge.engine.net.durable import RECORD_BYTES
from bb_edge.ir.address import site_suffix
from bb_edge.ir.tensors import encode_tensor
from bb_edge.loading import load
from bb_edge.run_config import RunConfig
from bb_edge.state import StoreLimits
from bb_edge.targets import InstallError
from bb_edge.wire import envelope
from bb_edge.wire.envelope import Envelope, Fill

MB = 1_000_000
TEXT = """
program Demo {module=Demo, targets="Server", binding.Server.peers="peer_selector|bb.PresenceSelector|1"}
function program.Server(x: F32) -> () {entry=1, partition=Server}
  slot peers: peer_selector peer_class=Client
  all: PeerIdVec = role.peer_selector.Sample<n=PEERS, min=LEAST>() {slot=peers}
  up: PeerIdVec = gate.PeerHealthGateTx(all) {wire.wire_id=1}
  req: WireReqId = wire.SendReqBatched(x, up, all) {wire.wire_id=1, wire.site_ids=aa, wire.type_hashes=101, deadline_ns=20000000000, wire.answer_mode=MODE, port=ask, wire.max_bytes=SENTDURABLE}
  READ
  syscall.AppEmit<name="missing">(missing)
"""
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=bb, wire.type_hashes=101, wire.max_bytes=ANSWER"
READS = {
    "each": f"""closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(req) {{wire.wire_id=2, wire.request=1}}
  a: F32, who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  syscall.AppEmit<name="answer">(a)""",
    "batch": f"""closed: Trigger, missing: PeerIdVec, stack: Tensor = wire.RecvRespBatched(req) {{{REPLY}}}
  syscall.AppEmit<name="stack">(stack)""",
}
EDGE = NodeConfig.edge()


@pytest.fixture
def plan(compile_text):
    """The artifact of a server that asks `peers` peers."""

    def make(mode="each", peers=10, least=0, sent=MB, answer=MB, durable=False) -> bytes:
        text = TEXT.replace("READ", READS[mode]).replace("MODE", mode).replace("PEERS", str(peers))
        text = text.replace("LEAST", str(least)).replace("SENT", str(sent)).replace("ANSWER", str(answer))
        return compile_text(text.replace("DURABLE", ", durable=1" if durable else ""))

    return make


def found(data: bytes, config: NodeConfig = EDGE, disk: StoreLimits | None = None) -> list[Finding]:
    program = load(data)
    return findings(program, tuple(program.targets.values()), config, disk)


def only(data: bytes, level: Level, config: NodeConfig = EDGE, disk: StoreLimits | None = None) -> str:
    (finding,) = found(data, config, disk)
    assert finding.level is level
    return str(finding)


def installed(data: bytes, config: NodeConfig) -> None:
    install(PeerId.from_name("server"), (), data, ["Server"], config, seed=1, durable=True)


def test_what_fits_at_once_says_nothing(plan):
    assert found(plan(peers=8)) == []
    assert found(plan(peers=1000, answer=0), EDGE.with_(max_peers=1000)) == []
    assert found(plan(peers=8, durable=True), EDGE, StoreLimits()) == []


def test_bounds_under_which_nothing_comes_in_or_is_written_are_refused(plan):
    data = plan(peers=1, sent=0, answer=0)  # of sizes that nobody knows
    (first, *_) = refusals(found(data, EDGE.with_(ingress_bytes=10)))
    assert "an envelope of 48 bytes is never taken: ingress_bytes is 10 (raise limits.ingress_bytes" in str(
        first
    )
    *logs, refused = refusals(found(data, EDGE, StoreLimits(1023, 50, 5)))
    assert [str(finding).partition(": ")[2] for finding in logs] == [
        f"no record is ever written down: disk.{name} is {size} (raise disk.{name} to 1024 at least)"
        for name, size in (("journal_bytes", 1023), ("outbox_bytes", 50))
    ]
    assert found(data, EDGE, StoreLimits(1024, 1024, 2048)) == []
    assert "no snapshot is ever written" in refused.what and "disk.snapshot_bytes is 5" in refused.what
    assert found(data, EDGE, StoreLimits.edge()) == []
    (outbox,) = refusals(found(data, EDGE.with_(outbox_bytes=1023), StoreLimits()))
    assert str(outbox).endswith(
        "no durable send ever finds room: limits.outbox_bytes is 1023 "
        "(raise limits.outbox_bytes to 1024 at least)"
    )
    assert found(data, EDGE.with_(outbox_bytes=1024), StoreLimits()) == []


def test_a_check_tells_what_has_no_planned_size(plan, tmp_path, capsys):
    for size, told in ((0, True), (MB, False)):
        path = tmp_path / f"{size}.onnx"
        path.write_bytes(plan(peers=1, answer=size))
        main(["check", str(path), "--set", "peers.peer_class=Client"])
        said = capsys.readouterr().out
        assert ("one of more than 65536 bytes is refused" in said) is told, said
        assert ("raise limits.caps.fill_bytes on both sides" in said) is told


def test_streamed_answers_take_turns(plan):
    told = only(plan(peers=1000), Level.NOTE)
    assert "request 'ask': 1000 answers of 1000000 bytes come in 8 at a time (ingress_bytes 8388608)" in told
    installed(plan(peers=1000), EDGE)


def test_kept_answers_leave_somebody_out(plan):
    told = only(plan("batch", peers=9), Level.WARNING)
    assert "of 9 answers of 1000000 bytes it can keep 8: the others are missing" in told
    assert "raise limits.ingress_bytes to 9001152" in told
    assert found(plan("batch", peers=9), EDGE.with_(ingress_bytes=9_001_152)) == []
    installed(plan("batch", peers=9), EDGE)


def test_kept_answers_that_the_round_waits_for_are_refused(plan):
    data = plan("batch", peers=12, least=9)
    with pytest.raises(InstallError, match=r"keeps 9 answers.*ingress_bytes is 8388608.*to 9001152"):
        installed(data, EDGE)
    installed(data, EDGE.with_(ingress_bytes=9_001_152))


def test_more_peers_than_a_node_may_know(plan):
    config = EDGE.with_(max_peers=50)
    told = only(plan(peers=60, answer=0), Level.WARNING, config)
    assert "asks 60 peers, and max_peers is 50" in told and "limits.max_peers to 60" in told
    with pytest.raises(InstallError, match="waits for 51 peers, and max_peers is 50: it never asks"):
        installed(plan(peers=60, least=51, answer=0), config)


def test_bytes_in_which_no_peer_finds_a_place_are_refused(plan, arriving):
    """It passed, and the node took nobody's presence: it asked nobody, and answered nobody."""
    for data in (plan(peers=1, answer=0), arriving(8)):
        told = only(data, Level.REFUSED, EDGE.with_(peer_bytes=10))
        assert told == (
            "Server: no peer ever finds a place: one takes 164 bytes at least, and peer_bytes is 10"
            " (raise limits.peer_bytes to 1024 for each peer, or leave it out)"
        )
        with pytest.raises(InstallError, match="peer_bytes is 10"):
            installed(data, EDGE.with_(peer_bytes=10))
        assert found(data, EDGE.with_(peer_bytes=170)) == []


@pytest.mark.parametrize(("cap", "least"), [("suffix_bytes", 22), ("address_bytes", 37)])
def test_an_envelope_without_room_for_where_it_goes_is_refused(plan, arriving, cap, least):
    """The check passed, and the node took no envelope of anybody, or no peer's first."""
    for data in (plan(peers=1, answer=0), arriving(8)):
        config = EDGE.with_(caps=replace(EDGE.caps, **{cap: least - 1}))
        told = only(data, Level.REFUSED, config)
        assert told.startswith("Server: ") and f"in {least} bytes, and caps.{cap} is {least - 1}" in told
        assert f"raise limits.caps.{cap} to {least} at least" in told
        with pytest.raises(InstallError, match=f"caps.{cap} is {least - 1}"):
            installed(data, config)
        assert found(data, EDGE.with_(caps=replace(EDGE.caps, **{cap: least}))) == []


def test_bytes_in_which_too_few_peers_find_a_place(plan):
    config = EDGE.with_(peer_bytes=1800)
    told = only(plan(peers=11, answer=0), Level.WARNING, config)
    assert "it asks 11 peers, and peer_bytes, which is 1800, has room for 10 at most" in told
    assert "raise limits.peer_bytes to 11264" in told
    told = only(plan(peers=20, least=11, answer=0), Level.REFUSED, config)
    assert "it waits for 11 peers, and peer_bytes, which is 1800, has room for 10 at most" in told
    assert found(plan(peers=10, answer=0), config) == []


def test_a_fill_in_which_no_value_of_open_size_fits_is_refused(arriving):
    """One of a planned size is taken all the same: its site's bound is that size."""
    for size, refused in ((15, True), (16, False)):
        config = EDGE.with_(caps=replace(EDGE.caps, fill_bytes=size))
        assert found(arriving(2000), config) == []
        told = [str(finding) for finding in refusals(found(arriving(0), config))]
        said = (
            "Server, what arrives at 'report': no value of open size fits: caps.fill_bytes is 15"
            " (raise limits.caps.fill_bytes to 16 at least, or leave it out)"
        )
        assert told == refused * [said]


def test_requests_take_turns(plan):
    places = EDGE.with_(outbound_queue=30)
    assert "asks 40 peers 30 at a time" in only(plan(peers=40, answer=0), Level.NOTE, places)
    small = EDGE.with_(ingress_bytes=10_000)
    told = only(plan(peers=40, sent=872, answer=0), Level.NOTE, small)
    assert "asks 40 peers 10 at a time" in told and "limits.ingress_bytes to 40000" in told
    assert found(plan(peers=40, sent=872, answer=0), EDGE.with_(ingress_bytes=40_000)) == []


def test_durable_requests_and_the_outbox(plan):
    """One payload, and a tail for each peer."""
    data = plan(peers=40, answer=0, durable=True)
    assert found(data, EDGE.with_(outbox_bytes=MB + 40 * 128)) == []
    told = only(data, Level.NOTE, EDGE.with_(outbox_bytes=MB + 10 * 128))
    assert "durably 10 at a time" in told and f"limits.outbox_bytes to {MB + 40 * 128}" in told
    assert "limits.outbox_records to 40" in only(data, Level.NOTE, EDGE.with_(outbox_records=30))
    with pytest.raises(InstallError, match="1000000 bytes never finds room: outbox_bytes is 1000000"):
        installed(data, EDGE.with_(outbox_bytes=MB))


def test_durable_requests_and_the_folder(plan):
    data, ask = plan(peers=4, durable=True), plan(peers=4, answer=0, durable=True)
    assert found(data, EDGE, StoreLimits.edge()) == []
    small = StoreLimits(snapshot_bytes=3000)
    assert found(ask, EDGE, small) == [], "what it sends is in the outbox"
    told = only(data, Level.WARNING, EDGE, small)
    assert "some 3001024 bytes while it asks" in told and "disk.snapshot_bytes to 3001024" in told
    journal = StoreLimits(journal_bytes=2 * MB)
    told = only(data, Level.NOTE, EDGE, journal)
    assert "is written every 2 of 4 answers" in told and "disk.journal_bytes (2000000) to 4000000" in told
    (refused,) = refusals(found(data, EDGE, StoreLimits(journal_bytes=MB // 2 - 1)))
    assert "no durable answer of 1000000 bytes is ever taken" in str(refused)
    installed(data, EDGE)


def test_the_snapshot_that_a_durable_request_waits_for_holds_nothing_of_what_it_sends(plan):
    """What `check` reckons with is what a node writes."""
    config = EDGE.with_(invoke_bytes=2 * MB)
    node = install(
        PeerId.from_name("server"), (HERE,), plan(peers=2, durable=True), ["Server"], config, durable=True
    )
    for peer in (A, B):
        node.peer_presence(peer, True, (HERE,), epoch=1, classes=("Client",))
    before = len(node.snapshot(0))
    node.invoke("Server", {"x": np.zeros(MB // 4, np.float32)})
    asked = 0
    for now_ns in range(1, 9):
        said = node.poll(now_ns)
        for step in said:
            if isinstance(step, steps.PersistOutbox):
                node.persisted(step.token)
            asked += isinstance(step, steps.SendEnvelope)
        if any(isinstance(step, steps.SnapshotWanted) for step in said):
            assert len(node.snapshot(now_ns)) - before < 2 * 2 * RECORD_BYTES + 2000
            node.snapshot_written()
    assert asked == 2


@pytest.mark.parametrize(
    ("peers", "answer", "holds"),
    [(4, MB, 4), (30, MB, 30), (1000, MB // 2, 32), (1000, 3 * MB, 11)],  # the last one: 32 MiB
)
def test_a_journal_that_nobody_configured_holds_the_answers_of_a_round_or_many(plan, peers, answer, holds):
    program = load(plan(peers=peers, answer=answer, durable=True))
    targets = tuple(program.targets.values())
    planned = planned_journal(program, targets)
    assert holds * answer < planned <= LARGEST_PLANNED_JOURNAL
    assert planned < (holds + 2) * answer
    for budget, least in (("edge", StoreLimits.edge()), ("host", StoreLimits())):
        config = RunConfig(budget=budget)
        assert config.store_limits(planned).journal_bytes == max(least.journal_bytes, planned)
        set_by_hand = RunConfig(budget=budget, disk={"journal_bytes": MB})
        assert set_by_hand.store_limits(planned).journal_bytes == MB


@pytest.mark.parametrize("durable", [False, True])
def test_a_program_without_durable_answers_plans_no_journal(plan, durable):
    program = load(plan(answer=0 if durable else MB, durable=durable))
    assert planned_journal(program, tuple(program.targets.values())) == 0


def test_an_asker_whose_peers_nobody_planned_is_not_judged(compile_text, plan):
    text = (
        TEXT.replace("READ", READS["each"])
        .replace("MODE", "each")
        .replace("SENT", "9")
        .replace("DURABLE", "")
    )
    text = text.replace("ANSWER", str(MB)).replace(
        "role.peer_selector.Sample<n=PEERS, min=LEAST>", "role.peer_selector.CurrentView"
    )
    assert found(compile_text(text)) == []


def test_telling_leaves_out_what_is_refused():
    said: list[SimpleNamespace] = []
    all_levels = [Finding(level, level.value, "here", "do this") for level in Level]
    tell(all_levels, lambda level, text: said.append(SimpleNamespace(level=level, text=text)))
    assert [(each.level, each.text) for each in said] == [
        ("warning", "here: warning (do this)"),
        ("info", "here: note (do this)"),
    ]


def test_check_shows_what_takes_turns_and_refuses_what_never_fits(plan, tmp_path, capsys):
    artifact = tmp_path / "demo.onnx"
    artifact.write_bytes(plan(peers=1000))
    assert main(["check", str(artifact)]) == 0
    assert (
        "note: Server, request 'ask': 1000 answers of 1000000 bytes come in 8 at a time"
        in capsys.readouterr().out
    )
    artifact.write_bytes(plan("batch", peers=12, least=9))
    assert main(["check", str(artifact)]) == 1
    assert capsys.readouterr().out.count("it keeps 9 answers of 1000000 bytes until it closes") == 1
    artifact.write_bytes(plan(peers=1, sent=17 * MB, answer=0, durable=True))
    assert main(["check", str(artifact)]) == 0, "it is in the outbox, and in no snapshot"


def test_a_node_says_at_its_start_what_takes_turns(plan, configured, start):
    path = configured(targets=["Server"])
    (path.parent / "program.onnx").write_bytes(plan(peers=1000))
    process = start("run", "--config", str(path))
    process.says("1000 answers of 1000000 bytes come in 8 at a time")


def test_check_and_run_reckon_with_the_journal_that_the_program_plans(plan, configured, start, capsys):
    path = configured(targets=["Server"], state="state")
    (path.parent / "program.onnx").write_bytes(plan(peers=1000, durable=True))
    said = f"raise disk.journal_bytes ({33 * (MB + RECORD_BYTES)})"
    assert main(["check", "--config", str(path)]) == 0
    assert said in capsys.readouterr().out
    start("run", "--config", str(path)).says(re.escape(said))


def test_a_folder_that_can_never_hold_the_models_keeps_the_node_from_running(
    configured, start, capsys, tmp_path
):
    pytest.importorskip("onnx", reason="compiling needs the host extra")
    from averaging import compiled, write_flowers

    flowers = write_flowers(tmp_path / "flowers.npz", 0)
    path = configured(
        targets=["Server"],
        state="state",
        disk={"snapshot_bytes": 3000},
        components={"test": {"path": str(flowers)}},
    )
    (path.parent / "program.onnx").write_bytes(compiled(hidden=100, durable=True)["Server"])
    assert main(["check", "--config", str(path)]) == 1
    out = capsys.readouterr().out
    assert "refused: Server, request 'global': no durable request ever leaves" in out
    assert out.count("no durable request ever leaves") == 1
    process = start("run", "--config", str(path))
    process.says(
        "no durable request ever leaves: the snapshot that it waits for has the 3212 bytes of the models"
    )
    assert process.process.wait(PATIENCE_S) == 3


def test_a_check_of_an_artifact_alone_does_not_refuse_what_a_folder_could_not_hold(plan):
    """Nobody has said that there is a folder; a durable program needs one."""
    config = RunConfig(disk={"snapshot_bytes": 100})
    (verdict,) = verdicts(load(plan(peers=1, answer=0)), config)
    assert verdict.runs, verdict.problems
    (note,) = [note for note in verdict.notes if "no snapshot is ever written" in note]
    assert note.startswith("with a state folder: Server: ") and "disk.snapshot_bytes is 100" in note
    (verdict,) = verdicts(load(plan(peers=1, durable=True)), RunConfig(disk={"journal_bytes": 100}))
    assert any("disk.journal_bytes is 100" in problem for problem in verdict.problems)


# --- what arrives -----------------------------------------------------------------------------------------


ARRIVING = """
program Demo {module=Demo, targets="Server"}
function program.Server() -> () {entry=1, partition=Server}
  OUTPUTSs: PeerIdVec = wire.Recv() {wire.wire_id=1, wire.site_ids="SITES", wire.type_hashes="HASHES", wire.max_bytes="SIZES", port=report}
"""


@pytest.fixture
def arriving(compile_text):
    """The artifact of a node that receives payloads of these planned sizes in one envelope."""

    def make(*sizes: int) -> bytes:
        text = ARRIVING.replace("OUTPUTS", "".join(f"x{n}: F32, " for n in range(len(sizes))))
        text = text.replace("SITES", ",".join(f"a{n:x}" for n in range(len(sizes))))
        text = text.replace("HASHES", ",".join("101" for _ in sizes))
        return compile_text(text.replace("SIZES", ",".join(map(str, sizes))))

    return make


@pytest.mark.parametrize("sizes", [(2000,), (1500, 500)])
def test_an_envelope_for_which_there_is_never_room_is_refused(arriving, sizes):
    """Only payloads above the cap of a fill were looked at, one by one."""
    small = EDGE.with_(ingress_bytes=1999)
    told = only(arriving(*sizes), Level.REFUSED, small)
    assert (
        "Server, what arrives at 'report': an envelope of 2000 bytes is never taken: ingress_bytes is 1999"
        in told
    )
    assert "raise limits.ingress_bytes to 4000" in told
    with pytest.raises(InstallError, match="ingress_bytes is 1999"):
        installed(arriving(*sizes), small)
    installed(arriving(*sizes), EDGE.with_(ingress_bytes=2000))


def test_an_envelope_above_the_ceiling_is_refused(arriving):
    told = only(arriving(4 * MB, MB), Level.REFUSED)
    assert "an envelope of 5000000 bytes (the largest payload has 4000000) is never taken" in told
    assert "caps.ceiling_bytes is 4194304 (raise limits.caps.ceiling_bytes to 10000000)" in told
    raised = EDGE.with_(caps=replace(EDGE.caps, ceiling_bytes=10 * MB))
    assert found(arriving(4 * MB, MB), raised) == []


def test_more_payloads_than_an_envelope_may_have(arriving):
    told = only(arriving(*[8] * 17), Level.REFUSED)
    assert "17 payloads in one envelope, and caps.fills is 16 (raise limits.caps.fills to 17)" in told


def test_many_small_payloads_raise_what_an_envelope_may_have(arriving, compile_text):
    """Sixteen of 60 kB are more than the 256 KiB of a small board; they were refused when they came."""
    sizes = [60_000] * 16
    node = install(PeerId.from_name("server"), (), arriving(*sizes), ["Server"], seed=1)
    assert node.raised_sites == ()
    fills = [
        Fill(site_suffix(0xA0 + n), encode_tensor(np.zeros(14_000, np.float32)), False, 0x101)
        for n in range(len(sizes))
    ]
    node.deliver_inbound(envelope.encode(Envelope(fills=fills)), PeerId.from_name("x"))
    failures = [s for s in node.poll(1) if isinstance(s, steps.WireReceiveFailed)]
    assert not failures and node.counters.get("wire.malformed", 0) == 0


def test_limits_of_the_connection_are_held_against_the_plan(arriving):
    program = load(arriving(MB))
    targets = tuple(program.targets.values())
    (finding,) = findings(program, targets, EDGE, None, {"max_envelope_bytes": 1000})
    assert finding.level is Level.REFUSED
    assert "an envelope of 1000000 bytes is never taken: broker.max_envelope_bytes is 1000" in str(finding)
    (finding,) = findings(program, targets, EDGE, None, {"chunked_bytes": 1000, "keepalive_s": 1})
    assert finding.level is Level.WARNING
    assert "in chunks is never taken: broker.chunked_bytes is 1000" in str(finding)
    assert findings(program, targets, EDGE, None, {"max_envelope_bytes": MB, "chunked_bytes": MB}) == []


def test_check_and_run_refuse_a_connection_that_takes_no_envelope(arriving, configured, start, capsys):
    path = configured(targets=["Server"], broker={"url": "mqtt://127.0.0.1:1", "max_envelope_bytes": 1000})
    (path.parent / "program.onnx").write_bytes(arriving(MB))
    assert main(["check", "--config", str(path)]) == 1
    said = "an envelope of 1000000 bytes is never taken: broker.max_envelope_bytes is 1000"
    assert capsys.readouterr().out.count(said) == 1
    process = start("run", "--config", str(path))
    process.says(said)
    assert process.process.wait(PATIENCE_S) == 3
