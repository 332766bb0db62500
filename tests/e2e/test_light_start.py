"""Processes load what they serve when they serve it. Imports are most of the time to readiness, and of idle memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import Service, until

NONE_AT_START = (
    "pydantic",
    "rich.console",
    "asyncio.events",
    "prometheus_client",
    "wsproto",
    "quart",
    "hypercorn",
    "h2",
    "httpx",
)
"""What no process of the service needs to get ready."""
NOT_IN_CHILDREN = ("pydantic", "typer", "rich.console", "asyncio.events", "supervisor")
LATER = ("prometheus_client", "wsproto", "quart", "hypercorn")
"""What the gateway loads for the first client that needs it."""


def loaded(service: Service) -> set[str]:
    """All modules that processes of the service have loaded so far, as `-X importtime` reports them."""
    lines = service.log_path.read_text().splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def test_a_fresh_service_has_loaded_no_more_than_it_needs(tmp_path: Path) -> None:
    with Service(tmp_path, PYTHONPROFILEIMPORTTIME="1") as service:
        assert service.request("GET", "/v0/health")[0] == 200
        found = loaded(service)
        assert {"trio", "gateway.api.dispatch", "shardd.shard"} <= found
        assert [name for name in NONE_AT_START if name in found] == []
        connection = service.connect(10)
        connection.request("GET", "/v0/metrics")
        assert connection.getresponse().status == 200
        connection.close()
        until(lambda: "prometheus_client" in loaded(service), "the first scrape to load its library")


def test_the_supervisor_needs_no_zeromq() -> None:
    program = (
        "import sys; from proto.process.imports import load_structlog; load_structlog(); "
        "import supervisor.cli.commands.serve; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert [name for name in (*NONE_AT_START, "zmq") if name in done.stdout.split()] == []


@pytest.mark.parametrize(("module", "more"), [("shardd.process.main", ()), ("gateway.process", LATER)])
def test_a_child_process_does_not_load(module: str, more: tuple[str, ...]) -> None:
    program = (
        "import sys; from proto.process.imports import load_structlog; load_structlog(); "
        f"import {module}; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    found = set(done.stdout.split())
    assert {"trio", "structlog"} <= found
    assert [name for name in (*NOT_IN_CHILDREN, *more) if name in found] == []
