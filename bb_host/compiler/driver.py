"""`Compiler`: bindings and options as a frozen value, and the way from a module to the compiled model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import onnx

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.suggestions import suggestion
from bb_host.author_lines import author_line, short_line
from bb_host.compiler.bindings import check_against, check_single, make_binding
from bb_host.compiler.derived import Derivation, History
from bb_host.diagnostics import ProgramWarning, in_order, issue
from bb_host.dsl.misuse import Suggests, typed_calls
from bb_host.errors import BindingError, InfeasibleDeadline, UnboundSlot, UnknownStage, UnsupportedModule
from bb_host.ir.program import Program
from bb_host.ir.proto import from_proto, to_proto
from bb_host.passes.analysis.identity import identified
from bb_host.passes.one_pass import Observer, PassReport
from bb_host.passes.options import Binding, Options
from bb_host.passes.pipeline import LEAVABLE_PASS_NAMES, Stage, run_pipeline
from bb_host.whole_numbers import whole


@runtime_checkable
class Recordable(Protocol):
    """A module: what records itself as a program."""

    def record(self) -> Program: ...


Source: TypeAlias = "Recordable | onnx.ModelProto | Program"
"""What can be compiled."""


@dataclass(frozen=True)
class Compilation:
    """A compiled program, and what each pass did.

    `compiled` is what the passes made of `recorded`, which is None where it was compiled before.
    """

    compiled: Program
    passes: tuple[PassReport, ...] = ()
    recorded: tuple[Program, Options] | None = None

    @cached_property
    def program(self) -> Program:
        """The compiled program, which says which one it is: its digest is taken when this is first read."""
        return self.compiled if self.recorded is None else identified(self.compiled, *self.recorded)

    @property
    def warnings(self) -> tuple[ProgramWarning, ...]:
        """What recording, the bindings and the passes warn about, each once, by file and line."""
        return self.compiled.warnings

    @property
    def duration_ns(self) -> int:
        """Time of all passes and seam checks."""
        return sum(p.duration_ns + p.seam_ns for p in self.passes)


class _Binds(Protocol):
    """What a compiler's `bind_<role>` takes: `bind` without the role."""

    def __call__(
        self, slot: str, component: type | str | Path, config: Any = None, target: str | None = None
    ) -> Compiler: ...


class _BindMethod(Protocol):
    """A method as the class has it, so that type checkers and editors know what it takes."""

    def __get__(self, compiler: object, owner: object = None) -> _Binds: ...


def _binds(role: str, about: str) -> _BindMethod:
    """The method `bind_<role>`, with its docstring."""

    def bind(
        self: Compiler,
        slot: str,
        component: type | str | Path,
        config: Any = None,
        target: str | None = None,
    ) -> Compiler:
        return self.bind(role, slot, component, config, target)

    bind.__name__, bind.__doc__ = f"bind_{role}", about
    bind.__qualname__ = f"Compiler.{bind.__name__}"
    return cast("_BindMethod", bind)


