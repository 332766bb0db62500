"""Peek: shows the jobs of a queue without leasing any. It changes nothing.

Jobs come in the order of their seqs, in any state, a page at a time. Jobs that an ack is deleting are left out. Lease
ids are never shown: otherwise a key that may only read could ack another client's jobs.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from proto.ipc.message import Reply, Request
from proto.ipc.operations import PeekJobs
from proto.model.body import Form
from proto.model.limits import MAX_BATCH_BYTES
from shardd.changes.transactions import Respond, Staging, to_json
from shardd.queues.job_requests import Found, bound, clamped, fresh
from shardd.queues.leases import Leases
from shardd.topic.job_table import Queue, State
from shardd.topic.outbox import Outbox

DEFAULT_MAX = 100


class PeekRequest(Struct):
    """`first_seq` is inclusive; `from_seq` is its old name."""

    first_seq: int | None = None
    from_seq: int | None = None
    max: int | None = None


class Peeked(Struct, gc=False):
    """A job in a peek's answer. `state` is ready, in_flight (with `node` and `deadline`, ms), delayed (with `due`, ms:
    claimable from then on) or dead_lettering (with `dead_letter`, its target: for a redrive, the queue of origin)."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    tag: str | UnsetType = msgspec.field(name="$tag")
    state: str
    deliveries: int
    data: Raw
    meta: Raw | UnsetType
    node: str | UnsetType = UNSET
    deadline: int | UnsetType = UNSET
    due: int | UnsetType = UNSET
    dead_letter: str | UnsetType = UNSET


_FORM = Form(PeekRequest)


class Peeking:
    def __init__(self, staging: Staging, leases: Leases) -> None:
        self._limits = staging.limits
        self._leases = leases

    def peek(self, request: Request[PeekJobs], respond: Respond) -> None:
        """Answers a page of jobs. Body: `first_seq`, `max`. The next page starts at `next_seq`, if `more`.

        Raises `400`, `404`, `409` as claim does."""
        asked, request.ignored = _FORM.read(request.body)
        start = bound(asked, "first_seq", "from_seq") or 0
        most = clamped(asked.max or DEFAULT_MAX, 1, self._limits.max_claim)
        topic, queue = self._leases.look(request)

        def leaving(seq: int) -> bool:
            job = queue.jobs.get(seq)
            return job is not None and job.state is State.DELETING

        found, after = fresh(topic, max(start, topic.earliest_seq), leaving, most, MAX_BATCH_BYTES)
        body = {
            "topic": topic.name,
            "jobs": [_peeked(each, queue, topic.outbox) for each in found],
            "count": len(found),
            "next_seq": after,
            "more": after <= topic.head_seq,
            "ready": queue.ready(topic.records),
            "in_flight": queue.in_flight,
            "delayed": queue.delayed,
        }
        respond(Reply(request.id, to_json(body)))


def _peeked(found: Found, queue: Queue, outbox: Outbox) -> Peeked:
    seq, ts, _, tag, data, meta = found
    job = queue.jobs.get(seq)
    shown = Peeked(seq, ts, tag, "ready", 0 if job is None else job.deliveries, data, meta)
    if job is not None and job.state is State.LEASED:
        shown.state, shown.node, shown.deadline = "in_flight", job.node, job.until
    elif job is not None and job.state in (State.DELAYED, State.SCHEDULED):
        shown.state, shown.due = "delayed", job.until
    elif job is not None and job.state is State.DOOMED:
        shown.state = "dead_lettering"
        if seq in outbox.transfers:
            shown.dead_letter = outbox.transfers[seq].target
    return shown
