"""Requests that are made from the OpenAPI document: each answer is as the document says, and none is a 5xx.

The short run makes the same requests each time, the long one others: a failure says its seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import Service

ROOT = Path(__file__).parents[2]
KEY = "s3cret"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
    "refused_for_a_known_reason",
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, TOPICS_API_KEYS=KEY) as running:
        yield running


def asked(service: Service, directory: Path, *options: str, seconds: float) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/v0/openapi.json"]
    command += ["--header", f"Authorization: Bearer {KEY}", "--checks", ",".join(CHECKS), "--request-timeout", "5"]
    done = subprocess.run(
        [*command, "--continue-on-failure", "--no-shrink", "--warnings", "off", *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_made_requests_get_the_documented_answers(service: Service, tmp_path: Path) -> None:
    short = "--phases", "examples,fuzzing", "--max-examples", "12", "--max-time", "35", "--generation-deterministic"
    asked(service, tmp_path, *short, seconds=150)


@pytest.mark.long
def test_many_made_requests_get_the_documented_answers(service: Service, tmp_path: Path) -> None:
    asked(service, tmp_path, "--max-time", "240", seconds=500)
