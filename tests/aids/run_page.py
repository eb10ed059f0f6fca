"""Does what a page has its reader do, in the working directory: `python run_page.py PAGE PORT`.

Python blocks without a file's name share one namespace, as in one session. A console's `NAME=VALUE` holds for
the commands behind it. Where the page says `mqtt://localhost` or `mosquitto -p 1883`, PORT is the broker's.
The first step that fails ends it, with the page's line on stderr and status 1. Whoever calls ends what the
page has left running in the background.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from page_steps import Step, appears, matches, read_page

LONGEST_S = 200 * float(os.environ.get("BB_TEST_PATIENCE", "1"))
"""For one step. Only what hangs is ended by it."""


class StepError(Exception):
    """What a step did in place of what the page says."""


class Reader:
    """Goes through a page."""

    def __init__(self, port: str) -> None:
        self.port = port
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.steps = 0
        self.variables = ""

    def here(self, text: str) -> str:
        """The text with the broker of this run."""
        text = re.sub(r"mqtt://localhost(?!:)", f"mqtt://localhost:{self.port}", text)
        return text.replace("mosquitto -p 1883", f"mosquitto -p {self.port}")

    def do(self, step: Step) -> None:
        """Raises StepError, or what the page's Python raises."""
        self.steps += 1
        text = self.here(step.text)
        if step.kind == "file":
            Path(step.name).parent.mkdir(parents=True, exist_ok=True)
            Path(step.name).write_text(text, "utf-8")
        elif step.kind == "python":
            self._python(text, step)
        else:
            if re.fullmatch(r"[A-Z]+=[^\n]*\n", text):
                self.variables += text
            self._shell(self.variables + text, step)

    def _python(self, text: str, step: Step) -> None:
        file = Path(f"block_{step.line}.py").resolve()
        file.write_text(text, "utf-8")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            exec(compile(text, str(file), "exec"), self.names)
        file.unlink()
        self._judge(step, printed.getvalue(), 0)

    def _shell(self, text: str, step: Step) -> None:
        log = Path(f"../page-{self.steps}.log").resolve()
        with log.open("wb") as out:
            shell = subprocess.Popen(
                ["bash", "-e", "-o", "pipefail", "-c", text],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            try:
                code = shell.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                raise StepError(f"has not ended:\n{log.read_text('utf-8', 'replace')}") from None
        background = re.search(r"[^&]&\s*(?:#[^\n]*)?$", text, re.MULTILINE) is not None
        until = time.monotonic() + LONGEST_S / 2
        while background and step.expected and not appears(step.expected, log.read_text("utf-8", "replace")):
            if time.monotonic() > until:
                printed = log.read_text("utf-8", "replace")
                raise StepError(
                    f"expected among what the background prints:\n{step.expected}\nis:\n{printed}"
                )
            time.sleep(0.05)
        printed = log.read_text("utf-8", "replace")
        if background and code == 0:
            return
        self._judge(step, printed, code)

    @staticmethod
    def _judge(step: Step, printed: str, code: int) -> None:
        if code != step.exit_code:
            raise StepError(f"exit code {code}:\n{printed}")
        if step.expected is not None and not matches(step.expected, printed):
            raise StepError(f"expected:\n{step.expected}\nis:\n{printed}")


def main(page: str, port: str) -> int:
    """Does the page; the exit code."""
    sys.path.insert(0, str(Path.cwd()))
    reader = Reader(port)
    for step in read_page(Path(page)).steps:
        began = time.monotonic()
        try:
            reader.do(step)
        except StepError as error:
            print(f"{page}:{step.line}: {step.text}{error}", file=sys.stderr)
            return 1
        except (Exception, SystemExit):  # noqa: BLE001  whatever a page raises is told with its line
            print(f"{page}:{step.line}:\n{step.text}{traceback.format_exc()}", file=sys.stderr)
            return 1
        print(f"{page}:{step.line}: {step.kind} {time.monotonic() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
