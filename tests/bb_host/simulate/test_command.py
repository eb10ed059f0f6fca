"""`bb-host simulate`: from the command line to files, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bb_host.cli import main
from bb_host.simulate.accounts import Event
from bb_host.simulate.conditions import NS
from bb_host.simulate.report import Columns, last_numbers, not_finite

PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from conftest import ArrayDataSource, Compiler, FedAvg, PresenceSelector, Sums


def program():
    compiler = (
        Compiler()
        .bind_peer_selector("clients", PresenceSelector)
        .bind_aggregator("agg", FedAvg)
        .bind_data_source("shard", ArrayDataSource, {{"batch_size": 4}})
    )
    return Sums(3, 4), compiler
"""


ASKING = """
from bb_edge.components import ArrayDataSource, PresenceSelector
from bb_host import S, Compiler, DataSourceSlot, Module, PeerSelectorSlot


class Asking(Module):
    home = "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    shard = DataSourceSlot("shard", at="Client")

    def body(self, g):
        with g.rounds(2) as start:
            peers = self.clients.sample(g, n=4, min=2, after=start)  # <-
            r = g.request("work", peers, start.round, deadline_ns=S)  # <-
            r.reply(self.shard.num_samples(g, after=r.value))
            g.app_emit("count", r.answer)


def program():
    compiler = Compiler().bind_peer_selector("clients", PresenceSelector)
    return Asking(), compiler.bind_data_source("shard", ArrayDataSource, {"batch_size": 4})
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "sums.py"
    path.write_text(PROGRAM.format(folder=str(__file__).rpartition("/")[0]))
    return str(path)


def test_a_run_says_its_events_and_writes_them(program, rows, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["simulate", program, "--clients", "20", "--data", f"shard={rows}", "--deal", "draw:8"]
    assert main([*arguments, "--quiet", "--plot", "round:1=mean,2=samples", "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.count("server") == 3 and "last: mean" in said and "samples 4" in said
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["value"][0] for event in events] == [1, 2, 3]
    (told,) = json.loads((out / "summary.json").read_text())
    assert told["nodes"] == {"Server": 1, "Client": 20} and len(told["trace"]) == 64 and not told["trouble"]
    assert told["last"] == dict(zip(("round[0]", "mean", "samples"), events[-1]["value"][:3], strict=True))
    assert (out / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_slot_without_data_names_both_ways_to_give_some(program, capsys):
    assert main(["simulate", program, "--clients", "2"]) == 1
    said = capsys.readouterr().err
    assert "--set shard.path=FILE; or deal the rows of one among these nodes: --data shard=FILE" in said


def test_a_sweep_is_a_run_per_combination(program, rows, tmp_path, capsys):
    arguments = ["simulate", program, "--clients", "6", "--data", f"shard={rows}", "--quiet", "--json"]
    assert main([*arguments, "--sweep", "seed=1,2", "--sweep", "shard.batch_size=2,8"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    runs = [line["summary"] for line in lines if "summary" in line]
    assert [run["run"] for run in runs] == [
        f"seed={seed},shard.batch_size={size}" for seed in (1, 2) for size in (2, 8)
    ]
    assert len({run["trace"] for run in runs}) == 4
    assert all(run["last"]["round[0]"] == 3 and "round[1]" in run["last"] for run in runs)
    assert len([line for line in lines if line.get("event") == "round"]) == 12


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--nodes", "client=3"], "the program has no class 'client' (did you mean 'Client'?)"),
        (["--nodes", "Phone=3"], "no class 'Phone' (its classes: Client, Server; write --nodes "),
        (["--large", "Klient"], "--large: the program has no class 'Klient' (did you mean 'Client'?"),
        (
            ["--large", "Client", "--large", "Client"],
            "--large: the budget of the class 'Client' is given twice",
        ),
        (
            ["--large", "Client", "--config", "Client=a.toml"],
            "--config: the budget of the class 'Client' is given twice",
        ),
        (["--config", "Klient=a.toml"], "--config: the program has no class 'Klient' (did you mean 'Client'"),
        (["--config", "Client"], "'Client' names no class and file (write --config CLASS=FILE.toml"),
        (["--config", "Client=missing.toml"], "missing.toml"),
        (["--clients", "0"], "--clients: '0' is not a number of nodes, 1 or more (write --clients 100"),
        (
            ["--nodes", "Client=x"],
            "--nodes: 'x' is not a number of nodes, 1 or more (write --nodes Client=100",
        ),
        (["--plot", "rond:1=mean"], "emits nothing under 'rond' (did you mean 'round'"),
        (["--plot", "accuracy:1=mean"], "emits nothing under 'accuracy' (topics: round"),
        (["--data", "shard"], "--data shard=train.npz"),
        (["--deal", "fair"], "is not a way to deal data"),
        (["--deal", "draw:0"], "'draw:0': draw takes a whole number, 1 or more (write draw:64)"),
        (["--deal", "label:few"], "'label:few': label takes a whole number, 1 or more (write label:2)"),
        (["--deal", "dirichlet:0"], "'dirichlet:0': dirichlet takes a number above 0 (write dirichlet:0.3)"),
        (["--deal", "test=iid"], "no data are given for test"),
        (["--labels", "digit"], "nothing is dealt by the labels 'digit'"),
        (["--labels", "digit", "--sweep", "deal=iid,draw:5"], "add --deal dirichlet:0.3"),
        (["--set", "shard"], "--set SLOT.KEY=VALUE"),
        (["--available", "lots"], "--available 0.1:20"),
        (["--slow", "0.1"], "--slow 0.1:20"),
        (["--dropouts", "2"], "--dropouts 0.1:20"),
        (["--latency", "-1"], "give milliseconds"),
        (["--latency", "0"], "--latency: 0 ms (give milliseconds, above 0 and less than 1e9"),
        (["--latency", "1e12"], "1e+12 ms (give milliseconds, above 0 and less than 1e9"),
        (["--jitter", "-1"], "--jitter: -1 ms (give milliseconds, 0 or more and less than 1e9"),
        (["--for", "0"], "give seconds above 0"),
        (["--sweep", "seed"], "--sweep seed=0,1,2"),
        (["--sweep", "lr=1,2"], "nothing that can be swept"),
        (["--sweep", "seed=0,0"], "--sweep: seed=0 is given twice"),
        (["--plot", "round"], "--plot round:1=loss"),
        (["--plot", "round:1=a,2=a"], "--plot: the name 'a' is given twice"),
        (["--plot", "round:1=a,1=b"], "--plot: the place 1 is given twice"),
        (["--workers", "0"], "workers: 0 workers (give a whole number, 1 or more)"),
        (["--nodes", "Client=5"], "--clients: how many nodes 'Client' has is given twice"),
        (
            ["--set", "model.learning_rate=1", "--set", "model.learning_rate=2"],
            "learning_rate is given twice",
        ),
        (["--set", "model.learning_rate=1", "--sweep", "model.learning_rate=2,3"], "--sweep: model.learning"),
        (["--set", "client.shard.batch_size=3"], "no class 'client' (did you mean 'Client'?"),
        (["--sweep", "Gateway.shard.batch_size=3,4"], "no class 'Gateway' (its classes: "),
        (["--set", "Server.shard.batch_size=3"], "the class 'Server' has no slot 'shard'"),
        (["--set", "shard.=3"], "'shard.' names no slot and key"),
        (["--set", "Client.agg.a.b=3"], "CLASS.SLOT.KEY=VALUE for the nodes of one class"),
        (
            ["--set", "shard.batch_size=3", "--set", "Client.shard.batch_size=4"],
            "shard.batch_size is set for each class that has the slot, and for all of them",
        ),
        (["--sweep", "clients=2,3"], "--sweep: clients is given twice"),
        (
            ["--data", "shard=a.npz", "--data", "shard=b.npz"],
            "--data: the file of slot 'shard' is given twice",
        ),
        (["--deal", "iid", "--deal", "draw:3"], "--deal: how all slots are dealt is given twice"),
        (["--available", "0"], "--available: nobody would ever be there"),
        (["--set", "shard.bach_size=3"], "batch_size"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(program, capsys, more, words):
    clients = [] if more[0] == "--clients" else ["--clients", "3"]
    assert main(["simulate", program, "--quiet", *clients, *more]) == 1
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said


SENDING = """
from bb_edge.components import GraphModel, PresenceSelector
from bb_host import S, Compiler, ModelSlot, Module, PeerSelectorSlot
from bb_host.learn import mlp, trainable


