"""`python -m gateway`: started by the supervisor, never by hand."""

from __future__ import annotations

import sys

from proto.process.imports import load_structlog

load_structlog()

from gateway.process import run  # noqa: E402

sys.exit(run())
