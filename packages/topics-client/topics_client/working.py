"""Workers: they claim jobs of a queue, run a handler for each, and ack, or nack with a pause that grows.

    the handler returns                      ack, in the claim for the next job if that is due
    the handler raises                       nack, held back for `backoff(deliveries)`; the traceback is logged
    the handler runs                         its lease is extended each third of `lease_ms`
    `stop()`, SIGTERM, SIGINT, cancellation  no more claims; handlers finish, after `grace_s` they are cancelled and
                                             their jobs nacked at once

Delivery is at least once: a worker that loses its lease has its job run by another one, too.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anyio
import anyio.to_thread

from topics_client.connection import Connection, segment
from topics_client.errors import BatchTooLarge, TopicsError
from topics_client.items import Claimed, Job, Leases
from topics_client.options import check
from topics_client.payloads import decoder

log = logging.getLogger("topics_client")

_REASON_BYTES = 512
Handler = Callable[[Job], Awaitable[Any]] | Callable[[Job], Any]
"""A coroutine function, or a plain one, which runs in a thread."""


def told(error: Exception) -> str:
    """An error as the reason of a nack: its type, and its text if it has one."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def doubling(deliveries: int) -> float:
    """Seconds to hold a failed job back: 1 s after the first delivery, twice that after the next, at most 5 min."""
    return float(min(300.0, 2.0 ** min(deliveries - 1, 16)) * random.uniform(0.8, 1))


@dataclass(frozen=True)
class Work:
    """The definition of a worker: its queue, its handler, its options. It is called as its handler is."""

    queue: str
    handler: Handler
    concurrency: int = 1
    lease_ms: int = 30_000
    wait_ms: int = 20_000
    grace_s: float = 30.0
    node: str | None = None
    backoff: Callable[[int], float] = doubling
    on_failure: Callable[[Job, Exception], Any] | None = None
    """Called with each failed job and its error, besides the log."""
    type: Any = None
    """That of the jobs' data. A job whose data is not of it fails, with its data as it came."""
    reason: Callable[[Exception], str | None] = told
    """The reason that the service keeps with the job and its dead letter; None for none."""
    max_deliveries: int = 0
    """That of the queue, if the log is to say which attempt was the last one."""

    def __call__(self, job: Job) -> Any:
        return self.handler(job)


def shortened(reason: str) -> str:
    """A reason as the service takes it: at most 512 bytes of UTF-8, its end cut."""
    return reason.encode(errors="replace")[:_REASON_BYTES].decode(errors="ignore")


def worker(queue: str, **options: Any) -> Callable[[Handler], Work]:
    """A decorator that makes a handler the `Work` of a queue; `options` are the fields of `Work`."""
    check("worker", options, Work)
    return lambda handler: Work(queue, handler, **options)


class Leasing:
    """The operations on leases of jobs, which a client inherits."""

    connection: Connection

    async def claim(
        self,
        queue: str,
        node: str,
        *,
        max: int = 1,
        lease_ms: int | None = None,
        wait_ms: int = 0,
        ack: Sequence[Job] = (),
        nack: Sequence[Job] = (),
        delay_ms: int = 0,
        reason: str | None = None,
    ) -> Claimed:
        """Lease up to `max` jobs to `node`; with `wait_ms`, wait for some if there are none.

        The same request first completes the jobs `ack` and gives back the jobs `nack`, with `delay_ms` and `reason`. If
        the claim is refused, it has finished none of them, unless the error's `outcome` is `unknown`."""
        body: dict[str, Any] = {"node": node, "max": max, "lease_ms": lease_ms, "wait_ms": wait_ms}
        if ack:
            body["ack"] = named(ack)
        if nack:
            body["nack"] = {**named(nack), **given_back(delay_ms, reason)}
        told = await self.connection.call("POST", f"/v0/topics/{segment(queue)}/claim", body)
        claimed = Claimed(Job.of(queue, each) for each in told["claimed"])
        claimed.ack, claimed.nack = told.get("ack"), told.get("nack")
        if ack and claimed.ack is None:  # a service of an earlier release passes over it
            claimed.ack = await self.ack(queue, node, ack)
        if nack and claimed.nack is None:
            claimed.nack = await self.nack(queue, node, nack, delay_ms=delay_ms, reason=reason)
        return claimed

    async def ack(self, queue: str, node: str, jobs: Sequence[Job]) -> Leases:
        """Complete jobs. `skipped` has those whose lease had ended, or that were acked before."""
        return await self._leases("ack", queue, node, jobs, {})

    async def nack(
        self, queue: str, node: str, jobs: Sequence[Job], *, delay_ms: int = 0, reason: str | None = None
    ) -> Leases:
        """Give jobs back, to be claimed again after `delay_ms`. The service keeps the `reason`, cut to 512 bytes."""
        return await self._leases("nack", queue, node, jobs, given_back(delay_ms, reason))

    async def extend(self, queue: str, node: str, jobs: Sequence[Job], *, lease_ms: int) -> Leases:
        """Hold jobs for `lease_ms` from now on."""
        return await self._leases("extend", queue, node, jobs, {"lease_ms": lease_ms})

    async def _leases(self, name: str, queue: str, node: str, jobs: Sequence[Job], more: Mapping[str, Any]) -> Leases:
        body = {"node": node, **named(jobs), **more}
        return cast(Leases, await self.connection.call("POST", f"/v0/topics/{segment(queue)}/{name}", body))


