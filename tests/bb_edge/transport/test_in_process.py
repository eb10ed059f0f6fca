"""Simulated time: who is polled, in which order things come, and what a trace depends on."""

from __future__ import annotations

import pytest
from arrays import array_of

from bb_edge.installer import first_epoch, install
from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Arrival, Simulation, combined_trace, keyed_number
