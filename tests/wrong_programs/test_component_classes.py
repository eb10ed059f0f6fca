"""Own component classes as authors get them wrong: each is refused where it is registered, with a remedy."""

from __future__ import annotations

import pytest

from bb_edge.extend import (
    Aggregator,
    Backend,
    Codec,
    ContractError,
    Effect,
    GraphModel,
    Index,
    Model,
    OpTable,
    PeerSelector,
    ProtocolComponent,
    Setting,
    pack_state,
    register_type,
)
from bb_edge.ir.opsets.records import OpRowError
from bb_edge.ir.types import TypeRegistrationError
from bb_edge.registry import Registry, RegistryError
from bb_edge.registry import register as register_here
from bb_host import ProtocolSlot
from bb_host.errors import SlotError
from tests.aids.refusals import refused


def construct(cls, env):
    return cls()


class Same(Codec):
    TYPE_NAME = "acme.Same"
    construct = classmethod(construct)

    def compress(self, ctx, t):
        return t

    def decompress(self, ctx, code):
        return code


class Kept(Same):
    TYPE_NAME = "acme.Kept"

    def serialize(self):
        return pack_state(self, 1, {})

    def restore(self, state): ...


class Told(Kept):
    """Adds to what its base does, without a word about the other half."""

    TYPE_NAME = "acme.Told"

    def serialize(self):
        self.saved = True
        return super().serialize()


class Wary(Kept):
    """Calls its base by name."""

    TYPE_NAME = "acme.Wary"

    def restore(self, state):
        if state:
            Kept.restore(self, state)


class Learner(Model):
    TYPE_NAME = "acme.Learner"
    construct = classmethod(construct)

    def forward(self, ctx, input): ...

    def load_parameters(self, ctx, params): ...

    def params(self, ctx): ...


class Mean(Aggregator):
    TYPE_NAME = "acme.Mean"
    construct = classmethod(construct)

    def contribute(self, ctx, contribution, weight=None, peer=None, round=None, sent=None): ...

    def aggregate(self, ctx, stack=None, round=None): ...

    def current_tensor(self, ctx, trigger=None): ...


class Tells(ProtocolComponent):
    TYPE_NAME = "acme.Tells"
    construct = classmethod(construct)
    INPUTS, OUTPUTS, NAME, MORE = "a:Tensor, b:Tensor", "c:Tensor", "Sub", {}

    @classmethod
    def atomic_opset(cls):
        table = OpTable(cls.TYPE_NAME)
        table.op(cls.NAME, cls.INPUTS, cls.OUTPUTS, **cls.MORE)
        return table.opset()

    def sub(self, ctx, a, b): ...


class Both(Codec, Index):
    TYPE_NAME = "acme.Both"
    construct = classmethod(construct)
    compress = decompress = add = search = Same.compress


def of(base, **members):
    return type("Made", (base,), members)


async def awaits(self, ctx, t):
    return t


def yields(self, ctx, t):
    yield t


def opset_of(domain):
    def atomic_opset(cls):
        return OpTable(domain).opset()

    return classmethod(atomic_opset)


