"""Builds a release from this checkout: `./dev release [--out FOLDER]`.

Refuses what is not ready: files that are not committed, a version that the changelog does not have with its
date, entries that still stand under "Unreleased", a tag of the version on another commit. Then it builds the
source distribution and, out of that, the wheel, and writes their checksums and the version's notes:

    dist/bytesandbrains_edge-0.2.0.tar.gz
    dist/bytesandbrains_edge-0.2.0-py3-none-any.whl
    dist/SHA256SUMS          for `sha256sum -c`
    dist/NOTES.md            what the changelog says of the version

It publishes and tags nothing. docs/reference/compatibility.md has the policy of versions.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


class NotReady(Exception):
    """The checkout cannot be released; the message says why, and what to do."""


def version_of(root: Path) -> str:
    """The version of pyproject.toml. Raises NotReady for one that is not X.Y.Z, X.Y.ZrcN or the like."""
    version: str = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    if VERSION.fullmatch(version) is None:
        raise NotReady(f"pyproject.toml: version {version!r} is not X.Y.Z, X.Y.ZaN, X.Y.ZbN or X.Y.ZrcN")
    return version


def notes_of(changelog: str, version: str) -> str:
    """What the changelog says of the version. Raises NotReady where it is not finished."""
    sections = dict(re.findall(r"^## \[([^\]]+)\]([^\n]*\n.*?)(?=^## \[|\Z)", changelog, re.M | re.S))
    if version not in sections:
        raise NotReady(f"CHANGELOG.md has no section [{version}]; add `## [{version}] - YYYY-MM-DD`")
    heading, _, body = sections[version].partition("\n")
    if re.fullmatch(r" - \d{4}-\d\d-\d\d", heading.rstrip()) is None:
        raise NotReady(
            f"CHANGELOG.md, [{version}]: the heading has no date; write `## [{version}] - YYYY-MM-DD`"
        )
    if not re.search(r"^- ", body, re.M):
        raise NotReady(f"CHANGELOG.md, [{version}]: it has no entries")
    if re.search(r"^- ", sections.get("Unreleased", ""), re.M):
        raise NotReady(f"CHANGELOG.md: entries stand under [Unreleased]; move them to [{version}]")
    return body.strip() + "\n"


def committed(root: Path, version: str) -> str:
    """The commit of the checkout. Raises NotReady for changes, and for a tag of the version elsewhere."""
    changed = _git(root, "status", "--porcelain")
    if changed:
        raise NotReady(f"files are not committed; commit or remove them:\n{changed}")
    commit = _git(root, "rev-parse", "HEAD")
    if _git(root, "tag", "--list", f"v{version}") and _git(root, "rev-list", "-1", f"v{version}") != commit:
        raise NotReady(f"the tag v{version} is on another commit; raise the version in pyproject.toml")
    return commit


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotReady(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def build(root: Path, out: Path, version: str) -> list[Path]:
    """Builds both distributions into an empty `out`; raises NotReady where they are not of that version."""
    if out.is_dir() and any(out.iterdir()):
        raise NotReady(f"{out} is not empty; remove what an earlier release left there")
    # Times in the archives are the commit's, not the builder's.
    env = {**os.environ, "SOURCE_DATE_EPOCH": _git(root, "log", "-1", "--format=%ct")}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(root)]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotReady(f"it does not build:\n{done.stdout}{done.stderr}")
    files = sorted(out.iterdir())
    kinds = [file.name for file in files if f"-{version}" in file.name]
    if len(files) != 2 or len(kinds) != 2:
        raise NotReady(f"expected a wheel and an sdist of {version}, got {[file.name for file in files]}")
    return files


def write_sums(files: Sequence[Path], out: Path) -> Path:
    """Writes `SHA256SUMS`, a line per file as `sha256sum -c` reads it."""
    sums = out / "SHA256SUMS"
    lines = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    sums.write_text("".join(lines), "utf-8")
    return sums


def release(root: Path, out: Path) -> list[Path]:
    """All steps; the files that were written. Raises NotReady before anything is, where that can be known."""
    version = version_of(root)
    notes = notes_of((root / "CHANGELOG.md").read_text("utf-8"), version)
    committed(root, version)
    files = build(root, out, version)
    sums = write_sums(files, out)
    (out / "NOTES.md").write_text(f"# {version}\n\n{notes}", "utf-8")
    return [*files, sums, out / "NOTES.md"]


def main(argv: Sequence[str]) -> int:
    """The command; 1 where the checkout is not ready."""
    parser = argparse.ArgumentParser(prog="./dev release", description="Builds a release; publishes nothing.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty folder (dist)")
    arguments = parser.parse_args(argv)
    try:
        files = release(ROOT, arguments.out.resolve())
    except NotReady as error:
        print(f"./dev release: {error}", file=sys.stderr)
        return 1
    for file in files:
        print(file)
    print(f"next: run ./dev test, tag v{version_of(ROOT)}, publish what {files[-2].name} lists")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
