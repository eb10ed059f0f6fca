"""`bb-edge run --config` as a service, and `bb-edge doctor`: real processes, brokers, a manager's socket."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import sys
import urllib.request

import paho.mqtt.client as paho
import pytest
from node_processes import PATIENCE_S
from paho.mqtt.enums import CallbackAPIVersion

from bb_edge.cli import main
from bb_edge.ir.ids import PeerId
from bb_edge.transport.broker import Broker
from bb_edge.transport.probe import ProbeError, probe
from bb_edge.transport.visitor import visit
from bb_edge.wire.presence import Presence, encode_presence
from tests.aids.peers import numbered

KITCHEN = PeerId.from_name("kitchen")


@pytest.mark.broker
def test_a_service_is_ready_pets_its_watchdog_and_says_that_it_stops(configured, start, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        env["STATE_DIRECTORY"] = str(tmp_path / "state")
        node = start("run", "--config", str(configured()), env=env)
        said = []
        while said.count("WATCHDOG=1") < 3 or "STATUS=Main: connected" not in said:
            said.append(manager.recv(256).decode())
        assert said[0] == "READY=1"
        node.says("tick")
        assert node.end() == 0
        while "STOPPING=1" not in said:
            said.append(manager.recv(256).decode())
    assert (tmp_path / "state").is_dir()


@pytest.mark.broker
def test_metrics_and_trace_of_a_node_that_runs(configured, start, tmp_path):
    node = start("run", "--config", str(configured(metrics="0", trace="trace.json", summary=True)))
    address = re.search(r"http://\S+", node.says("metrics at"))[0]
    node.says("connected to")
    node.says("tick")

    def scrape() -> dict[str, float]:
        with urllib.request.urlopen(address, timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    names = {
        "bb_frontier_depth_peak",
        "bb_ingress_dropped_total",
        "bb_bus_dropped_total",
        "bb_cycle_duration_ns_count",
        "bb_pending_async_count",
        "bb_mqtt_connected",
        "bb_process_rss_bytes",
        "bb_peers_up",
        "bb_ops_failed_total",
        "bb_log_lines_omitted_total",
    }
    first = scrape()
    assert names <= set(first)
    while scrape()["bb_cycle_duration_ns_count"] <= first["bb_cycle_duration_ns_count"]:
        pass
    assert scrape()["bb_mqtt_connected"] == 1
    assert scrape()["bb_certificate_seconds_left"] == float("inf")  # it has none, which is not an alarm
    assert scrape()["bb_frontier_depth_peak"] >= 1
    assert node.end() == 0
    events = json.loads((tmp_path / "trace.json").read_text())
    assert {"poll", "AppEmit", "AppEvent"} <= {event["name"] for event in events}
    summary = json.loads(next(line for line in node.lines if line.startswith('{"summary"')))
    assert summary["counters"]["frontier.depth_peak"] >= 1


@pytest.mark.broker
@pytest.mark.parametrize("state", ["state", None])
def test_what_the_program_does_before_a_snapshot_runs_before_each(configured, start, state):
    node = start("run", "--config", str(configured(summary=True, **({"state": state} if state else {}))))
    node.says("saved" if state else "tick")
    assert node.end() == 0
    events = [json.loads(line)["event"] for line in node.lines if line.startswith('{"event"')]
    summary = json.loads(next(line for line in node.lines if line.startswith('{"summary"')))
    assert events.count("down") == 1
    # The first snapshot, and the one at the end.
    assert events.count("saved") == summary["counters"].get("state.snapshots", 0) == (2 if state else 0)


@pytest.mark.broker
def test_two_nodes_do_not_share_a_state_folder(configured, start):
    path = str(configured(state="state"))
    first = start("run", "--config", path)
    first.says("tick")
    second = start("run", "--config", path)
    assert second.process.wait(PATIENCE_S) == 1
    second.says("error: state .*: another process has it open .stop it, or give")
    assert first.end() == 0


FLOOD = 10_000


@pytest.mark.broker
def test_a_flood_of_bad_messages_is_a_bounded_number_of_lines(configured, start, mosquitto_broker):
    node = start("run", "--config", str(configured(summary=True, federation="home")))
    node.says("connected to")
    evil, own = PeerId.from_name("evil"), PeerId.from_name("kitchen")
    sender = paho.Client(CallbackAPIVersion.VERSION2)
    sender.max_inflight_messages_set(1_000)
    sender.connect(mosquitto_broker.host, mosquitto_broker.port)
    sender.loop_start()
    for number in range(FLOOD):
        sender.publish(f"bb/home/{own}/from/{evil}", b"envelope %d" % number, qos=1)
        sender.publish(f"bb/home/presence/Client/{numbered(number)}", b"presence", qos=1)
    last = sender.publish(f"bb/home/{own}/from/{evil}", b"last", qos=1)
    last.wait_for_publish(PATIENCE_S)
    sender.disconnect()
    sender.loop_stop()
    node.says(f"WireReceiveFailed.*{evil}")
    assert node.end() == 0
    lines = [line for line in node.lines if "tick" not in line]
    assert len(lines) < 300, "".join(lines[:400])
    summary = json.loads(next(line for line in node.lines if line.startswith('{"summary"')))
    refused = summary["counters"].get("wire.malformed", 0) + summary["transport"]["malformed"]
    assert refused > 1_000  # mosquitto drops what is beyond its queue
    assert summary["log_lines_omitted"] > refused - 200
    assert re.search(r"and [0-9,]+ more in \d+ s", "".join(lines))


def test_a_wrong_configuration_is_an_error_not_a_traceback(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text('{"brokr": 1}')
    assert main(["run", "--config", str(path)]) == 3
    assert "brokr" in capsys.readouterr().err
    assert main(["run", "a.onnx", "--target", "T", "--peer", "p", "--broker", "http://x"]) == 2
    assert "mqtt://" in capsys.readouterr().err


# --- doctor -------------------------------------------------------------------------------------------


def checks(capsys) -> dict[str, dict]:
    found = json.loads(capsys.readouterr().out)
    return {check["check"]: check for check in found["checks"]}


@pytest.mark.broker
def test_a_healthy_machine(mosquitto_broker, tmp_path, capsys):
    url = f"mqtt://{mosquitto_broker.host}:{mosquitto_broker.port}"
    state = tmp_path / "state"
    assert main(["doctor", "--json", "--broker", url, "--state", str(state), "--peer", "kitchen"]) == 0
    found = checks(capsys)
    assert {"versions", "board", "clock", "memory", "interpreters", "identity", "storage", "broker"} <= set(
        found
    )
    assert found["identity"]["data"]["peer_id"] == str(PeerId.from_name("kitchen"))
    assert found["broker"]["data"]["protocol"] == "5"
    assert found["broker"]["data"]["round_trip_ms"] > 0
    assert found["storage"]["data"]["free_bytes"] > 0
    assert not state.exists()  # it was made for trial
    state.mkdir()
    assert main(["doctor", "--json", "--state", str(state)]) == 0
    assert list(state.iterdir()) == []  # the probe file went again


def test_what_is_broken_is_named_and_the_code_says_so(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # bound, but nobody listens
        file = tmp_path / "file"
        file.write_text("")
        assert main(["doctor", "--broker", f"mqtt://127.0.0.1:{port}", "--state", str(file)]) == 1
    said = capsys.readouterr()
    assert re.search(r"(?m)^failed +broker .*refused", said.out)
    assert re.search(r"(?m)^failed +storage ", said.out)
    assert "failed: storage, broker" in said.err


def test_nothing_is_asked_of_what_was_not_named(capsys, monkeypatch):
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    assert main(["doctor", "--json"]) == 0
    found = checks(capsys)
    assert (found["broker"]["status"], found["storage"]["status"]) == ("skipped", "skipped")


RELU = """
import numpy