def named(jobs: Sequence[Job]) -> dict[str, Any]:
    """Jobs as a request names them."""
    return {"seqs": [job.seq for job in jobs], "lease_ids": [job.lease_id for job in jobs]}


def given_back(delay_ms: int, reason: str | None) -> dict[str, Any]:
    """How a nack gives jobs back."""
    return {"delay_ms": delay_ms, "reason": None if reason is None else shortened(reason)}


@dataclass
class _Held:
    job: Job
    scope: anyio.CancelScope


@dataclass
class Worker:
    """One run of a `Work`. `run` ends after `stop`, or by an error that no repetition mends."""

    client: Leasing
    work: Work
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
    done: int = 0
    failed: int = 0
    _held: dict[str, _Held] = field(default_factory=dict)
    """By lease: after a crash of the service, a job may be delivered again while its handler runs."""

    def __post_init__(self) -> None:
        self._decode = decoder(self.client.connection.decode, self.work.type)
        self.node = self.work.node or f"{socket.gethostname()}-{os.getpid()}-{random.randrange(1 << 32):08x}"
        self._claims = anyio.CancelScope()
        self._beats = anyio.CancelScope(shield=True)
        self._slots = anyio.Semaphore(self.work.concurrency)
        self._error: TopicsError | None = None
        self._claim_is_due = False
        """True while the claims wait for a free slot: the next job that ends is the reason for one."""
        self._finished: list[Job] = []
        """Done jobs that the next claim acks, at most as many as a claim ever got: the service takes as many."""
        self._most = 0
        self._part = 1000
        """Jobs of one extension: as many as a service takes by default, or less if it has refused them."""

    def stop(self, grace_s: float | None = None) -> None:
        """Claim no more. Handlers have `grace_s` to finish."""
        self._claims.cancel()
        deadline = anyio.current_time() + (self.work.grace_s if grace_s is None else grace_s)
        for held in self._held.values():
            held.scope.deadline = min(held.scope.deadline, deadline)

    async def run(self) -> None:
        """Work until `stop`. A cancellation is a `stop`, too; it propagates when handlers have finished."""
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._beat)
            if self.signals and threading.current_thread() is threading.main_thread():
                beside.start_soon(self._heed)
            try:
                async with anyio.create_task_group() as handlers:
                    try:
                        with self._claims:
                            await self._claim(handlers)
                    finally:
                        self.stop()
            finally:
                self._beats.cancel()
                beside.cancel_scope.cancel()
        if self._error is not None:
            raise self._error

    async def _claim(self, handlers: anyio.abc.TaskGroup) -> None:
        """Claim as many jobs as there are free slots, again and again."""
        try:
            while self._error is None:
                self._claim_is_due = True
                await self._slots.acquire()
                self._claim_is_due = False
                free = 1
                while self._slots.value:
                    self._slots.acquire_nowait()
                    free += 1
                for job in await self._claimed(free):
                    self._held[job.lease_id] = held = _Held(job, anyio.CancelScope(shield=True))
                    handlers.start_soon(self._handle, held)
        finally:
            self._claim_is_due = False
            with anyio.move_on_after(self.work.grace_s, shield=True):
                await self._ack(self._finished)  # also if a claim that was cancelled has acked them

    async def _claimed(self, free: int) -> Sequence[Job]:
        """Jobs for the free slots. Those that get none are given back. A claim with an ack waits for no jobs, so that
        the ack is answered at once."""
        work, finished, jobs = self.work, self._finished.copy(), Claimed()
        options: dict[str, Any] = {"max": free, "lease_ms": work.lease_ms, "wait_ms": 0 if finished else work.wait_ms}
        try:
            jobs = await self.client.claim(work.queue, self.node, **options, ack=finished)
            del self._finished[: len(finished)]
            self._acked(finished, jobs.ack)
            self._most = max(self._most, len(jobs))
        except TopicsError as error:
            if not error.transient:
                self._error = error
            else:
                log.warning("claims of %s go on after: %s", work.queue, error)
        finally:
            for _ in range(free - len(jobs)):
                self._slots.release()
        return jobs

    async def _handle(self, held: _Held) -> None:
        finished = False
        try:
            with held.scope:
                await self._attempt(held.job, held.scope)
                finished = True
        finally:
            if not finished:
                with anyio.move_on_after(5, shield=True):
                    log.warning("job %s of %s was given back unfinished", held.job.seq, self.work.queue)
                    await self._release(held.job, 0)
            del self._held[held.job.lease_id]
            self._slots.release()

    async def _run_handler(self, job: Job, scope: anyio.CancelScope) -> None:
        """Raises what the handler raises, and `RuntimeError` if a task of asyncio that it awaited was cancelled: that
        looks as if the handler was. When the worker stops, either is a cancellation."""
        try:
            given = job if self._decode is None else replace(job, data=self._decode(job.data))
            if inspect.iscoroutinefunction(self.work.handler):
                await self.work.handler(given)
            else:
                await anyio.to_thread.run_sync(self.work.handler, given, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class() as error:
            if scope.cancel_called or self._claims.cancel_called:
                raise
            raise RuntimeError("cancelled") from error

    async def _attempt(self, job: Job, scope: anyio.CancelScope) -> None:
        try:
            await self._run_handler(job, scope)
        except Exception as error:
            self.failed += 1
            pause_s = self.work.backoff(job.deliveries)
            last = 0 < self.work.max_deliveries <= job.deliveries
            then = "the last: it is a dead letter now" if last else f"the next is in {pause_s:.1f} s or later"
            log.warning(
                "job %s of %s failed at delivery %s, %s: %r",
                *(job.seq, self.work.queue, job.deliveries, then, error),
                exc_info=error,
            )
            if self.work.on_failure is not None:
                self.work.on_failure(job, error)
            await self._release(job, int(pause_s * 1000), self.work.reason(error))
            return
        if self._claim_is_due and len(self._finished) < self._most:
            self._finished.append(job)
        else:
            await self._ack([job])

    async def _ack(self, jobs: Sequence[Job]) -> None:
        try:
            if jobs:
                self._acked(jobs, await self.client.ack(self.work.queue, self.node, jobs))
        except TopicsError as error:
            for job in jobs:
                log.warning("job %s of %s is done, but its ack failed: %s", job.seq, self.work.queue, error)

    def _acked(self, jobs: Sequence[Job], answer: Leases | None) -> None:
        self.done += len(jobs)
        for seq in answer["skipped"] if answer else ():
            log.info("job %s of %s had been acked, or its lease had ended", seq, self.work.queue)

    async def _release(self, job: Job, delay_ms: int, reason: str | None = None) -> None:
        try:
            await self.client.nack(self.work.queue, self.node, [job], delay_ms=delay_ms, reason=reason)
        except TopicsError as error:
            log.warning("job %s of %s comes back when its lease ends: %s", job.seq, self.work.queue, error)

    async def _beat(self) -> None:
        """Extend the leases of the jobs that run. It continues while handlers finish."""
        with self._beats:
            while True:
                await anyio.sleep(self.work.lease_ms / 3000)
                jobs = [held.job for held in self._held.values()]
                while jobs:
                    jobs = jobs[await self._extend(jobs[: self._part]) :]

    async def _extend(self, jobs: Sequence[Job]) -> int:
        """Extend leases. Returns for how many jobs this was tried: none if the service takes fewer in one request."""
        try:
            answer = await self.client.extend(self.work.queue, self.node, jobs, lease_ms=self.work.lease_ms)
        except TopicsError as error:
            if isinstance(error, BatchTooLarge) and len(jobs) > 1:
                self._part = len(jobs) // 2
                return 0
            log.warning("leases of %s are not extended: %s", self.work.queue, error)
        else:
            if lost := set(answer["skipped"]) & {held.job.seq for held in self._held.values()}:
                log.warning("jobs %s of %s are held by this worker no more", sorted(lost), self.work.queue)
        return len(jobs)

    async def _heed(self) -> None:
        """The first signal stops; the next one ends the grace."""
        with anyio.open_signal_receiver(*self.signals) as received:
            async for number in received:
                log.info("%s: worker of %s stops", signal.Signals(number).name, self.work.queue)
                self.stop(0 if self._claims.cancel_called else None)
