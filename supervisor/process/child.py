"""Child: one child process and its incarnations. Starts, restarts and stops it, and receives its control messages.

`supervisor.process.forks` starts the processes. The service prepares the first message to an incarnation, `restart`
decides when to restart, and `states` has the state machine.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
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
    Holder,
    Progress,
    Ready,
    Retire,
    Stop,
)
from proto.ipc.control_link import ControlLink
from proto.process.orphan import PARENT_PID_VARIABLE
from supervisor.process import restart
from supervisor.process.forks import Process
from supervisor.process.holder import Held
from supervisor.process.launch import Launch, StartProcess
from supervisor.process.restart import Death, TooOften, decide, describe
from supervisor.process.states import ALIVE, FINAL, ChildEvent, ChildState, after

HANGUP_GRACE_S = 5.0
"""Time in which a child must exit after it closed its control socket or sent `Failed`."""
DRAIN = Drain()
NOT_STARTED = 127
"""Substitute for the exit status of a process that could not be started."""


class Child(Held):
    """A child process and its restarts.

    `changed` is called after every change of `state`, `phase` or progress, in the supervisor's trio thread.
    """

    phase = "down"
    done_bytes = 0
    total_bytes = 0
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
        """How often the child died without being asked to end, or being deposed."""
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
        self._wanted = trio.Event()
        self._wanted.set()
        self._link: ControlLink | None = None
        self._process: Process | None = None
        self._failure: str | None = None

    def _apply(self, event: ChildEvent) -> None:
        """Apply an event. The only place where the state changes."""
        self.state = after(self.state, event)
        if self.state is ChildState.STARTING:
            if self.phase != "elsewhere":  # else it has been told, and requests go there meanwhile
                self.holder, self.holder_link = "", ("", "")
            self.phase, self.done_bytes, self.total_bytes, self.term, self.damage = "open", 0, 0, 0, ""
        elif self.state is ChildState.SERVING:
            self.phase, self.holder, self.holder_link, self.in_hand = "ready", "", ("", ""), []
            self.holder_term = max(self.holder_term, self.term)
            self.held = self.troubled = self.permanent = False
        elif self.state is ChildState.ELSEWHERE:
            self.phase, self.damage, self.in_hand, self.term = "elsewhere", "", [], 0
            self.held = self.troubled = self.permanent = False
        elif self.state in (ChildState.STOPPING, ChildState.LEAVING):
            self.phase = "stopping" if self._wanted.is_set() else self.phase  # the link to the holder stays
        else:
            self.held = self.held or self.state is ChildState.HELD
            self.troubled = self.troubled or self.held
            down = "down" if self._wanted.is_set() else "elsewhere"
            self.phase = "failed" if self.troubled and self.state in (ChildState.WAITING, ChildState.HELD) else down
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
            while await self._may_start():
                began = trio.current_time()
                status = await self._live()
                self.first_living = self.incarnation + 1
                now = trio.current_time()
                uptime = now - began
                stopping = self._stop_requested.is_set()
                replaced = self.state in {ChildState.LEAVING}
                in_a_row = in_a_row + 1 if self._ready_at is None and not replaced else 0
                self.troubled = self.troubled or in_a_row >= restart.TROUBLE
                if self.state in FINAL:  # it was to end before it was started
                    return
                self._apply(ChildEvent.DIED)
                if stopping:
                    level = self._log.info if status == 0 else self._log.warning
                    level("child_ended", incarnation=self.incarnation, status=describe(status))
                    return
                if replaced:
                    done = "child_replaced" if self._wanted.is_set() else "child_rests"
                    self._log.info(done, incarnation=self.incarnation, status=describe(status))
                    continue
                deposed = status == EXIT_DEPOSED
                over = len(self.in_hand) if status != NOT_STARTED else 0  # a failed start leaves `in_hand` as it was
                self.deaths += not deposed
                deaths.append(Death(now, uptime, excused=deposed or over > 0))
                (self._log.info if deposed else self._log.error)(
                    "child_deposed" if deposed else "child_died",
                    incarnation=self.incarnation,
                    status=describe(status),
                    uptime_s=round(uptime, 3),
                    requests_in_hand=over,
                )
                if self._ready_at is not None and now - self._ready_at >= restart.STEADY_S:
                    holds = 0
                verdict = decide(deaths, now, self._restart_limit)
                if self._failure is not None:
                    self.permanent, self.reason = True, self._failure
                elif isinstance(verdict, TooOften):
                    self.reason = f"{self.name} {verdict.reason}, the last time with {describe(status)}"
                elif not holds or deposed or over:
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

    async def _may_start(self) -> bool:
        """Wait until a process is wanted. Returns whether one is to be started."""
        while not self._wanted.is_set():
            if self.state is not ChildState.ELSEWHERE:
                self._apply(ChildEvent.REST)
            await self._wanted.wait()
        return self.state in (ChildState.IDLE, ChildState.WAITING, ChildState.HELD, ChildState.ELSEWHERE)

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
                    self.phase, self.term, self.damage = message.phase, message.term or self.term, message.damage
                    self.done_bytes, self.total_bytes = message.done_bytes, message.total_bytes
                    self.hear(message)
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
        await self._end(died, stop_s)

    async def _end(self, died: trio.Event, deadline_s: float) -> None:
        """Have the incarnation end whose death is `died`. If the child is stopped meanwhile, it ends as any."""
        if not died.is_set() and not self._stop_requested.is_set():
            with trio.move_on_after(deadline_s):
                await self.tell(Stop())
                await died.wait()
                return
            self._log.error("child_did_not_stop", action="killed", deadline_s=deadline_s)
            self.kill()
        await died.wait()

    def unwant(self) -> None:
        """Start no process before one is wanted."""
        if self._wanted.is_set() and not self._stop_requested.is_set():
            self._wanted = trio.Event()
        if self.state is ChildState.IDLE:
            self.phase = "elsewhere"

    async def rest(self, deadline_s: float) -> None:
        """As `unwant`, and have the present process end if it stands by. Returns when it has."""
        self.unwant()
        if self.phase == "standby" and self.state is ChildState.STARTING:
            died = self._died
            self._apply(ChildEvent.REPLACE)
            await self._end(died, deadline_s)

    def want(self) -> None:
        """Have a process, from now on."""
        self._wanted.set()

    def held_by(self, found: Holder) -> None:
        """Which machine holds a shard that has no process here, as the roster has seen it."""
        if self.phase == "elsewhere" and self.learn(found):
            self._changed(self)

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
            self._wanted.set()
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


def now_ms() -> int:
    return time.time_ns() // 1_000_000
