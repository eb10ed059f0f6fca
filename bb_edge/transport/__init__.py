"""What carries envelopes between nodes: MQTT, and a simulated network within one process."""

from __future__ import annotations
