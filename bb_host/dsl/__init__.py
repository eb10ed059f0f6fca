"""The recorder: a Module's body becomes NodeProtos."""

from __future__ import annotations
