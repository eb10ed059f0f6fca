"""`bb-edge init service`: the files with which systemd runs a node, and what to do with them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bb_edge.new_files import write_new

FILES = ("bb-edge@.service", "bb-edge.sysusers.conf", "60-bb-watchdog.rules")

STEPS = """
As root, where {folder} is:
  install -D -m 644 bb-edge.sysusers.conf /etc/sysusers.d/bb-edge.conf && systemd-sysusers
  install -m 644 bb-edge@.service /etc/systemd/system/
  install -m 644 60-bb-watchdog.rules /etc/udev/rules.d/     # only for the hardware watchdog
  mkdir -p /etc/bb-edge                                      # put artifact, NAME.json and key there
  chgrp -R bb-edge /etc/bb-edge && chmod -R u=rwX,g=rX,o= /etc/bb-edge
  systemctl enable --now bb-edge@NAME                        # reads /etc/bb-edge/NAME.json
`systemctl edit bb-edge@NAME` sets Environment=PATH=… where bb-edge is in a virtual environment.
"""


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "init", help="write the files of a service, to look at and to install"
    )
    p.add_argument("what", choices=("service",), help="service: a unit of systemd, its user, a udev rule")
    p.add_argument("-o", "--out", type=Path, default=Path(), metavar="FOLDER", help="default: here")
    p.add_argument("--force", action="store_true", help="replace files that are there")
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the files and says what to do with them. Raises FileThere, OSError."""
    import bb_shims

    source = Path(bb_shims.__file__).parent / "files" / "service"
    for path in write_new(
        {name: (source / name).read_bytes() for name in FILES}, arguments.out, force=arguments.force
    ):
        print(path)
    print(STEPS.format(folder=arguments.out.resolve()), end="")
    return 0
