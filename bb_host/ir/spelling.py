"""How facts are spelled as the metadata of a file: the only place where they are texts.

`written` gives texts of facts, in the order in which they were said; `op_facts` and its kin read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from bb_edge.ir import keys
from bb_host.ir.facts import NO_FACTS, Bound, Facts, FunctionFacts, Heard, OpFacts, ProgramFacts

_F = TypeVar("_F", bound=Facts)


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


def _write_names(names: tuple[str, ...]) -> str | None:
    return ",".join(names) or None


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
    Spelling("classes", keys.HOME_CLASS_KEY, _names, _write_names),
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
    _int("fewest_rows", keys.FEWEST_ROWS_KEY),
    Spelling("label_classes", keys.LABEL_CLASSES_KEY, *_numbers(10, "d")),
    _text("cohort", keys.COHORT_KEY),
)
_FUNCTION = (
    _text("phase", keys.MODULE_PHASE_KEY),
    _text("home", keys.HOME_KEY),
    _text("partition", keys.PARTITION_KEY),
    _bool("entry", keys.ENTRY_KEY),
    _text("backend_slot", keys.BACKEND_SLOT_KEY),
    Spelling("arity", keys.COMPONENT_ARITY_KEY, *_numbers(10, "d")),
    _int("chunk", keys.CHUNK_KEY),
    _int("class_count", keys.CLASS_COUNT_KEY),
    _int("fewest_rows", keys.FEWEST_ROWS_KEY),
    _text("memory_plan", keys.MEMORY_PLAN_KEY),
)
_PROGRAM = (
    _text("module", keys.MODULE_KEY),
    _text("compiled", keys.COMPILED_KEY),
    Spelling("targets", keys.TARGETS_KEY, _names, _write_names),
    _bool("stripped", keys.STRIPPED_KEY),
    _text("program", keys.PROGRAM_KEY),
    Spelling("accepts", keys.ACCEPTS_KEY, _names, _write_names),
    _text("digest", keys.DIGEST_KEY),
)


class Entries(NamedTuple):
    """How a fact is spelled that takes several entries: what their keys begin with, and both directions.

    `read` adds to what is known of it: (known, prefix, rest of the key, text). `write` gives keys and texts.
    """

    name: str
    prefixes: tuple[str, ...]
    read: Callable[[dict[Any, Any], str, str, str], None]
    write: Callable[[Any], Iterator[tuple[str, str]]]


def _mapping(name: str, prefix: str, read: Callable[[str], Any] = str) -> Entries:
    def one(known: dict[Any, Any], _: str, rest: str, text: str) -> None:
        known[rest] = read(text)

    def each(mapping: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for key, value in mapping.items():
            yield prefix + key, str(value)

    return Entries(name, (prefix,), one, each)


def _read_heard(known: dict[Any, Any], prefix: str, target: str, text: str) -> None:
    classes = _names(text)
    if prefix == keys.HEARS_PREFIX:
        known[target] = Heard(classes, known[target].asks if target in known else classes)
    else:
        known[target] = Heard(known[target].hears if target in known else classes, classes)


def _write_heard(heard: Mapping[str, Heard]) -> Iterator[tuple[str, str]]:
    for target, (hears, asks) in heard.items():
        yield keys.HEARS_PREFIX + target, ",".join(hears)
        if asks != hears:
            yield keys.ASKS_PREFIX + target, ",".join(asks)


def _read_bound(known: dict[Any, Any], _: str, place: str, text: str) -> None:
    target, dot, slot = place.rpartition(".")
    parts = text.split("|")
    if not dot or len(parts) != 3 or not parts[2].isdigit():
        raise SpellingError("not role|type|number of a target's slot")
    known[target, slot] = Bound(parts[0], parts[1], int(parts[2]))


def _write_bound(bindings: Mapping[tuple[str, str], Bound]) -> Iterator[tuple[str, str]]:
    for (target, slot), (role, type_name, number) in bindings.items():
        yield f"{keys.BINDING_PREFIX}{target}.{slot}", f"{role}|{type_name}|{number}"


_FOREIGN = _mapping("foreign", "")


class _Table(NamedTuple):
    """How all facts of a kind are spelled, by key and by name; of entries the longest prefix comes first."""

    by_key: Mapping[str, Spelling]
    by_name: Mapping[str, Spelling]
    entries: tuple[Entries, ...]


def _table(spellings: Sequence[Spelling], *entries: Entries) -> _Table:
    by_name = {spelling.name: spelling for spelling in spellings}
    return _Table({spelling.key: spelling for spelling in spellings}, by_name, (*entries, _FOREIGN))


_TABLES: Mapping[type[Facts], _Table] = {
    OpFacts: _table(_OP, _mapping("arrives_as", keys.DEST_SITE_NAME_PREFIX)),
    FunctionFacts: _table(
        _FUNCTION,
        _mapping("input_classes", keys.INPUT_CLASS_PREFIX),
        _mapping("peer_classes", keys.SLOT_PEER_CLASS_PREFIX),
    ),
    ProgramFacts: _table(
        _PROGRAM,
        Entries("heard", (keys.HEARS_PREFIX, keys.ASKS_PREFIX), _read_heard, _write_heard),
        _mapping("contracts", keys.CONTRACT_PREFIX),
        Entries("bindings", (keys.BINDING_PREFIX,), _read_bound, _write_bound),
        _mapping("telemetry", keys.TELEMETRY_PREFIX, _number),
    ),
}

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
    return _read(OpFacts, meta) if meta else NO_FACTS


def function_facts(meta: Mapping[str, str]) -> FunctionFacts:
    """The same of a function, but for what its slots say."""
    return _read(FunctionFacts, meta)


def program_facts(meta: Mapping[str, str]) -> ProgramFacts:
    """The same of a program."""
    return _read(ProgramFacts, meta)


def module_of(model: Any) -> str:
    """The root module that a ModelProto says it is of; empty where it says none."""
    return program_facts({entry.key: entry.value for entry in model.metadata_props}).module


def _read(kind: type[_F], meta: Mapping[str, str]) -> _F:
    by_key, _, entries = _TABLES[kind]
    found: dict[str, Any] = {}
    for key, text in meta.items():
        spelling = by_key.get(key)
        try:
            if spelling is None:
                several, prefix = next((e, p) for e in entries for p in e.prefixes if key.startswith(p))
                several.read(found.setdefault(several.name, {}), prefix, key[len(prefix) :], text)
            elif text:
                found[spelling.name] = spelling.read(text)
        except SpellingError as error:
            raise SpellingError(f"{key} is {text!r}, {error}") from None
    return kind(**found)


def written(facts: Facts) -> dict[str, str]:
    """The metadata that spells facts."""
    _, by_name, entries = _TABLES[type(facts)]
    found: dict[str, str] = {}
    for name, value in vars(facts).items():
        spelling = by_name.get(name)
        if spelling is None:
            found.update(next(several for several in entries if several.name == name).write(value))
        elif (text := spelling.write(value)) is not None:
            found[spelling.key] = text
    return found


def spelled(facts: Facts) -> str:
    """Facts as messages show them: `key=text`."""
    return ", ".join(f"{key}={text}" for key, text in written(facts).items())


def keys_of(kind: type[Facts], name: str) -> tuple[str, ...]:
    """The metadata keys that spell a fact, without our prefix; of entries what their keys begin with."""
    table = _TABLES[kind]
    if name in table.by_name:
        keys_: tuple[str, ...] = (table.by_name[name].key,)
    else:
        keys_ = next(several for several in table.entries if several.name == name).prefixes
    return tuple(key.removeprefix(f"{keys.PREFIX}.") for key in keys_ if key)
