"""`--load` of every verb that opens an artifact: files and modules that register components."""

from __future__ import annotations

import argparse
from collections.abc import Iterable


def add_load(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a file, or a module by its dotted name, that registers components (repeatable)",
    )


def load_all(names: Iterable[str]) -> None:
    """Loads them in order. RegistryError names the line at fault."""
    from bb_edge.registry import default_registry

    for name in names:
        default_registry().load_module(name)
