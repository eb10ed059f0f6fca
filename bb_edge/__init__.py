"""The device side: installs a compiled program and runs it, sans-IO, over MQTT or in process."""

from __future__ import annotations
