"""ONNX model import, autodiff and training graphs."""

from __future__ import annotations
