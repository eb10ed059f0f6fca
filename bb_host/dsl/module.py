"""`Module`: the unit of authoring. Its body records a function; `build()` gives the ModelProto."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping

from bb_edge.ir import keys
from bb_edge.ir.class_names import CLASS_NAME_RULE, is_class_name
from bb_edge.ir.types import ValueType
from bb_host.author_lines import author_line, authoring_error, is_ours
from bb_host.dsl.calls import Done
from bb_host.dsl.composition import add_call
from bb_host.dsl.drawn import drawn_since, generators
from bb_host.dsl.graph import Graph
from bb_host.dsl.misuse import fails_to_start, last_line
from bb_host.dsl.names import PORT_NAME
from bb_host.dsl.part import Part
from bb_host.dsl.remarks import misspelt
from bb_host.dsl.session import MANY_CALLS, ModuleRecord, Session
from bb_host.dsl.slots import ComponentSlot
from bb_host.dsl.tape import UNORDERED
from bb_host.errors import ArityError, ModuleError
from bb_host.ir.facts import FunctionFacts
from bb_host.ir.program import Slot

_UNPACKED = re.compile(r"(not enough|too many) values to unpack")
"""Python's own message."""

_RESERVED_DOMAINS = (keys.ONNX_DOMAIN_ALIAS, keys.PREFIX)


