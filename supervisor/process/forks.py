"""The supervisor's side of the fork server: starts it, has it fork children, and starts another when it dies.

Without a fork server nothing can be started, so its death is the one thing that is mended here at once: the children
that run do not depend on it (`proto.process.fork_server`). A server that gives no answer is killed.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec
import structlog
import trio
from structlog.typing import FilteringBoundLogger

from proto.process.fork_server import MAX_BYTES, Fork
from proto.process.orphan import PARENT_PID_VARIABLE, adopt_orphans

GATEWAY, SHARD, ROSTER = "gateway.process", "shardd.process.main", "shardd.process.roster"
"""The modules that children run; the server imports both."""
ANSWER_S = 30.0
"""Time in which the server must have forked, its start included."""
AGAIN_S = 1.0
"""Pause before the next server if one could not be started, or died within `STEADY_S`."""
STEADY_S = 10.0
MAX_ANSWER_BYTES = 32
_OURS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


class Forked:
    """A child process that the fork server has made, which the caller waits for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Its exit status if it has ended (negative: the signal that ended it); else None."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        """Blocks until it has ended. Returns its exit status."""
        status = self._waited(0)
        assert status is not None
        return status

    def kill(self) -> None:
        """Does nothing if it was waited for."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _waited(self, options: int) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


class ForkServer:
    """The fork server of a service. `environment` is its own: children get theirs with each fork."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = (GATEWAY, SHARD, ROSTER)) -> None:
        self._environment = environment
        self._modules = modules
        self._log: FilteringBoundLogger = structlog.get_logger()
        self._turn = trio.Lock()
        self._started = trio.Event()
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start a server. It forks as soon as it has imported everything; nothing waits for that. Raises OSError."""
        adopt_orphans()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            command = [*python("proto.process.fork_server"), str(theirs.fileno()), *self._modules]
            # Children inherit these signals blocked: terminals and service managers signal the whole process group,
            # but only the supervisor may react. Children end by Stop, by end-of-file, or by SIGKILL.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
            try:
                self._process = subprocess.Popen(
                    command,
                    env={**self._environment, PARENT_PID_VARIABLE: str(os.getpid())},
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._link = ours.dup()
        self._started.set()

    async def keep(self) -> None:
        """Have a server running until cancelled; then there is none."""
        try:
            while True:
                began = trio.current_time()
                if self._process is None:
                    try:
                        self.start()
                    except OSError as error:
                        self._log.error("fork_server_not_started", error=str(error), again_in_s=AGAIN_S)
                if self._process is not None:
                    await ended(self._process)
                    self._log.error("fork_server_died", status=self._process.wait(), action="another is started")
                    self._forget()
                if trio.current_time() - began < STEADY_S:
                    await trio.sleep(AGAIN_S)
        finally:
            self.stop()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def _forget(self) -> None:
        self._started = trio.Event()
        self._process = None
        if self._link is not None:
            self._link.close()

    async def fork(self, module: str, title: str, environment: Mapping[str, str], descriptors: Sequence[int]) -> Forked:
        """A child that runs `run` of the module and inherits the descriptors with their numbers. Raises OSError."""
        asked = msgspec.msgpack.encode(Fork(module, title, dict(environment), descriptors))
        if len(asked) > MAX_BYTES:
            raise OSError(errno.E2BIG, "the environment is too large")
        async with self._turn:
            await self._started.wait()
            try:
                with trio.fail_after(ANSWER_S):
                    pid = await self._ask(asked, descriptors)
            except BaseException as error:
                # What it does next would be taken for the answer to the next question. Its child, if there is one,
                # finds its control socket closed.
                if self._process is not None:
                    self._process.kill()
                if isinstance(error, (trio.TooSlowError, OSError)):
                    raise OSError(errno.EIO, "the fork server gives no answer") from error
                raise
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return Forked(pid)

    async def _ask(self, asked: bytes, descriptors: Sequence[int]) -> int:
        assert self._link is not None
        socket.send_fds(self._link, [asked], descriptors)
        await trio.lowlevel.wait_readable(self._link)
        answer = self._link.recv(MAX_ANSWER_BYTES)
        if not answer:
            raise ConnectionResetError("the fork server has died")
        return int(answer)


async def ended(process: Forked | subprocess.Popen[bytes]) -> None:
    """Return when a process has ended, which the caller then waits for."""
    pidfd = os.pidfd_open(process.pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def python(module: str) -> list[str]:
    """Command that runs a module of the project as a process. -P excludes the working directory from `sys.path`."""
    return [sys.executable, "-P", "-m", module]
