"""`topics deploy-files`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli import deployment_files
from supervisor.cli.terminal import Status, fail


def deploy_files(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is not there.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Write over files that have been changed.")] = False,
) -> None:
    """Write the files that docs/operations.md installs: systemd unit, proxies, Prometheus rules, Grafana dashboard.

    Prints the name of each. Exit status: 0 written, or there already, 1 not possible, 2 wrong options.
    """
    try:
        written = deployment_files.write(directory, force=force)
    except (deployment_files.DeploymentError, OSError) as error:
        fail(str(error), Status.FAILED)
    for path in written:
        typer.echo(str(path))
