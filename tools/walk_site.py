"""Walks the built site in a headless Chromium: `./dev docs --browser`, or `python tools/walk_site.py SITE`.

Every page is opened as on a phone, in light and in dark colours. A page fails where the browser reports an
error, where something comes from another host, where the page is wider than the screen, where a picture does
not load or a drawing is left as text, where text has too little contrast, and where the button of a block
copies something else than what a reader would type. Then the search must find what it is asked.

Chromium is spoken to over its own pipe, so the standard library is enough.
"""

from __future__ import annotations

import functools
import http.server
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
LEAST_CONTRAST = 4.5
"""What WCAG 2 (AA) asks of text."""

SEARCHES = {
    "rounds": ["reference/specification/engine.html#rounds", "tutorials/first-federation"],
    "durable": ["explanation/durability", "how-to/reports"],
    "csv": ["how-to/data", "how-to/anomalies"],
    "certificate": ["tutorials/raspberry-pi"],
    "aggregator": ["tutorials/own-component", "how-to/components"],
    "pytorch": ["tutorials/own-model", "how-to/models"],
    "upgrade": ["how-to/upgrade"],
    "SnapshotForeignError": ["reference/errors"],
    "max_weight": ["reference/shipped-components"],
}
"""What is typed into the search, and pages that must be among the first that it finds."""

FIRST = 10

QUESTIONS = Path(__file__).with_suffix(".js")


class BrowserError(Exception):
    """The browser has refused a command, or is gone."""


class Browser:
    """A Chromium, and one page of it. Commands wait for their answers; events are kept in between."""

    def __init__(self, program: str, home: str) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def place() -> None:
            # Chromium reads commands from descriptor 3 and writes to 4; the copies must not overlap.
            reads, writes = os.dup(to_browser), os.dup(from_browser)
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        command = [program, "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu"]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={home}", "--no-first-run", "--disable-dev-shm-usage", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=place,  # noqa: PLW1509  no other thread of ours runs yet
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._messages = self._read()
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def _read(self) -> Iterator[dict[str, Any]]:
        rest = b""
        while data := os.read(self._in, 1 << 16):
            *whole, rest = (rest + data).split(b"\0")
            yield from map(json.loads, whole)
        raise BrowserError("Chromium has ended")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        for answer in self._messages:
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self.events.append(answer)
        raise AssertionError("the messages end with an error")

    def wait_for(self, event: str) -> None:
        """Returns once the event has come, since `events` was last emptied."""
        if any(each.get("method") == event for each in self.events):
            return
        for each in self._messages:
            self.events.append(each)
            if each.get("method") == event:
                return

    def open(self, url: str) -> None:
        """Opens a page, and returns once it has loaded all that belongs to it."""
        self.events.clear()
        self("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is on the page; a promise is waited for."""
        answer = self(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def close(self) -> None:
        os.close(self._out)  # Chromium ends when nobody is left to command it
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and writes no log."""

    def log_message(self, *_: Any) -> None:
        """Nothing: what is missing shows in the browser."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of the site, on this machine alone."""
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """A running browser that reports what pages complain of."""
    with tempfile.TemporaryDirectory(prefix="bb-browser-", ignore_cleanup_errors=True) as home:
        running = Browser(program, home)
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                running(f"{domain}.enable")
            running("Emulation.setDeviceMetricsOverride", **PHONE)
            running("Emulation.setFocusEmulationEnabled", enabled=True)
            yield running
        finally:
            running.close()


def complaints(events: list[dict[str, Any]], address: str) -> list[str]:
    """What a page's events tell of errors, and of files from elsewhere."""
    wrong = []
    for event in events:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                wrong.append(f"exception: {told['exceptionDetails'].get('text')}")
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                wrong.append(f"console: {[value.get('value') for value in told['args']]}")
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                wrong.append(f"log: {told['entry']['text']} {told['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                url = told["request"]["url"]
                if not url.startswith((address, "data:", "about:", "blob:")):
                    wrong.append(f"asks another host: {url}")
    return wrong


def typed(block: str, kind: str) -> str:
    """What a reader would type of a block: of a console its commands, of anything else all of it."""
    if kind != "console" or not re.search(r"^\$ ", block, re.MULTILINE):
        return block.strip("\n")
    commands = re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", block, re.MULTILINE)
    return "\n".join(commands)


def walk_page(page: Browser, url: str, address: str) -> list[str]:
    """What is wrong with one page."""
    wrong = []
    for scheme in ("light", "dark"):
        page("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.open(url)
        seen = page.value(f"look({LEAST_CONTRAST})")
        wrong += complaints(page.events, address)
        wrong += [f"{scheme}: contrast {each}" for each in seen["faint"]]
        if scheme == "light":
            wrong += [f"wider than a phone: {each}" for each in seen["wide"]]
            wrong += [f"picture: {each}" for each in seen["pictures"]]
            wrong += [f"drawing left as text: {each}" for each in seen["drawings"]]
    for block in page.value("copies()"):
        expected = typed(block["shown"], block["kind"])
        if block["copied"].strip("\n") != expected:
            wrong.append(f"copied {block['copied']!r}, shown {block['shown']!r}")
    return list(dict.fromkeys(wrong))


def walk_search(page: Browser, address: str) -> list[str]:
    """What the search does not find."""
    wrong = []
    for words, names in SEARCHES.items():
        page.open(f"{address}/search.html?q={words}")
        links = page.value("found()")
        for name in names:
            if not any(name in link for link in links[:FIRST]):
                wrong.append(f"search for {words!r}: {name} is not among the first {FIRST}: {links[:FIRST]}")
        wrong += complaints(page.events, address)
    return wrong


def walk(site: Path, only: str = "", say: Callable[[str], None] = print) -> int:
    """Walks the pages whose name contains `only`. Returns 1 where something is wrong."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        say(f"skipped: the walk of the site in a browser (none of {', '.join(NAMES)} is installed)")
        return 0
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    pages = [name for name in pages if only in name]
    wrong = 0
    with browser(program) as page, served(site) as address:
        page(
            "Browser.grantPermissions",
            origin=address,
            permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
        )
        page("Page.addScriptToEvaluateOnNewDocument", source=QUESTIONS.read_text("utf-8"))
        for name in pages:
            for each in walk_page(page, f"{address}/{name}", address):
                say(f"{name}: {each}")
                wrong += 1
        for each in walk_search(page, address):
            say(each)
            wrong += 1
    say(f"{len(pages)} pages and {len(SEARCHES)} searches, {wrong} defects")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(walk(Path(sys.argv[1]), *sys.argv[2:3]))
