"""`python -m bb_edge.cli` is `bb-edge`."""

from __future__ import annotations

import sys

from bb_edge.cli import main

sys.exit(main())
