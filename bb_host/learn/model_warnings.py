"""What a list of parameters cannot show: warnings about a model that is trained."""

from __future__ import annotations

from bb_host.diagnostics import ProgramWarning
from bb_host.errors import place_of
from bb_host.ir.queries import is_onnx, uses
from bb_host.learn.autodiff import Gradient
from bb_host.learn.losses import probabilities
from bb_host.learn.onnx_import import ImportedModel
from bb_host.learn.unrolled_loops import FIXED_LENGTH


def warnings_of(model: ImportedModel, gradient: Gradient, loss: str) -> tuple[ProgramWarning, ...]:
    """Parameters that training does not change or that layers share; what it leaves and may have been one."""
    found = [
        ProgramWarning(
            "parameter-without-gradient",
            f"no gradient reaches the parameter {name!r}: it ends at {end or 'the graph'}",
            hint=f"freeze it (frozen=[{name!r}]), or take that operator out of the model that is trained",
        )
        for name, end in gradient.unreached
    ]
    for shared in (i for i in model.initializers if i.readers):
        first = " and ".join(shared.readers[:2])
        more = f" and {len(shared.readers) - 2} more" if len(shared.readers) > 2 else ""
        found.append(
            ProgramWarning(
                "shared-parameter",
                f"the parameter {shared.name!r} is trained as one for {first}{more}",
                hint=f"train=[{shared.name!r}] (--train {shared.name}) says that this is meant; exporters"
                " merge equal initializers: export without that, or once they differ",
            )
        )
    if lost := [i for i in model.initializers if i.doubtful]:
        first, more = lost[0].name, f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        names = ", ".join(repr(i.name) for i in lost[:4]) + (", …" if len(lost) > 4 else "")
        folded = (
            "exporters compute constants of parameters: export with optimize=False"
            " (do_constant_folding=False with dynamo=False); or "
        )
        found.append(
            ProgramWarning(
                "constant-not-learned",
                f"{first!r} ({lost[0].dtype}[{','.join(map(str, lost[0].shape))}]){more} may have been a"
                f" parameter, and is not learned: {lost[0].why}",
                hint=f"{folded if any(i.count > 1 for i in lost) else ''}train=[{names}] learns"
                f" {'it' if len(lost) == 1 else 'them'}, and frozen=[{names}] says that it is meant",
            )
        )
    found.extend(_weights_in_loops(model))
    held = {i.name for i in model.initializers if i.frozen or i.untrained}
    norms = [
        op
        for op in model.function.ops
        if op.op_type == "BatchNormalization"
        and model.parameters.keys() & set(op.inputs[1:3])
        and op.inputs[3] not in held
    ]
    if norms:
        more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
        found.append(
            ProgramWarning(
                "frozen-statistics",
                f"mean and variance of {place_of(norms[0])}{more} stay as they are in the file: training"
                " does not update them",
                hint='trainable(…, batch_norm="update") learns them; or bring a model that was'
                " pre-trained, and freeze them to say that this is meant",
            )
        )
    if (last := probabilities(model.function, loss)) is not None:
        found.append(
            ProgramWarning(
                "probabilities-as-output",
                f"{loss} takes logits, and the model ends in {place_of(last)}",
                hint="export it without that operator, or train what lies before it:"
                f" output={last.inputs[0]!r} (--output {last.inputs[0]})",
            )
        )
    return tuple(found)


def _weights_in_loops(model: ImportedModel) -> list[ProgramWarning]:
    """Of each branch or loop that is left in the model: the weights that it alone knows how to use."""
    weights = {
        i.name
        for i in model.initializers
        if i.dtype == "float32" and i.count > 1 and not (i.learned or i.frozen or i.untrained)
    }
    found = []
    for op in model.function.ops:
        read = weights & set(uses(op)) if is_onnx(op, "Loop", "Scan", "If") else set()
        if not read:
            continue
        first = next(i.name for i in model.initializers if i.name in read)
        more = f" and {len(read) - 1} more" if len(read) > 1 else ""
        fixed = "export the model with that choice made" if op.op_type == "If" else FIXED_LENGTH
        found.append(
            ProgramWarning(
                "weights-in-loop",
                f"{place_of(op)} reads {first!r}{more}, which are not learned: what is in a branch or"
                " loop has no gradient",
                hint=f"{fixed}; frozen=[{first!r}] (--freeze {first}) says that this is meant",
            )
        )
    return found
