"""Redrive: moves dead letters back to the queue they came from, as fresh jobs without dead-letter stamps.

Redriven letters use the outbox like dead letters (see `shardd.topic.outbox`). So each letter survives in one of the two
topics whichever process dies, and a repeated redrive moves none twice. The redrive is answered without error once all
letters have arrived and are deleted here.
"""

from __future__ import annotations

from proto.api.answers import Redriven
from proto.api.requests import RedriveRequest
from proto.ipc import operations
from proto.ipc.message import Reply, Request
from proto.model.body import Form
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.limits import DEFAULT_JOBS, MAX_BATCH_BYTES, MAX_U64, clamped
from proto.model.match import Match, parse_match
from proto.model.names import check_topic
from shardd.changes.admission import check_target
from shardd.changes.transactions import Respond, refuse, to_json
from shardd.queues.dead_letter_meta import origin
from shardd.queues.job_requests import Found, bound, fresh, size_of
from shardd.queues.leases import settle
from shardd.queues.transfers import Mover, TransferWaiter
from shardd.topic.job_states import JobState
from shardd.topic.outbox import Transfer
from shardd.topic.topic import Topic

LOOKED_AT = 1000
"""The most records scanned at a time."""
_FREE = (JobState.READY, JobState.DELAYED, JobState.SCHEDULED)
_FORM = Form(RedriveRequest)


def redrive(mover: Mover, request: Request[operations.Redrive], respond: Respond) -> None:
    """Orders the letters to the queue and answers when they have arrived. Continues at `next_seq`, if `more`.

    Raises `400`; `403` for a queue outside the key's prefixes; `404`. Passes on the queue's `404`, `409` and `422`:
    no further letter is moved then. `503`: the queue's shard did not answer; the mover continues when it does."""
    asked, request.ignored = _FORM.read(request.body)
    target = check_topic(asked.queue)
    check_target(target, request.options, "queue")
    match = None if asked.match is None else parse_match(asked.match, "match")
    start = bound(asked, "first_seq", "from_seq") or 0
    last = bound(asked, "last_seq", "to_seq")
    stop = MAX_U64 if last is None else last
    most = clamped(DEFAULT_JOBS if asked.max is None else asked.max, 1, mover.staging.limits.max_claim)
    topic = mover.staging.directory.changing(request.topic)
    if target == topic.name:
        raise invalid(f'"{target}" cannot be redriven to itself: name the queue it has letters of', field="queue")
    settle(mover.staging, topic)
    first = max(start, topic.records.floor)
    seqs, after = _picked(topic, target, match, first, min(stop, topic.records.head_seq), most)

    def over(arrived: list[int], error: TopicsError | None) -> None:
        if error is not None:
            refuse(request.id, respond, _explained(error, topic, target, len(arrived), len(seqs)))
            return
        more = after <= min(stop, topic.records.head_seq)
        body = Redriven(topic.name, target, len(arrived), arrived, after, more)
        respond(Reply(request.id, to_json(body)))

    if seqs:
        mover.order(topic, dict.fromkeys(seqs, Transfer(target, 0)), TransferWaiter(set(seqs), over))
    else:
        over([], None)


def _picked(topic: Topic, queue: str, match: Match | None, start: int, stop: int, most: int) -> tuple[list[int], int]:
    """Up to `most` letters from `queue` that are neither leased nor being deleted or transferred, and the seq to
    continue at."""
    taken = topic.outbox.transfers.keys() | topic.outbox.ordered
    jobs = {} if topic.queue is None else topic.queue.jobs
    seqs: list[int] = []
    size = 0

    def busy(seq: int) -> bool:
        return seq in taken or (seq in jobs and jobs[seq].state not in _FREE)

    while start <= stop and size < MAX_BATCH_BYTES:
        found, after = fresh(topic, start, busy, LOOKED_AT, MAX_BATCH_BYTES)
        for each in found:
            if len(seqs) == most or each[0] > stop:
                return seqs, each[0]
            size += size_of(each)
            if _matches(each, match) and origin(each) == queue:
                seqs.append(each[0])
        start = after
    return seqs, start


def _matches(found: Found, match: Match | None) -> bool:
    if match is None:
        return True
    tag = found[3]
    if not isinstance(tag, str):
        return False
    how, text = match
    return tag.encode() == text if how == "Eq" else tag.encode().startswith(text)


def _explained(error: TopicsError, topic: Topic, queue: str, arrived: int, asked: int) -> TopicsError:
    if error.code is ErrorCode.NOT_READY:
        text = f'"{queue}" did not answer: {arrived} of {asked} letters are there, the others follow when it does'
    else:
        text = f'{arrived} of {asked} letters went to "{queue}", the others stay in "{topic.name}": {error.message}'
    detail = {**(error.detail or {}), "redriven": arrived}
    return TopicsError(error.code, text, detail, retry_after_ms=error.retry_after_ms)
