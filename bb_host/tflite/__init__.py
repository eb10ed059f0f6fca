"""Regions of a backend function as TFLite flatbuffers: graph, writer, rules, regions and the step."""

from __future__ import annotations
