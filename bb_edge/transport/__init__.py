"""Carriers: MQTT and in process."""

from __future__ import annotations
