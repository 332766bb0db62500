"""Peek: shows the jobs of a queue without leasing any. It changes nothing.

Jobs come in the order of their seqs, in any state, a page at a time. Jobs whose deletion is staged are left out. Lease
ids are never shown: otherwise a key that may only read could ack another client's jobs.
"""

from __future__ import annotations

from proto.api.answers import Peeked, PeekedJob
from proto.api.requests import PeekRequest
from proto.ipc.message import Reply, Request
from proto.ipc.operations import PeekJobs
from proto.model.body import Form
from proto.model.limits import DEFAULT_JOBS, MAX_BATCH_BYTES, clamped
from shardd.changes.transactions import Respond, to_json
from shardd.queues.job_requests import Found, bound, fresh
from shardd.queues.leases import Leases
from shardd.topic.job_states import DELAYS, GOING, JobState
from shardd.topic.job_table import Queue
from shardd.topic.outbox import Outbox

_FORM = Form(PeekRequest)


def peek(leases: Leases, request: Request[PeekJobs], respond: Respond) -> None:
    """Answers a page of jobs. Body: `first_seq`, `max`. The next page starts at `next_seq`, if `more`.

    Raises `400`, `404`, `409` as claim does."""
    asked, request.ignored = _FORM.read(request.body)
    start = bound(asked, "first_seq", "from_seq") or 0
    most = clamped(DEFAULT_JOBS if asked.max is None else asked.max, 1, leases.staging.limits.max_claim)
    topic, queue = leases.look(request)

    def leaving(seq: int) -> bool:
        job = queue.jobs.get(seq)
        return job is not None and job.state in GOING

    found, after = fresh(topic, max(start, topic.records.floor), leaving, most, MAX_BATCH_BYTES)
    body = Peeked(
        topic.name,
        [_peeked(each, queue, topic.outbox) for each in found],
        len(found),
        after,
        after <= topic.records.head_seq,
        queue.ready(topic.records.count),
        queue.in_flight,
        queue.delayed,
        queue.dead_lettering,
    )
    respond(Reply(request.id, to_json(body)))


def _peeked(found: Found, queue: Queue, outbox: Outbox) -> PeekedJob:
    seq, ts, _, tag, data, meta = found
    job = queue.jobs.get(seq)
    shown = PeekedJob(seq, ts, tag, "ready", 0 if job is None else job.deliveries, data, meta)
    if (reason := queue.reasons.get(seq)) is not None:
        shown.reason = reason
    if job is not None and job.state is JobState.LEASED:
        shown.state, shown.node, shown.deadline = "in_flight", job.node, job.until
    elif job is not None and job.state in DELAYS:
        shown.state, shown.due = "delayed", job.until
    elif job is not None and job.state is JobState.TRANSFERRING:
        shown.state = "dead_lettering"
        if seq in outbox.transfers:
            shown.dead_letter = outbox.transfers[seq].target
            if (reason := outbox.waits_for(seq)) is not None:
                shown.waits_for = reason
    return shown
