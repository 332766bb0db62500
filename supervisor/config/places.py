"""Where a service is, by the few settings that say so, read without the others.

Commands need no more of the settings to find a service, and the rest takes a third of the time that they take to start.
Only values that need no check are read here: the defaults, and the directories that TOPICS_DATA_DIR and
TOPICS_RUNTIME_DIR name. If any other setting is given, `settings` reads and checks all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.config import variables

PREFIX = "TOPICS_"
FILE_VARIABLE = "TOPICS_CONFIG"
DEFAULT_FILE = Path("topics.toml")
HOST, PORT, DATA_DIR = "127.0.0.1", 4000, Path("topics-data")
_READ = {"TOPICS_DATA_DIR", "TOPICS_RUNTIME_DIR"}
_NO_SETTINGS = {variables.URL, variables.TOKEN, variables.CONTEXT, "TOPICS_API_KEYS", "TOPICS_API_KEYS_FILE"}


@dataclass(frozen=True, slots=True)
class Places:
    """The values of `Settings` with the same names."""

    host: str
    port: int
    data_dir: Path
    runtime_dir: Path | None


def plain(environment: Mapping[str, str]) -> Places | None:
    """The places, if no other setting is given in the environment or by a file; else None."""
    given = {name.upper(): value for name, value in environment.items() if value and name.upper().startswith(PREFIX)}
    if not given.keys() <= _READ | _NO_SETTINGS or os.path.lexists(DEFAULT_FILE):
        return None
    runtime_dir = given.get("TOPICS_RUNTIME_DIR")
    data_dir = Path(given.get("TOPICS_DATA_DIR", DATA_DIR))
    return Places(HOST, PORT, data_dir, None if runtime_dir is None else Path(runtime_dir))