class Sending(Module):
    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    model = ModelSlot("model", GraphModel, trainable(mlp({sizes}), learning_rate=0.1))

    def body(self, g):
        with g.rounds(1) as start:
            peers = self.clients.sample(g, n=2, min=1, after=start)
            r = g.request("work", peers, self.model.params(g, after=start), deadline_ns=S)
            r.reply(g.onnx.size(r.value[0]))
            g.app_emit("elements", r.answer)


def program():
    return Sending(), Compiler()
"""

OF_A_SERVER = (
    "(give these nodes a server's budget: --large Client, from Python Group(…, large=True); or raise"
)
LARGE, TOO_LARGE = [2, 1100, 1000, 2], [2, 2200, 2200, 2]


@pytest.fixture
def sending(tmp_path):
    def written(sizes):
        path = tmp_path / "sending.py"
        path.write_text(SENDING.format(sizes=sizes))
        return ["simulate", str(path), "--quiet"]

    return written


def limits_named_in(text: str) -> dict[str, int]:
    """The keys, without `limits.`, that a refusal says to raise, and to what."""
    return {name: int(least) for name, least in re.findall(r"raise limits\.([a-z_.]+) to (\d+)", text)}


def test_a_model_that_a_device_has_no_room_for_is_simulated_with_a_servers_budget(sending, capsys):
    arguments = sending(LARGE)
    assert main([*arguments, "--clients", "2"]) == 1
    refused = capsys.readouterr().err
    assert "Client, what arrives at 'work'" in refused and OF_A_SERVER in refused
    assert main([*arguments, "--clients", "2", "--large", "Client"]) == 0
    assert "elements" in capsys.readouterr().out


def test_a_sweep_of_clients_has_the_budget_of_as_many_clients(sending, capsys):
    arguments = [*sending(LARGE), "--json", "--sweep"]
    assert main([*arguments, "clients=1"]) == 0
    capsys.readouterr()
    assert main([*arguments, "clients=1,2"]) == 1
    said = capsys.readouterr()
    assert OF_A_SERVER in said.err and not said.out, "refused before the first of the runs"


def test_a_number_of_clients_that_nodes_say_is_not_swept(program, capsys):
    assert main(["simulate", program, "--nodes", "Client=3", "--sweep", "clients=1,2"]) == 1
    assert "--sweep: clients is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(("large", "most"), [([], 4194304), (["--large", "Client"], 16777216)])
def test_a_model_that_a_server_has_no_room_for_is_not_told_to_have_a_servers(sending, capsys, large, most):
    assert main([*sending(TOO_LARGE), "--clients", "2", *large]) == 1
    refused = capsys.readouterr().err
    assert f"caps.ceiling_bytes is {most} (raise limits.caps.ceiling_bytes to" in refused
    assert "--config Client=FILE.toml" in refused and "--large" not in refused


@pytest.mark.parametrize("workers", ["1", "2"])
def test_nodes_have_the_limits_of_a_devices_configuration(sending, tmp_path, capsys, workers):
    arguments = [*sending(TOO_LARGE), "--clients", "2", "--workers", workers]
    assert main(arguments) == 1
    client = limits_named_in(capsys.readouterr().err)
    assert client.keys() == {"caps.ceiling_bytes", "ingress_bytes"}, "all of its limits at once"
    device = tmp_path / "device.toml"
    device.write_text("\n".join(["[limits]", *(f"{name} = {least}" for name, least in client.items())]))
    assert main([*arguments, "--config", f"Client={device}"]) == 0
    assert "elements" in capsys.readouterr().out


HANDS_ON = """
from bb_edge.components import FedAvg, GraphModel, PresenceSelector
from bb_host import AggregatorSlot, Compiler, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.learn import mlp, trainable


