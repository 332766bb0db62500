"""The job table of one queue: the lease holder, deadline and number of deliveries of each job.

A job is a record of the queue's topic. A job that was never delivered is *fresh*. It has no entry in the table, unless
it was published with a delay. `shardd.topic.job_states` has the states of the others, and what changes them.

No job has a timer: `expire` collects the leases and delays that are over. Heaps are cleaned lazily: a heap entry counts
only if its job still has the token it was pushed with, and its time has come. `ready` is computed: live records minus
the entries that are not READY. So the cost of a claim depends on the jobs it takes, not on those that wait or are held.

A token identifies one *delivery*. Each delivery has a new token, and `extend` keeps it, so a worker needs only the
token of its claim.

A reason that a nack tells is kept beside the entry, until the job is gone, and in memory for few jobs only.

LEASE frames and the catalog have entries as rows, `[seq, state, deliveries, node, token, until]`. A row replaces the
earlier rows of its seq, so replaying a log twice changes nothing. Fresh jobs need no position on disk: after a restart
the search for them begins at the topic's floor and skips jobs with an entry. So a missing row never loses a job; the
job is then claimable.

With `leases_durable`, every change is a row in the log before it is answered. Without it, rows are written only at a
graceful stop, and the first change after a start writes `forget`. A crash after that loses all rows except two kinds.
SCHEDULED jobs stay: their times are logged with their records and are in every catalog. TRANSFERRING jobs stay, too
(see `shardd.topic.outbox`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from proto.model.limits import MAX_REASONS
from shardd.storage.indivisible import indivisible
from shardd.topic.job_states import DELAYS, FOLLOWING, GOING, LASTING, TIMED, JobEvent, JobState

Row = list[Any]
SLACK = 1000
"""A heap is rebuilt when it has more dead entries than live ones plus this many."""


_FRESH, _READY, _LEASED = JobState.FRESH, JobState.READY, JobState.LEASED
_CLAIM, _END = FOLLOWING[JobEvent.CLAIM], FOLLOWING[JobEvent.END]
_RELEASE, _POSTPONE, _ACK = FOLLOWING[JobEvent.RELEASE], FOLLOWING[JobEvent.POSTPONE], FOLLOWING[JobEvent.ACK]
_ORDER, _CALL_BACK, _ARRIVE = FOLLOWING[JobEvent.ORDER], FOLLOWING[JobEvent.CALL_BACK], FOLLOWING[JobEvent.ARRIVE]


@dataclass(slots=True, eq=False)
class Job:
    """An entry of the table. `until` is the deadline of the lease or the end of the delay, in ms since 1970. `stream`
    is the stream that the job was pushed to, or ""."""

    state: JobState = _FRESH
    deliveries: int = 0
    node: str = ""
    token: int = 0
    until: int = 0
    stream: str = ""

    @property
    def wakes_at(self) -> int:
        """The first ms at which the job is claimable."""
        return self.until + 1 if self.state is _LEASED else self.until

    def saved(self) -> tuple[Any, ...]:
        return (self.state, self.deliveries, self.node, self.token, self.until, self.stream)


class Queue:
    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.cursor = 1
        """No fresh job has a seq below this one."""
        self.dead_lettered = 0
        self.dead_lettered_soon = 0
        """Dead letters that have arrived and whose deletion here is staged."""
        self.unlogged = False
        """True if this process has made changes that are not in the log."""
        self.streams: dict[str, int] = {}
        """Number of leases that each open stream holds."""
        self.rows_at = 0
        """Time of the newest row that was read back, in ms."""
        self.ahead: tuple[int, int] | None = None
        """`rows_at` and by how many ms it was ahead of the clock, until a frame says that leases and delays were moved
        by that."""
        self.holes = 0
        """`Records.holes` when the entries were last compared with the records."""
        self.reasons: OrderedDict[int, str] = OrderedDict()
        """Why attempts failed, by seq: what the last nack told that gave a reason."""
        self._counts = [0] * len(JobState)
        self._timers: list[tuple[int, int, int]] = []
        self._reclaim: list[int] = []
        self._tracked: list[int] = []

    @property
    def in_flight(self) -> int:
        """Number of jobs that workers hold. A job that is acked counts until its record is gone."""
        return self._counts[_LEASED] + self._counts[JobState.DELETING]

    @property
    def delayed(self) -> int:
        return sum(self._counts[state] for state in DELAYS)

    @property
    def dead_lettering(self) -> int:
        """Number of jobs in the outbox, and of those that have arrived and whose records are still here."""
        return self._counts[JobState.TRANSFERRING] + self._counts[JobState.ARRIVED]

    def ready(self, records: int) -> int:
        """Number of claimable jobs, if the topic has `records` live records. Call `expire` before."""
        return records - len(self.jobs) + self._counts[_READY]

    # Expiry and removal

    def expire(self, now_ms: int) -> bool:
        """Make jobs READY whose lease or delay is over at `now_ms`. Returns whether there are any: claims may wait for
        them, and `next_wake` is later now."""
        if not self._timers or self._timers[0][0] > now_ms:
            return False
        ended = False
        with indivisible:
            while self._timers and self._timers[0][0] <= now_ms:
                _, seq, token = heappop(self._timers)
                job = self.jobs.get(seq)
                waits = job is not None and job.token == token and job.state in TIMED
                if job is not None and waits and job.wakes_at <= now_ms:
                    self._set(seq, job, _END[job.state])
                    ended = True
        return ended

    @property
    def next_wake(self) -> int | None:
        """The earliest ms at which a lease or delay may end; None if there is none."""
        return self._timers[0][0] if self._timers else None

    def settle(self, floor: int, holes: int, alive: Callable[[int], bool]) -> bool:
        """Remove entries of jobs whose records are gone: those below `floor`, and all others if `holes` has changed.
        Returns whether a stream held one of them, and so has room now."""
        room = False
        with indivisible:
            while self._tracked and self._tracked[0] < floor:
                room |= self.drop(heappop(self._tracked))
            self.cursor = max(self.cursor, floor)
            if holes != self.holes:
                self.holes = holes
                for seq in [seq for seq in self.jobs if not alive(seq)]:
                    room |= self.drop(seq)
        return room

    def drop(self, seq: int) -> bool:
        """Remove the entry of a job whose record is gone, if it has one. Returns whether a stream held it."""
        job = self.jobs.pop(seq, None)
        if self.reasons:
            self.reasons.pop(seq, None)
        if job is None:
            return False
        self._counts[job.state] -= 1
        if not job.stream:
            return False
        self._left(job)
        return True

    def offer_again(self) -> None:
        """Offer the READY jobs again that `pop_ready` has taken out. Called when their records could not be read."""
        self.offer([seq for seq, job in self.jobs.items() if job.state is _READY])

    # Changes

    def pop_ready(self, most: int) -> list[int]:
        """Take out and return the lowest READY seqs, at most so many. The caller must change their states or `offer`
        them again, else no claim finds a job until its next change. A further call may return the last one again."""
        found: list[int] = []
        while self._reclaim and len(found) < most:
            seq = heappop(self._reclaim)
            job = self.jobs.get(seq)
            if job is not None and job.state is _READY and seq not in found[-1:]:
                found.append(seq)
        return found

    def offer(self, seqs: Iterable[int]) -> None:
        """Offer READY jobs that `pop_ready` has taken out again."""
        for seq in seqs:
            heappush(self._reclaim, seq)

    def first_ready(self) -> int | None:
        """The seq that `pop_ready` would return, left in."""
        while self._reclaim:
            job = self.jobs.get(self._reclaim[0])
            if job is not None and job.state is _READY:
                return self._reclaim[0]
            heappop(self._reclaim)
        return None

    def lease(self, seqs: Sequence[int], node: str, tokens: Sequence[int], deadline: int, stream: str) -> list[int]:
        """Lease jobs to `node` until `deadline` (ms), each with its token. Returns how often each was delivered, this
        time included. Call `trim` behind the last ones of a pass."""
        jobs, tracked, timers, counts = self.jobs, self._tracked, self._timers, self._counts
        held = stream if stream in self.streams else ""
        wakes_at, delivered = deadline + 1, []
        for seq, token in zip(seqs, tokens, strict=True):
            job = jobs.get(seq)
            if job is None:
                job = jobs[seq] = Job()
                heappush(tracked, seq)
            else:
                counts[job.state] -= 1
            job.state = _CLAIM[job.state]
            job.deliveries += 1
            job.node, job.token, job.until, job.stream = node, token, deadline, held
            heappush(timers, (wakes_at, seq, token))
            delivered.append(job.deliveries)
        counts[_LEASED] += len(delivered)
        if held:
            self.streams[held] += len(delivered)
        return delivered

    def schedule(self, first_seq: int, due: Sequence[int], now_ms: int) -> None:
        """Add the delays of new jobs. `due` has for each seq the ms from which on it is claimable, 0 for at once."""
        for seq, until in enumerate(due, first_seq):
            if until > now_ms:
                job = self._entry(seq)
                job.until = until
                self._set(seq, job, JobState.SCHEDULED)

    def holder(self, seq: int, node: str, token: int | None) -> Job | None:
        """The job if `node` holds its live lease with `token`, else None. A `token` of None matches any."""
        job = self.jobs.get(seq)
        if job is None or job.state is not _LEASED or job.node != node or token not in (None, job.token):
            return None
        return job

    def ackable(self, seq: int, node: str, token: int | None) -> Job | None:
        """The job if `node` was the last to get it with `token`, else None. The lease may have ended, as long as no
        other node got the job. A `token` of None matches any."""
        job = self.jobs.get(seq)
        if job is None or job.state not in _ACK or not job.node or job.node != node:
            return None
        return job if token in (None, job.token) else None

    def extend(self, seq: int, job: Job, deadline: int) -> None:
        """Move the deadline of a lease. The token stays: it is the only one that the worker knows."""
        job.until = deadline
        heappush(self._timers, (job.wakes_at, seq, job.token))
        self.trim()

    def release(self, seq: int, job: Job, due_ms: int, now_ms: int) -> None:
        """End a lease. The job is claimable from `due_ms` on."""
        job.node, job.until = "", due_ms
        self._set(seq, job, (_POSTPONE if due_ms > now_ms else _RELEASE)[job.state])

    def explain(self, seq: int, reason: str | None) -> None:
        """Keep why an attempt of a job failed; None forgets it. The oldest goes if there are too many."""
        self.reasons.pop(seq, None)
        if reason is not None:
            self.reasons[seq] = reason
            if len(self.reasons) > MAX_REASONS:
                self.reasons.popitem(last=False)

    def told(self, seqs: Iterable[int]) -> list[list[Any]]:
        """`[seq, reason]` of those of these jobs that have one."""
        return [[seq, self.reasons[seq]] for seq in seqs if seq in self.reasons] if self.reasons else []

    def order(self, seq: int) -> tuple[Any, ...] | None:
        """Reserve a job for its transfer to another topic. It has no holder. Returns what `undo` needs."""
        before = self.jobs[seq].saved() if seq in self.jobs else None
        job = self._entry(seq)
        job.node = ""
        self._set(seq, job, _ORDER[job.state])
        return before

    def cancel_transfer(self, seq: int) -> None:
        """Make a job READY again whose transfer was called back. Does nothing if it is not TRANSFERRING."""
        job = self.jobs.get(seq)
        if job is not None and job.state in _CALL_BACK:
            self._set(seq, job, _CALL_BACK[job.state])

    def ack(self, seq: int, job: Job) -> None:
        """Begin the deletion of a job that `ackable` returned."""
        self._set(seq, job, _ACK[job.state])

    def arrived(self, seq: int, job: Job) -> None:
        """Begin the deletion of a job that is in another topic now."""
        self._set(seq, job, _ARRIVE[job.state])

    def undo(self, seq: int, before: tuple[Any, ...] | None) -> None:
        """Restore a job from the value of `Job.saved`; None makes it fresh again."""
        job = self.jobs.get(seq)
        if job is None:
            return
        if before is None:
            self.drop(seq)
            self.cursor = min(self.cursor, seq)
            return
        state, job.deliveries, job.node, job.token, job.until, stream = before
        self._set(seq, job, state)
        if state is _LEASED and stream in self.streams:
            job.stream = stream
            self.streams[stream] += 1

    def close_stream(self, stream: str) -> list[int]:
        """Forget a stream. Returns the seqs of the jobs that it holds leases of."""
        held = self.streams.pop(stream, 0)
        return [seq for seq, job in self.jobs.items() if job.stream == stream] if held else []

    def shift(self, ms: int) -> None:
        """End leases and delays `ms` later. Called when the clock was set, or when it differs from the clock that the
        rows were written by."""
        if not ms:
            return
        for job in self.jobs.values():
            if job.state in TIMED:
                job.until += ms
        self._timers = [(j.wakes_at, s, j.token) for s, j in self.jobs.items() if j.state in TIMED]
        heapify(self._timers)

    def set_back(self, rows_at: int, ms: int, now_ms: int) -> None:
        """Move leases and delays from the clock of the row at `rows_at` to one that is `ms` behind it, at `now_ms`.
        Does nothing if a catalog has moved them."""
        if self.rows_at == rows_at:
            self.shift(-ms)
            self.rows_at = now_ms

    # Rows

    def restore_order(self, seq: int) -> None:
        """Make a job TRANSFERRING that the log or a catalog orders to another topic, whatever its state was."""
        job = self._entry(seq)
        job.node = ""
        self._set(seq, job, JobState.TRANSFERRING)

    def row(self, seq: int) -> Row:
        job = self.jobs[seq]
        return [seq, int(job.state), job.deliveries, job.node, job.token, job.until]

    def apply(self, fields: dict[str, Any]) -> None:
        """Apply the fields of a LEASE frame or of a catalog."""
        if fields.get("forget"):
            for seq in [seq for seq, job in self.jobs.items() if job.state not in LASTING]:
                self.drop(seq)
            self.cursor = 1
        for seq, state, deliveries, node, token, until in fields.get("rows", ()):
            job = self._entry(seq)
            job.deliveries, job.node, job.token, job.until = deliveries, node, token, until
            self._set(seq, job, JobState(state))
        for seq, reason in fields.get("reasons", ()):
            self.explain(seq, reason)
        self.dead_lettered = max(self.dead_lettered, fields.get("dead_lettered", 0))
        self.rows_at = max(self.rows_at, fields.get("at", 0))

    def dump(self, everything: bool) -> dict[str, Any]:
        """Rows for a catalog. With `everything` False, only jobs in states that do not depend on leases."""
        rows = []
        for seq, job in self.jobs.items():
            if everything or job.state in LASTING:
                row = self.row(seq)
                if job.state in GOING:  # if the frame of its deletion is lost, it must come back
                    row[1] = int(JobState.READY)
                rows.append(row)
        found = {"rows": rows, "dead_lettered": self.dead_lettered}
        reasons = self.told(row[0] for row in rows)
        return found | {"reasons": reasons} if reasons else found

    def _entry(self, seq: int) -> Job:
        job = self.jobs.get(seq)
        if job is None:
            job = self.jobs[seq] = Job()
            self._counts[_FRESH] += 1
            heappush(self._tracked, seq)
        return job

    def _set(self, seq: int, job: Job, state: JobState) -> None:
        if job.stream:
            self._left(job)
        self._counts[job.state] -= 1
        job.state = state
        self._counts[state] += 1
        if state is _READY:
            heappush(self._reclaim, seq)
        elif state in TIMED:
            heappush(self._timers, (job.wakes_at, seq, job.token))

    def _left(self, job: Job) -> None:
        if job.stream in self.streams:
            self.streams[job.stream] -= 1
        job.stream = ""

    def trim(self) -> None:
        """Remove the timers and seqs that are out of date, if they are many."""
        if len(self._timers) > 2 * (self.in_flight + self.delayed) + SLACK:
            self._timers = [(j.wakes_at, s, j.token) for s, j in self.jobs.items() if j.state in TIMED]
            heapify(self._timers)
        if len(self._tracked) > 2 * len(self.jobs) + SLACK:
            self._tracked = list(self.jobs)
            heapify(self._tracked)