CLASSES = {
    # A7: the two halves of a state
    "serialize alone": (
        of(Same, serialize=lambda self: pack_state(self, 1, {})),
        "the class has serialize and no restore",
        "define restore(self, state)",
    ),
    "a misspelt restore": (
        of(Same, serialize=lambda self: b"", restor=lambda self, state: None),
        "the class has serialize and no restore",
        "did you mean 'restor'?",
    ),
    "restore alone": (
        of(Same, restore=lambda self, state: None, serialise=lambda self: b""),
        "the class has restore and no serialize",
        "did you mean 'serialise'?",
    ),
    "serialize alone, above a base that has both": (
        of(Kept, serialize=lambda self: b""),
        "has a serialize of its own, and restore is that of Kept",
        "define restore too, or call super().serialize()",
    ),
    "restore alone, above a base that has both": (
        of(Kept, restore=lambda self, state: None),
        "has a restore of its own, and serialize is that of Kept",
        "define serialize too, or call super().restore(state)",
    ),
    "serialize with ctx": (
        of(Same, serialize=lambda self, ctx: b"", restore=lambda self, state: None),
        "serialize(self, ctx) cannot be called as serialize()",
        "def serialize(self)",
    ),
    "restore without the state": (
        of(Same, serialize=lambda self: b"", restore=lambda self: None),
        "restore(self) cannot be called as restore(state)",
        "def restore(self, state)",
    ),
    # signatures
    "bootstrap without ctx": (of(Same, bootstrap=lambda self: None), "bootstrap(ctx)", "(self, ctx)"),
    "construct without env": (
        of(Same, construct=classmethod(lambda cls: cls())),
        "construct(cls) cannot be called as construct(env)",
        "def construct(cls, env)",
    ),
    "swapped inputs": (
        of(Learner, evaluate=lambda self, ctx, target, input: None),
        "evaluate(self, ctx, target, input) takes its arguments in another order",
        "def evaluate(self, ctx, input, target)",
    ),
    "swapped inputs with defaults": (
        of(
            Mean,
            contribute=lambda self, ctx, contribution, peer=None, weight=None, round=None, sent=None: None,
        ),
        "in another order",
        "contribution, weight, peer, round, sent)",
    ),
    "swapped inputs of an own op": (
        of(Tells, sub=lambda self, ctx, b, a: None),
        "sub(self, ctx, b, a) takes its arguments in another order",
        "def sub(self, ctx, a, b)",
    ),
    "an async method": (of(Same, compress=awaits), "compress is `async`", "ctx.offload(work)"),
    "a generator": (of(Same, compress=yields), "compress yields", "return all of it at once"),
    "an async hook": (of(Same, bootstrap=awaits), "bootstrap is `async`", "write `def`"),
    "a number": (of(Same, compress=3), "compress is 3, expected a method", "def compress(self, ctx, t)"),
    "a property": (
        of(Same, compress=property(lambda self: 3)),
        "compress is a property",
        "def compress(self, ctx, t)",
    ),
    # near misses of hooks
    "a hook in the plural": (
        of(GraphModel, TYPE_NAME="acme.M", adjust_gradients=lambda self, gradient: None),
        "adjust_gradients(self, gradient) is never called",
        "did you mean 'adjust_gradient'?",
    ),
    "a misspelt optional op": (
        of(Same, train_codebok=lambda self, ctx, training: None),
        "train_codebok(self, ctx, training) is never called",
        "did you mean 'train_codebook'?",
    ),
    # flags and promises
    "a word for stateless": (of(Same, stateless="no"), "stateless is 'no'", "stateless = True"),
    "a word for shared": (of(Same, shared="yes"), "shared is 'yes'", "shared = True"),
    "NEEDS as a text": (of(Same, NEEDS="forward"), "NEEDS is 'forward'", 'NEEDS = ("forward",)'),
    "GRAPH_OPS as a set": (
        of(Same, GRAPH_OPS={"train", "fit"}),
        "GRAPH_OPS is {",
        'GRAPH_OPS = {"train": ("Backward",)}',
    ),
    "a misspelt port": (
        of(Same, STORAGE_TYPES={"Compress.cod": "Tensor<U8>"}),
        "STORAGE_TYPES: no port 'Compress.cod'",
        "did you mean 'Compress.code'?",
    ),
    "a misspelt type": (
        of(Same, STORAGE_TYPES={"Compress.code": "Tensor<U9>"}),
        "STORAGE_TYPES: no type 'Tensor<U9>'",
        "did you mean",
    ),
    "promises as a list": (
        of(Same, STORAGE_TYPES=["Compress.code"]),
        "STORAGE_TYPES is a list, expected a mapping",
        "STORAGE_TYPES = {",
    ),
    "two Contracts": (Both, "two Contracts, Codec and Index", "a class for each"),
    # names
    "a name without a package": (of(Same, TYPE_NAME="Same"), "TYPE_NAME 'Same'", "of the form package.Name"),
    "a reserved name": (of(Same, TYPE_NAME="bb.Same"), "begins with bb.", 'TYPE_NAME = "package.Made"'),
    "a name with a space": (of(Same, TYPE_NAME="acme.my codec"), "TYPE_NAME 'acme.my codec'", ""),
    "a name with a newline": (of(Same, TYPE_NAME="acme.Same\n"), "TYPE_NAME 'acme.Same\\n'", ""),
    # ops of one's own
    "a misspelt port type": (
        of(Tells, INPUTS="a:Tensro, b:Tensor"),
        "port 'a' of its op Sub: no type 'Tensro'",
        "did you mean 'Tensor'?",
    ),
    "a port without a type": (of(Tells, INPUTS="a, b:Tensor"), "port 'a' of its op Sub has no type", '"a:'),
    "an op that is a hook": (of(Tells, NAME="Construct"), "its op Construct would be 'construct'", "rename"),
    "an op that is a slot's own": (of(Tells, NAME="Name"), "its op Name would be 'name'", "rename the op"),
    "an effect as a text": (
        of(Tells, MORE={"effect": "write"}),
        "its op Sub has effect='write'",
        "write Effect.WRITE",
    ),
    "a domain of ONNX": (
        of(Tells, atomic_opset=opset_of("ai.onnx")),
        "a domain of the catalog",
        "cls.TYPE_NAME",
    ),
    "no opset": (
        of(Tells, atomic_opset=classmethod(lambda cls: None)),
        "atomic_opset() returns None",
        "OpTable",
    ),
    "an opset that raises anything": (
        of(Tells, atomic_opset=classmethod(lambda cls: 1 / 0)),
        "atomic_opset() fails: ZeroDivisionError",
        "mend it",
    ),
}


