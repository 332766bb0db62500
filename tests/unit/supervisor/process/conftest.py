"""The service of these tests."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.unit.supervisor.process.test_service import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    for name in list(os.environ):
        if name.startswith("TOPICS_"):
            monkeypatch.delenv(name)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stdout))
    with tempfile.TemporaryDirectory(prefix="ts", dir="/tmp") as runtime:
        opened = Stage(tmp_path, Path(runtime))
        try:
            yield opened
        finally:
            opened.close()
            structlog.reset_defaults()
