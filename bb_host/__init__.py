"""The host side: records programs as ONNX, compiles them and prepares them for a device."""

from __future__ import annotations