class HandsOn(Module):
    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    model = ModelSlot("model", GraphModel, trainable(mlp([2, 200, 200, 2]), learning_rate=0.1))
    mean = AggregatorSlot("mean", FedAvg, at="Server")

    def body(self, g):
        with g.rounds(1) as start:
            peers = self.clients.sample(g, n=2, min=1, after=start)
            params = self.model.params(g, after=start)
            r = g.request("work", peers, params, deadline_ns=S)
            r.reply(r.value)
            self.mean.contribute(g, r.answer, peer=r.answer.sender, sent=params)
            mean, total = self.mean.aggregate(g, after=r.closed)
            g.app_emit("total", total)
            value = {value}
            {sends}


def program():
    return HandsOn(), Compiler()
"""

TOLD = 'self.model.load_parameters(g, g.net_out("mean", peers, value))'
ASKED = """again = g.request("again", peers, value, deadline_ns=S)
            again.reply(g.onnx.size(again.value[0]))
            g.app_emit("sizes", again.answer)"""
OF_ANY_SIZE = "g.onnx.compress(mean, g.onnx.equal(mean, mean))"
"""All that there is, which the compiler cannot know."""


@pytest.mark.parametrize("sends", [TOLD, ASKED], ids=["told", "asked"])
def test_what_was_too_large_is_named_and_a_configuration_has_room_for_it(tmp_path, capsys, sends):
    program, device = tmp_path / "hands_on.py", tmp_path / "device.toml"
    program.write_text(HANDS_ON.format(sends=sends, value=OF_ANY_SIZE))
    arguments = ["simulate", str(program), "--quiet", "--clients", "2"]
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert "the peer takes 65536: raise limits.caps.fill_bytes on both sides" in said
    assert "Client, what arrives at '" in said and "one of more than 65536 bytes is refused" in said
    device.write_text("[limits.caps]\nfill_bytes = 262144\n")
    assert main([*arguments, "--config", f"Client={device}"]) == 0
    ended = capsys.readouterr()
    assert "too large" not in ended.err and "the peer takes" not in ended.err and "total" in ended.out


ANSWERS_AT_LENGTH = """
from bb_edge.components import FedAvg, GraphModel, PresenceSelector
from bb_host import AggregatorSlot, Compiler, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.learn import mlp, trainable


