"""Child: one child process and its incarnations. Starts, restarts and stops it, and receives its control messages.

`supervisor.process.forks` starts the processes. The service prepares the first message to an incarnation, `restart`
decides when to restart, and `states` has the state machine.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from proto.ipc import in_hand
from proto.ipc.control import (
    CONTROL_FD_VARIABLE,
    EXIT_DEPOSED,
    REPORTS,
    Complete,
    Control,
    ControlError,
    Drain,
    Drained,
    Failed,
    Progress,
    Ready,
    Retire,
    Start,
    Stop,
)
from proto.ipc.control_link import ControlLink
from proto.process.orphan import PARENT_PID_VARIABLE
from supervisor.process import restart
from supervisor.process.forks import Process
from supervisor.process.restart import Death, TooOften, decide
from supervisor.process.states import ALIVE, FINAL, ChildEvent, ChildState, after

HANGUP_GRACE_S = 5.0
"""Time in which a child must exit after it closed its control socket or sent `Failed`."""
DRAIN = Drain()
NOT_STARTED = 127
"""Substitute for the exit status of a process that could not be started."""
_KEPT = ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "TERM", "NO_COLOR")
_KEPT_PREFIXES = ("PYTHON", "LC_", "MALLOC_")
_STORES = ("AWS_", "GOOGLE_", "AZURE_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Beginnings of the variables by which clients of object stores are configured."""

StartProcess = Callable[[str, Mapping[str, str], Sequence[int]], Awaitable[Process]]
"""Starts a process: its title, its environment, and the descriptors that it inherits. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Parameters of one incarnation: its first message, and descriptors that it inherits with their numbers.
    `in_hand_fd` is one of them."""

    start: Callable[[], Start]
    """Called when the process is there. The child cannot be told what changes before that, so the first message has to
    contain it."""
    inherit: tuple[int, ...] = ()
    in_hand_fd: int = -1


def environment_for_children(environment: Mapping[str, str], **more: str) -> dict[str, str]:
    """The part of the supervisor's environment that children get: enough to run Python, no keys, no settings."""
    kept = {n: v for n, v in environment.items() if n in _KEPT or n.startswith(_KEPT_PREFIXES)}
    return {**kept, **more}


