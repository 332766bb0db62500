"""The mover: sends the transfers of all outboxes to their targets, batch by batch (see `shardd.topic.outbox`).

It asks a target that is unreachable or refuses again after a pause of 50 ms to 5 s. Transfers to other targets do not
wait for it. A refused dead letter goes to the topic that its queue names now, if that is another one, or back to the
queue if it names none any more. A refused redrive stays where it was, and its request gets the error. A batch whose
answer was lost is sent again before any other.

A dead letter that is refused for what it is, as too large for a cap of its target, is parked, and holds up no other.
The smallest parked letter of a target is sent again every 5 s; when the target takes it, the others follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from operator import itemgetter
from typing import Protocol, TypeVar

import structlog
import trio
from msgspec import UNSET, Struct

from proto.ipc.message import Reply
from proto.ipc.operations import Append, Operation
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import MAX_BATCH_BYTES
from proto.process.faults import faults
from shardd.changes.transactions import Staging, TopicChange
from shardd.frames import Leases as LeasesFrame
from shardd.queues import dead_letter_meta as form
from shardd.queues.job_deletion import JobsDeleted, Saved, remove
from shardd.queues.job_requests import Found, chosen, size_of
from shardd.storage.change import Timing
from shardd.storage.errors import Exhausted, SegmentError
from shardd.storage.indivisible import indivisible
from shardd.topic.job_states import JobState
from shardd.topic.job_table import Queue
from shardd.topic.outbox import Parked, Transfer, rows, source_id
from shardd.topic.topic import Topic

A = TypeVar("A")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds."""
BATCH_RECORDS = 1000
_UNCERTAIN = (ErrorCode.NOT_READY, ErrorCode.INTERNAL)
"""Errors after which the target may have stored the records or not."""
_OF_THE_RECORD = (ErrorCode.RECORD_TOO_LARGE, ErrorCode.INVALID_REQUEST)
"""Errors that another record may not get."""
log = structlog.get_logger()


class Asking(Protocol):
    """The other shards: see `shardd.process.peers`."""

    def index_of(self, topic: str) -> int: ...

    async def request(self, index: int, operation: Operation[A], topic: str, body: bytes = b"") -> Reply[A]: ...


class TransferWaiter(Struct, eq=False):
    """Transfers that a request waits for. `over` is called once, with the seqs that arrived. It also gets an error if
    the others will not arrive, or if the target did not answer."""

    left: set[int]
    over: Callable[[list[int], TopicsError | None], None]
    arrived: list[int] = []


