"""The command `topics`, as far as the question whether the packages next to this one are the ones it will get.

The project's packages have everyday names, and other distributions have packages of the same: `proto` (proto-plus),
`supervisor` (Supervisor). Two things can go wrong where they share an environment:

    found first     another directory of the path has a package of that name, and it is the one that would be imported
    written over    another distribution was installed into the same directory, over files of ours

Both are looked for before anything of the project is imported, and told in one sentence with the remedy. Sizes of files
are compared with those that pip noted when it installed them: a hundred calls of `stat`, no file is read. An editable
installation has no such notes, and needs none: nothing is installed into a checkout.

`topics_server/deploy` is the project's `deploy`, for `topics deploy-files`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution, distributions
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("proto", "supervisor", "gateway", "shardd")
DISTRIBUTION = "topics-server"
FAILED = 1
REMEDY = "install topics-server into an environment of its own: pipx install, or uv tool install"


def main() -> None:
    wrong = trouble(Path(__file__).resolve().parents[1])
    if wrong:
        sys.stderr.write(f"topics: {wrong}\n")
        sys.exit(FAILED)
    from supervisor.cli.main import main as run

    run()


def trouble(site: Path) -> str:
    """What is wrong with the packages in `site`, where the project is installed, and what to do; empty: nothing."""
    for name in PACKAGES:
        found = _location(name)
        if found != site / name:
            return f"the package {name} at {found or 'no place'} hides the one of topics-server{_told(name)}; {REMEDY}"
    for name, path in _written_over(site):
        return f"{path} of topics-server was written over by another installation{_told(name)}; {REMEDY}"
    return ""


def _location(name: str) -> Path | None:
    """The directory of the package that an import would find."""
    try:
        spec: ModuleSpec | None = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.origin is None:  # a directory without __init__.py
        return next((Path(each).resolve() for each in spec.submodule_search_locations or ()), None)
    path = Path(spec.origin).resolve()
    return path.parent if path.name == "__init__.py" else path


def _written_over(site: Path) -> Iterator[tuple[str, Path]]:
    """Files of our packages that have another size than when they were installed, or are gone."""
    for file in _installed(DISTRIBUTION):
        path = site / str(file)
        if file.parts[0] in PACKAGES and file.size is not None:
            try:
                same = path.stat().st_size == file.size
            except OSError:
                same = False
            if not same:
                yield file.parts[0], path


def _installed(name: str) -> list[PackagePath]:
    try:
        return list(distribution(name).files or ())
    except PackageNotFoundError:
        return []


def _told(package: str) -> str:
    """Which other distributions have a package of this name."""
    names = sorted({str(each.metadata["Name"]) for each in distributions() if _has(each, package)} - {DISTRIBUTION})
    return f" (there is a {package} in {', '.join(names)})" if names else ""


def _has(each: Distribution, package: str) -> bool:
    return any(file.parts[0] == package for file in each.files or ())
