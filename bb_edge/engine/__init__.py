"""The sans-IO state machine: time, entropy and inbound bytes are handed in, steps come out of poll()."""

from __future__ import annotations