class Mover:
    """The mover of one shard. `flush` writes what was staged outside of a group of requests."""

    def __init__(self, staging: Staging, flush: Callable[[], None]) -> None:
        self.staging = staging
        self._flush = flush
        self._topics: dict[int, Topic] = {}
        self._leaving: set[tuple[int, str]] = set()
        """(Topic id, target) of batches that have arrived and whose deletion is staged."""
        self._single: set[tuple[int, str]] = set()
        """(Topic id, target) whose batch was refused: its records go one by one until the outbox is empty."""
        self._again: dict[tuple[int, str], float] = {}
        """When a parked letter is sent again, by (topic id, target), in seconds of the monotonic clock."""
        self.waiters: dict[int, list[TransferWaiter]] = {}
        self.refused: set[str] = set()
        """Targets that refused, or did not answer, at the last `carry`."""
        self._more = trio.Event()

    def recovered(self) -> None:
        """Takes up the transfers of an earlier process. Called once after recovery."""
        for topic in self.staging.directory.visible.values():
            if topic.unrestored:
                continue
            if topic.queue is not None and topic.queue.dead_lettering:
                _know_orders(topic, topic.queue)
            self.take_up(topic)

    def __len__(self) -> int:
        return sum(len(topic.outbox.transfers) for topic in self._topics.values())

    def take_up(self, topic: Topic) -> None:
        if topic.outbox:
            self._topics[topic.id] = topic
            self._more.set()

    # 1

    def order(self, topic: Topic, transfers: dict[int, Transfer], waiter: TransferWaiter | None = None) -> None:
        """Logs that these records go to their targets; `carry` sends them once that has committed."""
        outbox, queue = topic.outbox, topic.queue
        before: Saved = {}
        with indivisible:
            outbox.ordered |= transfers.keys()
            if queue is not None:
                before = {seq: queue.order(seq) for seq in transfers}
            told = queue.told(transfers) if queue is not None else []
            body = LeasesFrame(letters=rows(transfers), reasons=told or UNSET)
            self._stage(_Ordered(topic, self, transfers, waiter, before), body)

    def _call_back(self, topic: Topic, seqs: list[int], error: TopicsError) -> None:
        """Logs that these records stay where they are, because of `error`."""
        self._stage(_CalledBack(topic, self, seqs, error), LeasesFrame(called_back=seqs))

    def _stage(self, change: TopicChange, body: LeasesFrame) -> None:
        durability = change.topic.assigned_config.durability
        change.body = body if durability.logged else None
        change.requires_sync = durability.reaches_device
        self.staging.stage(change)

    # 2, 3

    async def run(self, peers: Asking) -> None:
        """Calls `carry` until cancelled. Pauses for targets that refused, and blocks while there is nothing to do."""
        paused: dict[str, tuple[float, float]] = {}
        while True:
            self._more = trio.Event()
            now = trio.current_time()
            skipped = {target for target, (until, _) in paused.items() if until > now}
            progress = await self.carry(peers, skipped)
            now = trio.current_time()
            for target in paused.keys() - skipped - self.refused:
                del paused[target]
            for target in self.refused:
                pause = min(paused.get(target, (0, FIRST_PAUSE / 2))[1] * 2, LONGEST_PAUSE)
                paused[target] = (now + pause, pause)
            if not progress:
                again = min(self._again.values(), default=inf) - self.staging.clock.monotonic()
                with trio.move_on_at(min((until for until, _ in paused.values()), default=inf)):
                    with trio.move_on_after(max(again, FIRST_PAUSE)):
                        await self._more.wait()

    async def carry(self, peers: Asking, skipped: set[str] | frozenset[str] = frozenset()) -> bool:
        """Sends one batch of each outbox to each of its targets, except the `skipped` ones. Returns whether any record
        was moved or dropped."""
        self.refused = set()
        progress = False
        for ident, topic in list(self._topics.items()):
            if self.staging.directory.by_id.get(ident) is not topic:
                del self._topics[ident]
                self._forget(topic, {})
                self.settled(topic, (), list(topic.outbox.transfers), None)
                continue
            if topic.damage is not None:
                continue  # its transfers wait until the topic's files can be read
            waiting = _by_target(topic)
            self._forget(topic, waiting)
            for target, transfers in waiting.items():
                for part in self._parts(topic, target, transfers):
                    if part and target not in skipped | self.refused and (ident, target) not in self._leaving:
                        progress |= await self._sent(peers, topic, target, part)
            if not topic.outbox:
                self._topics.pop(ident, None)
                self._forget(topic, {})
        return progress

    def _forget(self, topic: Topic, waiting: dict[str, dict[int, Transfer]]) -> None:
        """Forget what is known of targets for which nothing waits any more."""
        ident, outbox = topic.id, topic.outbox
        self._single = {each for each in self._single if each[0] != ident or waiting.get(each[1])}
        for each in [each for each in self._again if each[0] == ident and each[1] not in waiting]:
            del self._again[each]
        outbox.refusals = {target: reason for target, reason in outbox.refusals.items() if target in waiting}
        outbox.sent = {target: seqs for target, seqs in outbox.sent.items() if target in waiting}

    def _parts(self, topic: Topic, target: str, transfers: dict[int, Transfer]) -> Iterator[dict[int, Transfer]]:
        """The transfers that are sent to a target next, each part after the one before is answered. The rest of the
        last batch goes alone: the target may have it, and would not know that any more once it had another one."""
        last = topic.outbox.unsettled(target)
        if not last:
            yield self._parked(topic, target)
            last = topic.outbox.unsettled(target)
        yield last or transfers

    def _parked(self, topic: Topic, target: str) -> dict[int, Transfer]:
        """The smallest parked letter of a target, if it is time to send it again; else nothing."""
        now, outbox = self.staging.clock.monotonic(), topic.outbox
        if not outbox.parked or now < self._again.get((topic.id, target), inf):
            return {}
        self._again[topic.id, target] = now + LONGEST_PAUSE
        parked = outbox.parked_for(target)
        outbox.gone([seq for seq in parked if not topic.records.alive(seq)])
        first = next((seq for seq in parked if seq in outbox.parked), None)
        return {} if first is None else {first: outbox.transfers[first]}

    async def _sent(self, peers: Asking, topic: Topic, target: str, transfers: dict[int, Transfer]) -> bool:
        """`_send`; a fault concerns this target alone, which is tried again after a pause."""
        try:
            return await self._send(peers, topic, target, transfers)
        except Exception:
            if indivisible.broken:
                raise
            faults.failed("transfer")
            self.refused.add(target)
            return False

    async def _send(self, peers: Asking, topic: Topic, target: str, transfers: dict[int, Transfer]) -> bool:
        outbox, single = topic.outbox, (topic.id, target) in self._single
        try:
            found, gone = _batch(topic, transfers, 1 if single else BATCH_RECORDS)
        except Exhausted:
            self.refused.add(target)  # after a pause the files may be read again
            return False
        except SegmentError:
            return False  # the topic is quarantined from now on
        if gone:
            outbox.gone(gone)
            self.settled(topic, (), gone, None)
        if not found:
            return bool(gone)
        seqs = outbox.sent[target] = [each[0] for each in found]
        deliveries = [transfers[seq].deliveries for seq in seqs]
        redrives = not deliveries[0]
        letter = source_id(topic.name, topic.epoch), tuple(seqs)
        write = Append(stamped=True, jobs=redrives, letters=letter)
        reasons = {} if topic.queue is None else topic.queue.reasons
        body = form.body(topic.name, found, deliveries, reasons, topic.config.auto_create and not redrives)
        try:
            reply = await peers.request(peers.index_of(target), write, target, body)
        except TopicsError as error:
            if error.code not in _UNCERTAIN:
                outbox.sent.pop(target, None)
            refused = outbox.redrives(target) if redrives else {seq: transfers[seq] for seq in seqs}
            self._refused(topic, target, refused, error, sum(map(size_of, found)))
            return bool(gone)
        if reply.extra is not None:
            seqs = outbox.sent[target] = list(reply.extra.known)
        outbox.refusals.pop(target, None)
        if seqs[0] in outbox.parked:
            for seq in outbox.parked_for(target):
                del outbox.parked[seq]
        if self.staging.directory.by_id.get(topic.id) is topic:
            self._remove(topic, target, seqs, 0 if redrives else 1)
        return True

    def _refused(
        self, topic: Topic, target: str, transfers: dict[int, Transfer], error: TopicsError, size: int
    ) -> None:
        if error.code in _UNCERTAIN:
            self.refused.add(target)
            topic.outbox.refusals[target] = _reason(error)
            for waiter in self.waiters.get(topic.id, ())[:]:
                if not waiter.left.isdisjoint(transfers):
                    self._end(topic, waiter, error)
        elif any(not transfer.deliveries for transfer in transfers.values()):
            self._call_back(topic, list(transfers), error)
        elif len(transfers) > 1:
            self._single.add((topic.id, target))
            self._more.set()
        else:
            named = topic.assigned_config.dead_letter if topic.assigned_config.max_deliveries else None
            transfers = transfers | {seq: topic.outbox.transfers[seq] for seq in topic.outbox.parked_for(target)}
            if named == target:
                self._keep(topic, target, next(iter(transfers)), error, size)
            elif named is None:
                self._call_back(topic, list(transfers), error)
            else:
                self.order(topic, {seq: transfer._replace(target=named) for seq, transfer in transfers.items()})
        self._flush()

    def _keep(self, topic: Topic, target: str, seq: int, error: TopicsError, size: int) -> None:
        """Park a dead letter that is refused for what it is, else let its target rest. Logs the first refusal."""
        outbox, reason = topic.outbox, _reason(error)
        if error.code in _OF_THE_RECORD:
            told = bool(outbox.parked_for(target))
            outbox.parked[seq] = Parked(size, reason)
            self._again.setdefault((topic.id, target), self.staging.clock.monotonic() + LONGEST_PAUSE)
            self._more.set()
        else:
            told = outbox.refusals.get(target) == reason
            outbox.refusals[target] = reason
            self.refused.add(target)
        if not told:
            log.warning("dead_letter_refused", queue=topic.name, target=target, seq=seq, reason=error.message)

    def _remove(self, topic: Topic, target: str, seqs: list[int], dead: int) -> None:
        """Deletes records that have arrived. `dead` is 1 for dead letters, which are counted, 0 for redriven ones."""
        queue = topic.queue
        before: Saved = {}

        def done(timing: Timing) -> None:
            self._left(topic, target)
            self.settled(topic, seqs, (), None)

        with indivisible:
            if queue is not None:
                for seq in seqs:
                    if (job := queue.jobs.get(seq)) is not None:
                        before[seq] = job.saved()
                        queue.arrived(seq, job)
            self._leaving.add((topic.id, target))
            remove(
                JobsDeleted(
                    topic,
                    self.staging,
                    seqs,
                    before,
                    done,
                    lambda error: self._left(topic, target),
                    dead_lettered=dead * len(seqs),
                    requires_sync=topic.assigned_config.durability.reaches_device,
                )
            )
        self._flush()

    def _left(self, topic: Topic, target: str) -> None:
        """The batch for this target is deleted here, or stays: the next one may leave."""
        self._leaving.discard((topic.id, target))
        self._more.set()

    # Waiters

    def settled(self, topic: Topic, arrived: Sequence[int], lost: Sequence[int], error: TopicsError | None) -> None:
        for waiter in self.waiters.get(topic.id, ())[:]:
            waiter.arrived += waiter.left.intersection(arrived)
            hit = waiter.left.intersection(lost)
            waiter.left -= {*arrived, *lost}
            if not waiter.left or (hit and error is not None):
                self._end(topic, waiter, error if hit else None)

    def _end(self, topic: Topic, waiter: TransferWaiter, error: TopicsError | None) -> None:
        self.waiters[topic.id].remove(waiter)
        if not self.waiters[topic.id]:
            del self.waiters[topic.id]
        waiter.over(sorted(waiter.arrived), error)


