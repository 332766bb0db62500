"""Start of the `topics` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command. `topics serve` loads no other one."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looks at every installed distribution otherwise
    if sys.argv[1:2] == ["serve"]:
        from proto.process.imports import load_structlog

        load_structlog()
        from supervisor.cli.commands.serve import alone

        alone(sys.argv[2:], prog_name="topics serve")
    else:
        from proto.process.recursion import allow_old_records

        allow_old_records()
        sys.path.insert(0, str(client_folder()))
        if sys.argv[1:2] == ["lake"]:
            sys.path.insert(0, str(readers_folder()))
        from supervisor.cli.main import main as run

        run()


def client_folder() -> Path:
    """The folder with the Python client that belongs to this command."""
    return _folder("client", "packages/topics-client")


def readers_folder() -> Path:
    """The folder with the readers of data directories, `pyspark_topics`."""
    return _folder("readers", ".")


def _folder(bundled: str, otherwise: str) -> Path:
    """A folder of the wheel, else of the checkout."""
    here = Path(__file__).resolve().parents[2]
    found = here / "topics_server" / bundled
    return found if found.is_dir() else here / otherwise