class AnswersAtLength(Module):
    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    model = ModelSlot("model", GraphModel, trainable(mlp([2, 1100, 1000, 2]), learning_rate=0.1))
    mean = AggregatorSlot("mean", FedAvg, at="Client")

    def body(self, g):
        with g.rounds(1) as start:
            peers = self.clients.sample(g, n=2, min=1, after=start)
            r = g.request("work", peers, start.round, deadline_ns=S)
            own = self.model.params(g, after=r.value)
            self.mean.contribute(g, own, peer=r.value.sender)
            mean, _ = self.mean.aggregate(g, after=own)
            r.reply({value})
            g.app_emit("size", g.onnx.size(r.answer))


def program():
    return AnswersAtLength(), Compiler()
"""


def test_rounds_in_vain_say_whose_limits_are_too_small(tmp_path, capsys):
    program = tmp_path / "answers.py"
    program.write_text(ANSWERS_AT_LENGTH.format(value=OF_ANY_SIZE))
    assert main(["simulate", str(program), "--quiet", "--clients", "2", "--large", "Client"]) == 1
    refused = capsys.readouterr().err
    assert "10 rounds in a row went in vain" in refused and "the peer takes 4194304" in refused
    assert "give the classes that send and receive it larger limits: --config CLASS=FILE.toml" in refused


@pytest.mark.parametrize("sends", [TOLD, ASKED], ids=["told", "asked"])
def test_a_mean_that_is_handed_on_is_planned_like_the_model_that_it_is_of(tmp_path, capsys, sends):
    program = tmp_path / "hands_on.py"
    program.write_text(HANDS_ON.format(sends=sends, value="mean"))
    assert main(["simulate", str(program), "--quiet", "--clients", "2"]) == 0
    ended = capsys.readouterr()
    assert "total" in ended.out and not ended.err


def test_a_mean_that_is_replied_is_planned_like_the_model_that_it_is_of(tmp_path, capsys):
    program = tmp_path / "answers.py"
    program.write_text(ANSWERS_AT_LENGTH.format(value="mean"))
    assert main(["simulate", str(program), "--quiet", "--clients", "2", "--large", "Client"]) == 0
    assert "1106302" in capsys.readouterr().out


SAYS_MUCH = """
import numpy as np