@pytest.mark.parametrize("case", CLASSES)
def test_a_class_is_refused_where_it_is_registered(case):
    kind, what, hint = CLASSES[case]
    with refused(RegistryError, "Made" if kind is not Both else "Both", what, hint):
        Registry(entry_points=False).register(kind)  # <-


class Helped(Same):
    """Methods of its own that resemble a hook and are none."""

    TYPE_NAME = "acme.Helped"

    def restored(self): ...

    def start(self): ...

    def trainer(self, ctx, training): ...

    def deserialize(self, data): ...

    def resets(self): ...


class Sampled(PeerSelector, Tells):
    TYPE_NAME = "acme.Sampled"

    def sample(self, ctx, *, n, min=0): ...

    def current_view(self, ctx): ...


@pytest.mark.parametrize(
    "kind",
    [Same, Kept, Told, Wary, Learner, Mean, Tells, Helped, Sampled, of(Tells, MORE={"effect": Effect.READ})],
)
def test_classes_that_are_whole_pass(kind):
    Registry(entry_points=False).register(kind)


def test_a_decorator_with_empty_parentheses():
    assert register_here()(Same) is register_here(Same)


def test_an_execute_that_cannot_be_called():
    with pytest.raises(ContractError, match=r"execute\(self, graph, inputs\) cannot be called as execute\("):
        of(Backend, execute=lambda self, graph, inputs: {})
    with pytest.raises(ContractError, match=r"attrs=None"):
        of(Backend, execute=lambda self, graph, inputs, attrs: {})
    of(Backend, execute=lambda self, graph, inputs, attrs=None: {})


def test_settings_that_no_value_fits():
    with refused(ContractError, "no number lies in [5, 1]", marked=False):
        Setting.integer(3, minimum=5, maximum=1)
    with refused(ContractError, "no number lies in [1.0, 0.0]", marked=False):
        Setting.number(0.5, 1.0, 0.0)
    with refused(ContractError, "choices of a setting are 'abc', one text", 'choices=("abc",)', marked=False):
        Setting.text("a", choices="abc")


@pytest.mark.parametrize("name", ["F32", "I64", "T", "", "my type", "a,b", "x:y"])
def test_names_that_types_cannot_have(name):
    with refused(TypeRegistrationError, repr(name), "acme.Point", marked=False):
        register_type(name)


@pytest.mark.parametrize("opset", [Tells, Tells.atomic_opset, "acme.Tells", 3])
def test_a_slot_with_no_opset(opset):
    with refused(SlotError, "protocol slot 'p'", "is not an opset", "opset=C.atomic_opset()"):
        ProtocolSlot("p", opset=opset)  # <-


def test_a_slot_whose_opset_fails():
    kind = of(Tells, atomic_opset=classmethod(lambda cls: cls.nope))
    with refused(SlotError, "protocol slot 'p': atomic_opset() fails: AttributeError", "mend it"):
        ProtocolSlot("p", kind)  # <-


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            ("Count", "peer:PeerIdVec", "seq:Tensor<I64>", "n:Tensor<I64>"),
            "'n:Tensor<I64>' is not an attribute",
        ),
        (("Count", "peer:PeerIdVec", "", "times:integer"), "attributes are of int, float"),
    ],
)
def test_ports_that_are_written_as_attributes_are_told_how_ports_are_written(row, words):
    class Counting(ProtocolComponent):
        TYPE_NAME = "acme.Counting"

        @classmethod
        def construct(cls, env):
            return cls()

        @classmethod
        def atomic_opset(cls):
            table = OpTable("acme.Counting")
            table.op(*row)
            return table.opset()

    with pytest.raises((ContractError, RegistryError)) as caught:
        Registry().register(Counting)
    assert words in str(caught.value) and "all inputs in one text" in str(caught.value)


def test_an_op_of_a_table_has_a_name_of_its_own():
    table = OpTable("acme.Counting")
    table.op("Count")
    with pytest.raises(OpRowError, match="op Count is declared twice in the table of"):
        table.op("Count")
