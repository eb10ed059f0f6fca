"""What is told of the events of a run: numbers of several nodes, long values, parts that are not there."""

from __future__ import annotations

import json

import pytest

from bb_host.cli import main
from bb_host.simulate.accounts import Event
from bb_host.simulate.report import Columns, draw, last_numbers, not_finite

LONG = """
import numpy as np
from bb_edge.extend import ProtocolComponent, OpTable, register
from bb_host import Compiler, Module, ProtocolSlot


@register
class Doubles(ProtocolComponent):
    TYPE_NAME, CONFIG = "test.Doubles", {}

    @classmethod
    def construct(cls, env):
        return cls()

    @classmethod
    def atomic_opset(cls):
        table = OpTable("test.doubles")
        table.op("Double", "v:Tensor<F32>", "o:Tensor<F32>")
        return table.opset()

    def double(self, ctx, v):
        return v * 2


class Long(Module):
    doubles = ProtocolSlot("doubles", Doubles)

    def body(self, g):
        with g.rounds(2) as start:
            one = g.onnx.cast(start.round, to="F32")
            many = self.doubles.double(g, one * g.constant(np.ones(65, np.float32)))
            g.app_emit("round", g.bundle([start.round, many, g.onnx.reshape(one, [1])]))


def program():
    return Long(), Compiler()
"""


def events_of(*nodes: str) -> list[Event]:
    return [
        Event(n, node, "round", [n, float(n + place)]) for n in (1, 2) for place, node in enumerate(nodes)
    ]


def test_a_value_too_long_to_show_and_one_that_is_no_number_are_finite() -> None:
    shown = [{"shape": [65], "dtype": "float32"}, {"bytes": 3}, "text", None, True, [[1.0], {"shape": [70]}]]
    assert not_finite([Event(0, "a", "x", value) for value in (*shown, shown)]) == ""
    assert not_finite([Event(0, "a", "x", [{"shape": [65]}, ["NaN"]])]).startswith("1 of 1 events hold inf")


def test_of_several_nodes_the_mean_of_their_last_numbers_is_told() -> None:
    events = events_of("a", "b", "c")
    assert last_numbers(events) == {"round[0]": 2, "round[1]": 3.0}
    assert last_numbers(events[:4], Columns.parse("round:1=loss"))["loss"] == pytest.approx((2 + 2 + 3) / 3)
    assert last_numbers([*events, Event(3, "b", "round", [3, "Infinity"])])["round[1]"] == "Infinity"
    assert last_numbers([*events, Event(3, "b", "round", [3, "NaN"])])["round[1]"] == "NaN"


def test_each_node_has_rows_of_its_own_and_they_are_drawn(tmp_path) -> None:
    columns = Columns.parse("round:1=loss")
    rows = columns.rows(
        [*events_of("a", "b"), Event(3, "b", "round", [3, "NaN"]), Event(4, "a", "round", [4])]
    )
    assert rows["a"] == [{"loss": 1.0}, {"loss": 2.0}, {}] and len(rows["b"]) == 3
    assert draw(tmp_path / "p.png", columns, {"x": events_of("a", "b"), "y": events_of("c"), "z": []})
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_tensor_of_one_element_is_a_number() -> None:
    assert Columns.parse("loss:0").rows([Event(1, "a", "loss", [0.5])]) == {"a": [{"loss[0]": 0.5}]}
    assert last_numbers([Event(1, "a", "round", [1, [[0.25]], [1, 2]])]) == {"round[0]": 1, "round[1]": 0.25}


def test_a_program_that_emits_long_values_runs_to_its_summary(tmp_path, capsys) -> None:
    """Its file is given as a file of components, too, which it is."""
    program, out = tmp_path / "long.py", tmp_path / "out"
    program.write_text(LONG)
    arguments = ["simulate", str(program), "--load", str(program), "--plot", "round:2=one", "-o", str(out)]
    assert main([*arguments, "--quiet"]) == 0
    assert "last: one 2;" in capsys.readouterr().out
    (told,) = json.loads((out / "summary.json").read_text())
    assert told["last"] == {"round[0]": 2, "one": 2.0}
    (last,) = (out / "events.jsonl").read_text().splitlines()[-1:]
    assert json.loads(last)["value"] == [2, {"shape": [65], "dtype": "float32"}, [2.0]]

    assert main(["simulate", str(program), "--plot", "round:3=more", "-o", str(tmp_path / "none")]) == 1
    said = capsys.readouterr().err
    assert "--plot: the events of 'round' have 3 parts, and none at 3 (count from 0: 0 to 2)" in said
    assert not (tmp_path / "none").exists()


TOPICS = """
import numpy as np
from bb_host import Compiler, Module


class Topics(Module):
    def body(self, g):
        with g.rounds(2) as start:
            one = g.onnx.cast(start.round, to="F32")
            g.app_emit("alone", one * 3.0)
            g.app_emit("flag", one > 1.0)
            if PAIR:
                g.app_emit("pair", g.bundle([one, one + 1.0]))


def program():
    return Topics(), Compiler()
"""


@pytest.mark.parametrize(
    ("pair", "more", "last"),
    [
        ("False", (), "last: alone 6;"),
        ("True", (), "last: pair[0] 2, pair[1] 3, alone 6;"),
        ("True", ("--plot", "pair:1=second"), "last: second 3;"),
    ],
)
def test_the_last_line_has_the_numbers_of_every_topic(pair, more, last, tmp_path, capsys) -> None:
    """It said "no numbers" of a topic with one number alone; what --plot asks for stands by itself."""
    program = tmp_path / "topics.py"
    program.write_text(TOPICS.replace("PAIR", pair))
    assert main(["simulate", str(program), "--quiet", *more]) == 0
    assert last in capsys.readouterr().out


def test_the_last_line_stays_a_line(tmp_path, capsys) -> None:
    program = tmp_path / "many.py"
    program.write_text(TOPICS.replace("if PAIR:", "for n in range(9):").replace('"pair"', 'f"pair{n}"'))
    assert main(["simulate", str(program), "--quiet"]) == 0
    _, _, last = capsys.readouterr().out.rpartition("last: ")
    assert last.count("[") == 7 and "alone 6" in last and ", and 11 more;" in last
