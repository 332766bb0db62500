"""Start of the `topics` command."""

from __future__ import annotations

import os
import sys

from proto.process.imports import load_structlog


def main() -> None:
    """Run the command. `topics serve` loads no other one."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looks at every installed distribution otherwise
    load_structlog()
    if sys.argv[1:2] == ["serve"]:
        from supervisor.cli.serve import alone

        alone(sys.argv[2:], prog_name="topics serve")
    else:
        from supervisor.cli.main import main as run

        run()