@typed_calls
@dataclass(frozen=True, slots=True)
class Compiler(Suggests):
    """Binds components to slots and compiles programs. Every method returns a new compiler.

    `Compiler().bind_model("model", GraphModel, mlp_config).compile(FederatedDigits())`: a type is a component
    class or its `TYPE_NAME`; a config is a mapping of CBOR values or has `construct(slot)`; `target` is the
    one partition that a binding holds for.
    """

    bindings: tuple[Binding, ...] = ()
    strict_types: bool = True
    per_hop_budget_ns: int = 0
    disabled: frozenset[str] = frozenset()
    extra: tuple[tuple[str, Stage], ...] = field(default=())
    _history: History = field(default_factory=History, compare=False, repr=False)

    # --- bindings

    def bind(
        self,
        role: str,
        slot: str,
        component: type | str | Path,
        config: Any = None,
        target: str | None = None,
    ) -> Compiler:
        """Binds a component to a slot of `role`, in place of the slot's own default.

        Raises BindingError where role and component do not go together, the config cannot be written, or the
        slot is bound already for that target (see `without_binding`).
        """
        new = make_binding(role, slot, component, config, target)
        check_single(self.bindings, new)
        history = self._history.derive(f"bind_{role}({slot!r}, …)", slot)
        return replace(self, bindings=(*self.bindings, new), _history=history)

    bind_backend = _binds(
        keys.ROLE_BACKEND, "Binds a backend; the slot `backend` is every partition's default one."
    )
    bind_index = _binds(keys.ROLE_INDEX, "Binds an index of vectors.")
    bind_model = _binds(
        keys.ROLE_MODEL,
        """Binds a model; a trainable model's config brings its parameters and graphs.

        An ONNX file, `bind_model("model", "net.onnx")`, is bound as a `bb.GraphModel` with the defaults of
        `trainable`, or as one that only runs where it has no gradient.
        """,
    )
    bind_aggregator = _binds(keys.ROLE_AGGREGATOR, "Binds an aggregator.")
    bind_codec = _binds(keys.ROLE_CODEC, "Binds a codec.")
    bind_data_source = _binds(keys.ROLE_DATA_SOURCE, "Binds a source of data.")
    bind_peer_selector = _binds(keys.ROLE_PEER_SELECTOR, "Binds a selector of peers.")
    bind_protocol = _binds(keys.ROLE_PROTOCOL, "Binds a component with ops of its own.")

    # --- options

    def with_strict_types(self, strict: bool) -> Compiler:
        """Whether a value without a type is refused (`UnresolvedType`); it is, unless this says otherwise."""
        return replace(self, strict_types=strict, _history=self._history.derive("with_strict_types(…)"))

    def with_per_hop_budget_ns(self, budget_ns: int) -> Compiler:
        """Declares how long one hop may take: the deadline of sends without one, and the least of the others.

        Nanoseconds; 0 declares none.
        """
        number = whole(budget_ns)
        if number is None or not 0 <= number < 2**63:
            raise InfeasibleDeadline(
                f"a budget of {budget_ns!r} ns",
                f"{short_line(author_line())}, with_per_hop_budget_ns",
                "give whole nanoseconds, 0 or more: 500 * MS, from bb_host import MS",
            )
        history = self._history.derive("with_per_hop_budget_ns(…)")
        return replace(self, per_hop_budget_ns=number, _history=history)

    def without_binding(self, slot: str, target: str | None = None) -> Compiler:
        """Takes back what a slot is bound to for `target`, or for all: it can be bound to something else.

        BindingError where it has no such binding.
        """
        kept = tuple(b for b in self.bindings if (b.slot, b.target) != (slot, target))
        if len(kept) == len(self.bindings):
            what = f"slot {slot!r} has no binding for {'all' if target is None else target}"
            bound = {b.slot: "" for b in self.bindings}
            raise BindingError(
                what, f"{short_line(author_line())}, without_binding", suggestion(slot, bound, "bound are: ")
            )
        history = self._history.derive(f"without_binding({slot!r})")
        return replace(self, bindings=kept, _history=history)

    def without_stage(self, name: str) -> Compiler:
        """Leaves a canonical pass out, for tests. UnknownStage where there is none of that name."""
        if name not in LEAVABLE_PASS_NAMES:
            raise UnknownStage(
                f"no stage {name!r}",
                "without_stage",
                suggestion(name, LEAVABLE_PASS_NAMES, "stages: "),
            )
        history = self._history.derive(f"without_stage({name!r})")
        return replace(self, disabled=self.disabled | {name}, _history=history)

    def with_stage(self, stage: Stage, after: str) -> Compiler:
        """Adds a stage behind another one: anything with `NAME` and `run(program, options, stats)`.

        Raises UnknownStage, at the author's line, where no stage is called `after`, where another one has
        this name, and where it has no `NAME` or `run`.
        """
        where = f"{short_line(author_line())}, with_stage"
        name = getattr(stage, "NAME", None)
        if isinstance(stage, type) or not isinstance(name, str) or not callable(getattr(stage, "run", None)):
            needs = "give it NAME and run(program, options, stats)"
            hint = f"give an object: {stage.__name__}()" if isinstance(stage, type) and name else needs
            raise UnknownStage(f"{stage!r} is not a stage", where, hint)
        known = (*LEAVABLE_PASS_NAMES, *(s.NAME for _, s in self.extra))
        if after not in known:
            raise UnknownStage(f"no stage {after!r}", where, suggestion(after, known, "stages: "))
        if name in known:
            raise UnknownStage(f"stage {name!r} is there already", where, "give it another NAME")
        history = self._history.derive("with_stage(…)")
        return replace(self, extra=(*self.extra, (after, stage)), _history=history)

    # --- compiling

    def compile(self, module: Source) -> onnx.ModelProto:
        """The compiled model of a module, a recorded model or a program. Raises typed CompileErrors.

        Issues each of the program's warnings through Python's `warnings`, at the author's line.
        """
        return to_proto(self.compile_program(module))

    def compile_program(self, module: Source) -> Program:
        """The same in the light form."""
        program = self.run(module).program
        issue(program.warnings)
        return program

    def run(self, module: Source, observe: Observer | None = None) -> Compilation:
        """The same with a report of every pass; `observe` sees the program before and after each.

        Issues no Python warnings: they are in the result.
        """
        dropped = self._history.compiled()
        program = as_program(module)
        if program.facts.compiled:
            if self.bindings:
                raise BindingError(
                    "it is compiled already, and its slots are bound",
                    program.name,
                    "compile the recorded one",
                )
            return Compilation(program)
        if not program.functions:
            raise UnsupportedModule("a program without functions", program.name, "record a module")
        options = Options(
            program.facts.module or program.name,
            self.bindings,
            self.strict_types,
            self.per_hop_budget_ns,
        )
        check_against(program, options)
        try:
            compiled, reports = run_pipeline(program, options, self.disabled, self.extra, observe)
        except UnboundSlot as error:
            raise _with_dropped(error, dropped) from None
        if dropped:
            warnings = in_order((*compiled.warnings, *(each.warning() for each in dropped)))
            compiled = replace(compiled, warnings=warnings)
        return Compilation(compiled, reports, (program, options))


def _with_dropped(error: UnboundSlot, dropped: Sequence[Derivation]) -> UnboundSlot:
    """The error about a slot, which names the binding of it that was dropped."""
    for each in dropped:
        if each.slot and f"slot {each.slot!r} of" in error.what:
            error.what += f"; nothing uses what {each.call} returns at {each.where}"
            error.hint = each.remedy
            break
    return error


def as_program(module: Source) -> Program:
    """The light form of whatever can be compiled. UnsupportedModule where it cannot."""
    if isinstance(module, Program):
        return module
    if isinstance(module, type):
        raise UnsupportedModule(
            f"{module.__name__} is a class", "Compiler.compile", f"give an instance: {module.__name__}(…)"
        )
    if isinstance(module, Recordable):
        return module.record()
    if hasattr(module, "functions") and hasattr(module, "metadata_props"):
        try:
            return from_proto(module)
        except BBError as error:
            raise UnsupportedModule(error.what, error.where, error.hint) from error
    raise UnsupportedModule(
        f"{type(module).__name__} cannot be compiled",
        "Compiler.compile",
        "give a Module, a ModelProto or a Program",
    )
