"""Regions of a backend function as TFLite flatbuffers: graph, writer, rules, regions, the step that lowers."""

from __future__ import annotations