class Interpreter:
    def __init__(self, **given):
        self.x = None
    def allocate_tensors(self):
        pass
    def get_input_details(self):
        return [{"index": 0}]
    get_output_details = get_input_details
    def set_tensor(self, index, x):
        self.x = x
    def invoke(self):
        self.x = numpy.maximum(self.x, 0)
    def get_tensor(self, index):
        return self.x
"""
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)\n"


@pytest.mark.parametrize(
    ("litert", "runtime", "used", "status", "said"),
    [
        (None, None, "numpy", "ok", "no TFLite interpreter: programs run on NumPy"),
        (RELU, None, "ai-edge-litert", "ok", "ai-edge-litert .* is used$"),
        (None, RELU, "tflite-runtime", "ok", "tflite-runtime .* is used$"),
        (RELU, RELU, "ai-edge-litert", "ok", "tflite-runtime .* would run too"),
        (DIES, RELU, "tflite-runtime", "warning", "it is killed by SIGILL.*tflite-runtime .* is used"),
        ("raise SystemError('of numpy 1')", RELU, "tflite-runtime", "warning", "SystemError: of numpy 1"),
        (RELU, "import a_part_of_it", "ai-edge-litert", "warning", "No module named 'a_part_of_it'"),
        (RELU.replace("maximum", "minimum"), None, "numpy", "warning", "computes a wrong result.*NumPy"),
        (None, "raise ImportError('of numpy 2')", "numpy", "warning", "ImportError: of numpy 2.*NumPy"),
    ],
)
def test_the_interpreter_that_is_used_and_why_not_the_other(
    litert, runtime, used, status, said, tmp_path, capsys, monkeypatch
):
    """An interpreter that is installed and does not run is never simply fine."""
    found = {"ai_edge_litert": litert, "tflite_runtime": runtime}
    for package, source in found.items():
        if source is not None:
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").write_text("")
            (tmp_path / package / "interpreter.py").write_text(source)
        monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if found.get(name, "") is None else real(name)
    )
    assert main(["doctor", "--json"]) == 0
    finding = checks(capsys)["interpreters"]
    assert (finding["status"], finding["data"]["used"]) == (status, used)
    assert re.search(said, finding["detail"])
    for package in ("ai-edge-litert", "tflite-runtime"):
        there = found[package.replace("-", "_")] is not None
        assert (finding["data"]["interpreters"][package]["outcome"] == "not installed") is not there


def test_a_broken_configuration_is_a_finding(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text("{")
    assert main(["doctor", "--json", "--config", str(path)]) == 1
    assert checks(capsys)["configuration"]["status"] == "failed"


RULES = """
pattern write bb/home/+/from/%u
pattern read bb/home/%u/from/+
pattern write bb/home/+/chunk/%u
pattern read bb/home/%u/chunk/+
pattern read bb/home/presence/+/%u
"""
MAY_BE_MAIN = f"{RULES}pattern write bb/home/presence/Main/%u\n"


@pytest.mark.broker
@pytest.mark.parametrize(
    ("rules", "status", "said", "code"),
    [
        ("", "warning", "the broker has none: every client may be any peer of any class", 0),
        (MAY_BE_MAIN, "ok", "this node may be a Main, and neither", 0),
        (MAY_BE_MAIN, "ok", "whether this node may read that (topic read bb/…/rollcall/…) was not tried", 0),
        (
            f"{RULES}pattern write bb/home/presence/+/%u\n",
            "warning",
            "lets this node say that it is a Doctor",
            0,
        ),
        (RULES, "failed", "does not let this node say that it is a Main", 1),
        (
            MAY_BE_MAIN.replace("pattern read bb/home/%u/chunk/+\n", ""),
            "failed",
            "come in chunks; missing, in mosquitto's words: pattern read bb/home/%u/chunk/+",
            1,
        ),
        (
            MAY_BE_MAIN.replace("pattern read bb/home/presence/+/%u\n", ""),
            "warning",
            "hear its own presence: what of presences is lost on the way is not found again",
            0,
        ),
        (
            f"{MAY_BE_MAIN}pattern write bb/home/rollcall/Main\n",
            "warning",
            "hear when the roll of a Main is called",
            0,
        ),
    ],
)
def test_the_broker_s_rules_are_looked_at(
    configured, start_broker, tmp_path, capsys, rules: str, status: str, said: str, code: int
):
    (tmp_path / "rules").write_text(rules)
    (tmp_path / "rules").chmod(0o644)
    broker = start_broker("mosquitto", config=[f"acl_file {tmp_path / 'rules'}"] if rules else [])
    url = f"mqtt://{PeerId.from_name('kitchen')}@{broker.host}:{broker.port}"
    path = configured(federation="home", broker=url)
    assert main(["doctor", "--json", "--as-node", "--config", str(path)]) == code
    found = checks(capsys)
    assert found["broker"]["status"] == "ok", "the round trip goes where the rules let it"
    assert said in found["access rules"]["detail"]
    assert found["access rules"]["status"] == status


@pytest.mark.broker
def test_what_the_rules_keep_from_a_node_is_said_once(configured, start_broker, tmp_path, capsys):
    (tmp_path / "rules").write_text(MAY_BE_MAIN.replace("pattern read bb/home/%u/from/+\n", ""))
    (tmp_path / "rules").chmod(0o644)
    broker = start_broker("mosquitto", config=[f"acl_file {tmp_path / 'rules'}"])
    url = f"mqtt://{PeerId.from_name('kitchen')}@{broker.host}:{broker.port}"
    path = configured(federation="home", broker=url)
    assert main(["doctor", "--json", "--as-node", "--config", str(path)]) == 1
    found = checks(capsys)
    assert found["broker"]["status"] == "warning"
    assert found["broker"]["detail"].endswith("the broker took it, and does not hand it on: see access rules")
    assert found["access rules"]["detail"].startswith(
        "the broker does not let this node read its inbox; missing"
    )
    assert found["access rules"]["data"]["rules"] == ["pattern read bb/home/%u/from/+"]


def test_a_broker_that_is_not_there_is_said_once(configured, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        path = configured(federation="home", broker=f"mqtt://127.0.0.1:{taken.getsockname()[1]}")
        assert main(["doctor", "--config", str(path)]) == 1
    assert capsys.readouterr().out.count("nothing listens at") == 1


HEARS = """program P {module=P, targets="Main", hears.Main=Server}
function program.Main() -> () {entry=1, partition=Main}
  t: Trigger = syscall.Interval<period_ns=20000000>()
  syscall.AppEmit<name="tick">(t)
