"""The device side of BytesAndBrains: installs compiled programs and runs them, over MQTT or in process.

>>> from bb_edge import NodeConfig, PeerId, install, load, open_model
>>> program = load(open("build/Demo.Client.edge.onnx", "rb").read())        # doctest: +SKIP
>>> node = install(PeerId.from_name("client-0"), (), program, ["Client"])   # doctest: +SKIP
>>> model = open_model("build/classify.edge.onnx"); y = model(x)            # doctest: +SKIP

Names are imported when they are first used: `import bb_edge` alone loads nothing.
"""

from __future__ import annotations

from bb_edge.ir.lazy_exports import lazy_exports
from bb_edge.ir.version import RUNTIME_VERSION

# `typing` would cost as much as all that `bb-edge run` imports before it handles SIGTERM.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from bb_edge.callable_program import load
    from bb_edge.engine.config import NodeConfig
    from bb_edge.engine.program.program import Program
    from bb_edge.inference import open_model
    from bb_edge.installer import install
    from bb_edge.ir.address import Address
    from bb_edge.ir.errors import BBError
    from bb_edge.ir.ids import PeerId
    from bb_edge.node import Node
    from bb_edge.registry import register
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "bb_edge.callable_program": "load",
            "bb_edge.engine.config": "NodeConfig",
            "bb_edge.engine.program.program": "Program",
            "bb_edge.inference": "open_model",
            "bb_edge.installer": "install",
            "bb_edge.ir.address": "Address",
            "bb_edge.ir.errors": "BBError",
            "bb_edge.ir.ids": "PeerId",
            "bb_edge.node": "Node",
            "bb_edge.registry": "register",
        },
    )

__version__ = RUNTIME_VERSION

__all__ = [
    "Address",
    "BBError",
    "Node",
    "NodeConfig",
    "PeerId",
    "Program",
    "install",
    "load",
    "open_model",
    "register",
]