from bb_edge.components import PresenceSelector
from bb_host import S, Compiler, Module, PeerSelectorSlot


class SaysMuch(Module):
    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")

    def body(self, g):
        with g.rounds(1) as start:
            r = g.request("work", self.clients.sample(g, n=2, after=start), start.round, deadline_ns=S)
            g.app_emit("much", g.onnx.expand(r.value, g.constant(np.array([10_000]))))
            r.reply(r.value)
            g.app_emit("count", r.answer)


def program():
    return SaysMuch(), Compiler()
"""


def test_a_value_that_an_event_has_no_room_for_is_told(tmp_path, capsys):
    program = tmp_path / "says_much.py"
    program.write_text(SAYS_MUCH)
    arguments = ["simulate", str(program), "--quiet", "--clients", "2"]
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert "ValueLeftOut 2 times" in said and "more than limits.app_event_bytes" in said
    assert main([*arguments, "--large", "Client"]) == 0
    assert "ValueLeftOut" not in capsys.readouterr().err


BOTH = """
from bb_edge.components import ArrayDataSource, PresenceSelector
from bb_host import S, Compiler, DataSourceSlot, Module, PeerSelectorSlot


class Both(Module):
    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    shard = DataSourceSlot("shard", ArrayDataSource, {"batch_size": 1})

    def body(self, g):
        with g.rounds(1) as start:
            r = g.request("work", self.clients.sample(g, n=1, after=start), start.round, deadline_ns=S)
            x, _ = self.shard.next_batch(g, after=r.value)
            r.reply(g.onnx.size(x))
            own, _ = self.shard.next_batch(g, after=r.answer)
            g.app_emit("elements", g.bundle([g.onnx.size(own), r.answer]))


def program():
    return Both(), Compiler()
"""


def test_a_setting_of_a_class_is_over_that_of_all_and_can_be_swept(rows, tmp_path, capsys):
    (tmp_path / "both.py").write_text(BOTH)
    asked = ["simulate", str(tmp_path / "both.py"), "--quiet", "--json", "--set", f"shard.path={rows}"]

    def elements(*more):
        assert main([*asked, *more]) == 0
        lines = map(json.loads, capsys.readouterr().out.splitlines())
        return [line["value"] for line in lines if "summary" not in line]

    assert elements("--set", "shard.batch_size=2") == [[6, 6]]  # of three numbers each
    assert elements("--set", "shard.batch_size=2", "--set", "Client.shard.batch_size=5") == [[6, 15]]
    swept = elements("--set", "Server.shard.batch_size=4", "--sweep", "Client.shard.batch_size=2,3")
    assert swept == [[12, 6], [12, 9]]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"data": np.ones((8, 2), np.float32)}, "rows.npz holds no array 'x' (save it with"),
        ({"x": np.ones((8, 2)), "y": np.array(["a"] * 8)}, "array 'y' of rows.npz holds text"),
    ],
)
def test_what_is_wrong_with_dealt_rows_names_the_authors_file(
    program, tmp_path, monkeypatch, capsys, arrays, words
):
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", **arrays)
    assert main(["simulate", program, "--clients", "3", "--quiet", "--data", "shard=rows.npz"]) == 1
    said = capsys.readouterr().err
    assert f"client-0: {words}" in said and "bb-simulate" not in said


OWN = """
from bb_edge.components import FedAvg
from bb_edge.registry import register


@register
class Odd(FedAvg):
    TYPE_NAME = "own.Odd{fails}{apart}"

    def aggregate(self, *args):
        if {fails}:
            raise ValueError("it is broken")
        return super().aggregate(*args)
