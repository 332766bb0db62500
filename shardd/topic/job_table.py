"""What a queue knows of its jobs besides their records: who holds which, until when, and how often it was delivered.

A job is a record of the queue's topic. One that was never handed out is *fresh* and has no entry here, unless it was
published with a delay. The others:

    state      event → next state
    SCHEDULED  its time has come → READY
    READY      claim → LEASED · too many deliveries → DOOMED · ack of its last holder → DELETING
    LEASED     deadline passed, nack → READY · nack with a delay → DELAYED · extend → LEASED · ack → DELETING
    DELAYED    its time has come → READY
    DOOMED     its copy is in another topic → DELETING · it is called back → READY
    DELETING   its deletion committed → no entry · its deletion failed → as before

There is no timer per job: what is over is collected when somebody looks (`expire`). Heaps are cleaned lazily: an entry
counts only if its job still has the token it was pushed with, and its time has come. `ready` is arithmetic: live
records less the entries that are not READY. So a claim costs the jobs it takes, however many wait or are held.

A token stands for one *delivery*. Each delivery has a new one, and `extend` keeps it: a worker holds the one of its
claim, however often it asks for more time.

As rows, `[seq, state, deliveries, node, token, until]`, entries are in LEASE frames and in the catalog. A row replaces
what an earlier one of its seq said, so reading a log twice changes nothing. Fresh jobs need no position on disk: after
a restart the search for them begins at the topic's floor and passes over what has an entry. So a row that is missing
can never lose a job; it only makes it claimable.

With `leases_durable` every change is a row in the log before it is answered. Otherwise rows are written at a graceful
stop only, and the first change after a start writes `forget`: a crash from then on takes them all, but for SCHEDULED
jobs, whose times are logged with their records and go into every catalog, and DOOMED ones (see `shardd.topic.outbox`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any

Row = list[Any]
SLACK = 1000
"""Dead entries that a heap may have before it is made anew, besides as many as live ones."""


class State(IntEnum):
    READY = 1
    LEASED = 2
    DELAYED = 3
    DOOMED = 4
    DELETING = 5
    SCHEDULED = 6


_DELAYED = (State.DELAYED, State.SCHEDULED)
_TIMED = (State.LEASED, *_DELAYED)
"""What ends by itself."""
_KEPT = (State.DOOMED, State.SCHEDULED)
"""What does not depend on leases: a crash never takes it."""


class Job:
    """`until` is the deadline of a lease, or when a delay ends, ms. `stream` is the stream it was pushed to, or ""."""

    __slots__ = ("deliveries", "node", "state", "stream", "token", "until")

    def __init__(self) -> None:
        self.state = State.READY
        self.deliveries = 0
        self.node = ""
        self.token = 0
        self.until = 0
        self.stream = ""

    @property
    def wakes_at(self) -> int:
        """The first ms at which it is claimable."""
        return self.until + 1 if self.state is State.LEASED else self.until

    def saved(self) -> tuple[Any, ...]:
        return (self.state, self.deliveries, self.node, self.token, self.until, self.stream)


class Queue:
    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.cursor = 1
        """No fresh job has a seq below this one."""
        self.dead_lettered = 0
        self.unlogged = False
        """Has this process changed anything that the log does not have?"""
        self.streams: dict[str, int] = {}
        """Leases held by each stream that is open."""
        self.rows_at = 0
        """Time of the newest row that was read back."""
        self.holes = 0
        """`Topic.holes` when the entries were last compared with the records."""
        self._counts = dict.fromkeys(State, 0)
        self._timers: list[tuple[int, int, int]] = []
        self._reclaim: list[int] = []
        self._tracked: list[int] = []

    @property
    def in_flight(self) -> int:
        return self._counts[State.LEASED]

    @property
    def delayed(self) -> int:
        return sum(self._counts[state] for state in _DELAYED)

    def ready(self, records: int) -> int:
        """Claimable jobs, of `records` live ones. Call `expire` before."""
        return records - len(self.jobs) + self._counts[State.READY]

    # Time and removals

    def expire(self, now_ms: int) -> None:
        """Leases and delays that are over by now."""
        while self._timers and self._timers[0][0] <= now_ms:
            _, seq, token = heappop(self._timers)
            job = self.jobs.get(seq)
            waits = job is not None and job.token == token and job.state in _TIMED
            if job is not None and waits and job.wakes_at <= now_ms:
                self._move(seq, job, State.READY)

    @property
    def next_wake(self) -> int | None:
        """When something may become claimable by itself, ms; None if nothing will."""
        return self._timers[0][0] if self._timers else None

    def settle(self, floor: int, holes: int, alive: Callable[[int], bool]) -> None:
        """Forget jobs whose records are gone: those below `floor`, and any other if `holes` changed."""
        while self._tracked and self._tracked[0] < floor:
            self.drop(heappop(self._tracked))
        self.cursor = max(self.cursor, floor)
        if holes != self.holes:
            self.holes = holes
            for seq in [seq for seq in self.jobs if not alive(seq)]:
                self.drop(seq)

    def drop(self, seq: int) -> None:
        """The record is gone."""
        job = self.jobs.pop(seq, None)
        if job is not None:
            self._counts[job.state] -= 1
            self._left(job)

    def offer_again(self) -> None:
        """What was taken out by `pop_ready`, and could not be handed out because its record was not to be read."""
        for seq in [seq for seq, job in self.jobs.items() if job.state is State.READY]:
            heappush(self._reclaim, seq)

    # Changes

    def pop_ready(self) -> int | None:
        """Take out the lowest READY seq; None if there is none. Whoever takes it changes its state, or it is lost to
        claims until its next change. May name a seq twice before its state changes."""
        while self._reclaim:
            seq = heappop(self._reclaim)
            job = self.jobs.get(seq)
            if job is not None and job.state is State.READY:
                return seq
        return None

    def first_ready(self) -> int | None:
        """What `pop_ready` would take out."""
        while self._reclaim:
            job = self.jobs.get(self._reclaim[0])
            if job is not None and job.state is State.READY:
                return self._reclaim[0]
            heappop(self._reclaim)
        return None

    def lease(self, seq: int, node: str, token: int, deadline: int, stream: str) -> Job:
        """Hand a job out, once more."""
        job = self._entry(seq)
        job.deliveries += 1
        job.node, job.token, job.until = node, token, deadline
        self._move(seq, job, State.LEASED)
        if stream in self.streams:
            job.stream = stream
            self.streams[stream] += 1
        self._trim()
        return job

    def schedule(self, first_seq: int, due: Sequence[int], now_ms: int) -> None:
        """Jobs that have just come, and from when on each may be handed out, ms; 0 for at once."""
        for seq, until in enumerate(due, first_seq):
            if until > now_ms:
                job = self._entry(seq)
                job.until = until
                self._move(seq, job, State.SCHEDULED)

    def holder(self, seq: int, node: str, token: int | None) -> Job | None:
        """The job, if this node holds its live lease; `token` None: whichever."""
        job = self.jobs.get(seq)
        if job is None or job.state is not State.LEASED or job.node != node or token not in (None, job.token):
            return None
        return job

    def ackable(self, seq: int, node: str, token: int | None) -> Job | None:
        """The job, if this node was the last to get it, also after its lease ended while nobody else got it."""
        job = self.jobs.get(seq)
        if job is None or job.state not in (State.LEASED, State.READY) or not job.node or job.node != node:
            return None
        return job if token in (None, job.token) else None

    def extend(self, seq: int, job: Job, deadline: int) -> None:
        """Held until another time by the same holder, with the token of its delivery: a worker knows no other."""
        job.until = deadline
        heappush(self._timers, (job.wakes_at, seq, job.token))
        self._trim()

    def release(self, seq: int, job: Job, due_ms: int, now_ms: int) -> None:
        """Back to the queue, claimable from `due_ms` on. Its holder holds it no more."""
        job.node, job.until = "", due_ms
        self._move(seq, job, State.DELAYED if due_ms > now_ms else State.READY)

    def doom(self, seq: int) -> None:
        """On its way to another topic, and nobody's."""
        job = self._entry(seq)
        job.node = ""
        self._move(seq, job, State.DOOMED)

    def cancel_transfer(self, seq: int) -> None:
        """It goes nowhere after all."""
        job = self.jobs.get(seq)
        if job is not None and job.state is State.DOOMED:
            self._move(seq, job, State.READY)

    def begin_deletion(self, seq: int, job: Job) -> None:
        self._move(seq, job, State.DELETING)

    def undo(self, seq: int, before: tuple[Any, ...] | None) -> None:
        """As `Job.saved` told it was; None for a job that was fresh."""
        job = self.jobs.get(seq)
        if job is None:
            return
        if before is None:
            self.drop(seq)
            self.cursor = min(self.cursor, seq)
            return
        state, job.deliveries, job.node, job.token, job.until, stream = before
        self._move(seq, job, state)
        if state is State.LEASED and stream in self.streams:
            job.stream = stream
            self.streams[stream] += 1

    def close_stream(self, stream: str) -> list[int]:
        """Seqs it holds leases of."""
        held = self.streams.pop(stream, 0)
        return [seq for seq, job in self.jobs.items() if job.stream == stream] if held else []

    def shift(self, ms: int) -> None:
        """The clock was set, or is not what it was when the rows were written: leases and delays end later by `ms`."""
        if not ms:
            return
        for job in self.jobs.values():
            if job.state in _TIMED:
                job.until += ms
        self._timers = [(j.wakes_at, s, j.token) for s, j in self.jobs.items() if j.state in _TIMED]
        heapify(self._timers)

    # Rows

    def row(self, seq: int) -> Row:
        job = self.jobs[seq]
        return [seq, int(job.state), job.deliveries, job.node, job.token, job.until]

    def apply(self, fields: dict[str, Any]) -> None:
        """What a LEASE frame says."""
        if fields.get("forget"):
            for seq in [seq for seq, job in self.jobs.items() if job.state not in _KEPT]:
                self.drop(seq)
            self.cursor = 1
        for seq, state, deliveries, node, token, until in fields.get("rows", ()):
            job = self._entry(seq)
            job.deliveries, job.node, job.token, job.until = deliveries, node, token, until
            self._move(seq, job, State(state))
        self.dead_lettered = max(self.dead_lettered, fields.get("dead_lettered", 0))
        self.rows_at = max(self.rows_at, fields.get("at", 0))

    def dump(self, everything: bool) -> dict[str, Any]:
        """For a catalog. `everything` False: only what survives a crash although leases do not."""
        rows = []
        for seq, job in self.jobs.items():
            if everything or job.state in _KEPT:
                row = self.row(seq)
                if job.state is State.DELETING:  # not gone yet, and if its frame is lost it has to come back
                    row[1] = int(State.READY)
                rows.append(row)
        return {"rows": rows, "dead_lettered": self.dead_lettered}

    def _entry(self, seq: int) -> Job:
        job = self.jobs.get(seq)
        if job is None:
            job = self.jobs[seq] = Job()
            self._counts[State.READY] += 1
            heappush(self._tracked, seq)
        return job

    def _move(self, seq: int, job: Job, state: State) -> None:
        self._left(job)
        self._counts[job.state] -= 1
        job.state = state
        self._counts[state] += 1
        if state is State.READY:
            heappush(self._reclaim, seq)
        elif state in _TIMED:
            heappush(self._timers, (job.wakes_at, seq, job.token))

    def _left(self, job: Job) -> None:
        if job.stream:
            if job.stream in self.streams:
                self.streams[job.stream] -= 1
            job.stream = ""

    def _trim(self) -> None:
        if len(self._timers) > 2 * (self.in_flight + self.delayed) + SLACK:
            self._timers = [(j.wakes_at, s, j.token) for s, j in self.jobs.items() if j.state in _TIMED]
            heapify(self._timers)
        if len(self._tracked) > 2 * len(self.jobs) + SLACK:
            self._tracked = list(self.jobs)
            heapify(self._tracked)
