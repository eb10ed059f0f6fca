"""Facts: said or not, put together, and spelled as metadata and back."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from bb_edge.ir import keys
from bb_host.facts import NO_FACTS, OpFacts
from bb_host.program_proto import ProgramProtoError, from_proto, to_proto
from bb_host.spelling import SpellingError, op_facts, written
from bb_host.text import TextError, parse, print_program

OF_TYPE: dict[str, Any] = {
    "str": "a:b",
    "bool": True,
    "int": 3,
    "int | None": 0,
    "tuple[str, ...]": ("Server", "Client"),
    "tuple[int, ...]": (7, 0),
    "Mapping[str, str]": {"x": "Server", "a=b": "Client"},
}
"""One value per type that a fact has."""
EVERYTHING = OpFacts(**{name: OF_TYPE[str(kind)] for name, kind in OpFacts.__annotations__.items()})


def test_what_is_not_said_has_its_default() -> None:
    facts = OpFacts(slot="model", deadline_ns=0)
    assert (facts.slot, facts.deadline_ns, facts.port, facts.durable) == ("model", 0, "", False)
    assert list(vars(facts)) == ["slot", "deadline_ns"], "in the order in which it was said"
    assert not vars(NO_FACTS)


def test_facts_are_put_together_and_the_later_ones_hold() -> None:
    first = OpFacts(slot="model", port="a")
    both = first | OpFacts(port="b", at="Client")
    assert both == OpFacts(slot="model", port="b", at="Client")
    assert list(vars(both)) == ["slot", "port", "at"]
    assert first == OpFacts(slot="model", port="a"), "none is changed in place"
    assert both.holds(OpFacts(at="Client"))
    assert not both.holds(OpFacts(port="a"))
    assert not first.holds(OpFacts(at="")), "what is not said is not said to be nothing"


def test_facts_are_left_out_by_name() -> None:
    facts = OpFacts(slot="model", port="a", at="Client")
    assert facts.without("port", "source") == OpFacts(slot="model", at="Client")
    assert facts.without("source") is facts
    assert list(vars(facts.only("at", "slot"))) == ["slot", "at"]


def test_equal_facts_have_one_hash() -> None:
    one, other = OpFacts(leads={"a": "B"}, slot="m"), OpFacts(slot="m", leads={"a": "B"})
    assert one == other
    assert hash(one) == hash(other)


def test_every_fact_is_spelled_and_read_back() -> None:
    texts = written(EVERYTHING)
    assert op_facts(texts) == EVERYTHING
    assert all(isinstance(text, str) for text in texts.values())
    assert get_type_hints(OpFacts).keys() == vars(EVERYTHING).keys()


@pytest.mark.parametrize("name", OpFacts.__annotations__)
def test_a_fact_goes_through_protos_and_text(name: str) -> None:
    program = parse("function F(x) -> (y)\n  y = Relu(x)\n")
    (function,) = program.functions
    op = function.ops[0].saying(EVERYTHING.only(name))
    assert op.facts != NO_FACTS
    function = type(function)(**{**_fields(function), "ops": (op,)})
    program = type(program)(**{**_fields(program), "functions": (function,)})
    for again in (from_proto(to_proto(program)), parse(print_program(program))):
        assert again.functions[0].ops[0].facts == op.facts


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_what_says_nothing_is_not_written() -> None:
    assert written(OpFacts(wire_id="", durable=False, enough=None, sites=(), leads={}, foreign={})) == {}
    assert written(OpFacts(deadline_ns=0)) == {keys.DEADLINE_NS_KEY: "0"}


def test_metadata_that_is_none_of_ours_is_kept_as_it_came() -> None:
    facts = op_facts({"their.key": "1", keys.PORT_KEY: "a", f"{keys.PREFIX}.unheard_of": "x"})
    assert facts.foreign == {"their.key": "1", f"{keys.PREFIX}.unheard_of": "x"}
    assert written(facts) == {"their.key": "1", f"{keys.PREFIX}.unheard_of": "x", keys.PORT_KEY: "a"}


@pytest.mark.parametrize(
    ("key", "text", "what"),
    [
        ("deadline_ns", "soon", "no number"),
        ("slot_id", "-1", "no number"),
        ("durable", "yes", "neither 1 nor 0"),
        ("wire.site_ids", "a1,x", "no list of numbers"),
    ],
)
def test_a_text_that_spells_no_fact_is_refused_with_its_key(key: str, text: str, what: str) -> None:
    said = f"{keys.PREFIX}.{key} is {text!r}, {what}"
    with pytest.raises(SpellingError, match=said):
        op_facts({f"{keys.PREFIX}.{key}": text})
    with pytest.raises(TextError, match=said) as wrong:
        parse(f'function F(x) -> (y)\n  y = Relu(x) {{{key}="{text}"}}\n')
    assert wrong.value.where == "2:15"
    model = to_proto(parse("function F(x) -> (y)\n  y = Relu(x)\n"))
    model.functions[0].node[0].metadata_props.add(key=f"{keys.PREFIX}.{key}", value=text)
    with pytest.raises(ProgramProtoError, match=said) as caught:
        from_proto(model)
    assert (caught.value.what, caught.value.where) == (f"Relu: {said}", "function F")