"""


@pytest.mark.broker
def test_a_second_machine_of_the_name_and_a_federation_where_nobody_is_are_said(
    configured, start, compile_text, tmp_path, mosquitto_broker, capsys
):
    """The open broker calls both fine: what is there speaks, and what is not."""

    def asked(federation: str) -> dict[str, dict]:
        path = configured(federation=federation)
        (tmp_path / "program.onnx").write_bytes(compile_text(HEARS))
        assert main(["doctor", "--json", "--config", str(path)]) == 0
        return checks(capsys)

    found = asked("home")
    assert "name" not in found
    assert "nobody of class Server is up in federation 'home': none has run" in found["peers"]["detail"]
    server = Broker.from_url(mosquitto_broker.url)
    with visit(server) as visitor:
        said = encode_presence(Presence(True, 7, meta={"since": 1_700_000_000}))
        for name in ("presence/Server/" + str(PeerId.from_name("server")), f"presence/Main/{KITCHEN}"):
            mid = visitor.publish(f"bb/home/{name}", said, retain=True)
            assert visitor.until(lambda mid=mid: visitor.reason_of(mid) is not None)
    found = asked("hone")
    assert found["peers"]["status"] == "warning"
    assert "'hone'; there are some in 'home': is the federation's name right?" in found["peers"]["detail"]
    assert "name" not in found
    found = asked("home")
    assert (found["peers"]["status"], found["peers"]["data"]["up"]) == ("ok", {"Server": 1})
    assert found["name"]["status"] == "warning"
    assert "a node runs as kitchen" in found["name"]["detail"]
    assert "since 2023-11-14T22:13:20Z" in found["name"]["detail"]


@pytest.mark.broker
def test_a_node_that_runs_here_is_no_second_machine(configured, start, capsys):
    path = configured(federation="home", state="state")
    node = start("run", "--config", str(path))
    node.says("connected to")
    assert main(["doctor", "--json", "--config", str(path)]) == 0
    name = checks(capsys)["name"]
    assert (name["status"], name["detail"].endswith("on this machine")) == ("ok", True)
    assert node.end() == 0


@pytest.mark.broker
def test_a_limit_below_a_subscription_is_named(start_broker):
    broker = start_broker("mosquitto", config=["max_packet_size 90"])
    with pytest.raises(ProbeError, match=r"packets of 90 bytes at most.*the subscription to .* is one of 1"):
        probe(Broker.from_url(broker.url), KITCHEN)


@pytest.mark.broker
def test_a_limit_below_a_presence_is_a_failure_of_the_doctor(configured, start, start_broker, capsys):
    """It said ok, and the node that ran there was seen by nobody."""
    url = start_broker("mosquitto", config=["max_packet_size 275"]).url
    path = configured(federation="home", broker={"url": url})
    assert main(["doctor", "--json", "--config", str(path)]) == 1
    found = checks(capsys)["broker"]
    words = re.search(
        r"packets up to 275 bytes, and this node's presence is one of (\d+): no peer would", found["detail"]
    )
    assert found["status"] == "failed" and words is not None, found
    assert found["detail"].endswith("raise its limit (mosquitto: max_packet_size)")
    node = start("run", "--config", str(path))
    node.says(f"packets of 275 bytes at most, and its presence is one of {words[1]}: no peer sees this node")
    assert node.end() == 0
    assert main(["doctor", "--json", "--broker", url]) == 0
    found = checks(capsys)["broker"]
    assert (
        found["status"] == "warning" and "packets up to 275 bytes, and a presence may be" in found["detail"]
    )


@pytest.mark.broker
def test_the_doctor_does_not_log_in_as_a_node_unasked(configured, start, start_broker, capsys):
    """Such a broker takes the user name for the client id, and ends the session that has it."""
    broker = start_broker("mosquitto", config=["use_username_as_clientid true"])
    peer = PeerId.from_name("kitchen")
    path = configured(federation="home", broker={"url": broker.url, "username": str(peer)})
    node = start("run", "--config", str(path))
    node.says("connected to")
    assert main(["doctor", "--json", "--config", str(path)]) == 0
    found = checks(capsys)
    assert (found["broker"]["status"], found["broker"]["data"]["login"]) == ("warning", str(peer))
    for told in ("reachable", f"as the node {peer}", "use_username_as_clientid", "--as-node"):
        assert told in found["broker"]["detail"]
    assert "access rules" not in found
    assert not [line for line in node.lines if "lost" in line], "nobody threw the node out"
    assert main(["doctor", "--json", "--as-node", "--config", str(path)]) == 0
    found = checks(capsys)
    assert found["broker"]["status"] == "ok"
    assert "or runs, and --as-node has just taken its place" in found["name"]["detail"]
    node.says("connection to .* lost")
    assert node.end() == 0


def test_a_broker_that_is_not_there_fails_under_a_node_s_login_too(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"mqtt://{PeerId.from_name('kitchen')}@127.0.0.1:{taken.getsockname()[1]}"
        assert main(["doctor", "--json", "--broker", url]) == 1
    assert checks(capsys)["broker"]["status"] == "failed"


@pytest.mark.broker
def test_a_broker_that_knows_the_older_version_only(start_broker):
    broker = start_broker("amqtt")
    report = probe(Broker.from_url(f"mqtt://{broker.host}:{broker.port}"), PeerId.from_name("a"))
    assert report.protocol == "3.1.1"


@pytest.mark.broker
def test_a_broker_that_lets_nobody_in_is_not_reachable(start_broker):
    broker = start_broker("mosquitto", config=["allow_anonymous false"])
    with pytest.raises(ProbeError, match=r"uthorized.*it wants a login: give broker\.username"):
        probe(Broker.from_url(f"mqtt://{broker.host}:{broker.port}"), PeerId.from_name("a"))
    stranger = Broker.from_url(f"mqtt://ash:wrong@{broker.host}:{broker.port}")
    with pytest.raises(ProbeError, match="is it the password of user ash"):
        probe(stranger, PeerId.from_name("a"))


@pytest.mark.broker
def test_rules_that_deny_a_node_its_topics_are_found(start_broker, tmp_path):
    rules = tmp_path / "rules"
    rules.write_text("topic read elsewhere\n")
    rules.chmod(0o644)
    broker = start_broker("mosquitto", config=[f"acl_file {rules}"])
    url = Broker.from_url(f"mqtt://{broker.host}:{broker.port}")
    with pytest.raises(ProbeError, match=r"did not come back.*give the node's --config"):
        probe(url, PeerId.from_name("a"))
    with pytest.raises(
        ProbeError, match=r"did not come back: the broker refuses it, Not authorized"
    ) as denied:
        probe(url, PeerId.from_name("a"), "kitchen")
    assert "pattern read bb/kitchen/%u/from/+" in denied.value.hint


ROUNDS = """program P {module=P, targets="Main", binding.Main.peers="peer_selector|bb.PresenceSelector|1"}
function program.Main() -> () {entry=1, partition=Main}
  slot peers: peer_selector peer_class=Nobody
  round: I64[] = syscall.Repeat<times=3>()
  some: PeerIdVec = role.peer_selector.Sample<n=9>(round) {slot=peers, control_inputs=1}
  req: WireReqId = wire.SendReqBatched(round, some, some) {wire.wire_id=1, wire.site_ids=aa, deadline_ns=1000000000, wire.answer_mode=none, port=ask}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(req) {wire.wire_id=2, wire.request=1}
