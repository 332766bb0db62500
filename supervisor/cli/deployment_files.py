"""The files that an operator needs besides the program: unit, proxies, scrape and alerts, dashboard.

Their source is `deploy` in the project. A wheel has a copy, beside the packages.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDERS = ("systemd", "proxy", "prometheus", "grafana")
"""Those of them that are of use without a checkout."""


class DeploymentError(Exception):
    """The files cannot be written. The text says why."""


def sources() -> Path:
    """The folder they are in: that of the wheel, or of the checkout."""
    here = Path(__file__).resolve().parents[2]
    for found in (here / "topics_server" / "deploy", here / "deploy"):
        if (found / "systemd").is_dir():
            return found
    raise DeploymentError(f"the files are missing beside {here / 'supervisor'}: install topics-server again")


def files() -> dict[Path, bytes]:
    """Their content by name, relative to the folder."""
    top = sources()
    found = [path for folder in FOLDERS for path in sorted((top / folder).rglob("*")) if path.is_file()]
    return {path.relative_to(top): path.read_bytes() for path in found if not path.name.endswith(".test.yml")}


def write(target: Path, *, force: bool) -> list[Path]:
    """Write them below `target`, and return what was written; what is the same already is left alone.

    Raises `DeploymentError`, before anything is written, if a file has other content and `force` is False; OSError.
    """
    wanted = {target / name: content for name, content in files().items()}
    changed = [path for path, content in wanted.items() if not path.is_file() or path.read_bytes() != content]
    others = [path for path in changed if os.path.lexists(path)]
    if others and not force:
        raise DeploymentError(
            f"{', '.join(map(str, others))} has other content: name another directory, or write over it with --force"
        )
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
    return changed