"""


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_workers_have_what_a_program_imports_and_rounds_that_all_fail_are_no_result(
    rows, tmp_path, capsys, fails, apart
):
    path = tmp_path / f"own_{fails}_{apart}.py"  # a module's name is taken once in a process
    own, text = OWN.format(fails=fails, apart=apart), PROGRAM.format(folder=str(__file__).rpartition("/")[0])
    if apart:
        (tmp_path / f"part_{fails}.py").write_text(own)
        own = f"from part_{fails} import Odd\n"
    path.write_text(own + text.replace('"agg", FedAvg', '"agg", Odd'))
    code = main(["simulate", str(path), "--clients", "4", "--data", f"shard={rows}", "--quiet"])
    said = capsys.readouterr()
    assert code == (4 if fails else 0), said.err
    assert ("an op has failed in each of 3 rounds" in said.err and "it is broken" in said.err) is fails
    if fails:  # as a log has it, and no object's repr
        (told,) = (line for line in said.err.splitlines() if ": OpFailed " in line)
        assert "slot 'agg' (own.Odd" in told and "ValueError: it is broken, at " in told, told
        (told,) = (line for line in said.err.splitlines() if ": RoundBackedOff " in line)
        assert ": target=" in told and " round=1 " in told, told
        assert "OpFailed(" not in said.err and "RoundBackedOff(" not in said.err


def test_an_own_component_without_register_is_named_with_its_class(rows, tmp_path, capsys):
    path = tmp_path / "unregistered.py"
    own = "from bb_edge.components import FedAvg as Old\n\n\nclass Odd(Old):\n    TYPE_NAME = 'own.Nowhere'\n"
    text = PROGRAM.format(folder=str(__file__).rpartition("/")[0])
    path.write_text(own + text.replace('"agg", FedAvg', '"agg", Odd'))
    assert main(["simulate", str(path), "--clients", "4", "--data", f"shard={rows}", "--quiet"]) == 1
    assert (
        "put @register (from bb_edge.extend) above class Odd (unregistered.py:4)" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "away", [["--clients", "4", "--dropouts", "1:9"], ["--clients", "1"]], ids=["all", "few"]
)
def test_rounds_in_vain_name_the_lines_that_choose_and_ask(rows, tmp_path, capsys, away):
    path = tmp_path / "asking.py"
    path.write_text(ASKING)
    assert main(["simulate", str(path), "--data", f"shard={rows}", "--quiet", *away]) == 1
    said = capsys.readouterr().err
    lines = [number for number, line in enumerate(ASKING.splitlines(), 1) if line.endswith("# <-")]
    assert f"asking.py:{lines[0]} and asking.py:{lines[1]} say whom they ask" in said, said


def test_rounds_in_vain_name_a_deadline_that_no_network_meets(rows, tmp_path, capsys):
    path = tmp_path / "asking.py"
    path.write_text(re.sub(r"deadline_ns=[^)]*\)", "deadline_ns=30)", ASKING))
    assert main(["simulate", str(path), "--data", f"shard={rows}", "--quiet", "--clients", "4"]) == 1
    (told,) = (line for line in capsys.readouterr().err.splitlines() if "went in vain" in line)
    assert "; deadline_ns=30 is less than a millisecond: deadlines are nanoseconds" in told


LOOPING = """
import numpy as np

from bb_host import Compiler, Module


class Looping(Module):
    def body(self, g):
        with g.rounds(1) as start:
            with g.loop(None, carry=g.constant(np.zeros(2, np.float32)), after=start) as step:  # <-
                step.next(step.carried + 1.0)
                step.stop(g.onnx.reduce_max(step.carried, keepdims=0) < 0.0)
            g.app_emit("done", step.result)


def program():
    return Looping(), Compiler()
"""


FEW_POLLS = """
from multiprocessing import current_process

from bb_edge.components import FedAvg
from bb_edge.extend import register
from bb_edge.transport import in_process

if current_process().name.startswith("bb-simulate"):
    in_process.POLLS_PER_INSTANT = 5


@register
class Few(FedAvg):
    TYPE_NAME = "test.FewPolls"
