"""Deployment files: systemd unit, proxy configurations, Prometheus scrape configuration and alerts, Grafana dashboard.

Their source is the folder `deploy` of the project. A wheel contains a copy in `topics_server/deploy`.
"""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.errors import SupervisorError

FOLDERS = ("systemd", "proxy", "prometheus", "grafana")
"""Subfolders of `deploy` that are useful without a checkout."""


class DeploymentError(SupervisorError):
    """The files cannot be written. The message says why."""


def sources() -> Path:
    """The folder of the deployment files: that of the wheel, else of the checkout. Raises `DeploymentError`."""
    here = Path(__file__).resolve().parents[2]
    for found in (here / "topics_server" / "deploy", here / "deploy"):
        if (found / "systemd").is_dir():
            return found
    raise DeploymentError(f"the files are missing beside {here / 'supervisor'}: install topics-server again")


def files() -> dict[Path, bytes]:
    """Content of the deployment files by path relative to the folder."""
    top = sources()
    found = [path for folder in FOLDERS for path in sorted((top / folder).rglob("*")) if path.is_file()]
    return {path.relative_to(top): path.read_bytes() for path in found if not path.name.endswith(".test.yml")}


def write(target: Path, *, force: bool) -> list[Path]:
    """Write the deployment files below `target` and return the paths written. Files with equal content are skipped.

    Raises `DeploymentError` before writing anything if a file has other content and `force` is False. Raises OSError.
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
