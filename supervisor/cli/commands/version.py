"""`topics version`, and `topics --version`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import proto
from supervisor.cli.terminal import JsonOption, say, tell


def installed() -> str:
    """The version of the installed distribution, else that of the checkout."""
    try:
        return installed_version("topics-server")
    except PackageNotFoundError:
        return proto.__version__


def version(as_json: JsonOption = False) -> None:
    """Print the version.

    Exit status: 0 printed, 2 wrong options.
    """
    if as_json:
        say({"version": installed()})
    else:
        tell(f"topics {installed()}")
