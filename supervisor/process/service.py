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
8  On SIGTERM or SIGINT, drain and stop the gateways, then stop the shards; each step has a deadline.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from proto.ipc import askers, in_hand
from proto.ipc.control import Askers, Shards, ShardState, Start, TakeOver
from proto.process import log
from supervisor.config.keys import FILE_VARIABLE, Keys, KeysError, read_file
from supervisor.config.settings import Settings
from supervisor.process import listener, reaper, rundir
from supervisor.process.audit_file import AuditFile, AuditFileError
from supervisor.process.child import Child, Launch, credentials_of_stores, environment_for_children, now_ms
from supervisor.process.datadir import DataDir, shard_name
from supervisor.process.forks import GATEWAY, SHARD, ForkServer
from supervisor.process.gateways import Gateways
from supervisor.process.listener import Protocols
from supervisor.process.notify import Notifier
from supervisor.process.rundir import RuntimeDir
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
PROGRESS_LOG_S = 2.0
NO_KEYS = Keys()
NO_PROTOCOLS = Protocols()


class Service:
    """Runs the children until a signal. Its resources are opened before and closed after by `boot`."""

    def __init__(
        self,
        settings: Settings,
        data: DataDir,
        runtime: RuntimeDir,
        listening: socket.socket,
        notifier: Notifier,
        logger: Any,
        announce: Callable[[str], None],
        *,
        keys: Keys = NO_KEYS,
        protocols: Protocols = NO_PROTOCOLS,
        forks: ForkServer,
        audit: AuditFile | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._runtime = runtime
        self._listening = listening
        self._protocols = protocols
        self._audit = audit
        self._notifier = notifier
        self._log = logger
        self._announce = announce
        self._keys = keys
        self._reload_wanted = trio.Event()
        self._url = listener.url(listening)
        self._shown = {
            "walrus": [listener.shown(each) for each in protocols.walrus],
            "rog": [listener.shown(each) for each in protocols.rog],
        }
        self._began_ms = now_ms()
        self._identity = rundir.identity(os.getpid())
        self._endpoints = [""] * data.shards
        self._in_hand = [in_hand.make() for _ in range(data.shards)]
        self._ending = trio.Event()
        self._exit_status = EXIT_OK
        self._announced = False
        self._stands_by = False
        """Whether it was reported that another machine holds the shards."""
        self._served = False
        """Whether a shard has ever served."""
        self._seen: dict[str, tuple[ChildState, str, int, str, str]] = {}
        self._logged_at: dict[str, float] = {}
        self._news: dict[str, trio.Event] = {}
        """By name of a child: set when it has to hear of others."""
        self._forks = forks
        self._make_children()

    def _make_children(self) -> None:
        settings = self._settings
        environment = environment_for_children(
            os.environ, TOPICS_LOG_LEVEL=settings.log_level, TOPICS_LOG_FORMAT=log.chosen_format(settings.log_format)
        )

        # OpenTelemetry's settings may hold credentials, so only the gateway, which needs them, gets them.
        telemetry = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}

        def child(
            module: str, more: Mapping[str, str], name: str, prepare: Callable[[int], Launch], *, vital: bool = False
        ) -> Child:
            limit, start = settings.restart_limit, partial(self._forks.fork, module)
            made = Child(name, start, {**environment, **more}, prepare, self._changed, self._log, limit, vital)
            self._news[name] = trio.Event()
            return made

        stores = credentials_of_stores(os.environ) if settings.bucket else {}
        self._shards = [
            child(SHARD, stores, shard_name(index), partial(self._for_shard, index))
            for index in range(self._data.shards)
        ]
        sockets = [self._listening, *self._protocols.all]
        self._gateways = Gateways(
            settings.gateway_count,
            partial(child, GATEWAY, telemetry),
            self._start_of_gateway,
            [each.fileno() for each in sockets],
            self._audit,
            self._log,
        )
        self._gateways.start_with(self._keys.keys)
        self._children = [*self._shards, *self._gateways]
        for each in self._gateways:
            each.heard = partial(self._gateways.heard, each)

    def _for_shard(self, index: int, incarnation: int) -> Launch:
        # Each incarnation has a new endpoint: messages queued for a dead process must not reach its successor.
        self._endpoints[index] = self._runtime.endpoint(shard_name(index), incarnation)
        in_hand_fd = self._in_hand[index]
        start = partial(self._start_of_shard, index, incarnation)
        return Launch(start, (*self._data.lock_fds, in_hand_fd), in_hand_fd)

    def _start_of_shard(self, index: int, incarnation: int) -> Start:
        return Start(
            role="shard",
            limits=self._settings.limits(),
            index=index,
            incarnation=incarnation,
            shards=self._data.shards,
            data_dir=str(self._data.path),
            created_ms=self._data.created_ms,
            address=self._settings.advertise or f"http://{socket.gethostname()}:{self._url.rpartition(':')[2]}",
            endpoint=self._endpoints[index],
            states=self.states(),
            askers=self.askers(),
            in_hand_fd=self._in_hand[index],
        )

    def _start_of_gateway(self) -> Start:
        return Start(
            role="gateway",
            limits=self._settings.limits(),
            shards=self._data.shards,
            data_dir=str(self._data.path),
            listen_fd=self._listening.fileno(),
            walrus_fds=[each.fileno() for each in self._protocols.walrus],
            rog_fds=[each.fileno() for each in self._protocols.rog],
            states=self.states(),
            probe_auth=self._settings.probe_auth,
            request_log=self._settings.request_log,
            hosts=[self._settings.host, *self._settings.host_list],
            cors_origins=self._settings.origin_list,
        )

    def states(self) -> list[ShardState]:
        """States of the shards, for the children."""
        return [
            ShardState(
                index=i,
                phase=c.phase,
                endpoint=self._endpoints[i],
                incarnation=c.incarnation,
                done_bytes=c.done_bytes,
                total_bytes=c.total_bytes,
                hangs=c.hangs,
                holder=c.holder,
                term=c.term,
                damage=c.damage,
                in_hand=c.in_hand,
            )
            for i, c in enumerate(self._shards)
        ]

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
            nursery.start_soon(self._reload)
            hang_ms, manager_s = self._settings.hang_timeout_ms, timeout_s(os.environ, os.getpid())
            # The figures of several gateways come with their answers to the watchdog.
            if hang_ms or manager_s is not None or self._gateways.several:
                hang_s = hang_ms / 1000 if hang_ms else None
                watchdog = Watchdog(hang_s, manager_s, self._children, self._notifier, self._log)
                nursery.start_soon(watchdog.run, self._ending.is_set)
            if os.getpid() == 1:
                nursery.start_soon(reaper.run, self._log)
            for child in self._children:
                nursery.start_soon(self._relay, child)
                nursery.start_soon(self._keep, child)
            for child in self._gateways:
                nursery.start_soon(self._gateways.answer, child)
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
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1) as signals:
            task_status.started()
            await self._obey(signals, forced)

    async def _obey(self, signals: AsyncIterator[int], forced: trio.CancelScope) -> None:
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                self._reload_wanted.set()
            elif number == signal.SIGUSR1:
                self._log.warning("taking_over", reason="an operator asks for it")
                await self._shards[0].tell(TakeOver())  # the others go with it
            elif not self._ending.is_set():
                self._end(EXIT_OK, name)
            elif number == signal.SIGINT:
                forced.cancel()
            else:
                self._log.info("already_stopping", signal=name)

    async def _reload(self) -> None:
        """Open the audit log and read the file of keys again after each SIGHUP. An invalid file changes nothing."""
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted = trio.Event()
            # Before the first readiness report, the service manager still waits for that report.
            announced = self._announced
            if announced:
                self._notifier.reloading()
            result = await self._reload_keys()
            await self._reopen_audit()
            if announced and not self._ending.is_set():
                self._notifier.ready(result)
                self._report_readiness()

    async def _reload_keys(self) -> str:
        """Read and distribute the keys. Returns the result in words."""
        path = self._keys.path
        if path is None:
            self._log.info("nothing_to_reload", reason=f"keys come from {FILE_VARIABLE} to be read again")
            return "nothing to reload"
        try:
            keys = await trio.to_thread.run_sync(read_file, path)
        except KeysError as error:
            self._log.error("keys_not_reloaded", reason=str(error), action="the keys from before stay")
            return "the keys were not reloaded, those from before stay"
        self._keys = Keys(keys, path)
        await self._gateways.use(keys)
        self._log.info("keys_reloaded", keys=len(keys))
        return f"{len(keys)} keys reloaded"

    async def _reopen_audit(self) -> None:
        if self._audit is None:
            return
        try:
            await trio.to_thread.run_sync(self._audit.reopen)
        except AuditFileError as error:
            self._log.error("audit_log_not_reopened", reason=str(error), action="the file from before is written to")
            return
        await self._gateways.reopen_audit_log()
        self._log.info("audit_log_reopened")

    def _end(self, status: int, reason: str) -> None:
        if self._ending.is_set():
            return
        self._exit_status = status
        self._log.info("stopping", reason=reason)
        self._ending.set()

    async def _keep(self, child: Child) -> None:
        await child.run()
        if child.state is ChildState.FAILED:
            self._log.error("giving_up", child=child.name, reason=child.reason)
            self._notifier.status(f"{child.name}: {child.reason}")
            self._end(EXIT_BEYOND_HELP if child.permanent else EXIT_FAILED, f"{child.name} failed")

    def _give_up_if_hopeless(self) -> None:
        if not self._served and all(shard.held for shard in self._shards):
            self._give_up(self._shards, "no shard can start")
        if self._gateways.hopeless:
            self._give_up([*self._gateways], "no gateway can start")

    def _give_up(self, children: Sequence[Child], reason: str) -> None:
        if self._ending.is_set():
            return
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
        for each in (self._listening, *self._protocols.all):
            each.close()
        await self._gateways.stop(drain_s)
        self._notifier.busy("closing shards", int(stop_s) + 5)
        async with trio.open_nursery() as nursery:
            for shard in self._shards[1:]:
                nursery.start_soon(shard.stop, stop_s)
            if self._settings.bucket:
                # Another machine takes them when it has shard 0. Before that, all that they have has to be shipped.
                with trio.move_on_after(OTHERS_FIRST_S):
                    for shard in self._shards[1:]:
                        await shard.gone.wait()
            nursery.start_soon(self._shards[0].stop, stop_s)

    async def _relay(self, child: Child) -> None:
        """Report the processes to a child at every change. Changes during a send are combined into one report."""
        while True:
            await self._news[child.name].wait()
            self._news[child.name] = trio.Event()
            if child not in self._gateways:
                await child.tell(Askers(self.askers()))
            await child.tell(Shards(self.states()))

    def _changed(self, child: Child) -> None:
        # The gateways hear of shards only.
        of_gateway = child in self._gateways
        for each in self._shards if of_gateway else self._children:
            self._news[each.name].set()
        if of_gateway:
            self._gateways.changed(child)
        key = (child.state, child.phase, child.incarnation, child.holder, child.damage)
        if self._seen.get(child.name) == key:
            if of_gateway:
                self._report_readiness()
            else:
                self._report_progress(child)
            return
        self._seen[child.name] = key
        try:
            self._runtime.write_status(self.status())
        except OSError as error:
            self._log.warning("status_file_not_written", error=str(error))
        if child.state is ChildState.SERVING:
            self._served = self._served or not of_gateway
            self._log.info("child_ready", child=child.name, incarnation=child.incarnation)
        elif child.state is ChildState.STARTING:
            self._report_progress(child, always=child.total_bytes > 0)
        elif child.state is ChildState.HELD:
            self._give_up_if_hopeless()
        self._report_readiness()

    def _report_progress(self, child: Child, *, always: bool = False) -> None:
        now = trio.current_time()
        if not always and now - self._logged_at.setdefault(child.name, now) < PROGRESS_LOG_S:
            return
        self._logged_at[child.name] = now
        self._log.info(
            "boot_progress",
            child=child.name,
            phase=child.phase,
            done_bytes=child.done_bytes,
            total_bytes=child.total_bytes,
        )
        share = f" {100 * child.done_bytes // child.total_bytes} %" if child.total_bytes else ""
        self._notifier.busy(f"{child.name}: {child.phase}{share}", 60)

    def _report_readiness(self) -> None:
        if self._ending.is_set():
            return
        self._report_standby()
        down = [child.name for child in self._children if child.state is not ChildState.SERVING]
        without = f", without {', '.join(down)}" if down else ""
        if self._announced:
            serving = f"serving {self._url}{without}"
            self._notifier.status(serving if self._ready else "not ready: " + ", ".join(down))
        elif self._served and self._gateways.complete and all(self._decided(shard) for shard in self._shards):
            # `complete` means that /v0/ready agrees: the gateway knows that the shards serve, and has reached them.
            # A shard that cannot start keeps /v0/ready at 503, but must not make systemd kill the service.
            self._announced = True
            self._notifier.ready(f"serving {self._url}{without}")
            self._log.info(
                "ready",
                url=self._url,
                shards=self._data.shards,
                data_dir=str(self._data.path),
                boot_ms=now_ms() - self._began_ms,
                **({"without": ",".join(down)} if down else {}),
            )
            self._announce(
                f"topics is ready at {self._url}{without} ({self._data.shards} shards, data in {self._data.path})"
            )

    def _report_standby(self) -> None:
        """A standby has started, too: a service manager must not end it for not being ready."""
        holder = self._shards[0].holder if self._shards[0].phase == "standby" else ""
        if not holder:
            self._stands_by = False
        elif not self._stands_by:
            self._stands_by = True
            self._announced = False
            self._notifier.ready(f"standing by, {holder} holds the shards")
            self._log.info("standing_by", holder=holder)
            by_hand = "" if self._settings.replication == "sync" else "; `topics takeover` if that one is gone"
            self._announce(f"topics stands by at {self._url}: {holder} holds the shards{by_hand}")

    @property
    def _ready(self) -> bool:
        """Whether every shard serves, and a gateway."""
        return all(child.state is ChildState.SERVING for child in self._shards) and self._gateways.serving

    @staticmethod
    def _decided(child: Child) -> bool:
        """Whether readiness need not wait for the child: it serves, or is in trouble."""
        return child.state is ChildState.SERVING or child.troubled

    def status(self) -> dict[str, Any]:
        """Content of the status file."""
        return {
            "pid": os.getpid(),
            "started": self._identity and self._identity[0],
            "fork_server": self._forks.pid,
            "url": self._url,
            "walrus": self._shown["walrus"],
            "rog": self._shown["rog"],
            "data_dir": str(self._data.path),
            "ready": self._ready,
            "children": {
                child.name: {
                    "pid": child.pid,
                    "incarnation": child.incarnation,
                    "state": child.state.value,
                    "phase": child.phase,
                    **({"holder": child.holder} if child.holder else {}),
                    **({"term": child.term} if child.term else {}),
                    **({"damage": child.damage} if child.damage else {}),
                }
                for child in self._children
            },
        }