"""  # noqa: E501


FAILING = """program P {module=P, targets="Main"}
function program.Main() -> () {entry=1, partition=Main}
  round: I64[] = syscall.Repeat<times=3>()
  two: I64[1] = Constant<value=I64[1]{2}>()
  bad: I64[2] = Reshape(round, two)
  syscall.AppEmit<name="bad">(bad)
"""


@pytest.mark.broker
def test_rounds_that_all_fail_are_no_result(configured, start, tmp_path, compile_text):
    path = configured(limits={"round_backoff_ns": 1_000_000}, until_done=True)
    (tmp_path / "program.onnx").write_bytes(compile_text(FAILING))
    node = start("run", "--config", str(path))
    node.says("warning rounds completed target=Main rounds=3 failed=3")
    node.says("an op has failed in each of 3 rounds")
    assert node.process.wait(PATIENCE_S) == 4
    path = configured(limits={"round_backoff_ns": 60 * 10**9}, until_done=True)
    (tmp_path / "program.onnx").write_bytes(compile_text(FAILING))
    node = start("run", "--config", str(path))
    node.says("RoundBackedOff")
    assert node.end() == 0, "it was asked to stop, with rounds to come"


@pytest.mark.broker
def test_a_run_gives_up_after_rounds_that_reach_nobody(configured, start, tmp_path, compile_text):
    path = configured(limits={"round_backoff_ns": 1_000_000}, until_done=True, give_up_after=4)
    (tmp_path / "program.onnx").write_bytes(compile_text(ROUNDS))
    node = start("run", "--config", str(path))
    node.says("given up .give_up_after in .*kitchen.json.: 4 rounds in a row have reached nobody")
    assert node.process.wait(PATIENCE_S) == 4
    node = start("run", "--config", str(path), "--give-up-after", "2")
    node.says("2 rounds in a row")
    assert node.process.wait(PATIENCE_S) == 4
    (tmp_path / "program.onnx").write_bytes(compile_text(ROUNDS.replace("1000000000", "30")))
    node = start("run", "--config", str(path))
    node.says("4 rounds in a row have reached nobody; deadline_ns=30 is less than a millisecond")
    assert node.process.wait(PATIENCE_S) == 4
    node = start("run", "--config", str(path), "--give-up-after", "-1")
    node.says("giving up after -1 rounds")
    assert node.process.wait(PATIENCE_S) == 2