def credentials_of_stores(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that configure clients of object stores."""
    return {name: value for name, value in environment.items() if name.upper().startswith(_STORES)}


class Child:
    """A child process and its restarts.

    `changed` is called after every change of `state`, `phase` or progress, in the supervisor's trio thread.
    """

    phase = "down"
    done_bytes = 0
    total_bytes = 0
    holder = ""
    """In phase `standby`, the address of the machine that holds the shard."""
    holder_link = ("", "")
    """In phase `standby`, where that machine hears this one, and the key of its process there."""
    damage = ""
    """In phase `standby`, what is damaged in the bucket."""
    term = 0
    """Of this machine, if it holds the shard."""

    def __init__(
        self,
        name: str,
        start: StartProcess,
        environment: Mapping[str, str],
        prepare: Callable[[int], Launch],
        changed: Callable[[Child], None],
        log: Any,
        restart_limit: int,
        vital: Callable[[], bool],
    ) -> None:
        """`vital`: whether the service ends if the child cannot be started; otherwise the child is held and retried."""
        self.name = name
        self.state = ChildState.IDLE
        self.incarnation = 0
        self.pid: int | None = None
        self.first_living = 1
        """The first incarnation that may still live; see `proto.ipc.askers`."""
        self.heard_at = 0.0
        """Time of the present incarnation's last message, or of its start; trio's clock, s."""
        self.spoken = False
        """Whether the present incarnation has sent a message."""
        self.deaths = 0
        """How often the child died without being asked to end."""
        self.hangs = 0
        """How often the watchdog killed the child because it did not answer."""
        self.in_hand: list[list[int]] = []
        """Until the child serves again: the requests that its last process died over."""
        self.complete = False
        """Whether the present incarnation, a gateway, has reached every shard."""
        self.reason = ""
        """Why the child is in state failed, or was held."""
        self.permanent = False
        """Whether the child sent `Failed`."""
        self.held = False
        """Whether the child was held since it last served."""
        self.troubled = False
        """Whether the child was held, or died several times in a row, since it last served. While it waits or is held,
        its phase is `failed`; its state is not, unless it is given up."""
        self.heard: Callable[[Control], object] = lambda message: None
        """Called with the messages of the child that concern others."""
        self.drained = trio.Event()
        """Set when the present incarnation has drained."""
        self.gone = trio.Event()
        self._died = trio.Event()
        """Set when the present incarnation has ended."""
        self._start = start
        self._environment = environment
        self._prepare = prepare
        self._changed = changed
        self._log = log.bind(child=name)
        self._restart_limit = restart_limit
        self._vital = vital
        self._ready_at: float | None = None
        self._stop_requested = trio.Event()
        self._link: ControlLink | None = None
        self._process: Process | None = None
        self._failure: str | None = None

    def _apply(self, event: ChildEvent) -> None:
        """Apply an event. The only place where the state changes."""
        self.state = after(self.state, event)
        if self.state is ChildState.STARTING:
            self.phase, self.done_bytes, self.total_bytes, self.holder, self.term = "open", 0, 0, "", 0
            self.damage, self.holder_link = "", ("", "")
        elif self.state is ChildState.SERVING:
            self.phase = "ready"
            self.held = self.troubled = self.permanent = False
            self.in_hand = []
        elif self.state in (ChildState.STOPPING, ChildState.LEAVING):
            self.phase = "stopping"
        else:
            self.held = self.held or self.state is ChildState.HELD
            self.troubled = self.troubled or self.held
            self.phase = "failed" if self.troubled and self.state in (ChildState.WAITING, ChildState.HELD) else "down"
        self._changed(self)

    @property
    def decided(self) -> bool:
        """Whether readiness need not wait for the child: it serves, or is in trouble."""
        return self.state is ChildState.SERVING or self.troubled

    def status(self) -> dict[str, Any]:
        """Its part of the status file."""
        return {
            "pid": self.pid,
            "incarnation": self.incarnation,
            "state": self.state.value,
            "phase": self.phase,
            **({"holder": self.holder} if self.holder else {}),
            **({"term": self.term} if self.term else {}),
            **({"damage": self.damage} if self.damage else {}),
        }

    async def run(self) -> None:
        """Keep the child alive until it is stopped, or given up if it is vital. Returns in state ended or failed.

        No process is left in any case, cancellation included.
        """
        deaths: list[Death] = []
        holds = in_a_row = 0
        try:
            while self.state in (ChildState.IDLE, ChildState.WAITING, ChildState.HELD):
                began = trio.current_time()
                status = await self._live()
                self.first_living = self.incarnation + 1
                now = trio.current_time()
                uptime = now - began
                stopping = self._stop_requested.is_set()
                in_a_row = in_a_row + 1 if self._ready_at is None else 0
                self.troubled = self.troubled or in_a_row >= restart.TROUBLE
                if self.state in FINAL:  # it was to end before it was started
                    return
                replaced = self.state in {ChildState.LEAVING}
                self._apply(ChildEvent.DIED)
                if stopping:
                    level = self._log.info if status == 0 else self._log.warning
                    level("child_ended", incarnation=self.incarnation, status=describe(status))
                    return
                if replaced:
                    self._log.info("child_replaced", incarnation=self.incarnation, status=describe(status))
                    continue
                self.deaths += 1
                deposed = status == EXIT_DEPOSED
                deaths.append(Death(now, uptime, excused=deposed or bool(self.in_hand)))
                (self._log.info if deposed else self._log.error)(
                    "child_deposed" if deposed else "child_died",
                    incarnation=self.incarnation,
                    status=describe(status),
                    uptime_s=round(uptime, 3),
                    requests_in_hand=len(self.in_hand),
                )
                if self._ready_at is not None and now - self._ready_at >= restart.STEADY_S:
                    holds = 0
                verdict = decide(deaths, now, self._restart_limit)
                if self._failure is not None:
                    self.permanent, self.reason = True, self._failure
                elif isinstance(verdict, TooOften):
                    self.reason = f"{self.name} {verdict.reason}, the last time with {describe(status)}"
                elif not holds or self.in_hand:
                    await self._pause(verdict.delay_s)
                    continue
                if self._vital():
                    self._apply(ChildEvent.GIVE_UP)
                    return
                pause = restart.hold_s(holds)
                holds += 1
                self._log.error("child_held", reason=self.reason, again_in_s=pause, action="the others go on")
                self._apply(ChildEvent.HOLD)
                await self._pause(pause)
        finally:
            self.gone.set()

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._stop_requested.wait()

    async def _live(self) -> int:
        """Run one incarnation. Returns its exit status (negative: the signal that ended it)."""
        self.incarnation += 1
        self._failure = None
        self._ready_at = None
        self.complete = False
        self.drained, self._died = trio.Event(), trio.Event()
        launch = self._prepare(self.incarnation)
        in_hand_fd = launch.in_hand_fd
        if in_hand_fd >= 0:
            in_hand.empty(in_hand_fd)
        try:
            process, link = await self._spawn(launch.inherit)
        except OSError as error:
            # A lack of processes or memory may be temporary, so this counts as an ordinary death.
            self._log.error("child_not_started", error=str(error))
            if not self._stop_requested.is_set():
                self._apply(ChildEvent.SPAWN)
            return NOT_STARTED
        if self._stop_requested.is_set():  # while it was started
            process.kill()
            await link.aclose()
            return process.wait()
        pidfd = os.pidfd_open(process.pid)
        try:
            self._process, self.pid = process, process.pid
            self.heard_at = trio.current_time()
            self.spoken = False
            self._apply(ChildEvent.SPAWN)
            self._log.info("child_started", incarnation=self.incarnation, pid=process.pid)
            async with trio.open_nursery() as nursery:
                heard = trio.Event()
                nursery.start_soon(self._hear, link, heard)
                # Set before `Start` is sent: other senders queue after it on the link's lock, which `send` takes
                # before its first checkpoint.
                self._link = link
                await _send(link, launch.start())
                await trio.lowlevel.wait_readable(pidfd)
                # Last messages may still be in the socket. End-of-file follows, unless a grandchild holds the socket.
                with trio.move_on_after(1):
                    await heard.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._link = None
            if process.poll() is None:
                process.kill()
            status = process.wait()
            if in_hand_fd >= 0:
                self.in_hand = [list(mark) for mark in in_hand.read(in_hand_fd)]
            os.close(pidfd)
            self._process = self.pid = None
            self.complete = False
            self._died.set()
            with trio.CancelScope(shield=True):
                await link.aclose()
        return status

    async def _spawn(self, inherit: tuple[int, ...]) -> tuple[Process, ControlLink]:
        ours, theirs = socket.socketpair()
        number = theirs.fileno()
        told = {CONTROL_FD_VARIABLE: str(number), PARENT_PID_VARIABLE: str(os.getpid())}
        with theirs:
            try:
                process = await self._start(self.name, {**self._environment, **told}, (number, *inherit))
            except BaseException:
                ours.close()
                raise
        return process, ControlLink(ours)

    async def _hear(self, link: ControlLink, heard: trio.Event) -> None:
        try:
            while (message := await link.receive()) is not None:
                self._handle(message)
                if self._failure is not None:
                    break
        except ControlError as error:
            self._log.error("child_speaks_nonsense", error=str(error))
            self.kill()
        heard.set()
        # No further message follows, so the child must exit; its exit cancels the nursery.
        await trio.sleep(HANGUP_GRACE_S)
        self._log.error("child_hung_up", action="killed")
        self.kill()

    def _handle(self, message: Control) -> None:
        self.heard_at = trio.current_time()
        self.spoken = True
        match message:
            case _ if isinstance(message, REPORTS):
                self.heard(message)
            case Progress():
                if self.state is ChildState.STARTING:
                    self.phase, self.holder, self.term = message.phase, message.holder, message.term or self.term
                    self.done_bytes, self.total_bytes = message.done_bytes, message.total_bytes
                    self.damage, self.holder_link = message.damage, (message.holder_at, message.holder_key)
                    self._changed(self)
            case Ready():
                self._ready_at = self._ready_at or trio.current_time()
                self._apply(ChildEvent.READY)
            case Complete():
                self.complete = True
                self._changed(self)
            case Drained():
                self.drained.set()
            case Failed():
                self._failure = message.message
            case _:
                self._log.error("child_sent_what_only_the_supervisor_sends", message=type(message).__name__)

    async def tell(self, message: Control) -> None:
        """Send `message` to the present incarnation, if there is one."""
        if self._link is not None:
            await _send(self._link, message)

    async def drain(self, deadline_s: float, order: Drain | Retire = DRAIN) -> bool:
        """Have the child finish its work as `order` says. Returns whether it did, or had exited. It is not
        restarted."""
        self.request_stop()
        return await self._drain(deadline_s, order)

    async def _drain(self, deadline_s: float, order: Drain | Retire) -> bool:
        drained, died = self.drained, self._died
        with trio.move_on_after(deadline_s):
            await self.tell(order)
            async with trio.open_nursery() as nursery:
                for event in (drained, died, self.gone):
                    nursery.start_soon(_when, event, nursery.cancel_scope)
            return True
        return False

    async def replace(self, drain_s: float, stop_s: float) -> None:
        """Have the present incarnation, which serves, retire and end. Returns when its process is gone; the next one is
        started without a pause. A death meanwhile is no accident. If the child is stopped meanwhile, it ends as any."""
        died = self._died
        self._apply(ChildEvent.REPLACE)
        if not await self._drain(drain_s, Retire()):
            self._log.error("retirement_timed_out", deadline_s=drain_s)
        if not died.is_set() and not self._stop_requested.is_set():
            with trio.move_on_after(stop_s):
                await self.tell(Stop())
                await died.wait()
                return
            self._log.error("child_did_not_stop", action="killed", deadline_s=stop_s)
            self.kill()
        await died.wait()

    async def stop(self, deadline_s: float) -> bool:
        """Send `Stop` and kill the child after `deadline_s`. Returns when it is gone, True if it ended by itself."""
        self.request_stop()
        with trio.move_on_after(deadline_s):
            await self.tell(Stop())
            await self.gone.wait()
            return True
        self._log.error("child_did_not_stop", action="killed", deadline_s=deadline_s)
        self.kill()
        await self.gone.wait()
        return False

    def request_stop(self) -> None:
        """Mark the child as stopping: it is not restarted after its next death."""
        if not self._stop_requested.is_set():
            self._stop_requested.set()
            self._apply(ChildEvent.STOP)

    def kill(self) -> None:
        if self._process is not None and self.state in ALIVE:
            self._process.kill()


async def _send(link: ControlLink, message: Control) -> None:
    try:
        await link.send(message)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the child is gone, which `_live` notices by its exit


async def _when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def describe(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000