def _know_orders(topic: Topic, queue: Queue) -> None:
    """Have each TRANSFERRING job in the outbox, or make it READY again: a checkpoint has its state, but its order was
    not synced when that was made, and is lost. A claim orders it again."""
    outbox = topic.outbox
    for seq, job in queue.jobs.items():
        if job.state is JobState.TRANSFERRING and seq not in outbox.transfers and seq not in outbox.ordered:
            if job.node:  # the form in logs of releases without outboxes
                outbox.transfers[seq] = Transfer(job.node, job.deliveries)
            else:
                queue.cancel_transfer(seq)


class _Ordered(TopicChange, eq=False):
    """Records are in the outbox. If this is undone, jobs that were not in it before are what they were `before`: the
    last holder of a job may still ack it."""

    mover: Mover
    transfers: dict[int, Transfer]
    waiter: TransferWaiter | None
    before: Saved

    def apply(self, timing: Timing) -> None:
        self.topic.outbox.add(self.transfers)
        if self.waiter is not None:
            self.mover.waiters.setdefault(self.topic.id, []).append(self.waiter)
        self.mover.take_up(self.topic)

    def undo(self, error: TopicsError) -> None:
        queue = self.topic.queue
        self.topic.outbox.ordered -= self.transfers.keys()
        if queue is not None:
            for seq, saved in self.before.items():
                if saved is None or saved[0] is not JobState.TRANSFERRING:  # else the earlier order decides
                    queue.undo(seq, saved)
        if self.waiter is not None:
            # Claims may get what is not redriven. They get no dead letter: they would order it again without end.
            self.waiter.over([], error)
            self.mover.staging.events.jobs_changed(self.topic)