"""


def test_a_loop_without_an_end_is_named_with_its_line(tmp_path, capsys):
    """The worker imports `few.py`, which has it give up earlier."""
    program, few = tmp_path / "looping.py", tmp_path / "few.py"
    program.write_text(LOOPING)
    few.write_text(FEW_POLLS)
    assert main(["simulate", str(program), "--load", str(few), "--quiet"]) == 1
    said = capsys.readouterr().err
    (line,) = [number for number, text in enumerate(LOOPING.splitlines(), 1) if text.endswith("# <-")]
    assert re.search(rf"looping is in Looping, Loop_\d+, iteration [\d,]+; looping.py:{line}: Loop", said), (
        said
    )


def test_warnings_of_compiling_are_shown(program, rows, capsys):
    odd = Path(program).with_name("odd.py")
    text = Path(program).read_text().replace("return Sums(", "return Odd(")
    odd.write_text(text.replace("def program", 'class Odd(Sums):\n    hom = "Server"\n\n\ndef program'))
    main(["simulate", str(odd), "--clients", "3", "--data", f"shard={rows}", "--quiet", "--for", "5"])
    assert "misspelt-name" in capsys.readouterr().err


def test_a_time_beyond_the_last_round_lengthens_no_run_and_says_so(program, rows, capsys):
    arguments = ["simulate", program, "--clients", "3", "--data", f"shard={rows}", "--quiet"]
    for seconds, told in (("1000", True), ("0.001", False)):
        main([*arguments, "--for", seconds])
        assert (f"--for {seconds} lengthens no run" in capsys.readouterr().err) == told


def test_trouble_is_told_by_kind(program, rows, capsys):
    arguments = ["simulate", program, "--clients", "6", "--data", f"shard={rows}", "--quiet", "--for", "9"]
    assert main([*arguments, "--slow", "1:30"]) == 0
    assert "RoundBackedOff" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_trouble_names_the_nodes_whose_it_is(program, tmp_path, capsys, workers):
    """Two of six clients have rows of NaN: the aggregator refuses what they answer."""
    whose = np.arange(48) % 6
    x = np.where(np.isin(whose, (2, 5))[:, None], np.nan, 1.0).astype(np.float32) * np.ones(
        (48, 3), np.float32
    )
    np.savez(tmp_path / "rows.npz", x=x, whose=whose)
    data = ["--data", f"shard={tmp_path / 'rows.npz'}", "--deal", "column:whose"]
    arguments = ["simulate", program, "--clients", "6", *data, "--quiet", "--workers", workers, "--seed", "3"]
    assert main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    trouble = json.loads(said.out.splitlines()[-1])["summary"]["trouble"]
    for kind in ("OpFailed", "AnswerRefused"):
        found = trouble[kind]
        assert (
            set(found["worst"]) <= {"client-2", "client-5"} and sum(found["worst"].values()) == found["count"]
        )
        assert found["nodes"] == len(found["worst"])
        (line,) = (line for line in said.err.splitlines() if f": {kind} " in line)
        assert " (client-" in line and "1 times" not in line
    assert trouble["DataNotes"]["nodes"] == 2
    assert (
        "hold NaN or infinities in columns 0, 1, 2, the first is sample 0;" in trouble["DataNotes"]["first"]
    )
    (source,) = trouble["OpFailed"]["source"]
    assert re.fullmatch(r"conftest\.py:\d+: Contribute( '\w+')?", source)
    assert f"\n    {source}\n" in said.err


def test_labels_that_only_a_sweep_reads_are_taken(program, rows, capsys):
    arguments = ["simulate", program, "--clients", "3", "--data", f"shard={rows}", "--quiet"]
    assert main([*arguments, "--labels", "y", "--sweep", "deal=iid,label:2"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.npz", b"x,y\n1,2\n", "numpy.savez did not write it (write it with numpy.savez"),
        ("rows.csv", b"x,y\n1,2\n", "read the CSV file with numpy.loadtxt"),
    ],
)
def test_rows_that_are_no_npz_are_refused_without_advice_to_unpickle(
    program, tmp_path, capsys, name, content, words
):
    (tmp_path / name).write_bytes(content)
    assert main(["simulate", program, "--clients", "3", "--data", f"shard={tmp_path / name}", "--quiet"]) == 1
    said = capsys.readouterr().err
    assert words in said and "pickle" not in said


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("one.npy", lambda path: np.save(path, np.zeros((3, 2))), "it is one array without a name (.npy)"),
        ("rows.npz", lambda path: np.savez(path, x=np.array([[1], [1, 2]], object)), "holds Python objects"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(program, tmp_path, capsys, name, write, words):
    write(tmp_path / name)
    assert main(["simulate", program, "--clients", "3", "--data", f"shard={tmp_path / name}", "--quiet"]) == 1
    assert words in capsys.readouterr().err


def test_numbers_that_are_not_finite_are_said_and_shown():
    events = [
        Event(n * NS, "server", "round", [n, value]) for n, value in enumerate((0.5, "NaN", "Infinity"))
    ]
    assert not_finite(events[:1]) == ""
    first = "2 of 3 events hold inf or nan, 'round' of server at 1.000 s first: "
    assert not_finite(events).startswith(f"{first}a smaller learning rate")
    assert not_finite(events, in_the_data=True).startswith(f"{first}the data hold NaN")
    assert not_finite(events, no_rows=True).startswith(f"{first}in a round that reached nobody")
    columns = Columns.of(events)
    assert columns is not None and [row["round[1]"] for row in columns.rows(events)["server"][::2]] == [
        0.5,
        float("inf"),
    ]


def test_the_last_numbers_are_those_of_each_topic():
    events = [
        *(Event(n, "server", "round", [n, n / 2, "text"]) for n in (1, 2)),
        *(Event(3, "client-0", "loss", value) for value in (0.5, "NaN")),
        Event(4, "server", "round", [3, None]),
        Event(5, "server", "all", list(range(1000))),
    ]
    found = last_numbers(events, Columns.parse("round:1=half"))
    assert {name: found.pop(name) for name in ("round[0]", "half", "loss[0]")} == {
        "round[0]": 3,
        "half": 1.0,
        "loss[0]": "NaN",
    }
    assert list(found) == [f"all[{index}]" for index in range(64)]


def test_a_topic_of_numbers_and_of_lists_is_shown_by_its_lists():
    events = [Event(1, "server", "round", 0.5), Event(2, "server", "round", [1.0, 0.25])]
    columns = Columns.of(events)
    assert columns is not None
    assert columns.rows(events) == {"server": [{"round[0]": 0.5}, {"round[0]": 1.0, "round[1]": 0.25}]}


def test_a_file_that_hides_one_of_pythons_modules_from_workers_is_named(sending, tmp_path):
    (tmp_path / "numbers.py").write_text("ONE = 1\n")
    command = [sys.executable, "-m", "bb_host.cli", *sending([2, 100, 100, 2]), "--clients", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 1
    assert f"{tmp_path / 'numbers.py'} hides Python's own 'numbers'" in ran.stderr, ran.stderr


def test_a_script_that_starts_workers_as_it_is_imported_is_told_what_it_lacks(program, rows, tmp_path):
    script = tmp_path / "script.py"
    arguments = ["simulate", program, "--clients", "3", "--data", f"shard={rows}", "--quiet"]
    script.write_text(f"from bb_host.cli import main\nraise SystemExit(main({arguments!r}))\n")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert 'under `if __name__ == "__main__":`' in ran.stderr.splitlines()[-1]


NEIGHBOURS = """
from bb_edge.components import PresenceSelector
from bb_host import S, Compiler, Module, PeerSelectorSlot


