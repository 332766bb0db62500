"""Service: readiness, restarts and shutdown of all processes.

1  `boot` opens what the service needs. If that fails, nothing is started.
2  Start shards and gateways together. A gateway answers from its start.
3  The shards report phases (open → replay → derive → ready), which the supervisor passes on to the gateways.
4  When all are ready and the gateways have reached every shard, report readiness to systemd and the terminal.
5  Restart a child that dies, while the others continue; the watchdog kills a child that hangs (`watchdog`).
   A shard that cannot start, or dies too often, is restarted after long pauses (`restart`). Meanwhile requests to its
   topics get 503, and the other shards serve. Readiness does not wait for it, and names the missing shard.
   If no shard has ever served and none can start, the service ends, with exit status 3 if a shard sent `Failed`, else
   1. It also ends when its only gateway dies too often, or no gateway can start (`gateways`).
6  On SIGHUP, open the audit log and read the keys again.
7  On SIGUSR1, have the shards taken over from the machine that holds them.
8  On SIGUSR2, replace the gateways one by one (`roll`).
9  On SIGRTMIN, have other machines take the shards, then end as on SIGTERM; only if there are other machines.
10 On SIGTERM or SIGINT, drain and stop the gateways, then stop the shards; each step has a deadline.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio
from msgspec.structs import replace

from proto.ipc import askers, in_hand
from proto.ipc.control import Askers, Shards, ShardState, Start, TakeOver
from proto.model.limits import MAX_WAIT_MS
from proto.process import log
from supervisor.config.keys import Keys
from supervisor.config.settings import Settings
from supervisor.process import listener, reaper, rundir
from supervisor.process.child import Child
from supervisor.process.cluster import Machines
from supervisor.process.datadir import shard_name
from supervisor.process.forks import GATEWAY, ROSTER, SHARD, ForkServer
from supervisor.process.gateways import Gateways
from supervisor.process.launch import Launch, Recipe, credentials_of_stores, environment_for_children
from supervisor.process.notify import Notifier
from supervisor.process.opened import Opened
from supervisor.process.readiness import Readiness
from supervisor.process.reload import Reload
from supervisor.process.roll import Roll
from supervisor.process.shard_states import states
from supervisor.process.states import ChildState
from supervisor.process.watchdog import Watchdog, timeout_s

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BEYOND_HELP = 3
"""A child sent `Failed`, so that a restart will not help; service managers should not restart the service."""
EXIT_FORCED = 130

OTHERS_FIRST_S = 8.0
"""The time for the other shards to ship everything before shard 0 ends its term; longer than their own limit."""


class Service:
    """Runs the children until a signal. Its resources are opened before and closed after by `boot`."""

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        opened: Opened,
        forks: ForkServer,
        notifier: Notifier,
        logger: Any,
        announce: Callable[[str], None],
    ) -> None:
        at = opened.cluster
        self._machines = None if at is None else Machines(at, self._tell_all, lambda: self._tell("roster"))
        self._settings = settings
        self._opened = opened
        self._forks = forks
        self._notifier = notifier
        self._log = logger
        self._reload_wanted = trio.Event()
        self._url = listener.url(opened.listening)
        self._shown = {"walrus": [*map(listener.shown, opened.walrus)], "rog": [*map(listener.shown, opened.rog)]}
        self._identity = rundir.identity(os.getpid())
        self._endpoints = [""] * opened.data.shards
        self._in_hand = [in_hand.make() for _ in range(opened.data.shards)]
        self._ending = trio.Event()
        self._exit_status = EXIT_OK
        self._seen: dict[str, tuple[object, ...]] = {}
        self._news: dict[str, trio.Event] = {}
        """By name of a child: set when it has to hear of others."""
        self._make_children(keys)
        self._reload = Reload(keys, opened.audit, self._gateways, logger)
        takes_over, forwards = settings.replication == "sync", at is not None
        self._readiness = Readiness(
            self._shards, self._gateways, notifier, logger, announce, self._url, opened.data, takes_over, forwards
        )
        self._roll = Roll(
            self._gateways,
            (MAX_WAIT_MS + 2 * settings.drain_timeout_ms) / 1000,
            self._care_for,
            self._not_to_roll,
            self._ending.is_set,
            self._write_status,
            logger,
        )
        self._watchdog: Watchdog | None = None

    def _make_children(self, keys: Keys) -> None:
        settings = self._settings
        environment = environment_for_children(
            os.environ, TOPICS_LOG_LEVEL=settings.log_level, TOPICS_LOG_FORMAT=log.chosen_format(settings.log_format)
        )

        # OpenTelemetry's settings may hold credentials, so only the gateway, which needs them, gets them.
        telemetry = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}

        def child(
            module: str,
            more: Mapping[str, str],
            name: str,
            prepare: Callable[[int], Launch],
            *,
            vital: Callable[[], bool] = lambda: False,
        ) -> Child:
            limit, start = settings.restart_limit, partial(self._forks.fork, module)
            recipe = Recipe(name, start, {**environment, **more}, prepare, limit, vital)
            made = Child(recipe, self._changed, self._log)
            made.heard = lambda message: self._gateways.heard(made, message)
            self._news[name] = trio.Event()
            return made

        stores = credentials_of_stores(os.environ) if settings.bucket else {}
        self._shards = [
            child(SHARD, stores, shard_name(index), partial(self._for_shard, index))
            for index in range(self._opened.data.shards)
        ]
        self._gateways = Gateways(
            settings.gateway_count,
            partial(child, GATEWAY, telemetry),
            self._start_of_gateway,
            [each.fileno() for each in self._opened.sockets],
            self._opened.audit,
            keys.keys,
            self._log,
        )
        self._children = [*self._shards, *self._gateways]
        self._roster: Child | None = None
        machines = self._machines
        if machines is not None:
            launch, vital = Launch(self._start_of_roster), lambda: machines.placement.refused
            self._roster = child(ROSTER, stores, "roster", lambda incarnation: launch, vital=vital)
            self._children.append(self._roster)
            machines.join(self._roster, self._shards, self._opened.data.filled)

    def _for_shard(self, index: int, incarnation: int) -> Launch:
        # Each incarnation has a new endpoint: messages queued for a dead process must not reach its successor.
        self._endpoints[index] = self._opened.runtime.endpoint(shard_name(index), incarnation)
        in_hand_fd = self._in_hand[index]
        start = partial(self._start_of_shard, index, incarnation)
        return Launch(start, (*self._opened.data.lock_fds, in_hand_fd), in_hand_fd)

    def _start_of_shard(self, index: int, incarnation: int) -> Start:
        return Start(
            role="shard",
            limits=self._settings.limits(),
            index=index,
            incarnation=incarnation,
            shards=self._opened.data.shards,
            data_dir=str(self._opened.data.path),
            created_ms=self._opened.data.created_ms,
            address=self._settings.advertise or f"http://{socket.gethostname()}:{self._url.rpartition(':')[2]}",
            endpoint=self._endpoints[index],
            states=self.states(),
            askers=self.askers(),
            in_hand_fd=self._in_hand[index],
            cluster=None if self._machines is None else self._machines.of_shard(index),
        )

    def _start_of_roster(self) -> Start:
        return replace(self._start_of_shard(0, 0), role="roster", endpoint="", in_hand_fd=-1)

    def _tell(self, name: str) -> None:
        self._news[name].set()

    def _tell_all(self) -> None:
        for child in self._children:
            self._tell(child.name)

    def _start_of_gateway(self) -> Start:
        return Start(
            role="gateway",
            limits=self._settings.limits(),
            shards=self._opened.data.shards,
            data_dir=str(self._opened.data.path),
            listen_fd=self._opened.listening.fileno(),
            walrus_fds=[each.fileno() for each in self._opened.walrus],
            rog_fds=[each.fileno() for each in self._opened.rog],
            states=self.states(),
            probe_auth=self._settings.probe_auth,
            request_log=self._settings.request_log,
            hosts=[self._settings.host, *self._settings.host_list],
            cors_origins=self._settings.origin_list,
            cluster=None if self._machines is None else self._machines.of_asker(),
        )

    def states(self) -> list[ShardState]:
        """States of the shards, for the children."""
        phase = self._machines.phase if self._machines is not None else lambda index, phase: phase
        return states(self._shards, self._endpoints, phase)

    def askers(self) -> dict[str, int]:
        """The first incarnation of each process that sends requests to shards and may still live, for the shards."""
        living = {askers.shard(index): child.first_living for index, child in enumerate(self._shards)}
        return {**self._gateways.askers(), **living}

    async def run(self) -> int:
        """Serve until a signal, or until the service gives up. Returns the exit status. No child is left."""
        async with trio.open_nursery() as nursery:
            forced = trio.CancelScope()
            await nursery.start(self._obey_signals, forced)
            nursery.start_soon(self._forks.keep)
            nursery.start_soon(self._reload_when_wanted)
            hang_ms, manager_s = self._settings.hang_timeout_ms, timeout_s(os.environ, os.getpid())
            # The figures of several gateways come with their answers to the watchdog.
            if hang_ms or manager_s is not None or self._gateways.page is not None:
                self._watchdog = Watchdog(hang_ms / 1000 or None, manager_s, self._children, self._notifier, self._log)
                nursery.start_soon(self._watchdog.run, self._ending.is_set)
            nursery.start_soon(self._roll.run)
            if os.getpid() == 1:
                nursery.start_soon(reaper.run, self._log)
            for child in tuple(self._children):
                nursery.start_soon(self._care_for, child)
            await self._ending.wait()
            with forced:
                await self._shut_down()
            if forced.cancelled_caught:
                self._log.warning("forced", action="children are killed")
                self._exit_status = EXIT_FORCED
            nursery.cancel_scope.cancel()
        for descriptor in self._in_hand:
            os.close(descriptor)
        self._gateways.close()
        self._log.info("stopped", exit_status=self._exit_status)
        return self._exit_status

    async def _obey_signals(
        self, forced: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        obeyed = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
        with trio.open_signal_receiver(*obeyed, *([signal.SIGRTMIN] if self._machines else ())) as signals:
            task_status.started()
            await self._obey(signals, forced)

    async def _obey(self, signals: AsyncIterator[int], forced: trio.CancelScope) -> None:
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                self._reload_wanted.set()
            elif number == signal.SIGUSR2:
                self._roll.want()
            elif number == signal.SIGUSR1:
                self._log.warning("taking_over", reason="an operator asks for it")
                for shard in self._shards[: 1 if self._machines is None else None]:  # alone, shard 0 has the others go
                    await shard.tell(TakeOver())
                if self._machines is not None:
                    self._machines.take_over()
            elif number == signal.SIGRTMIN and self._machines is not None:
                self._log.info("leaving", reason="an operator asks for it")
                self._machines.leave()
                self._write_status()
                self._changed(self._shards[0])  # it may hold none, and then nothing changes any more
            elif not self._ending.is_set():
                self._end(EXIT_OK, name)
            elif number == signal.SIGINT:
                forced.cancel()
            else:
                self._log.info("already_stopping", signal=name)

    async def _reload_when_wanted(self) -> None:
        """Reload after each SIGHUP."""
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted = trio.Event()
            # Before the first readiness report, the service manager still waits for that report.
            announced = self._readiness.announced
            if announced:
                self._notifier.reloading()
            result = await self._reload.read_keys()
            await self._reload.reopen_audit_log()
            if announced and not self._ending.is_set():
                self._notifier.ready(result)
                self._look_at_readiness()

    def _end(self, status: int, reason: str) -> None:
        if self._ending.is_set():
            return
        self._exit_status = status
        self._log.info("stopping", reason=reason)
        self._ending.set()
        self._gateways.renew()

    def _not_to_roll(self) -> str:
        """Why the gateways cannot be replaced now; "" if they can."""
        serves = self._readiness.announced and not self._readiness.stands_by and not self._ending.is_set()
        return "" if serves else "the service does not serve"

    async def _care_for(self, child: Child) -> None:
        """Run a child, and what it needs meanwhile, until it is gone for good."""
        if child not in self._children:
            self._children.append(child)  # a spare gateway
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._relay, child)
            if child in self._gateways:
                nursery.start_soon(self._gateways.answer, child)
            if self._watchdog is not None:
                nursery.start_soon(self._watchdog.ask, child)
            await self._keep(child)
            nursery.cancel_scope.cancel()
        if child in self._gateways and child not in self._gateways.lasting:
            self._children.remove(child)

    async def _keep(self, child: Child) -> None:
        await child.run()
        if child.state is ChildState.FAILED:
            self._give_up([child], f"{child.name} failed")

    def _give_up_if_hopeless(self) -> None:
        if self._ending.is_set():
            return
        if not self._readiness.served and all(shard.held for shard in self._shards):
            self._give_up(self._shards, "no shard can start")
        elif all(gateway.held for gateway in self._gateways):
            self._give_up([*self._gateways], "no gateway can start")

    def _give_up(self, children: Sequence[Child], reason: str) -> None:
        for child in children:
            self._log.error("giving_up", child=child.name, reason=child.reason)
        permanent = [child for child in children if child.permanent]
        first = (permanent or children)[0]
        self._notifier.status(f"{first.name}: {first.reason}")
        self._end(EXIT_BEYOND_HELP if permanent else EXIT_FAILED, reason)

    async def _shut_down(self) -> None:
        drain_s = self._settings.drain_timeout_ms / 1000
        stop_s = self._settings.stop_timeout_ms / 1000
        self._notifier.stopping("finishing requests in flight")
        # The gateways have copies of these sockets and decide when clients are refused.
        for each in self._opened.sockets:
            each.close()
        await self._gateways.stop(drain_s)
        self._notifier.busy("closing shards", int(stop_s) + 5)
        alone = self._machines is None
        async with trio.open_nursery() as nursery:
            for child in (*self._shards[1 if alone else 0 :], *filter(None, [self._roster])):
                nursery.start_soon(child.stop, stop_s)
            if self._settings.bucket and alone:
                # Another machine takes them when it has shard 0. Before that, all that they have has to be shipped.
                with trio.move_on_after(OTHERS_FIRST_S):
                    for shard in self._shards[1:]:
                        await shard.gone.wait()
            if alone:
                nursery.start_soon(self._shards[0].stop, stop_s)

    def _look_at_readiness(self) -> None:
        if not self._ending.is_set():
            self._readiness.report()

    async def _relay(self, child: Child) -> None:
        """Report the processes to a child at every change. Changes during a send are combined into one report."""
        while True:
            await self._news[child.name].wait()
            self._news[child.name] = trio.Event()
            if child not in self._gateways:
                await child.tell(Askers(self.askers()))
            if self._machines is not None:
                await self._machines.see_to(child, self._settings.stop_timeout_ms / 1000)
            await child.tell(Shards(self.states()))

    def _changed(self, child: Child) -> None:
        # The gateways hear of shards only.
        of_gateway = child in self._gateways
        for each in self._shards if of_gateway else self._children:
            self._news[each.name].set()
        if of_gateway:
            self._gateways.changed(child)
        elif self._machines is not None:
            self._machines.saw(child)
            if self._machines.left:
                self._end(EXIT_OK, "other machines hold all shards")
        key = (child.state, child.phase, child.incarnation, child.holder, child.holder_link, child.damage)
        if self._seen.get(child.name) == key:
            if of_gateway:
                self._look_at_readiness()
            else:
                self._readiness.progress(child)
            return
        self._seen[child.name] = key
        self._write_status()
        if child.state is ChildState.SERVING:
            self._readiness.served = self._readiness.served or child in self._shards
            self._log.info("child_ready", child=child.name, incarnation=child.incarnation)
        elif child.state is ChildState.STARTING:
            self._readiness.progress(child, always=child.total_bytes > 0)
        elif child.state is ChildState.HELD:
            self._give_up_if_hopeless()
        self._look_at_readiness()

    def _write_status(self) -> None:
        try:
            self._opened.runtime.write_status(self.status())
        except OSError as error:
            self._log.warning("status_file_not_written", error=str(error))

    def status(self) -> dict[str, Any]:
        """Content of the status file."""
        return {
            "pid": os.getpid(),
            "started": self._identity and self._identity[0],
            "fork_server": self._forks.pid,
            "url": self._url,
            **self._shown,
            "data_dir": str(self._opened.data.path),
            "ready": self._readiness.ready,
            "roll": self._roll.told,
            **({"leaving": self._machines.local.leaving} if self._machines is not None else {}),
            "children": {child.name: child.status() for child in self._children},
        }