class _CalledBack(TopicChange, eq=False):
    """Records stay where they are. If this is undone, they stay in the outbox, and the target refuses them again."""

    mover: Mover
    seqs: list[int]
    because: TopicsError

    def apply(self, timing: Timing) -> None:
        self.topic.outbox.call_back(self.seqs, self.topic.queue)
        self.mover.settled(self.topic, (), self.seqs, self.because)
        self.mover.staging.events.jobs_changed(self.topic)


def _by_target(topic: Topic) -> dict[str, dict[int, Transfer]]:
    """Transfers that are not parked, by target; a target may have none of these. Of a target with both redrives and
    dead letters, only the kind of the first transfer."""
    found: dict[str, dict[int, Transfer]] = {}
    parked = topic.outbox.parked
    for seq, transfer in topic.outbox.transfers.items():
        same = found.setdefault(transfer.target, {})
        if seq in parked:
            continue
        if not same or bool(next(iter(same.values())).deliveries) == bool(transfer.deliveries):
            same[seq] = transfer
    return found


def _reason(error: TopicsError) -> str:
    """Why a refused transfer waits, as one word: the name of the limit that is reached, or the error's code."""
    return str((error.detail or {}).get("limit") or error.code.value)


def _batch(topic: Topic, transfers: dict[int, Transfer], most: int) -> tuple[list[Found], list[int]]:
    """The records of the first transfers, at most `most` and MAX_BATCH_BYTES, by seq; and the seqs among these that are
    gone. The first are those that were ordered first, which are the same after a start: it forgets which batch was the
    last one that was sent."""
    found: list[Found] = []
    gone: list[int] = []
    budget = MAX_BATCH_BYTES
    for seq in transfers:
        record = next(chosen(topic, [seq]), None)
        if record is None:
            gone.append(seq)
            continue
        if len(found) == most or (found and size_of(record) > budget):
            break
        found.append(record)
        budget -= size_of(record)
    return sorted(found, key=itemgetter(0)), gone
