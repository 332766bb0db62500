"""Lock files: the exact packages, each with its digests, that `make`, the container image and the tests install.

    python tools/locks.py              resolve every set again; versions that still fit stay
    python tools/locks.py --upgrade    take the newest versions that fit

`[tool.locks]` of pyproject.toml lists the sets. A set is a file: all that is needed for the requirements of our own
projects (`extras` of the server, `packages`) and for `more`. Sets with requirements of our own share an environment,
so a package has the same version in all of them, and in every version of Python. Needs `uv` and a package index.

A lock names no index: pip takes packages from where it is configured to, and refuses other bytes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^([a-z0-9][a-z0-9-]*)(\[[a-z0-9,-]+\])?==(\S+)", re.MULTILINE)
_VIA = re.compile(r"^    # (?:via(?: +|$)|  )(.*)", re.MULTILINE)


class Pin(NamedTuple):
    """A package of a lock."""

    name: str
    extras: str
    version: str
    hashes: list[str]
    """SHA-256 of each of its files, in hexadecimal digits."""
    via: list[str]
    """Names of the packages that require it; `name (path of pyproject.toml)`, or `-r -`, where the set does."""


class Set(NamedTuple):
    """A set of packages that are installed together."""

    name: str
    file: Path
    sources: list[Path]
    """The pyproject.toml files whose requirements it has."""
    extras: list[str]
    more: list[str]
    deps: bool
    """False: only what is required directly; another set of the environment has the rest."""

    @property
    def requirements(self) -> list[str]:
        """The requirements of the set itself."""
        found = list(self.more)
        for source in self.sources:
            project = _parsed(source)["project"]
            found += project["dependencies"]
            if source == ROOT / "pyproject.toml":
                found += [each for extra in self.extras for each in project["optional-dependencies"][extra]]
        return found


def sets(root: Path = ROOT) -> list[Set]:
    """The sets in their order."""
    found = []
    for name, given in _parsed(root / "pyproject.toml")["tool"]["locks"].items():
        extras, packages = given.get("extras", []), given.get("packages", [])
        sources = [root / "packages" / package / "pyproject.toml" for package in packages]
        if extras:
            sources.insert(0, root / "pyproject.toml")
        file = root / given.get("file", f"locks/{name}.lock")
        found.append(Set(name, file, sources, extras, given.get("more", []), given.get("deps", True)))
    return found


def read(file: Path) -> list[Pin]:
    """The packages of a lock. One may be there twice, for different versions of Python."""
    text = file.read_text()
    starts = [match.start() for match in _PIN.finditer(text)]
    return [_pin(text[start:end]) for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _pin(text: str) -> Pin:
    match = _PIN.match(text)
    assert match
    via = [each.strip() for each in _VIA.findall(text)]
    hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", text)
    return Pin(
        match[1], match[2] or "", match[3], hashes, [each for each in via if each and not each.startswith("-c ")]
    )


def _parsed(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def _command(one: Set, earlier: list[Path], options: list[str]) -> Iterator[str | Path]:
    yield from ("pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--fork-strategy", "fewest")
    yield from ("--generate-hashes", "--no-strip-extras", "--custom-compile-command", "make lock", *options)
    yield from ("--output-file", one.file.relative_to(ROOT))
    for extra in one.extras:
        yield from ("--extra", extra)
    if not one.deps:
        yield "--no-deps"
    if one.sources:
        for file in earlier:
            yield from ("--constraint", file.relative_to(ROOT))
    yield from (source.relative_to(ROOT) for source in one.sources)
    if one.more:
        yield "-"


def main(options: list[str]) -> None:
    beside = Path(sys.executable).with_name("uv")
    uv = beside if beside.exists() else shutil.which("uv") or "uv"
    earlier: list[Path] = []
    for one in sets():
        one.file.parent.mkdir(exist_ok=True)
        command = [uv, *_command(one, earlier, options)]
        subprocess.run(command, input="\n".join(one.more), text=True, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        if one.sources:
            earlier.append(one.file)


if __name__ == "__main__":
    main(sys.argv[1:])
