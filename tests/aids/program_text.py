"""Reads the text notation that `bb_host.ir.text` writes: programs of tests and benchmarks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from bb_edge.ir import keys, types
from bb_edge.ir.errors import BBError
from bb_edge.ir.types import ValueType, dtype_of_elem
from bb_host.ir.facts import Facts, ProgramFacts
from bb_host.ir.program import (
    Array,
    AttrValue,
    Function,
    Op,
    Program,
    RawAttribute,
    RawTensor,
    Slot,
    Subgraph,
)
from bb_host.ir.spelling import SpellingError, function_facts, op_facts, program_facts
from bb_host.ir.text.names import (
    DOMAIN_OF_SHORT,
    ELEMENT_NAMES,
    META_WORD,
    WORD,
    implied_opsets,
    implied_program_opsets,
    split_op,
)

_F = TypeVar("_F", bound=Facts)
_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_HEX = re.compile(r"0x([0-9a-fA-F]*)")
_NUMBER = re.compile(r"-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
_INTEGER = re.compile(r"-?\d+")


class TextError(BBError):
    """A program in text form that cannot be read; `where` is its line and column."""


def parse(text: str) -> Program:
    """The program that a text notes. TextError where it is none."""
    scan = _Scanner(text)
    name, graph_name, extra = "", "", b""
    facts = ProgramFacts()
    opsets: dict[str, int] | None = None
    if scan.keyword("program"):
        name = scan.word()
        facts = scan.facts(program_facts)
        if scan.keyword("graph"):
            graph_name = scan.word()
    if scan.keyword("extra"):
        extra = scan.hex_bytes()
    if scan.keyword("opset"):
        opsets = scan.opsets()
    functions = []
    while not scan.at_end():
        functions.append(scan.function())
    if not name:
        if not functions:
            raise scan.error("neither a program nor a function")
        name = functions[0].name
        facts = ProgramFacts(module=name)
    if opsets is None:
        opsets = implied_program_opsets(functions)
    return Program(name, tuple(functions), facts, opsets, graph_name, extra)


def parse_function(text: str) -> Function:
    """The single function that a text notes. TextError where it is none."""
    scan = _Scanner(text)
    function = scan.function()
    if not scan.at_end():
        raise scan.error("more than one function")
    return function


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.skip()

    # --- tokens

    def skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def at_end(self) -> bool:
        return self.at >= len(self.text)

    def error(self, what: str) -> TextError:
        shown = self.text[self.at : self.at + 20].split("\n")[0] or "end of text"
        return TextError(f"{what}, found {shown!r}", self.place(self.at))

    def place(self, at: int) -> str:
        """Line and column, from 1."""
        return f"{self.text.count(chr(10), 0, at) + 1}:{at - self.text.rfind(chr(10), 0, at)}"

    def take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        self.skip()
        return found.group()

    def sees(self, literal: str) -> bool:
        return self.text.startswith(literal, self.at)

    def opt(self, literal: str) -> bool:
        if not self.sees(literal):
            return False
        self.at += len(literal)
        self.skip()
        return True

    def expect(self, literal: str) -> None:
        if not self.opt(literal):
            raise self.error(f"expected {literal!r}")

    def sees_keyword(self, word: str) -> bool:
        found = WORD.match(self.text, self.at)
        return found is not None and found.group() == word

    def keyword(self, word: str) -> bool:
        return self.opt(word) if self.sees_keyword(word) else False

    def string(self) -> str | None:
        found = self.take(_STRING)
        if found is None:
            return None
        try:
            text: str = json.loads(found)
        except ValueError as error:
            raise self.error(f"bad string {found}") from error
        return text

    def word(self) -> str:
        found = self.string()
        if found is None:
            found = self.take(WORD)
        if found is None:
            raise self.error("expected a name")
        return found

    def hex_bytes(self) -> bytes:
        found = self.take(_HEX)
        if found is None or len(found) % 2:
            raise self.error("expected bytes in hex")
        return bytes.fromhex(found[2:])

    def integer(self) -> int:
        found = self.take(_INTEGER)
        if found is None:
            raise self.error("expected an integer")
        return int(found)

    # --- small parts

    def meta(self) -> dict[str, str]:
        """`{slot=model, "other.key"=text}`, or nothing."""
        found: dict[str, str] = {}
        if not self.opt("{"):
            return found
        while not self.opt("}"):
            if found:
                self.expect(",")
            key = self.string()
            if key is None:
                key = f"{keys.PREFIX}.{self.word()}"
            self.expect("=")
            value = self.string()
            if value is None:
                value = self.take(META_WORD)
            if value is None:
                raise self.error("expected a value")
            found[key] = value
        return found

    def facts(self, read: Callable[[Mapping[str, str]], _F]) -> _F:
        """The facts that metadata spells."""
        place = self.place(self.at)
        try:
            return read(self.meta())
        except SpellingError as error:
            raise TextError(str(error), place) from None

    def opsets(self) -> dict[str, int]:
        found: dict[str, int] = {}
        if self.opt("-"):
            return found
        while True:
            quoted = self.string()
            if quoted is None:
                short = self.word()
                if short not in DOMAIN_OF_SHORT:
                    raise self.error(f"no domain {short}")
                quoted = DOMAIN_OF_SHORT[short]
            found[quoted] = self.integer()
            if not self.opt(","):
                return found

    def type(self) -> ValueType:
        """`F32[2,n,?]`, `Tensor<F32>`, `PeerIdVec`."""
        name = self.word()
        if name == "Tensor" and self.opt("<"):
            name = self.word()
            self.expect(">")
        node = ELEMENT_NAMES.get(name) or types.by_id(name)
        if node is None:
            raise self.error(f"no type {name}")
        if not self.opt("["):
            return ValueType(node)
        dims: list[int | str | None] = []
        while not self.opt("]"):
            if dims:
                self.expect(",")
            if self.opt("?"):
                dims.append(None)
            else:
                number = self.take(_INTEGER)
                dims.append(self.word() if number is None else int(number))
        return ValueType(node, tuple(dims))

    def typed_name(self, into: dict[str, ValueType]) -> str:
        name = self.word()
        if self.sees(":") and not self.sees("::"):
            self.expect(":")
            into[name] = self.type()
        return name

    def signature(self, into: dict[str, ValueType]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """`(a: F32, b) -> (c)`."""
        sides = []
        for arrow in (False, True):
            if arrow:
                self.expect("->")
            self.expect("(")
            names: list[str] = []
            while not self.opt(")"):
                if names:
                    self.expect(",")
                names.append(self.typed_name(into))
            sides.append(tuple(names))
        return sides[0], sides[1]

    # --- functions

    def function(self) -> Function:
        if not self.keyword("function"):
            raise self.error("expected 'function'")
        domain, name = self.qualified(self.word())
        value_types: dict[str, ValueType] = {}
        inputs, outputs = self.signature(value_types)
        facts = self.facts(function_facts)
        extra = self.hex_bytes() if self.keyword("extra") else b""
        opsets = self.opsets() if self.keyword("opset") else None
        slots: dict[str, Slot] = {}
        while self.keyword("slot"):
            slot = self.word()
            slots[slot] = self.slot()
        foreign: dict[str, bytes] = {}
        ops = []
        while not self.at_end() and not self.sees_keyword("function"):
            if not self.type_line(value_types, foreign):
                ops.append(self.op(value_types))
        if opsets is None:
            opsets = implied_opsets(ops)
        return Function(
            name, domain, inputs, outputs, tuple(ops), value_types, slots, facts, opsets, extra, foreign
        )

    def slot(self) -> Slot:
        self.expect(":")
        role = "" if self.opt("-") else self.word()
        peer_class = at = concrete = ""
        state: AttrValue | None = None
        if self.keyword("peer_class"):
            self.expect("=")
            peer_class = self.word()
        if self.keyword("at"):
            self.expect("=")
            at = self.word()
        if self.opt("="):
            concrete = self.word()
            if self.opt("("):
                state = self.attr()
                self.expect(")")
        return Slot(role, concrete, at, peer_class, state)

    def type_line(self, into: dict[str, ValueType], foreign: dict[str, bytes]) -> bool:
        if not self.keyword("type"):
            return False
        name = self.typed_name(into)
        if self.keyword("extra"):
            foreign[name] = self.hex_bytes()
        return True

    def qualified(self, first: str) -> tuple[str, str]:
        """The domain and name of an op or function whose first word was read."""
        return (first, self.word()) if self.opt("::") else split_op(first)

    def op(self, into: dict[str, ValueType]) -> Op:
        outputs: list[str] = []
        first = self.word()
        if not (self.sees("(") or self.sees("<") or self.sees("::")):
            while True:
                if self.opt(":"):
                    into[first] = self.type()
                outputs.append(first)
                if not self.opt(","):
                    break
                first = self.word()
            self.expect("=")
            first = self.word()
        domain, op_type = self.qualified(first)
        attrs: dict[str, AttrValue] = {}
        if self.opt("<"):
            while not self.opt(">"):
                if attrs:
                    self.expect(",")
                prefix = keys.PREFIX + "." if self.opt(".") else ""
                name = prefix + self.word()
                self.expect("=")
                attrs[name] = self.attr()
        self.expect("(")
        inputs: list[str] = []
        while not self.opt(")"):
            if inputs:
                self.expect(",")
            inputs.append(self.word())
        name = self.word() if self.opt("@") else ""
        extra = self.hex_bytes() if self.keyword("extra") else b""
        return Op(op_type, domain, tuple(inputs), tuple(outputs), attrs, self.facts(op_facts), name, extra)

    # --- attribute values

    def attr(self) -> AttrValue:
        if self.sees('"'):
            return (self.string() or "").encode()
        if self.sees("0x"):
            return self.hex_bytes()
        if self.opt("["):
            return self.items()
        for keyword, read in (("graph", self.graph), ("type", self.type_attr)):
            if self.keyword(keyword):
                return read()
        for keyword in ("tensor", "attribute"):
            if self.keyword(keyword):
                return self.raw(keyword)
        number = self.take(_NUMBER)
        if number is not None:
            return int(number) if _INTEGER.fullmatch(number) else float(np.float32(float(number)))
        return self.tensor()

    def items(self) -> AttrValue:
        found: list[AttrValue] = []
        while not self.opt("]"):
            if found:
                self.expect(",")
            found.append(self.attr())
        for kind in (int, float, bytes):
            if all(isinstance(v, kind) for v in found):
                return found  # type: ignore[return-value]
        raise self.error("a list holds integers, or floats, or strings")

    def type_attr(self) -> ValueType:
        self.expect("(")
        value = self.type()
        self.expect(")")
        return value

    def raw(self, keyword: str) -> AttrValue:
        self.expect("(")
        kind = self.integer()
        self.expect(")")
        if keyword == "attribute":
            return RawAttribute(kind, self.hex_bytes())
        self.expect("[")
        shape: list[int] = []
        while not self.opt("]"):
            if shape:
                self.expect(",")
            shape.append(self.integer())
        return RawTensor(kind, tuple(shape), self.hex_bytes())

    def tensor(self) -> AttrValue:
        """`F32[2]{1, 2}` or `F32[2]0x…`."""
        value = self.type()
        dtype = None if value.node.elem_type is None else dtype_of_elem(value.node.elem_type)
        shape = [d for d in value.shape or () if isinstance(d, int)]
        if dtype is None or value.shape is None or len(shape) != len(value.shape):
            raise self.error(f"a tensor needs an element type and numbers as its shape, not {value}")
        if self.sees("0x"):
            flat = np.frombuffer(self.hex_bytes(), dtype.newbyteorder("<")).astype(dtype)
        else:
            self.expect("{")
            numbers: list[int | float] = []
            while not self.opt("}"):
                if numbers:
                    self.expect(",")
                text = self.take(_NUMBER)
                if text is None:
                    raise self.error("expected a number")
                numbers.append(int(text) if dtype.kind in "iub" else float(text))
            try:
                flat = np.array(numbers, dtype)
            except OverflowError as error:
                raise self.error(f"a number beyond {dtype}") from error
        if flat.size != int(np.prod(shape)):
            raise self.error(f"{flat.size} numbers for shape {shape}")
        array = flat.reshape(shape)
        array.setflags(write=False)
        return array

    def graph(self) -> Subgraph:
        name = self.word()
        value_types: dict[str, ValueType] = {}
        inputs, outputs = self.signature(value_types)
        self.expect("{")
        config = self.meta() if self.keyword("meta") else {}
        extra = self.hex_bytes() if self.keyword("extra") else b""
        initializers: dict[str, Array | RawTensor] = {}
        foreign: dict[str, bytes] = {}
        ops = []
        while not self.opt("}"):
            if self.keyword("init"):
                key = self.word()
                self.expect("=")
                tensor = self.attr()
                if not isinstance(tensor, (np.ndarray, RawTensor)):
                    raise self.error("an initializer is a tensor")
                initializers[key] = tensor
            elif not self.type_line(value_types, foreign):
                ops.append(self.op(value_types))
        return Subgraph(name, inputs, outputs, tuple(ops), value_types, initializers, config, extra, foreign)
