"""What all nodes of a worker share: graphs are made ready once, and run in one block of memory.

A worker's nodes run one after the other, and most of them run the same graphs over parameters of their own.
So a graph is prepared for the first node that asks, over parameters of the pool's; whose turn it is copies
its own parameters there before each run. That costs microseconds, while a plan of its own would cost each
node milliseconds when it wakes, and activations as long as it lives. The bits are those of a program of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from bb_edge.backends.arena import Arena
from bb_edge.backends.numpy_backend import NumPyBackend
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.registry import Registry
from bb_edge.roles.programs import BackendProgram
from bb_host.simulate.row_files import DealtSource

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import FunctionProto
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.component import Component, ComponentEnv
    from bb_edge.roles.programs import Functions, Runner, Wiring


class _Pool:
    """The programs of one worker, and the arena of their plans."""

    def __init__(self) -> None:
        self.arena = Arena(shared=True)
        self._programs: dict[object, tuple[BackendProgram, Mapping[str, Array]]] = {}
        self._functions: dict[int, Functions] = {}
        self._written: dict[int, tuple[FunctionProto, bytes]] = {}

    def written(self, function: FunctionProto) -> bytes:
        """The bytes of a function; it stays, so its id stays its own."""
        known = self._written.get(id(function))
        if known is None:
            known = self._written[id(function)] = function, function.SerializeToString(deterministic=True)
        return known[1]

    def program(
        self,
        key: tuple[object, ...],
        functions: Functions | None,
        resident: Mapping[str, Array],
        make: Callable[[Mapping[str, Array]], BackendProgram],
    ) -> BackendProgram:
        """A program over `resident`, made by `make` over arrays of the pool where none has the key yet."""
        if functions is not None:
            self._functions[id(functions)] = functions  # it stays, so its id stays its own
        shapes = tuple((name, array.shape, array.dtype) for name, array in resident.items())
        key = (*key, id(functions), shapes)
        found = self._programs.get(key)
        if found is None:
            arrays = {name: array.copy() for name, array in resident.items()}
            found = self._programs[key] = make(arrays), arrays
        program, shared = found
        return _Turn(program, shared, resident) if resident else program


class _Turn(BackendProgram):
    """A program of the pool, over the parameters of one node."""

    def __init__(
        self, program: BackendProgram, shared: Mapping[str, Array], own: Mapping[str, Array]
    ) -> None:
        self._program = program
        self._pairs = [(shared[name], array) for name, array in own.items()]
        self.input_names, self.output_names = program.input_names, program.output_names

    def _take_turn(self) -> None:
        for shared, own in self._pairs:
            shared[...] = own  # half of `np.copyto`, which looks for overrides first

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        self._take_turn()
        return self._program.run(inputs)

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._take_turn()
        self._program.run_into(inputs, outputs)

    def runner(
        self, outputs: Sequence[Array], lendable: Collection[int], wiring: Wiring | None = None
    ) -> Runner:
        behind, take_turn = self._program.runner(outputs, lendable, wiring), self._take_turn

        def run(inputs: Sequence[Array]) -> Mapping[int, Array]:
            take_turn()
            return behind(inputs)

        return run


class _PooledBackend(NumPyBackend):
    """A node's NumPy backend whose programs are those of a pool."""

    pool: _Pool

    @classmethod
    def construct(cls, env: ComponentEnv) -> NumPyBackend:
        made = super().construct(env)
        made.arena = cls.pool.arena
        return made

    def prepare(
        self,
        function: FunctionProto,
        functions: Functions | None = None,
        resident: Mapping[str, Array] | None = None,
    ) -> BackendProgram:
        limits = self._limits
        key = (self.pool.written(function), limits.arena_bytes, limits.tensor_bytes)
        prepare = super().prepare
        return self.pool.program(
            key, functions, resident or {}, lambda shared: prepare(function, functions, shared)
        )


def _later(_model: GraphModel) -> None:
    """Takes no memory for a copy of the parameters yet: a node that sleeps would give it back at once."""


def _made(name: str, base: type[Component], **members: object) -> type[Component]:
    """A class of this module: with another's name on it (`abc`, by default) it counts as an author's."""
    return type(name, (base,), {"__module__": __name__, **members})


class PoolingRegistry(Registry):
    """The components of another registry, but NumPy backends that share their programs, and data sources that
    are given their rows.

    Only what comes with the project is shared: backends of others may keep what one run leaves for the next.
    """

    def __init__(self, behind: Registry, room: Callable[[int], Array]) -> None:
        """`room` is where parameters lie (`GraphModel.room`)."""
        super().__init__()
        self._behind = behind
        self._instead: dict[type[Component], type[Component]] = {
            NumPyBackend: _made("PooledBackend", _PooledBackend, pool=_Pool()),
            ArrayDataSource: DealtSource,
            GraphModel: _made("PlacedModel", GraphModel, room=staticmethod(room), reserve=_later),
        }

    def lookup(self, type_name: str, where: str = "") -> type[Component]:
        found = self._behind.lookup(type_name, where)
        return self._instead.get(found, found)
