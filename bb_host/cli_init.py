"""`bb-host init`: the broker's configuration and the examples that come with the distribution, as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import bb_shims
from bb_edge.new_files import write_new
from bb_host.errors import NoExamples

BROKER = ("mosquitto.conf", "mosquitto-tls.conf", "bb.acl", "peers.txt")
LEFT_OUT = frozenset({"__pycache__", "out", "build"})

BROKER_STEPS = """
mosquitto.conf      one machine, or a network that is trusted as a whole: mosquitto -c mosquitto.conf
mosquitto-tls.conf  devices in the field: every node has a certificate with its peer id as common name
bb.acl, peers.txt   an example of its access rules; write your own:
  bb-host acl build/*.edge.onnx --federation NAME --peers peers.txt -o bb.acl
"""
EXAMPLE_STEPS = """
A federation of digit classifiers on this machine, with its own broker:
  python {folder}/federated_digits/run.py
Each of the other folders has a command and a README of its own.
"""


def add_init(verbs: Any) -> None:
    """Adds the verb `init`."""
    p = verbs.add_parser("init", help="write a broker's configuration, or the examples")
    p.add_argument(
        "what",
        choices=("broker", "examples"),
        help="broker: two configurations of mosquitto and access rules; examples: programs that run",
    )
    p.add_argument("-o", "--out", type=Path, default=Path(), metavar="FOLDER", help="default: here")
    p.add_argument("--force", action="store_true", help="replace files that are there")
    p.set_defaults(run=_init)


def _init(arguments: argparse.Namespace) -> int:
    """Writes the files and says what to do with them. Raises FileThere, NoExamples, OSError."""
    if arguments.what == "broker":
        source = Path(bb_shims.__file__).parent / "files" / "broker"
        found = {name: (source / name).read_bytes() for name in BROKER}
        steps = BROKER_STEPS
    else:
        found = _files_below(_examples())
        steps = EXAMPLE_STEPS.format(folder=arguments.out)
    for path in write_new(found, arguments.out, force=arguments.force):
        print(path)
    print(steps, end="")
    return 0


def _examples() -> Path:
    """Where the examples are: below this package in a wheel, beside the packages in a checkout."""
    package = Path(__file__).parent
    for place in (package / "examples", package.parent / "examples"):
        if (place / "federated_digits").is_dir():
            return place
    raise NoExamples("no examples came with it", str(package), "install the wheel, or clone the source")


def _files_below(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their names from there; none that running them has left."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(name): (folder / name).read_bytes() for name in names if LEFT_OUT.isdisjoint(name.parts)}
