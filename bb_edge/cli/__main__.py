"""Runs `bb-edge` as `python -m bb_edge.cli`."""

from __future__ import annotations

import sys

from bb_edge.cli.start import main

sys.exit(main())
