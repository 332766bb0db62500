"""The program that a worker runs for each job."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

from supervisor.cli.commands import work


def test_a_job_whose_tag_no_environment_can_hold_is_run() -> None:
    job: Any = SimpleNamespace(queue="q", seq=1, ts=1, deliveries=1, tag="a\0b\ud800\udc80c\n")
    told = work.environment(job)
    assert told["JOB_TAG"] == "a\\u0000b\\ud800\\udc80c\n"
    assert subprocess.run(["/bin/sh", "-c", 'printf %s "$JOB_TAG"'], env=told, capture_output=True, check=True)
