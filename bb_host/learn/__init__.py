"""Learning on devices: models with their gradients as graphs.

`trainable(model)` makes an ordinary inference model one that a program can train; `mlp` makes a small model
from nothing; `join_inputs` makes several inputs one; `differentiate` is the gradient itself;
`export_training` says a trainable model in ONNX's own training format.
"""

from __future__ import annotations

from bb_host.errors import LearnError, ModelImportError, NotDifferentiableError
from bb_host.learn.autodiff import Gradient, differentiable_ops, differentiate
from bb_host.learn.joined_inputs import join_inputs
from bb_host.learn.losses import LOSSES, loss_function
from bb_host.learn.models import mlp
from bb_host.learn.onnx_import import ImportedModel, import_onnx
from bb_host.learn.parameters import Initializer
from bb_host.learn.trainable import Construction, TrainableModel, trainable
from bb_host.learn.training_export import export_training

__all__ = [
    "LOSSES",
    "Construction",
    "Gradient",
    "ImportedModel",
    "Initializer",
    "LearnError",
    "ModelImportError",
    "NotDifferentiableError",
    "TrainableModel",
    "differentiable_ops",
    "differentiate",
    "export_training",
    "import_onnx",
    "join_inputs",
    "loss_function",
    "mlp",
    "trainable",
]
