"""Observes a running node: a trace of its polls and ops, and its counters for a scraper."""

from __future__ import annotations
