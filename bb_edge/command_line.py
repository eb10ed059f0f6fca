"""The parser of both commands: what is wrong with a command line is all that it prints of it."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that refuses in two lines, with exit code 2; verbs of it are of this class, too."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, and where the flags are listed."""
        self.exit(2, f"{self.prog}: error: {message}\n(`{self.prog} --help` lists what it takes)\n")
