"""Hostile bytes for all that reads bytes from outside: mutations, their readers, and the campaign."""

from __future__ import annotations
