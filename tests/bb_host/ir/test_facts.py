"""Facts: said or not, put together, and spelled as metadata and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from program_text import TextError, parse

from bb_edge.ir import keys
from bb_host.errors import ProgramProtoError
from bb_host.ir.facts import NO_FACTS, Bound, Facts, FunctionFacts, Heard, OpFacts, ProgramFacts
from bb_host.ir.proto import from_proto, to_proto
from bb_host.ir.spelling import SpellingError, function_facts, op_facts, program_facts, written
from bb_host.ir.text import print_program

OF_TYPE: dict[str, Any] = {
    "str": "a:b",
    "bool": True,
    "int": 3,
    "int | None": 0,
    "tuple[str, ...]": ("Server", "Client"),
    "tuple[int, ...]": (7, 0),
    "Mapping[str, str]": {"x": "Server", "a=b": "Client"},
    "Mapping[str, int]": {"wire_ops": 2},
    "Mapping[str, Heard]": {"Server": Heard(("Client",), ("Client",)), "Client": Heard(("Server",), ())},
    "Mapping[tuple[str, str], Bound]": {("Server", "model"): Bound("model", "bb.GraphModel", 3)},
}
"""One value per type that a fact has."""
KINDS = {OpFacts: op_facts, FunctionFacts: function_facts, ProgramFacts: program_facts}


def everything(kind: type[Facts]) -> Any:
    """All facts of a kind, said."""
    return kind(**{name: OF_TYPE[str(of)] for name, of in kind.__annotations__.items()})


EACH = [(kind, name) for kind in KINDS for name in kind.__annotations__]


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


def test_facts_are_left_out_by_name() -> None:
    facts = OpFacts(slot="model", port="a", at="Client")
    assert facts.without("port", "source") == OpFacts(slot="model", at="Client")
    assert facts.without("source") is facts
    assert list(vars(facts.only("at", "slot"))) == ["slot", "at"]


def test_equal_facts_have_one_hash() -> None:
    one, other = OpFacts(leads={"a": "B"}, slot="m"), OpFacts(slot="m", leads={"a": "B"})
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize("kind", KINDS)
def test_every_fact_is_spelled_and_read_back(kind: type[Facts]) -> None:
    said = everything(kind)
    texts = written(said)
    assert KINDS[kind](texts) == said
    assert all(isinstance(text, str) for text in texts.values())
    assert list(vars(said)) == list(kind.__annotations__)


@pytest.mark.parametrize(("kind", "name"), EACH, ids=[f"{kind.__name__}.{name}" for kind, name in EACH])
def test_a_fact_goes_through_protos_and_text(kind: type[Facts], name: str) -> None:
    program = parse("function F(x) -> (y)\n  y = Relu(x)\n")
    (function,) = program.functions
    said = everything(kind).only(name)
    if kind is OpFacts:
        function = dataclasses.replace(function, ops=(function.ops[0].with_facts(said),))
    elif kind is FunctionFacts:
        function = dataclasses.replace(function, facts=said)
    else:
        program = dataclasses.replace(program, facts=said)
    program = dataclasses.replace(program, functions=(function,))
    for again in (from_proto(to_proto(program)), parse(print_program(program))):
        (same,) = again.functions
        assert said in (same.ops[0].facts, same.facts, again.facts)


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


def test_a_binding_that_is_none_is_refused_with_its_key() -> None:
    key = f"{keys.BINDING_PREFIX}Server.model"
    with pytest.raises(SpellingError, match=r"binding\.Server\.model is 'model', not role\|type\|number"):
        program_facts({key: "model"})


def test_what_a_target_asks_is_what_it_hears_where_nothing_else_is_said() -> None:
    facts = program_facts({f"{keys.HEARS_PREFIX}Server": "A,B", f"{keys.HEARS_PREFIX}Hub": ""})
    assert facts.heard == {"Server": Heard(("A", "B"), ("A", "B")), "Hub": Heard((), ())}
    assert written(facts) == {f"{keys.HEARS_PREFIX}Server": "A,B", f"{keys.HEARS_PREFIX}Hub": ""}
