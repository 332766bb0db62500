"""`topics deploy-files`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli import deployment_files
from supervisor.cli.terminal import Status, fail, tell


def deploy_files(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Created if missing.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files with other content.")] = False,
) -> None:
    """Write the files that docs/operations.md installs: systemd unit, proxies, Prometheus rules, Grafana dashboard.

    Prints the name of each file written. Exit status: 0 written or up to date, 1 not possible, 2 wrong options.
    """
    try:
        written = deployment_files.write(directory, force=force)
    except (deployment_files.DeploymentError, OSError) as error:
        fail(str(error), Status.FAILED)
    tell(*map(str, written))
