"""What a node needs of the machine that it runs on, and which machine that is."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from .clock import Clock, LinuxClock
from .entropy import Entropy, LinuxEntropy
from .errors import BoardError, ShimError
from .load import LinuxLoad, Load
from .memory import LinuxMemory, Memory
from .power import GenericPower, JetsonPower, Power, RaspberryPiPower
from .storage import Storage, open_folder
from .supply import LinuxSupply, Supply
from .sysfiles import SysFiles
from .thermal import LinuxThermal, Thermal
from .watchdog import SystemdNotifier, Watchdog

BoardName = Literal["generic", "rpi", "jetson", "fake"]


@dataclass(frozen=True, slots=True)
class Board:
    """The functions of a board.

    ``name``: which set of shims; ``model``: what the machine calls itself; ``watchdog``: None where nothing
    watches; ``notifier``: the service manager, None where nobody waits for this process to be ready;
    ``storage(folder)``: opens a folder for a node's files.
    """

    name: BoardName
    model: str
    clock: Clock
    entropy: Entropy
    memory: Memory
    thermal: Thermal
    power: Power
    supply: Supply
    load: Load
    storage: Callable[[str | os.PathLike[str]], Storage]
    watchdog: Watchdog | None = None
    notifier: SystemdNotifier | None = None


def detect(root: str | os.PathLike[str] = "/", environ: Mapping[str, str] | None = None) -> Board:
    """Return the board whose kernel files lie below ``root``.

    ``environ`` (default: the process's) tells of the service manager. Nothing is started: the watchdog is the
    service manager's, where the unit has one; the hardware's (:class:`bb_shims.HardwareWatchdog`) restarts
    the whole board and is opened by whoever means to.

    Raises :class:`BoardError` where the clock, the entropy source or the memory accounts do not work, and
    :class:`WatchdogError` where the service manager's variables make no sense.
    """
    files = SysFiles(root)
    name, model = _identify(files)
    powers: dict[BoardName, type[GenericPower] | type[RaspberryPiPower] | type[JetsonPower]] = {
        "rpi": RaspberryPiPower,
        "jetson": JetsonPower,
    }
    notifier = SystemdNotifier.from_environment(os.environ if environ is None else environ)
    board = Board(
        name=name,
        model=model,
        clock=LinuxClock(),
        entropy=LinuxEntropy(),
        memory=LinuxMemory(root),
        thermal=LinuxThermal(root),
        power=powers.get(name, GenericPower)(root),
        supply=LinuxSupply(root),
        load=LinuxLoad(root),
        storage=open_folder,
        watchdog=notifier if notifier is not None and notifier.timeout_ns else None,
        notifier=notifier,
    )
    try:
        _prove(board)
    except ShimError as error:
        if notifier is not None:
            notifier.close()
        raise BoardError(f"this {model} cannot run a node: {error}") from error
    return board


def _identify(files: SysFiles) -> tuple[BoardName, str]:
    """Return the set of shims and the machine's own name, from the device tree or the DMI tables."""
    model = files.text("/proc/device-tree/model") or files.text("/sys/firmware/devicetree/base/model")
    compatible = files.text("/proc/device-tree/compatible") or files.text(
        "/sys/firmware/devicetree/base/compatible"
    )
    kinds = (compatible or "").split("\0")
    if (model and "Raspberry Pi" in model) or any(kind.startswith("raspberrypi,") for kind in kinds):
        return "rpi", model or "Raspberry Pi"
    if (model and "Jetson" in model) or any(kind.startswith("nvidia,tegra") for kind in kinds):
        return "jetson", model or "NVIDIA Jetson"
    return "generic", model or files.text(
        "/sys/class/dmi/id/product_name"
    ) or f"{platform.machine()} Linux machine"


def _prove(board: Board) -> None:
    """Use once what a node cannot do without: a missing function shows now, not in the middle of a round."""
    board.clock.monotonic_ns()
    board.clock.wall_ns()
    board.entropy.u64()
    board.memory.info()
