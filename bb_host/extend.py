"""What the author of a compiler pass imports: the program's records, stages, errors and warnings.

docs/how-to/components.md shows a pass. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from bb_edge.ir import keys
    from bb_edge.ir.errors import BBError, CompileError
    from bb_edge.ir.types import TypeNode, ValueType
    from bb_host.compiler.driver import Compilation
    from bb_host.diagnostics import ProgramWarning
    from bb_host.errors import ConstructionError, PassError, StageError
    from bb_host.ir.program import AttrValue, Function, Op, Program, Slot, Subgraph, walk_ops
    from bb_host.ir.proto import from_proto, to_proto
    from bb_host.ir.text.printer import print_program
    from bb_host.learn.trainable import Construction
    from bb_host.passes.analysis.flow import is_send_flavored as is_send
    from bb_host.passes.analysis.flow import is_wire
    from bb_host.passes.analysis.flow import payload_inputs as sent_values
    from bb_host.passes.one_pass import PassReport, Stats
    from bb_host.passes.options import Binding, Options
    from bb_host.passes.pipeline import CANONICAL_PASS_NAMES, Stage
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "bb_edge.ir": "keys",
            "bb_edge.ir.errors": "BBError, CompileError",
            "bb_edge.ir.types": "TypeNode, ValueType",
            "bb_host.compiler.driver": "Compilation",
            "bb_host.diagnostics": "ProgramWarning",
            "bb_host.errors": "ConstructionError, PassError, StageError",
            "bb_host.ir.program": "AttrValue, Function, Op, Program, Slot, Subgraph, walk_ops",
            "bb_host.ir.proto": "from_proto, to_proto",
            "bb_host.ir.text.printer": "print_program",
            "bb_host.learn.trainable": "Construction",
            "bb_host.passes.analysis.flow": (
                "is_send_flavored as is_send, is_wire, payload_inputs as sent_values"
            ),
            "bb_host.passes.one_pass": "PassReport, Stats",
            "bb_host.passes.options": "Binding, Options",
            "bb_host.passes.pipeline": "CANONICAL_PASS_NAMES, Stage",
        },
    )

__all__ = [
    # the program between passes
    "Program",
    "Function",
    "Op",
    "Slot",
    "Subgraph",
    "AttrValue",
    "walk_ops",
    "TypeNode",
    "ValueType",
    "keys",
    "from_proto",
    "to_proto",
    "print_program",
    # passes
    "Stage",
    "Options",
    "Binding",
    "Stats",
    "CANONICAL_PASS_NAMES",
    "Compilation",
    "PassReport",
    # questions about wire ops
    "is_send",
    "sent_values",
    "is_wire",
    # configurations that make their own construction state
    "Construction",
    "ConstructionError",
    # errors and warnings
    "BBError",
    "CompileError",
    "PassError",
    "StageError",
    "ProgramWarning",
]
