"""How facts are spelled as the metadata of a file: the only place where they are texts.

`written` gives texts of facts, in the order in which they were said; `op_facts` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bb_edge.ir import keys
from bb_host.facts import NO_FACTS, OpFacts


class SpellingError(ValueError):
    """A text that spells no fact; the message says of which key."""


class Spelling(NamedTuple):
    """How one fact is spelled: its key, and both directions. What `write` gives None for is not written."""

    name: str
    key: str
    read: Callable[[str], Any]
    write: Callable[[Any], str | None]


def _number(text: str) -> int:
    if not text.isdigit():
        raise SpellingError("no number")
    return int(text)


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise SpellingError("neither 1 nor 0")
    return text == "1"


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _numbers(base: int, form: str) -> tuple[Callable[[str], Any], Callable[[Any], str | None]]:
    def read(text: str) -> tuple[int, ...]:
        try:
            return tuple([int(part, base) for part in text.split(",")]) if text else ()
        except ValueError:
            raise SpellingError("no list of numbers") from None

    return read, lambda numbers: ",".join([format(n, form) for n in numbers]) or None


def _read_pairs(text: str) -> dict[str, str]:
    """`a=X,b=Y`; names of values may hold an equals sign."""
    return {name: to for name, _, to in (pair.rpartition("=") for pair in text.split(","))} if text else {}


def _write_pairs(pairs: Mapping[str, str]) -> str | None:
    return ",".join([f"{name}={to}" for name, to in pairs.items()]) or None


def _text(name: str, key: str) -> Spelling:
    return Spelling(name, key, str, lambda text: text or None)


def _int(name: str, key: str) -> Spelling:
    return Spelling(name, key, _number, lambda number: None if number is None else str(number))


def _bool(name: str, key: str) -> Spelling:
    return Spelling(name, key, _flag, lambda said: "1" if said else None)


_OP = (
    _text("source", keys.SOURCE_LINE_KEY),
    _text("scope", keys.MODULE_INSTANCE_KEY),
    _text("at", keys.AT_CLASS_KEY),
    _bool("on_invoke", keys.ON_INVOKE_KEY),
    _text("slot", keys.SLOT_KEY),
    _int("slot_id", keys.SLOT_ID_KEY),
    _text("trait", keys.REQUIRED_TRAIT_KEY),
    _text("concrete_type", keys.CONCRETE_TYPE_KEY),
    _int("instance", keys.INSTANCE_KEY),
    Spelling("classes", keys.HOME_CLASS_KEY, _names, lambda names: ",".join(names) or None),
    Spelling("leads", keys.PEER_CLASS_KEY, _read_pairs, _write_pairs),
    _int("control", keys.CONTROL_INPUTS_KEY),
    _int("deadline_ns", keys.DEADLINE_NS_KEY),
    _int("chain_depth", keys.CHAIN_DEPTH_KEY),
    _text("wire_id", keys.WIRE_ID_KEY),
    _text("request", keys.WIRE_REQUEST_KEY),
    _text("port", keys.PORT_KEY),
    _text("correlation", keys.WIRE_CORRELATION_KEY),
    _bool("durable", keys.DURABLE_KEY),
    _text("answer_mode", keys.ANSWER_MODE_KEY),
    _int("enough", keys.ENOUGH_KEY),
    _bool("trigger_output", keys.TRIGGER_OUTPUT_KEY),
    _text("made_from", keys.SYNTHESIZED_FROM_KEY),
    _text("sender_class", keys.SENDER_CLASS_KEY),
    _bool("sole_sender", keys.SOLE_SENDER_KEY),
    Spelling("sites", keys.SITE_IDS_KEY, *_numbers(16, "016x")),
    _text("transport", keys.WIRE_TRANSPORT_KEY),
    Spelling("type_hashes", keys.WIRE_TYPES_KEY, *_numbers(16, "x")),
    Spelling("max_bytes", keys.WIRE_MAX_BYTES_KEY, *_numbers(10, "d")),
    _int("batch_group", keys.BATCH_GROUP_ID_KEY),
    _int("feeds", keys.RECV_SLOT_ID_KEY),
    _text("shapes", keys.SHAPES_KEY),
    _text("parts", keys.PARTS_KEY),
    _text("cohort", keys.COHORT_KEY),
)
_OP_OF_KEY = {spelling.key: spelling for spelling in _OP}
_OP_OF_NAME = {spelling.name: spelling for spelling in _OP}
_OP_PREFIXES = {"arrives_as": keys.DEST_SITE_NAME_PREFIX, "foreign": ""}
"""Facts that are spelled as several entries: what each key begins with."""


TRAVELS = (
    keys.SITE_IDS_KEY,
    keys.WIRE_TYPES_KEY,
    keys.WIRE_CORRELATION_KEY,
    keys.DURABLE_KEY,
    keys.WIRE_REQUEST_KEY,
)
"""What two artifacts must agree about of a wire op, in the order in which contracts are digested."""


def op_facts(meta: Mapping[str, str]) -> OpFacts:
    """The facts that an op's metadata spells. SpellingError where a text is none of its fact's."""
    if not meta:
        return NO_FACTS
    found: dict[str, Any] = {}
    for key, text in meta.items():
        spelling = _OP_OF_KEY.get(key)
        if spelling is not None:
            if text:
                found[spelling.name] = _read(spelling, text)
        elif key.startswith(keys.DEST_SITE_NAME_PREFIX):
            found.setdefault("arrives_as", {})[key[len(keys.DEST_SITE_NAME_PREFIX) :]] = text
        else:
            found.setdefault("foreign", {})[key] = text
    return OpFacts(**found)


def _read(spelling: Spelling, text: str) -> Any:
    try:
        return spelling.read(text)
    except SpellingError as error:
        raise SpellingError(f"{spelling.key} is {text!r}, {error}") from None


def written(facts: OpFacts) -> dict[str, str]:
    """The metadata that spells facts."""
    found: dict[str, str] = {}
    for name, value in vars(facts).items():
        spelling = _OP_OF_NAME.get(name)
        if spelling is not None:
            text = spelling.write(value)
            if text is not None:
                found[spelling.key] = text
        else:
            prefix = _OP_PREFIXES[name]
            for key, text in value.items():
                found[prefix + key] = text
    return found
