"""The base of every concrete component, and what one is constructed from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from bb_edge.ir.once import each_time
from bb_edge.roles.adoption import Adoption
from bb_edge.roles.errors import ComponentError, ComponentStateError
from bb_edge.roles.settings import Misfit, Setting, misfit, settings_of

if TYPE_CHECKING:
    from bb_edge.ir.once import Once
    from bb_edge.ir.onnx_pb2 import FunctionProto
    from bb_edge.ir.tensors import Array
    from bb_edge.ir.types import ValueType
    from bb_edge.roles.completion import Later
    from bb_edge.roles.context import Ctx
    from bb_edge.roles.programs import Preparer

__all__ = ["Component", "ComponentEnv"]


def _no_graph(suffix: str) -> FunctionProto | None:
    return None


class ComponentEnv:
    """What a component is constructed from: its slot, its construction state, and its surroundings.

    `config` is the merged configuration (artifact's CBOR map or a GRAPH state's metadata, overridden by the
    device's own), `compiled` the artifact's alone, `tensors` the initializers of a GRAPH state in order,
    `graph(suffix)` a function that the artifact brings for the slot (`forward`, `train`, `loss`), `seed` a
    64-bit number of this node and slot, `tensor_bytes` what a backend may allocate in one run for shapes that
    depend on data (0: no limit). `alike` says that the configuration is the artifact's own, on each node.
    `once(key, make)` is for what a component makes of its graphs and tensors alone, and never changes: nodes
    that are installed by the thousand share it.
    The readers below raise `ComponentError` naming slot and key.
    """

    # No dataclass: programs that are tensor work alone start without that module (docs/decisions.md).
    __slots__ = (
        "_fits",
        "alike",
        "backend",
        "compiled",
        "config",
        "functions",
        "graph",
        "once",
        "own_class",
        "peer_class",
        "seed",
        "slot",
        "target",
        "tensor_bytes",
        "tensors",
    )

    def __init__(
        self,
        slot: str,
        target: str = "",
        config: Mapping[str, object] | None = None,
        tensors: Mapping[str, Array] | None = None,
        graph: Callable[[str], FunctionProto | None] = _no_graph,
        backend: Preparer | None = None,
        seed: int = 0,
        own_class: str = "self",
        peer_class: str = "self",
        functions: Mapping[tuple[str, str], FunctionProto] | None = None,
        tensor_bytes: int = 0,
        once: Once = each_time,
        compiled: Mapping[str, object] | None = None,
        alike: bool = False,
    ) -> None:
        self._fits: type[Component] | None = None  # what it was checked for last
        self.alike = alike
        self.slot = slot
        self.once = once
        self.tensor_bytes = tensor_bytes
        self.target = target
        self.config: Mapping[str, object] = {} if config is None else config
        self.compiled: Mapping[str, object] = {} if compiled is None else compiled
        self.tensors: Mapping[str, Array] = {} if tensors is None else tensors
        self.graph = graph
        self.backend = backend
        self.seed = seed
        self.own_class = own_class
        self.peer_class = peer_class
        self.functions: Mapping[tuple[str, str], FunctionProto] = {} if functions is None else functions

    def error(self, what: str, key: str = "", hint: str = "") -> ComponentError:
        """Returns a ComponentError that names this slot, and `key` of its configuration."""
        where = f"slot {self.slot!r}" + (f" of {self.target!r}" if self.target else "")
        return ComponentError(what, f"{where}, key {key!r}" if key else where, hint)

    def settings(self, kind: type[Component]) -> dict[str, Any]:
        """Returns the value of every key of `kind.CONFIG` and of its bases', with defaults filled in.

        `construct` calls it with `cls`, so that a base reads the keys of its subclasses as well. Raises
        ComponentError for an unknown key, a missing one, or a value out of range.
        """
        self.check(kind)
        values = {}
        for key, setting in (settings_of(kind) or {}).items():
            value = self.config.get(key, setting.default)
            values[key] = setting.taken(value)
        return values

    def unread_notes(self, kind: type[Component]) -> list[str]:
        """Returns a sentence for each key of the configuration that has no effect (`unread_settings`).

        Behind them one for each that has a doubtful one (`doubtful_settings`).
        """
        if self.alike:
            return list(self.once(("notes", kind), lambda: self._notes(kind)))
        return self._notes(kind)

    def _notes(self, kind: type[Component]) -> list[str]:
        where = self.error("").where
        unread, doubtful = kind.unread_settings(self.config), kind.doubtful_settings(self.config)
        return [
            *(f"{where}, key {key!r} has no effect: {why}" for key, why in unread.items()),
            *(f"{where}, key {key!r}: {what}" for key, what in doubtful.items()),
        ]

    def check(self, kind: type[Component]) -> None:
        """Raises ComponentError, which names the key, for a configuration that a class does not take."""
        if self._fits is kind:
            return
        if self.alike:
            self.once(("fits", kind), lambda: self._check(kind))
        else:
            self._check(kind)
        self._fits = kind

    def _check(self, kind: type[Component]) -> None:
        wrong = misfit(kind, self.config, True, self.compiled)
        if wrong is not None:
            raise self.error(wrong.what, wrong.key, wrong.hint)

    def with_config(self, config: Mapping[str, object]) -> ComponentEnv:
        """Returns a copy with `config` over the configuration, for a component that builds another one."""
        changed = copy.copy(self)
        changed.config = {**self.config, **config}
        changed._fits, changed.alike = None, False
        changed.compiled = {key: value for key, value in self.compiled.items() if key not in config}
        return changed

    def integer(
        self, key: str, default: int | None = None, minimum: int = 0, maximum: int = 2**63 - 1
    ) -> int:
        """Returns an integer in [minimum, maximum]; without a default the key is required."""
        value: int = self._read(key, default, Setting.integer(default, minimum, maximum))
        return value

    def number(self, key: str, default: float | None = None, minimum: float = float("-inf")) -> float:
        """Returns a finite number that is at least `minimum`."""
        return float(self._read(key, default, Setting.number(default, minimum)))

    def text(self, key: str, default: str | None = None, choices: Iterable[str] = ()) -> str:
        """Returns a text, one of `choices` where there are any."""
        value: str = self._read(key, default, Setting.text(default, choices))
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Returns true or false."""
        value: bool = self._read(key, default, Setting.flag(default))
        return value

    def _read(self, key: str, default: object, setting: Setting) -> Any:
        value = self.config.get(key, default)
        wrong = "missing configuration key" if value is None else setting.wrong(value)
        if wrong:
            set_it = (
                f'give it: --set {self.slot}.{key}=VALUE, or "{key}" under components.{self.slot} in a file'
            )
            raise self.error(wrong, key, set_it if value is None else "")
        return value

    def require_backend(self) -> Preparer:
        """Returns the backend of the slot's target; ComponentError where the target has none."""
        if self.backend is None:
            raise self.error(
                "needs a backend, and its target has none", hint="bind one to the slot 'backend'"
            )
        return self.backend


class Component:
    """The base of every concrete component (docs/how-to/components.md).

    `TYPE_NAME` is the name that bindings use, `ROLE` one of `bb_edge.ir.keys.ROLES`. A `shared` component
    serves several executions at once; a `concurrent` one may have several ops in flight; an op of a
    `restartable` one is dispatched again after a restore, where others fail with `CompletionLostError`.

    `CONFIG` declares the configuration keys of the class; those of its bases come with them. Before
    `construct`, the host checks the configuration of a `bind_…` against them, and the device its own
    settings. None, here and in every base, leaves all keys to `construct`.

    `stateless` says whether calls leave state behind that a restart must not lose: True for none, False for
    some. None, the default, means that the class has state if it offers an op that writes (`Contribute`,
    `NextBatch`, `Step`). A component with state overrides `serialize` and `restore`. Where one does not, the
    host warns, and a restore reports it (`bb_edge.roles.forgets`).

    `NEEDS` are the graphs (`forward`, …) that its construction state must contain. `GRAPH_OPS` are graphs
    that only some ops read, `{"train": ("Backward",)}`: the artifact of a partition without such an op goes
    without the graph. One that is not named is always there.

    `COMPILED` are keys of `CONFIG` that belong to the compiled graphs: a device that gives another value than
    the artifact's is refused.

    `notes` are what its construction found odd and went on with, one sentence each: `bb-edge run` and
    `bb-edge check` tell them. `untold` is the list, the same one for good, in which a data source or a model
    keeps what its `take_notes` would give: it is asked when there is something. None: behind each call.

    `promised_types` are the types of ports, without shapes, that a class of an author's says in `port_types`:
    the runtime sets them when it builds the component, and holds results to them.
    """

    TYPE_NAME: ClassVar[str] = ""
    ROLE: ClassVar[str] = ""
    shared: ClassVar[bool] = False
    concurrent: ClassVar[bool] = False
    restartable: ClassVar[bool] = False
    CONFIG: ClassVar[Mapping[str, Setting] | None] = None
    COMPILED: ClassVar[frozenset[str]] = frozenset()
    stateless: ClassVar[bool | None] = None
    NEEDS: ClassVar[tuple[str, ...]] = ()
    GRAPH_OPS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    notes: Sequence[str] = ()
    untold: Sequence[str] | None = None
    promised_types: Mapping[str, ValueType] = MappingProxyType({})

    @classmethod
    def construct(cls, env: ComponentEnv) -> Component:
        """Builds the component from its construction state. ComponentError for a bad configuration."""
        raise NotImplementedError(f"{cls.__name__} does not define construct(env)")

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns the types that a configuration fixes at its ops' ports: `{"Search.query": "F32[…,8]"}`.

        The compiler asks when the component is bound, and refuses programs whose values have other types.
        Keys are `<Op>.<port>`. A type is an element name or a type id, then a shape: sizes, `?` for any size,
        symbols for sizes that ports of one op share, a leading `…` for any dimensions; or `<Op>.<port>`, an
        input whose shape it has. The arguments are what `construct` sees without the device's own
        configuration: leave out what a device may change.
        """
        return {}

    @classmethod
    def wrong_settings(cls, config: Mapping[str, object], complete: bool) -> Sequence[Misfit]:
        """Returns the keys whose values cannot be although each is of its kind, or contradict each other.

        `CONFIG` checks one key at a time; what `Setting.anything` takes, and what hangs on two keys, is
        checked here. The host asks when the component is bound, and refuses; the device before it builds
        the component. `config` has defaults filled in, and no key whose value is None. `complete` is true on
        the device; on the host it is false, and a key that is missing may still come from the device.
        """
        return ()

    @classmethod
    def unread_settings(cls, config: Mapping[str, object]) -> Mapping[str, str]:
        """Returns the keys of a valid configuration that have no effect, each with the reason.

        A key may depend on another: momentum says nothing where the optimizer is Adam. The compiler warns of
        them (`setting-without-effect`). A class that overrides this adds `env.unread_notes(cls)` to its
        `notes`: the device's own settings count too.
        """
        return {}

    @classmethod
    def doubtful_settings(cls, config: Mapping[str, object]) -> Mapping[str, str]:
        """Returns the keys of a valid configuration that are hardly wanted, each with the reason.

        A learning rate of 0, say. They are told as those of `unread_settings` are (`doubtful-setting`).
        """
        return {}

    def serialize(self) -> bytes:
        """Returns the state that a snapshot holds; b"" where there is none beyond the construction state."""
        return b""

    def restore(self, state: bytes) -> None:
        """Takes over the state that `serialize` returned. ComponentStateError for other bytes."""
        if state:
            raise ComponentStateError(f"{self.TYPE_NAME or type(self).__name__} keeps no state, and got some")

    def adopt(self, state: bytes) -> Adoption:
        """Takes over what fits of a state that a component of this slot and type wrote in another program.

        Called once, on a component that was just constructed (`bb-edge run --adopt`); never with b"". Says
        what it took and what it left. Numbers of executions, rounds and timers in the state mean nothing
        here. The base takes what `restore` takes, without what `drop_executions` drops. A class that
        overrides `restore` and not `adopt` gets that, whatever its bases do. ComponentStateError where
        nothing fits: the component is constructed anew.
        """
        self.restore(state)
        return Adoption(("its state",), self.drop_executions())

    def drop_executions(self) -> tuple[str, ...]:
        """Drops what names executions, rounds and timers, and says what that was: `what: why` each.

        Called behind `restore` where the state is that of another program, whose numbers may be those of
        others here. A class that overrides `restore` alone inherits it, for what its bases keep.
        """
        return ()

    def bootstrap(self, ctx: Ctx) -> Later | None:
        """Prepares the component before it serves: it loads, warms up, asks its device.

        It runs when the host says so (`run_bootstrap(Slots((slot,)))`, `BootstrapAll`); body ops that touch
        the component wait until it is done. The base does nothing, and counts as no bootstrap.
        """
        return None

    def execution_ended(self, exec_id: int) -> None:
        """Releases what was stored for an execution; the engine calls it for each one that touched it."""
