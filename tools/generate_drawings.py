"""Writes what pages show of the code into them. Run it after a table, a contract or the walk has changed.

A page marks a place by two lines; what lies between them is written by this tool:

    <!-- states of bb_edge.transport.connection_states:CONNECTION -->      a transition table, drawn
    <!-- end of states -->

Likewise `floors of PACKAGE` (the layers of its import contracts), `phases` (of a poll), `checks` (of an
envelope), `walk` (of one request), `recording of CALL` (the walk of one recorded op), `passes` (of all
lists, in order), `facts of CLASS` (what an op, a function or a program says, and how files spell it),
`metrics` (that a node serves), `limits of MODULE:CLASS` (its number fields, with the comments above them)
and `proto of FILE` (the messages of a .proto file).
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("kernels", "firmware_shims"))]

from bb_edge.engine import config  # noqa: E402
from bb_edge.engine.net import admission  # noqa: E402
from bb_edge.ir.transitions import Table  # noqa: E402
from bb_edge.observe import catalogue  # noqa: E402
from bb_host.ir import facts, spelling  # noqa: E402
from bb_host.passes.device.pipeline import DEVICE_PASSES  # noqa: E402
from bb_host.passes.one_pass import Promise  # noqa: E402
from bb_host.passes.pipeline import CANONICAL_PASSES, PRE_PASSES, STAMP  # noqa: E402
from bb_host.passes.tensor.cleaning import TENSOR_PASSES  # noqa: E402
from benchmarks.walk import answering_node, recording, walk  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BLOCK = re.compile(
    r"(<!-- (states|floors|phases|checks|walk|recording|passes|facts|metrics|limits|proto)(?: of (.+?))?"
    r" -->\n)"
    r".*?(<!-- end of \2 -->\n)",
    re.DOTALL,
)


def drawn(text: str) -> str:
    """The text of a page with everything that it marks."""
    return BLOCK.sub(lambda m: m[1] + _WRITERS[m[2]](m[3]) + m[4], text)


def tables(text: str) -> list[str]:
    """The transition tables that a page marks, as ``module:NAME``."""
    return [name for _, what, name, _ in BLOCK.findall(text) if what == "states"]


def pages() -> list[Path]:
    """All pages of the documentation."""
    return sorted((ROOT / "docs").rglob("*.md"))


def _states(name: str) -> str:
    module, _, constant = name.partition(":")
    table = getattr(importlib.import_module(module), constant)
    if not isinstance(table, Table):
        raise TypeError(f"{name} is not a Table")
    return f"```mermaid\n{table.drawing()}```\n"


def _floors(package: str) -> str:
    """The layers of a package and of the packages inside it, the upper floors first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    lines = ["```text"]
    for contract in contracts:
        (container,) = contract.get("containers", [""])
        if f"{container}.".startswith(f"{package}."):
            lines.append(f"{container.removeprefix('bb_edge.').replace('.', '/')}/")
            lines += [f"    {layer}" for layer in contract["layers"]]
    return "\n".join([*lines, "```", ""])


def _metrics(_: str) -> str:
    lines = ["| metric | kind | what |", "|---|---|---|"]
    lines += [f"| `{name}` | {metric.kind} | {metric.help} |" for name, metric in catalogue.rows()]
    return "\n".join([*lines, ""])


def _limits(name: str) -> str:
    """The number fields of a class `module:Name`, by the budgets `edge` and `host`, each with its comment.

    Where several fields follow one comment, it is told of the first.
    """
    module, _, cls = name.partition(":")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    body = source[source.index(f"class {cls}:") :]
    budgets = config.NodeConfig.edge(), config.NodeConfig.host()
    edge, host = budgets if cls == "NodeConfig" else (budgets[0].caps, budgets[1].caps)
    lines = ["| key | `edge` | `host` | what |", "|---|---|---|---|"]
    for comment, fields in re.findall(r"((?:^    # .*\n)+)((?:^    \w+: int.*\n)+)", body, re.MULTILINE):
        what = " ".join(re.sub(r"^    # ", "", comment, flags=re.MULTILINE).split()).replace("|", r"\|")
        for field in re.findall(r"^    (\w+):", fields, re.MULTILINE):
            lines.append(f"| `{field}` | {getattr(edge, field):,} | {getattr(host, field):,} | {what} |")
            what = "as above"
    return "\n".join([*lines, ""])


def _proto(name: str) -> str:
    text = (ROOT / name).read_text()
    return f"```proto\n{text[text.index('package') :].split(chr(10), 2)[2]}```\n"


def _phases(_: str) -> str:
    rows = ["| phase | what it does | then what is ready runs |", "|---|---|---|"]
    for phase in answering_node().inspect().phases:
        rows.append(f"| {phase['name']} | {phase['does']} | {'yes' if phase['frontier'] else ''} |")
    return "\n".join([*rows, ""])


def _checks(_: str) -> str:
    rows = ["| kind of envelope | check | what it does |", "|---|---|---|"]
    for kind, checks in admission.CHECKS.items():
        for check in checks:
            rows.append(f"| {kind.name.lower()} | `{check.__name__}` | {first_line(check)} |")
    return "\n".join([*rows, ""])


def _walk(_: str) -> str:
    return f"```text\n{walk()}\n```\n"


def _recording(call: str) -> str:
    return f"```text\n{call}: {recording(call)}\n```\n"


def _passes(_: str) -> str:
    rows = ["| unit | pass | needs | gives |", "|---|---|---|---|"]
    for unit, passes in (
        ("program", (*PRE_PASSES, *CANONICAL_PASSES, STAMP)),
        ("tensor work", TENSOR_PASSES),
        ("target", DEVICE_PASSES),
    ):
        for one in passes:
            needs, gives = (
                ", ".join(p.name.lower() for p in promises) for promises in (one.needs, one.gives)
            )
            rows.append(f"| {unit} | `{one.name}` | {needs} | {gives} |")
    rows += ["", "| promise | what holds from then on |", "|---|---|"]
    rows += [f"| {promise.name.lower()} | {promise.value} |" for promise in Promise]
    return "\n".join([*rows, ""])


def _facts(name: str) -> str:
    kind = getattr(facts, name)
    body = next(
        node.body
        for node in ast.parse(Path(facts.__file__).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    said = {
        field.target.id: " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
    }
    rows = ["| fact | type | metadata | what |", "|---|---|---|---|"]
    for fact, of in kind.__annotations__.items():
        keys = ", ".join(f"`{key}`" for key in spelling.keys_of(kind, fact)) or "any other"
        rows.append(f"| `{fact}` | {of.replace('|', 'or')} | {keys} | {said.get(fact, '')} |")
    return "\n".join([*rows, ""])


def first_line(documented: Any) -> str:
    """The first line of a docstring."""
    text: str = documented.__doc__ or ""
    return text.strip().splitlines()[0]


_WRITERS = {
    "states": _states,
    "floors": _floors,
    "phases": _phases,
    "checks": _checks,
    "walk": _walk,
    "recording": _recording,
    "passes": _passes,
    "facts": _facts,
    "metrics": _metrics,
    "limits": _limits,
    "proto": _proto,
}


if __name__ == "__main__":
    for page in pages():
        page.write_text(drawn(page.read_text()))
