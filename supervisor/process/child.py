"""Child: one child process and its incarnations. Starts, restarts and stops it, and receives its control messages.

`supervisor.process.forks` starts the processes, of which each is an `incarnation`. The service prepares the first
message to an incarnation, `restart` decides when to restart, and `states` has the state machine.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from proto.ipc import in_hand
from proto.ipc.control import (
    CONTROL_FD_VARIABLE,
    EXIT_DEPOSED,
    REPORTS,
    Complete,
    Control,
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
from supervisor.process.forks import Forked, ended
from supervisor.process.holder import Held
from supervisor.process.incarnation import Incarnation
from supervisor.process.launch import Recipe
from supervisor.process.restart import Death, TooOften, decide, describe
from supervisor.process.states import FINAL, ChildEvent, ChildState, after

DRAIN = Drain()
NOT_STARTED = 127
"""Substitute for the exit status of a process that could not be started."""


class Child(Held):
    """A child process and its restarts.

    `changed` is called after every change of `state`, `phase` or progress, in the supervisor's trio thread.
    """

    def __init__(self, recipe: Recipe, changed: Callable[[Child], None], log: Any) -> None:
        self.name = recipe.name
        self.state = ChildState.IDLE
        self.incarnation = 0
        self.first_living = 1
        """The first incarnation that may still live; see `proto.ipc.askers`."""
        self.deaths = 0
        """How often the child died without being asked to end, or being deposed."""
        self.hangs = 0
        """How often the watchdog killed the child because it did not answer."""
        self.in_hand: list[list[int]] = []
        """Until the child serves again: the requests that its last process died over."""
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
        self.gone = trio.Event()
        self._recipe = recipe
        self._changed = changed
        self._log = log.bind(child=recipe.name)
        self.living = Incarnation(self._log)
        """The present incarnation, or else the last one."""
        self._accidents: list[Death] = []
        self._holds = 0
        """How often the child was held in a row."""
        self._stop_requested = trio.Event()
        self._wanted = trio.Event()
        self._wanted.set()

    def _apply(self, event: ChildEvent) -> None:
        """Apply an event. The only place where the state changes."""
        self.state = after(self.state, event)
        if self.state is ChildState.STARTING:
            self.begin()
        elif self.state is ChildState.SERVING:
            self.serve()
            self._recovered()
        elif self.state is ChildState.ELSEWHERE:
            self.give_up()
            self._recovered()
        elif self.state in (ChildState.STOPPING, ChildState.LEAVING):
            self.phase = "stopping" if self._wanted.is_set() else self.phase  # the link to the holder stays
        else:
            self.held = self.held or self.state is ChildState.HELD
            self.troubled = self.troubled or self.held
            down = "down" if self._wanted.is_set() else "elsewhere"
            self.phase = "failed" if self.troubled and self.state in (ChildState.WAITING, ChildState.HELD) else down
        self._changed(self)

    def _recovered(self) -> None:
        self.in_hand = []
        self.held = self.troubled = self.permanent = False

    @property
    def pid(self) -> int | None:
        return None if self.living.process is None else self.living.process.pid

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
            **{name: getattr(self, name) for name in ("holder", "term", "damage") if getattr(self, name)},
        }

    async def run(self) -> None:
        """Keep the child alive until it is stopped, or given up if it is vital. Returns in state ended or failed.

        No process is left in any case, cancellation included.
        """
        in_a_row = 0
        try:
            while await self._may_start():
                began = trio.current_time()
                status = await self._live()
                self.first_living = self.incarnation + 1
                stopping, replaced = self._stop_requested.is_set(), self.state in {ChildState.LEAVING}
                in_a_row = in_a_row + 1 if self.living.ready_at is None and not replaced else 0
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
                elif not await self._recover(status, trio.current_time() - began):
                    return
        finally:
            self.gone.set()

    async def _recover(self, status: int, uptime: float) -> bool:
        """After a death that is an accident, wait as `restart` decides. Returns False if the child is given up."""
        now, living = trio.current_time(), self.living
        deposed = status == EXIT_DEPOSED
        over = len(self.in_hand) if status != NOT_STARTED else 0  # a failed start leaves `in_hand` as it was
        self.deaths += not deposed
        self._accidents.append(Death(now, uptime, excused=deposed or over > 0))
        (self._log.info if deposed else self._log.error)(
            "child_deposed" if deposed else "child_died",
            incarnation=self.incarnation,
            status=describe(status),
            uptime_s=round(uptime, 3),
            requests_in_hand=over,
        )
        if living.ready_at is not None and now - living.ready_at >= restart.STEADY_S:
            self._holds = 0
        verdict = decide(self._accidents, now, self._recipe.restart_limit)
        if living.failure is not None:
            self.permanent, self.reason = True, living.failure
        elif isinstance(verdict, TooOften):
            self.reason = f"{self.name} {verdict.reason}, the last time with {describe(status)}"
        elif not self._holds or deposed or over:
            await self._pause(verdict.delay_s)
            return True
        if self._recipe.vital():
            self._apply(ChildEvent.GIVE_UP)
            return False
        pause = restart.hold_s(self._holds)
        self._holds += 1
        self._log.error("child_held", reason=self.reason, again_in_s=pause, action="the others go on")
        self._apply(ChildEvent.HOLD)
        await self._pause(pause)
        return True

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
        living = self.living = Incarnation(self._log)
        launch = self._recipe.prepare(self.incarnation)
        if launch.in_hand_fd >= 0:
            in_hand.empty(launch.in_hand_fd)
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
        try:
            living.process, living.heard_at = process, trio.current_time()
            self._apply(ChildEvent.SPAWN)
            self._log.info("child_started", incarnation=self.incarnation, pid=process.pid)
            await living.run(link, launch.start, self._handle, partial(ended, process))
        finally:
            if process.poll() is None:
                process.kill()
            status = process.wait()
            if launch.in_hand_fd >= 0:
                self.in_hand = [list(mark) for mark in in_hand.read(launch.in_hand_fd)]
            living.process = None
            living.complete = False
            living.died.set()
            with trio.CancelScope(shield=True):
                await link.aclose()
        return status

    async def _spawn(self, inherit: tuple[int, ...]) -> tuple[Forked, ControlLink]:
        ours, theirs = socket.socketpair()
        number = theirs.fileno()
        told = {CONTROL_FD_VARIABLE: str(number), PARENT_PID_VARIABLE: str(os.getpid())}
        with theirs:
            try:
                environment = {**self._recipe.environment, **told}
                process = await self._recipe.start(self.name, environment, (number, *inherit))
            except BaseException:
                ours.close()
                raise
        return process, ControlLink(ours)

    def _handle(self, message: Control) -> None:
        match message:
            case _ if isinstance(message, REPORTS):
                self.heard(message)
            case Progress():
                if self.state is ChildState.STARTING:
                    self.hear(message)
                    self._changed(self)
            case Ready():
                self.living.ready_at = self.living.ready_at or trio.current_time()
                self._apply(ChildEvent.READY)
            case Complete():
                self.living.complete = True
                self._changed(self)
            case Drained():
                self.living.drained.set()
            case Failed():
                self.living.failure = message.message
            case _:
                self._log.error("child_sent_what_only_the_supervisor_sends", message=type(message).__name__)

    async def tell(self, message: Control) -> None:
        """Send `message` to the present incarnation, if there is one."""
        await self.living.tell(message)

    async def drain(self, deadline_s: float, order: Drain | Retire = DRAIN) -> bool:
        """Have the child finish its work as `order` says. Returns whether it did, or had exited. It is not
        restarted."""
        self.request_stop()
        return await self._drain(deadline_s, order)

    async def _drain(self, deadline_s: float, order: Drain | Retire) -> bool:
        drained, died = self.living.drained, self.living.died
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
        living = self.living
        self._apply(ChildEvent.REPLACE)
        if not await self._drain(drain_s, Retire()):
            self._log.error("retirement_timed_out", deadline_s=drain_s)
        await self._end(living, stop_s)

    async def _end(self, living: Incarnation, deadline_s: float) -> None:
        """Have an incarnation end. If the child is stopped meanwhile, it ends as any."""
        if living.died.is_set() or self._stop_requested.is_set():
            await living.died.wait()
        else:
            await self._stop(living.died, deadline_s)

    async def _stop(self, end: trio.Event, deadline_s: float) -> None:
        with trio.move_on_after(deadline_s):
            await self.tell(Stop())
            await end.wait()
            return
        self._log.error("child_did_not_stop", action="killed", deadline_s=deadline_s)
        self.kill()
        await end.wait()

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
            living = self.living
            self._apply(ChildEvent.REPLACE)
            await self._end(living, deadline_s)

    def want(self) -> None:
        """Have a process, from now on."""
        self._wanted.set()

    def held_by(self, found: Holder) -> None:
        """Which machine holds a shard that has no process here, as the roster has seen it."""
        if self.phase == "elsewhere" and self.learn(found):
            self._changed(self)

    async def stop(self, deadline_s: float) -> None:
        """Send `Stop` and kill the child after `deadline_s`. Returns when it is gone."""
        self.request_stop()
        await self._stop(self.gone, deadline_s)

    def request_stop(self) -> None:
        """Mark the child as stopping: it is not restarted after its next death."""
        if not self._stop_requested.is_set():
            self._stop_requested.set()
            self._wanted.set()
            self._apply(ChildEvent.STOP)

    def kill(self) -> None:
        self.living.kill()


async def _when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