class Module(Part):
    """A program, or a part of one. Subclasses set `name` and `home` and override `body`.

    - `name`: letters, digits, `_`, `-`, `.`; the class's name where it is empty.
    - `home`: the peer class of inputs and entries (`g.pulse()`, `g.rounds()`) outside of `with g.at(…)`, and
      with them of what reads them; `self` for programs of one class. In a program of several, what nothing
      leads to (`g.own_peer()`, a slot without `at=`) says its class: `at=`, `with g.at(…)` or `after=`.
    - `domain`: the ONNX domain of the recorded functions.
    - Slots are attributes, of the class or of the instance: `model = ModelSlot("model")`.
    """

    def body(self, g: Graph) -> None:
        """Records the module into `g`."""
        raise authoring_error(
            ModuleError,
            f"module {self.module_name!r} has no body",
            "override body(self, g)",
            self._class_line(),
        )

    def bootstrap(self, g: Graph) -> None:
        """Records what runs once before the body; its inputs are given by the host. No wire ops."""

    def declared_slots(self) -> list[ComponentSlot]:
        """The slots that stand as attributes, base classes first, in order of declaration."""
        found: dict[str, object] = {}
        for cls in reversed(type(self).__mro__):
            found.update(vars(cls))
        found.update(getattr(self, "__dict__", {}))
        return [value for value in found.values() if isinstance(value, ComponentSlot)]

    def _spoken(self) -> str:
        return f"module {type(self).__name__!r}"

    def _class_line(self) -> tuple[str, int]:
        """Where the module's class is defined; the author's line for what Python code does not say."""
        try:
            file = inspect.getsourcefile(type(self)) or ""
            line = inspect.getsourcelines(type(self))[1]
        except (OSError, TypeError):
            return author_line()
        return author_line() if is_ours(file) else (file, line)

    def _check_domain(self) -> None:
        """A domain whose ops are the catalog's would have a module stand for one of them, or the reverse."""
        domain: object = self.domain
        if domain == keys.PROGRAM_DOMAIN:
            return
        if isinstance(domain, str) and domain.strip():
            ours = any(domain == name or domain.startswith(f"{name}.") for name in _RESERVED_DOMAINS)
            if not ours:
                return
        raise authoring_error(
            ModuleError,
            f"{domain!r} is not a valid domain for module {self.module_name!r}"
            + (": the ops of the catalog are there" if isinstance(domain, str) else ""),
            'leave `domain` out, or name one of your own: domain = "org.example"',
            self._class_line(),
        )

    def _record(self, session: Session, given: Mapping[str, ValueType]) -> ModuleRecord:
        """Records body and bootstrap with inputs of given types, and keeps them in the session."""
        name = self.module_name
        if not isinstance(name, str) or not PORT_NAME.fullmatch(name):
            raise authoring_error(
                ModuleError,
                f"{name!r} is not a valid name for a module",
                "letters, digits, '_', '-' and '.', and a letter first",
                self._class_line(),
            )
        if not is_class_name(self.home):
            raise authoring_error(
                ModuleError,
                f"{self.home!r} is not a valid name for a home class",
                CLASS_NAME_RULE,
                self._class_line(),
            )
        self._check_domain()
        session.enter(self)
        is_root = len(session.open_modules) == 1
        body = Graph(session, name, keys.MODULE_PHASE_BODY)
        body.given_inputs = dict(given)
        for declared in self.declared_slots():
            session.slot(declared)
        body.caller = session.open_graphs[-1] if session.open_graphs else None
        session.open_graphs.append(body)
        before = generators() if is_root else None
        self._record_into(body, self.body)
        session.open_graphs.pop()
        body.finish()
        for spelt, meant in misspelt(self, Module):
            body.warn(
                "misspelt-name",
                f"module {name!r} has {spelt!r}, which nothing reads",
                f"did you mean {meant!r}?",
                self._class_line(),
            )
        if not body.drafts and not body.outputs:
            body.warn(
                "empty-body",
                f"the body of {name!r} records nothing",
                "record the program into g, the body's argument",
                _first_line(self.body),
            )
        bootstrap = self._record_bootstrap(session, body)
        drawn = drawn_since(before) if before is not None else ""
        if drawn:
            body.warn(
                "frozen-random",
                f"numbers of `{drawn}` are drawn while {name!r} is recorded: they are constants, the same on"
                " all devices and in all rounds, and other ones when it is compiled again",
                "on the device, g.rng_u64(trigger) or a component's ctx.rng; for constants,"
                " np.random.default_rng(seed)",
                _first_line(self.body),
            )
        session.leave()
        slots = self._slots(session, body, self.declared_slots())
        said = is_root or self.home != Module.home
        facts = FunctionFacts(home=self.home) if said else FunctionFacts()
        phase = FunctionFacts(phase=keys.MODULE_PHASE_BOOTSTRAP)

        def make(fn_name: str) -> ModuleRecord:
            start = None
            if bootstrap is not None:
                fn = fn_name + keys.BOOTSTRAP_SUFFIX
                start = bootstrap.function(fn, self.domain, self._slots(session, bootstrap, []), phase)
            function = body.function(fn_name, self.domain, slots, facts)
            return ModuleRecord(self, function, start, body.borrowed)

        return session.define_function(name, self.domain, make, is_root)

    def _record_bootstrap(self, session: Session, body: Graph) -> Graph | None:
        g = Graph(session, self.module_name, keys.MODULE_PHASE_BOOTSTRAP)
        self._record_into(g, self.bootstrap)
        g.finish()
        for record in body.calls:
            start = record.bootstrap
            if start is None or start in g.started:
                continue
            if start.inputs:
                raise g.error(
                    ModuleError,
                    f"the bootstrap of {record.function.name!r} has inputs: {', '.join(start.inputs)}",
                    f"call it in {self.module_name}.bootstrap: child.bootstrap_call().input(…).build(g)",
                )
            g.started.append(start)
            add_call(g, start, [], "", UNORDERED)
        return g if g.drafts or g.inputs else None

    def _record_into(self, g: Graph, method: Callable[[Graph], object]) -> None:
        """Runs `body` or `bootstrap`. What they return is lost, which authors of other frameworks forget."""
        try:
            returned = method(g)
        except RecursionError:
            if g.session.depth(self) >= MANY_CALLS:
                raise  # modules that call others of their class: the session names them
            raise g.error(
                ModuleError,
                f"module {self.module_name!r}: {method.__name__} calls itself, or functions that it calls do",
                "a program has no recursion: use g.rounds, or a Python loop that ends",
                _first_line(method),
            ) from None
        except ValueError as error:
            about, line = g.session.unpacked
            if _UNPACKED.match(str(error)) is None or last_line(error) != line or not about:
                raise
            raise g.error(
                ArityError,
                f"{about}; {str(error).partition(' (')[0]}",
                "give each value a name, in the order of sending: a, b = …",
                line,
            ) from None
        except TypeError as error:
            if not fails_to_start(error):
                raise
            what = method.__name__
            raise g.error(
                ModuleError,
                f"module {self.module_name!r}: {what} is called with (self, g): {error}",
                f"write: def {what}(self, g):",
                _first_line(method),
            ) from None
        if inspect.iscoroutine(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
            if not inspect.isasyncgen(returned):
                returned.close()
            raise g.error(
                ModuleError,
                f"module {self.module_name!r}: {method.__name__} is `async def`, or holds a `yield`: calling"
                " it records nothing",
                f"write: def {method.__name__}(self, g): without async, await and yield",
                _first_line(method),
            )
        if returned is None or isinstance(returned, Done):  # `return g.app_emit(…)` loses nothing
            return
        what = g.phase
        g.warn(
            "body-returns-value",
            f"the {what} of {self.module_name!r} returns {type(returned).__name__}, which nothing reads",
            'declare it: g.output("name", value)' if what == keys.MODULE_PHASE_BODY else "return nothing",
            _first_line(method),
        )

    @staticmethod
    def _slots(session: Session, graph: Graph, declared: list[ComponentSlot]) -> dict[str, Slot]:
        names = [slot.name for slot in declared]
        names += [name for name in graph.slots_used if name not in names]
        return {name: session.slots[name].record for name in names}


def _first_line(method: Callable[[Graph], object]) -> tuple[str, int]:
    """Where a method is defined; the author's line for what Python code does not say."""
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    return author_line() if code is None else (code.co_filename, code.co_firstlineno)
