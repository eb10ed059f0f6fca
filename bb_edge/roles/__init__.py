"""The Contracts: what a Backend, Model, Index, Aggregator, Codec, DataSource, ... promises."""

from __future__ import annotations
