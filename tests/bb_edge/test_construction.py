"""Components are built by their own code: whatever that raises names slot, type, exception and line."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import pytest

from bb_edge.cli.endings import Exit, exit_of_refusal
from bb_edge.construction import build, construction
from bb_edge.engine.errors import LoadError
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.onnx_pb2 import AttributeProto
from bb_edge.roles import Codec, ComponentEnv, ComponentError, Setting


class Made(Codec):
    TYPE_NAME: ClassVar[str] = "acme.Made"

    def __init__(self, level: int) -> None:
        self.level = level

    def compress(self, ctx: Any, t: Any) -> Any:
        return t

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code


def made(construct: Any) -> type[Made]:
    return type("Made", (Made,), {"construct": classmethod(construct)})


def made_with(notes: Any) -> Any:
    """A `construct` whose component has these notes."""

    def construct(cls: type[Made], env: ComponentEnv) -> Made:
        component = cls(3)
        component.notes = notes
        return component

    return classmethod(construct)


CASES: dict[str, tuple[Any, str]] = {
    "KeyError": (lambda cls, env: env.config["levle"], "KeyError: 'levle'"),
    "TypeError": (lambda cls, env: cls(levle=1), "TypeError: "),
    "OSError": (lambda cls, env: os.stat("/nowhere/at.csv"), "No such file or directory: '/nowhere/at.csv'"),
    "AssertionError": (lambda cls, env: (_ for _ in ()).throw(AssertionError()), "AssertionError"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_construct_raises(case: str) -> None:
    construct, said = CASES[case]
    with pytest.raises(ComponentError) as caught:
        build(made(construct), ComponentEnv("codec", "Client", {"level": 3}))
    text = str(caught.value)
    assert text.startswith("slot 'codec' of 'Client': acme.Made cannot be built: ")
    assert said in text
    assert "test_construction.py:" in text
    assert "it has level; --set codec.KEY=VALUE" in text


def test_what_the_machine_refused_a_component_may_pass_and_what_its_code_refuses_does_not() -> None:
    ends = {}
    for case, (construct, _) in CASES.items():
        with pytest.raises(ComponentError) as caught:
            build(made(construct), ComponentEnv("codec", "Client", {"level": 3}))
        ends[case] = exit_of_refusal(caught.value)
    assert ends == dict.fromkeys(CASES, Exit.REFUSED) | {"OSError": Exit.FAILED}


def test_construct_that_gives_nothing() -> None:
    with pytest.raises(ComponentError, match=r"construct returns None .*let construct return the component"):
        build(made(lambda cls, env: None), ComponentEnv("codec"))


def test_a_typed_error_gets_the_slot_where_it_names_no_place() -> None:
    def unnamed(cls: Any, env: Any) -> Any:
        raise ComponentError("the sensor is unplugged", hint="plug it in")

    with pytest.raises(ComponentError, match=r"^slot 'codec': the sensor is unplugged \(plug it in\)$"):
        build(made(unnamed), ComponentEnv("codec"))


def test_keys_are_checked_before_the_code_runs() -> None:
    ran = []

    class Strict(Made):
        CONFIG: ClassVar[Any] = {"level": Setting.integer(3, 1, 9)}

        @classmethod
        def construct(cls, env: ComponentEnv) -> Strict:
            ran.append(env.slot)
            return cls(**env.settings(cls))

    for config, said in (({"levle": 3}, "did you mean 'level'?"), ({"level": 10}, "must lie in [1, 9]")):
        with pytest.raises(ComponentError) as caught:
            build(Strict, ComponentEnv("codec", "Client", config))
        assert said in str(caught.value)
    assert not ran
    assert getattr(build(Strict, ComponentEnv("codec")), "level", 0) == 3
    assert ran == ["codec"]


def test_an_error_of_another_room_is_said_with_the_slot() -> None:
    with pytest.raises(ComponentError, match=r"slot 'codec': acme\.Made cannot be built: PeerIdError: "):
        build(made(lambda cls, env: PeerId.from_text("nobody")), ComponentEnv("codec"))


# --- construction state ------------------------------------------------------------------------------


DEEP = {
    "unclosed": "[" * 100_000,
    "closed": "[" * 3_000 + "]" * 3_000,
    "objects": '{"a":' * 3_000 + "1" + "}" * 3_000,
    "below Python's limit": "[" * 100 + "]" * 100,
    "no JSON": "{'a': 1}",
    "a number of 5,000 digits": "9" * 5_000,
}


@pytest.mark.parametrize("value", DEEP.values(), ids=DEEP)
def test_a_graph_state_whose_configuration_is_hostile(value: str) -> None:
    state = AttributeProto(name="model", type=AttributeProto.GRAPH)
    state.g.metadata_props.add(key="sound", value="[1, 2]")
    assert construction(state, "slot 'model'") == ({"sound": [1, 2]}, {})
    state.g.metadata_props.add(key="layers", value=value)
    with pytest.raises(LoadError, match="config 'layers' is not JSON") as caught:
        construction(state, "slot 'model'")
    assert caught.value.where == "slot 'model'"
    assert "compile it again" in caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"\x81" * 3_000 + b"\x00",
        b"\x81" * 100 + b"\x00",
        b"\xff",
        b"\x9b" + b"\xff" * 8,
        b"\xa1\x80\x00",
        b"\x05",
    ],
)
def test_a_text_state_that_is_hostile(data: bytes) -> None:
    state = AttributeProto(name="codec", type=AttributeProto.STRING, s=data)
    with pytest.raises(LoadError, match="its construction state is not") as caught:
        construction(state, "slot 'codec'")
    assert caught.value.hint


def test_a_state_tensor_of_too_high_a_rank() -> None:
    state = AttributeProto(name="data", type=AttributeProto.TENSOR)
    state.t.data_type = 1
    state.t.dims.extend([1] * 102)
    for field in ("raw_data", "float_data"):
        state.t.ClearField("raw_data")
        if field == "raw_data":
            state.t.raw_data = bytes(4)
        else:
            state.t.float_data.append(1)
        with pytest.raises(BBError, match="rank 102, an array has 32 at most"):
            construction(state, "slot 'data'")


@pytest.mark.parametrize("notes", ["one sentence", {"level": 3}, [3], None])
def test_notes_that_are_no_sentences_are_refused(notes: Any) -> None:
    with pytest.raises(ComponentError, match="as its notes, and sentences for the log") as caught:
        build(type("Made", (Made,), {"construct": made_with(notes)}), ComponentEnv("codec", "Client"))
    assert caught.value.hint == "give an attribute of another meaning another name"