class Neighbours(Module):
    peers = PeerSelectorSlot("peers", PresenceSelector)

    def body(self, g):
        with g.rounds(2) as start:
            peers = self.peers.sample(g, n=2, after=start)
            r = g.request("ask", peers, g.onnx.cast(start.round, to=1), deadline_ns=5 * S)
            r.reply(r.value)
            heard = {heard}
            g.app_emit("mean", g.onnx.reduce_mean(r.responses, [0], keepdims=0), after=heard)


def program():
    return Neighbours(), Compiler()
"""


@pytest.mark.parametrize(
    ("heard", "strange"), [("start.round", True), ("g.when(g.onnx.size(r.responses) > 0)", False)]
)
def test_the_mean_over_no_answers_is_named_and_can_wait_for_some(heard, strange, tmp_path, capsys):
    path = tmp_path / "neighbours.py"
    path.write_text(NEIGHBOURS.format(heard=heard))
    assert main(["simulate", str(path), "--clients", "3", "--quiet"]) == 0
    said, told = capsys.readouterr()
    assert "RoundBackedOff" in told
    assert ("in a round that reached nobody" in told and "r.responses has 0 rows" in told) == strange
    means = [line.rpartition("  ")[2] for line in said.splitlines() if " mean  " in line]
    assert means.count("1.0") == means.count("2.0") == 3
    assert means.count('"NaN"') == 3 * strange and len(means) == 6 + 3 * strange
