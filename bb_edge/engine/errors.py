"""The errors of programs and of running ops, and how they are told."""

from __future__ import annotations

from bb_edge.ir.errors import BBError


class LoadError(BBError):
    """The artifact cannot be loaded; nothing is kept of it."""


class OpError(BBError):
    """An op cannot do what it was asked to; its branch ends."""


class CapacityError(OpError):
    """A capacity of NodeConfig is exhausted."""


def failure_text(error: BaseException, origin: str = "") -> str:
    """An error as a log tells it: `slot 'cam' (acme.Camera.next_batch): OSError: camera unplugged`.

    Typed errors of ours say enough without their class, and name the slot once. What a component's code
    raised otherwise names the line.
    """
    if isinstance(error, BBError):
        slot = origin.partition(" (")[0]
        said = str(error).removeprefix(f"{slot}: ") if slot else str(error)
    else:
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 (an exception class of a component's own)
            text = "its text cannot be made"
        said = " ".join(f"{type(error).__name__}: {text}".removesuffix(": ").splitlines())
        from bb_edge.ir.fault_lines import fault_line  # only errors need it

        line = fault_line(error) if origin else ""
        said += f", at {line}" if line else ""
    return f"{origin}: {said}" if origin else said
