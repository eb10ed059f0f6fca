"""The host's command line in this process."""

from __future__ import annotations

from typing import Any

from bb_host.cli import main


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """What `bb-host` with these arguments returns and prints: (exit code, out, err)."""
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err
