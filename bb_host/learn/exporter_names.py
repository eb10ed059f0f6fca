"""Names by which exporters tell what a value was: a variable, a constant, or nothing that had a name."""

from __future__ import annotations

import re
from typing import Any

ANONYMOUS = re.compile(
    r"(?:.*/)?(?:\d+|onnx::\w+|_*(?:c_|b_)?_*(?:val|const|constant|lifted_tensor|tensor_constant"
    r"|lifted_tensor_constant|scalar_tensor_default|const_fold_opt)_*\d*(?:_output_\d+)?)(?::\d+)?",
    re.IGNORECASE,
)
"""Names that exporters invent for what had none."""
FOLDED = re.compile(r"const_fold_opt_*\d*")
"""Names of what tf2onnx has computed: of variables, or of constants."""
VARIABLE = re.compile(r".+/ReadVariableOp(?:_\d+)?(?:/resource)?(?::\d+)?")
"""Names that TensorFlow's variables come by."""
TF_CONSTANT = re.compile(r".+/(?:x|y|Const(?:_\d+)?)(?::\d+)?")
"""Names that TensorFlow gives to numbers of the program: the second operand of Mul is `…/Mul/y`."""
MODULE_PATH = re.compile(r"\w+(?:\.\w+)+")
"""Names of parameters of a module: `encoder.0.weight`."""

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
"""What PyTorch's exporter writes beside a value: PARAMETER, BUFFER, CONSTANT_TENSOR, …"""


def exporter_kinds(model: Any) -> dict[str, str]:
    """What an exporter has written beside the values of a ModelProto about what they were, by value name."""
    return {
        info.name: entry.value
        for info in model.graph.value_info
        for entry in info.metadata_props
        if entry.key == _KIND
    }
