"""What a program is made of: it has a name, can be called, and records itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import onnx

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType
from bb_host.diagnostics import ProgramWarning, in_order, issue
from bb_host.dsl.composition import ModuleCall
from bb_host.dsl.misuse import Suggests
from bb_host.dsl.remarks import unread_requests, unread_sends, unused_slots
from bb_host.dsl.session import RECORDING, ModuleRecord, Session
from bb_host.ir.facts import ProgramFacts
from bb_host.ir.program import Function, Program
from bb_host.ir.proto import to_proto
from bb_host.ir.text.names import implied_program_opsets


class Part(Suggests):
    """A program, or a part of one, wherever its functions come from."""

    name: str = ""
    home: str = "self"
    domain: str = keys.PROGRAM_DOMAIN

    def __repr__(self) -> str:
        return f"<module {self.module_name}>"

    @abstractmethod
    def _record(self, session: Session, given: Mapping[str, ValueType]) -> ModuleRecord:
        """Records body and bootstrap with inputs of given types, and keeps them in the session."""

    @property
    def module_name(self) -> str:
        """`name`, or the class's name."""
        return self.name or type(self).__name__

    def build(self) -> onnx.ModelProto:
        """Records the program. Raises AuthoringErrors at the author's line.

        Issues what recording warns about through Python's `warnings`: a ModelProto carries none of it.
        """
        program = self.record()
        issue(program.warnings)
        return to_proto(program)

    def record(self) -> Program:
        """Records the module, and those that it calls, as a value in memory that passes and printers read."""
        session = Session(root=(self.domain, self.module_name))
        before = RECORDING.set(session)
        try:
            root = self._record(session, {})
        finally:
            RECORDING.reset(before)
        session.refuse_halves()
        session.fit_graphs()
        children = [f for f in session.functions() if f not in (root.function, root.bootstrap)]
        bodies = [f for f in children if f.domain != keys.COMPONENT_DOMAIN and not _is_bootstrap(f)]
        bootstraps = [root.bootstrap] if root.bootstrap is not None else []
        bootstraps += [f for f in children if _is_bootstrap(f)]
        components = [f for f in children if f.domain == keys.COMPONENT_DOMAIN]
        unused = [ProgramWarning("unused-slot", *about) for about in unused_slots(session)]
        functions = (root.function, *bodies, *bootstraps, *components)
        unused += [ProgramWarning("unread-result", *about) for about in unread_sends(session, functions)]
        unused += [ProgramWarning("unread-request", *about) for about in unread_requests(session, functions)]
        return Program(
            root.function.name,
            functions,
            ProgramFacts(module=root.function.name),
            implied_program_opsets(functions),
            warnings=in_order([*session.warnings, *unused]),
        )

    def call(self, name: str | None = None) -> ModuleCall:
        """A call from another module's body: `.input(port, value)…build(g)`. `name` names the call."""
        return ModuleCall(self, name, keys.MODULE_PHASE_BODY)

    def bootstrap_call(self, name: str | None = None) -> ModuleCall:
        """A call of this module's bootstrap from another's.

        Bootstraps of sub-modules that nobody calls, and that have no inputs, are called by themselves.
        """
        return ModuleCall(self, name, keys.MODULE_PHASE_BOOTSTRAP)


def _is_bootstrap(function: Function) -> bool:
    return function.facts.phase == keys.MODULE_PHASE_BOOTSTRAP
