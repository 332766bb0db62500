"""Entry point of the command `topics`: checks that the project's own packages would be imported, then runs the command.

The project's packages have common names, and other distributions contain packages of the same name: `proto`
(proto-plus), `supervisor` (Supervisor). Two conflicts are possible in a shared environment:

    hidden         another directory of `sys.path` has a package of that name, which would be imported instead
    overwritten    another distribution was installed into the same directory, over files of this project

Both are checked before any package of the project is imported. The error names the conflict and the remedy. File sizes
are compared with those that pip recorded at installation; this takes about a hundred `stat` calls and reads no file. An
editable installation has no such record and needs none, because nothing is installed into a checkout.

In a wheel, `topics_server/deploy` is a copy of the project's `deploy`, for `topics deploy-files`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("proto", "supervisor", "gateway", "shardd")
DISTRIBUTION = "topics-server"
RECORDS = "topics_server-*.dist-info/RECORD"
FAILED = 1
REMEDY = "install topics-server into an environment of its own: pipx install, or uv tool install"


def main() -> None:
    wrong = trouble(Path(__file__).resolve().parents[1])
    if wrong:
        sys.stderr.write(f"topics: {wrong}\n")
        sys.exit(FAILED)
    from supervisor.cli.start import main as run

    run()


def trouble(site: Path) -> str:
    """The conflict of the packages in `site`, where the project is installed, with its remedy; "" if there is none."""
    for name in PACKAGES:
        found = _location(name)
        if found != site / name:
            return f"the package {name} at {found or 'no place'} hides the one of topics-server{_told(name)}; {REMEDY}"
    for name, path in _written_over(site):
        return f"{path} of topics-server was written over by another installation{_told(name)}; {REMEDY}"
    return ""


def _location(name: str) -> Path | None:
    """The directory of the package that an import would find, or None."""
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
    """Package and path of installed files whose size has changed or that are missing."""
    for file, size in _installed(site):
        package, path = file.partition("/")[0], site / file
        if package in PACKAGES:
            try:
                same = path.stat().st_size == size
            except OSError:
                same = False
            if not same:
                yield package, path


def _installed(site: Path) -> Iterator[tuple[str, int]]:
    """Files of this distribution with their sizes, as pip recorded them. `importlib.metadata` takes 15 ms to load."""
    for record in site.glob(RECORDS):
        for line in record.read_text().splitlines():
            match line.rsplit(",", 2):
                case file, _, size if size.isdecimal():
                    yield file, int(size)


def _told(package: str) -> str:
    """Names of other distributions with a package of this name, as a remark in parentheses; "" if there are none."""
    from importlib.metadata import distributions

    having = (each for each in distributions() if any(file.parts[0] == package for file in each.files or ()))
    names = sorted({str(each.metadata["Name"]) for each in having} - {DISTRIBUTION})
    return f" (there is a {package} in {', '.join(names)})" if names else ""
