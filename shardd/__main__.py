"""`python -m shardd`: started by the supervisor, never by hand."""

from __future__ import annotations

from proto.process.imports import load_structlog

load_structlog()

from shardd.process.loop import run  # noqa: E402

run()
