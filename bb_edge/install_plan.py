"""What `install` finds out of a program, its targets and limits: the same for each node that runs them."""

from __future__ import annotations

from collections.abc import Sequence

from bb_edge.backends.tensor_budget import tensor_budget
from bb_edge.capacity import findings, largest_arrival, refusals
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.errors import LoadError
from bb_edge.engine.program.program import Program, Target
from bb_edge.ir import keys
from bb_edge.ir.errors import InstallError
from bb_edge.ir.once import Once, each_time
from bb_edge.ir.opsets.wire import RECV_FLAVORED
from bb_edge.targets import chosen_targets

__all__ = ["InstallPlan", "no_number"]


class InstallPlan:
    """The targets that were chosen, and the limits that they need.

    `asked` are the names of targets and the config that it was made of; `config` has besides room for the
    planned sizes of `raised` sites, and the tensor budget. With `once=Kept()` it
    also keeps what the first node made of the program and others may use: decoded construction states,
    layouts, checks. For hosts that install many nodes: one alone would hold its parameters twice. Their
    frames are made when they run, not at install (`many`): most of many nodes need one of their forty.

    Raises UnknownTargetError, LoadError, and InstallError where the targets plan what never fits.
    """

    def __init__(
        self,
        program: Program,
        targets: Sequence[str],
        config: NodeConfig | None = None,
        once: Once = each_time,
    ) -> None:
        self.asked = tuple(targets), config
        config = config or NodeConfig.edge()
        self.program, self.once = program, once
        self.many = once is not each_time
        self.targets = chosen_targets(program, targets)
        planned = _planned_sizes(program, self.targets)
        caps, self.raised = config.caps.with_sites(planned, largest_arrival(program, self.targets))
        for finding in refusals(findings(program, self.targets, config)):
            raise InstallError(finding.what, finding.where, finding.hint)
        tensor_bytes = config.tensor_bytes or tensor_budget(program.functions.values())
        self.config = config.with_(caps=caps, tensor_bytes=tensor_bytes)

    def of(self, program: Program, targets: Sequence[str], config: NodeConfig | None) -> InstallPlan:
        """Returns the plan itself. InstallError where it was made of something else."""
        if program is self.program and (tuple(targets), config) == self.asked:
            return self
        raise InstallError(
            "the plan was made of another program, other targets or another config",
            "install",
            "give install what InstallPlan was given",
        )


def _planned_sizes(program: Program, targets: Sequence[Target]) -> dict[int, int]:
    """Largest planned payload per site that the targets receive at, where the compiler knew it."""
    planned: dict[int, int] = {}
    for target in targets:
        for op in program.graphs[target.main].ops:
            sites, sizes = op.meta.get(keys.SITE_IDS_KEY, ""), op.meta.get(keys.WIRE_MAX_BYTES_KEY, "")
            if op.domain == keys.WIRE_DOMAIN and op.op_type in RECV_FLAVORED and sites and sizes:
                try:
                    for site, size in zip(sites.split(","), sizes.split(","), strict=False):
                        planned[int(site, 16)] = int(size)
                except ValueError as error:
                    raise no_number(error, target.name, op.name) from error
    return planned


def no_number(error: ValueError, target: str, op: str) -> LoadError:
    """The refusal of a program whose sites are not numbers."""
    return LoadError(f"the sites of its payloads: {error}", f"{target}, {op}", "compile the program again")
