"""How a command ends: what its exit code means, and the one line that says what went wrong."""

from __future__ import annotations

import os
import sys
from enum import IntEnum

from bb_edge.ir.errors import BBError, SeveralErrors
from bb_edge.roles.errors import ConstructionFailed


class Exit(IntEnum):
    """The exit codes of `bb-edge run`; the unit file does not restart on USAGE and REFUSED.

    Other verbs use DONE, FAILED and USAGE.
    """

    DONE = 0  # done, or asked to stop
    FAILED = 1  # unexpected, or something of the machine that may pass: another try can succeed
    USAGE = 2  # the command line is wrong
    REFUSED = 3  # artifact, configuration or state: a restart ends in the same way
    NO_RESULT = 4  # with --until-done, where too many rounds in a row have reached nobody, or each has failed
    UNDELIVERED = 5  # with --until-done: rounds are over, and nobody acknowledges what waits durably


class MayPass(BBError):
    """Something of the machine is in the way that may be gone at the next try: a lock, a port, a device."""


class BoardFailure(MayPass):
    """The machine lacks what a node needs: a clock, entropy, memory figures or its state folder."""


def exit_of_refusal(error: BaseException) -> Exit:
    """The exit code for what keeps a node from starting.

    It is FAILED where the cause may be gone at the next try: MayPass, too little memory, and an OSError that
    a component's own code met (a camera that is not plugged in yet). Otherwise it is REFUSED.
    """
    if isinstance(error, SeveralErrors):
        return max(map(exit_of_refusal, error.errors))
    if isinstance(error, ConstructionFailed):
        return Exit.FAILED if isinstance(error.__cause__, OSError | MemoryError) else Exit.REFUSED
    return Exit.FAILED if isinstance(error, MayPass | MemoryError) else Exit.REFUSED


def nobody_reads() -> None:
    """Lets the end of the process say nothing of a stdout that nobody reads, as where `head` has enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(error: BaseException, debug: bool = False) -> None:
    """Prints an error that ends a command, on one line; with `debug` the traceback of its cause, too."""
    if isinstance(error, SeveralErrors):
        for one in error.errors:
            tell(one, debug)
        return
    if debug and error.__cause__ is not None:
        import traceback

        traceback.print_exception(error.__cause__)  # an author of components needs the lines of their code
    print(f"bb-edge: error: {text_of(error)}", file=sys.stderr)


def text_of(error: BaseException) -> str:
    """What an error says, with the file where it is about one."""
    if isinstance(error, BBError):
        return str(error)
    if isinstance(error, MemoryError):
        detail = f": {error}" if str(error) else ""
        hint = "lower the limits of the configuration, or raise those of the service"
        return f"not enough memory{detail} ({hint})"
    if isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return text or type(error).__name__
    return str(error) or type(error).__name__
