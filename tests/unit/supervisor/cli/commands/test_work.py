"""The program that a worker runs for each job."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from supervisor.cli.commands import work

JOB: Any = SimpleNamespace(
    queue="q", seq=1, ts=1, deliveries=1, tag="a\0b\ud800\udc80c\n", data="x" * 200_000, meta=None
)


def test_a_job_whose_tag_no_environment_can_hold_is_run() -> None:
    told = work.environment(JOB)
    assert told["JOB_TAG"] == "a\\u0000b\\ud800\\udc80c\n"
    assert subprocess.run(["/bin/sh", "-c", 'printf %s "$JOB_TAG"'], env=told, capture_output=True, check=True)


@pytest.mark.parametrize("command", ["exit 0", "exec <&-", "head -c 1", "cat"])
def test_a_command_that_leaves_its_input_unread_is_no_error(
    monkeypatch: pytest.MonkeyPatch, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether it has ended before the job is written, ends in the middle, or reads all."""
    start = anyio.open_process

    async def and_wait_for_a_short_one(*arguments: Any, **options: Any) -> anyio.abc.Process:
        process = await start(*arguments, **options)
        if command == "exit 0":
            await process.wait()
        return process

    monkeypatch.setattr(anyio, "open_process", and_wait_for_a_short_one)
    told: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        async with anyio.create_task_group() as beside:
            await work._handle(beside, anyio.Lock(), command, False, JOB)
        gc.collect()  # what no one has asked for is told when it is collected

    asyncio.run(run())
    assert told == []
    assert (len(capfd.readouterr().out) == len('"x"\n') - 1 + 200_000) == (command == "cat")


def test_a_job_is_done_when_its_command_ends_though_another_process_holds_its_input(
    capfd: pytest.CaptureFixture[str],
) -> None:
    line = 'import subprocess; print(subprocess.Popen(["sleep", "60"]).pid)'

    async def run() -> None:
        async with anyio.create_task_group() as beside:
            with anyio.fail_after(30):
                await work._handle(beside, anyio.Lock(), f"exec {sys.executable} -c '{line}'", False, JOB)
            beside.cancel_scope.cancel()  # the end of the worker

    try:
        asyncio.run(run())
    finally:
        os.kill(int(capfd.readouterr().out), signal.SIGKILL)
