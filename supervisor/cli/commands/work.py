"""`topics work`: runs a command for each job of a queue, and its exit status decides about the job.

the command ends with 0       the job is acked
any other end                 the job is given back, for a while that doubles with each delivery, with the exit status
                              and the last line of standard error as the reason, which its dead letter keeps
SIGTERM, Ctrl-C               no more claims; commands that run have --grace to end, then they are killed with all
                              processes they started, and their jobs given back at once
"""

from __future__ import annotations

import functools
import os
import signal
from contextlib import suppress
from select import PIPE_BUF
from typing import Annotated, Any

import anyio
import anyio.abc
import typer

from supervisor.cli import exact
from supervisor.cli.completers import topic_names
from supervisor.cli.quantities import counted
from supervisor.cli.remote import Remote, remote
from supervisor.cli.terminal import complain, duration_option
from supervisor.client.python_client import Job, Worker
from supervisor.errors import SupervisorError

PATIENCE_S = 60.0
STDERR = 2
READS = 32
"""Of `PIPE_BUF` bytes: more than a pipe holds."""
DRAIN_S = 0.2
"""Between two looks whether the queue is empty."""


class CommandFailed(SupervisorError):
    """The command for a job did not end with 0."""


@remote(PATIENCE_S, endless=True)
async def work(
    on: Remote,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", autocompletion=topic_names)],
    command: Annotated[str, typer.Option("--exec", metavar="CMD", help="A command line of sh, run for each job.")],
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="Commands that run at a time.")] = 1,
    lease: Annotated[int, duration_option("Lease of a job; it is extended in time.")] = 30,
    grace: Annotated[int, duration_option("Time that commands have at the end.")] = 30,
    node: Annotated[str | None, typer.Option(help="Name of this worker.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Standard input is the whole record.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="End when no jobs are left, delayed ones included.")] = False,
) -> None:
    """Run a command for each job of a queue.

    The job's data is the command's standard input, as JSON; JOB_QUEUE, JOB_SEQ, JOB_TS, JOB_TAG and JOB_DELIVERIES are
    in its environment, with \\u0000 for a NUL in a tag. Exit 0 completes the job; any other status returns it to
    the queue, with a delay that doubles. Exit status: 0 ended by SIGTERM, Ctrl-C or --drain, 1 refused, 2 wrong
    options, 3 the service is not reachable.
    """
    config = (await on.client.state(queue, touch=False))["config"]  # tells at once what is wrong
    async with anyio.create_task_group() as beside:
        worker = on.client.worker(
            queue,
            functools.partial(_handle, beside, anyio.Lock(), command, record),
            concurrency=concurrency,
            lease_ms=lease,
            grace_s=grace / 1000,
            wait_ms=1000 if drain else 20_000,  # a claim makes the service look at jobs that are due
            node=node,
            reason=str,
            max_deliveries=config["max_deliveries"] if config["dead_letter"] else 0,
        )
        if drain:
            beside.start_soon(_stop_when_empty, on, queue, worker)
        await worker.run()
        beside.cancel_scope.cancel()
    if on.as_json:
        on.print({"queue": queue, "done": worker.done, "failed": worker.failed})
    else:
        complain(f"{queue}: {counted(worker.done, 'job')} done, {counted(worker.failed, 'attempt')} failed")


async def _stop_when_empty(on: Remote, queue: str, worker: Worker) -> None:
    while (await on.client.state(queue, touch=False))["count"]:  # noqa: ASYNC110 - the service has no event for it
        await anyio.sleep(DRAIN_S)
    worker.stop()


async def _handle(beside: anyio.abc.TaskGroup, turn: anyio.Lock, command: str, record: bool, job: Job) -> None:
    """Run the command for a job. Raises `CommandFailed`. A cancellation kills its processes."""
    whole = {**_fields(job), "tag": job.tag, "data": job.data, "meta": job.meta}
    data = exact.dumps(whole if record else job.data).encode() + b"\n"
    errors = Errors(turn)
    beside.start_soon(errors.follow)
    input_read, input_written = os.pipe()
    try:
        process = await anyio.open_process(
            ["/bin/sh", "-c", command],
            stdin=input_read,
            stdout=None,
            stderr=errors.written,
            env=environment(job),
            start_new_session=True,  # Ctrl-C is for the worker alone; a group to kill
        )
    except BaseException:
        os.close(input_written)
        raise
    finally:
        os.close(input_read)
        os.close(errors.written)
    async with process:
        try:
            async with anyio.create_task_group() as giving:
                giving.start_soon(_give, input_written, data)
                status = await process.wait()
                giving.cancel_scope.cancel()  # a process that the command left behind may hold its input, unread
            line = await errors.last()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if status:
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        raise CommandFailed(f"{ended}: {line}" if line else ended)


class Errors:
    """The standard error of one command: it is passed on as it comes, and its last line is kept.

    A process that the command left behind may hold it open. It is passed on for as long as the worker runs. `turn` is
    for the tasks that write to the worker's own, which never blocks them.
    """

    def __init__(self, turn: anyio.Lock) -> None:
        self._read, self.written = os.pipe()
        os.set_blocking(self._read, False)
        self._turn = turn
        self._tail = b""

    async def follow(self) -> None:
        try:
            while await self._pass_on():
                await anyio.wait_readable(self._read)
        finally:
            os.close(self._read)
            self._read = -1

    async def last(self) -> str:
        """The last line that is not empty. Called when the command has ended, so that all it wrote is there."""
        await self._pass_on()
        lines = [line for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    async def _pass_on(self) -> bool:
        """Pass on the bytes in the pipe, up to its size. False at the end."""
        for _ in range(READS):
            if self._read < 0:
                break
            try:
                chunk = os.read(self._read, PIPE_BUF)
            except BlockingIOError:
                break
            if not chunk:
                return False
            self._tail = (self._tail + chunk)[-PIPE_BUF:]
            await self._write(chunk)
        async with self._turn:  # what the other task has read is written, too
            return self._read >= 0

    async def _write(self, chunk: bytes) -> None:
        async with self._turn:
            with suppress(PermissionError):  # a file, which is always writable
                await anyio.wait_writable(STDERR)
            with suppress(OSError):  # it is closed
                os.write(STDERR, chunk)


async def _give(pipe: int, data: bytes) -> None:
    """Write the data to the command's standard input, which it need not read, and close it.

    Not through the process's own stream: asyncio reports the error of one that was closed early a second time, with a
    traceback on standard error.
    """
    os.set_blocking(pipe, False)
    left = memoryview(data)
    try:
        with suppress(BrokenPipeError):
            while left:
                await anyio.wait_writable(pipe)
                left = left[os.write(pipe, left) :]
    finally:
        os.close(pipe)


def environment(job: Job) -> dict[str, str]:
    """The environment of the command: that of this process, and the job."""
    told = {**_fields(job), "tag": job.tag or ""}
    return {**os.environ, **{f"JOB_{name.upper()}": _variable(str(value)) for name, value in told.items()}}


def _variable(value: str) -> str:
    """A value without what the environment cannot hold: NUL and lone surrogates are escaped as in JSON."""
    return value.replace("\0", "\\u0000").encode(errors="backslashreplace").decode()


def _fields(job: Job) -> dict[str, Any]:
    return {"queue": job.queue, "seq": job.seq, "ts": job.ts, "deliveries": job.deliveries}
