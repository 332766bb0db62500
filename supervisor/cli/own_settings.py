"""The settings of commands that work on this machine. Wrong ones end the command, with a line for each."""

from __future__ import annotations

from typing import Any

from supervisor.cli.terminal import Status, fail
from supervisor.config.settings import Settings, SettingsError, load


def settings(**options: Any) -> Settings:
    """Those of the file and the environment; `options` that are not None override both."""
    try:
        return load(options)
    except SettingsError as error:
        first, *more = str(error).split("\n")
        fail(first, Status.USAGE, *more)
