"""Claims: which claimer gets which jobs, and when.

    parse       body or stream → a claimer                     `job_requests`
    wait        until its window closes, or jobs are there     `cohorts`
    pick        jobs whose leases ended first, then fresh ones, shared out; those delivered too often are dead letters
    lease       each job gets its holder, deadline and token   `job_table`
    commit      the change is logged if it has to be, and the claimers are answered (`leases`)

A claim of a queue without `claim_jitter_ms` is served at once. With it, the first claim opens a window. When the window
closes, all claims that came in it are served in one pass. Each gets a share in proportion to its `max`, dealt in turn
in the order of arrival.

A claim with `wait_ms` waits that long for jobs. A stream (`job_streams`) waits until there are jobs and it holds less
than its `max`. Newly claimable jobs open a window too, of zero length without jitter, so that all waiting claims get
fair shares. A claim that finds others waiting joins after them.

A claim may finish jobs first (`shardd.queues.finishing`), at once, also if it waits then.

A claim whose client disconnects while it waits is removed. If the client disconnects after its jobs were sent (`cancel`
follows the answer), the jobs become claimable again and the delivery does not count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter

from proto.api import answers
from proto.api.answers import ClaimedJob
from proto.ipc.message import Parked, Reply, Request
from proto.ipc.operations import Claim, Jobs, LettersSent
from proto.model.errors import TopicsError, not_a_queue, not_renewed, topic_not_found
from proto.model.limits import MAX_BATCH_BYTES
from proto.process.faults import faults
from shardd.changes.transactions import Respond, Staging, performance, to_json
from shardd.delivery.scheduler import Scheduler
from shardd.queues.cohorts import Claimer, Cohort, Key, dealt
from shardd.queues.finishing import Finished, finish
from shardd.queues.job_deletion import Saved
from shardd.queues.job_requests import Found, chosen, claimed, fresh, new_tokens, parse_claim, size_of, token_of
from shardd.queues.leases import Leases, LeasesChanged, change_leases, leases_wait
from shardd.storage.change import Timing
from shardd.storage.errors import Exhausted, SegmentError, damaged
from shardd.storage.indivisible import indivisible
from shardd.topic.job_states import JobState
from shardd.topic.job_table import Queue
from shardd.topic.outbox import Transfer
from shardd.topic.topic import Topic

REMEMBERED = 10_000
"""The most sent jobs of waiting claims and of streams that are remembered, to take them back if the client has
disconnected."""

_seq = attrgetter("seq")
Served = list[tuple[Claimer, list[ClaimedJob]]]
"""Claims and the jobs that they get."""


class Claims:
    def __init__(
        self,
        staging: Staging,
        scheduler: Scheduler,
        leases: Leases,
        dead_letter: Callable[[Topic, dict[int, Transfer]], None],
    ) -> None:
        self._leases = leases
        self._staging = staging
        self._scheduler = scheduler
        self._clock = staging.clock
        self._dead_letter = dead_letter
        self._cohorts: dict[int, Cohort] = {}
        self._by_key: dict[Key, Cohort] = {}
        self._sent: OrderedDict[Key, tuple[Topic, list[tuple[int, int]]]] = OrderedDict()
        """Topic, seqs and tokens sent to the latest streams, and to the latest claims that had to wait."""
        self._jobs_sent = 0
        self._opened = False
        """Whether a window was opened since `deliver` looked at all of them."""

    # Waiting claims

    def claim(self, request: Request[Claim], caller: Hashable, respond: Respond) -> None:
        self._staging.check_term()
        asked, finishes = parse_claim(request, self._staging.limits)
        topic, queue = self._leases.look(request)
        key, wait_s = (caller, request.id), (asked.wait_ms or 0) / 1000
        claimer = Claimer(asked.node, asked.max or 1, asked.lease_ms, wait_s, "", key, respond)
        if finishes is None:
            self.take(topic, queue, claimer)
            return
        mark = self._staging.commits.staged_total
        claimer.finished = Finished(partial(self._undone, claimer))
        finish(self._staging, topic, queue, finishes, claimer.finished)
        try:
            self.take(topic, queue, claimer)
        except (TopicsError, SegmentError) as error:
            told = damaged(error) if isinstance(error, SegmentError) else error
            with indivisible:
                self._staging.commits.take_back(mark, told)
            claimer.refuse(told)

    def _undone(self, claimer: Claimer, error: TopicsError) -> None:
        """Refuses a claim when what it finished is taken back."""
        cohort = self._by_key.get(claimer.key)
        if cohort is not None:
            self._leave(cohort, claimer)
        claimer.refuse(error)

    def turn_away(self, topic: Topic, claimer: Claimer, error: TopicsError | None = None) -> None:
        """Answers a claim that gets no jobs: with `error`, or without jobs if there is none. If jobs that it finished
        are so for good, the answer says that, and its next claim gets the error."""
        finished = claimer.finished
        if error is not None and (finished is None or not finished.changes):
            claimer.refuse(error)
        elif finished is not None:
            claimer.respond = self._staging.watch(claimer.key[1], claimer.respond)
            finished.when_settled(partial(self.give, topic, claimer, [], Timing()))
        else:
            self.give(topic, claimer, [], Timing())

    def take(self, topic: Topic, queue: Queue, claimer: Claimer) -> None:
        """Serves a claim, or lets it wait. Raises `503` if the bucket is late, and leases that it would get wait for a
        sync. A stream just waits then."""
        jitter = topic.config.claim_jitter_ms / 1000
        may = claimer.wants(queue) and queue.ready(topic.records.count)
        if may and not claimer.stream and leases_wait(topic):
            self._staging.check_bucket()
        if not jitter and topic.id not in self._cohorts and (may or not claimer.patient):
            if self._serve(topic, queue, [claimer]):
                return
            may = 0  # all jobs that were ready became dead letters: this claim waits for others
        now = self._clock.monotonic()
        if claimer.patient:
            claimer.deadline = now + claimer.patience_s
        with indivisible:
            cohort = self._cohorts.setdefault(topic.id, Cohort(topic))
            cohort.claimers[claimer.key] = claimer
            self._by_key[claimer.key] = cohort
        if cohort.due is None and (may or not claimer.patient):
            cohort.due = now + jitter
        claimer.respond(Parked(claimer.key[1]))
        self._scheduler.more()

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Removes the claim of a caller that disconnected, or takes back the jobs that were just sent to it."""
        key = (caller, ident)
        cohort = self._by_key.get(key)
        if cohort is not None:
            self._leave(cohort, cohort.claimers[key])
        elif key in self._sent:
            self.take_back(*self._recall(key))

    def forget(self, caller: Hashable) -> None:
        """Removes the waiting claims of an asker that is gone. Jobs that were sent to it stay leased until their time
        is over: their client may have them."""
        for key, cohort in list(self._by_key.items()):
            if key[0] == caller:
                self._leave(cohort, cohort.claimers[key])

    def _remember(self, claimer: Claimer, topic: Topic, part: list[ClaimedJob]) -> None:
        self._sent[claimer.key] = topic, leases_of(part)
        self._jobs_sent += len(part)
        while self._jobs_sent > REMEMBERED:
            self._recall(next(iter(self._sent)))

    def _recall(self, key: Key) -> tuple[Topic, list[tuple[int, int]]]:
        topic, leases = self._sent.pop(key)
        self._jobs_sent -= len(leases)
        return topic, leases

    def take_back(self, topic: Topic, leases: list[tuple[int, int]]) -> None:
        """Releases jobs that did not reach their client. Jobs that it received and changed keep their state."""
        queue = topic.queue
        if queue is None or self._staging.directory.assigned.get(topic.name) is not topic:
            return
        now = self._clock.now_ms()
        before: Saved = {}
        with indivisible:
            for seq, token in leases:
                job = queue.jobs.get(seq)
                if job is not None and job.state is JobState.LEASED and job.token == token:
                    before[seq] = job.saved()
                    job.deliveries -= 1
                    queue.release(seq, job, now, now)
            change_leases(LeasesChanged(topic, self._staging, before, lambda _: self.changed(topic), lambda _: None))

    def _leave(self, cohort: Cohort, claimer: Claimer) -> None:
        with indivisible:
            del cohort.claimers[claimer.key], self._by_key[claimer.key]
            if not cohort.claimers:
                self._cohorts.pop(cohort.topic.id, None)

    def refuse(self, topic: Topic, error: TopicsError) -> None:
        """Answers all waiting claims of the topic with `error`."""
        cohort = self._cohorts.get(topic.id)
        if cohort is None:
            return
        for claimer in list(cohort.claimers.values()):
            self._leave(cohort, claimer)
            self.turn_away(topic, claimer, error)

    def changed(self, topic: Topic) -> None:
        """Opens the topic's window: jobs may be claimable, a stream may have room, or the topic may be gone."""
        cohort = self._cohorts.get(topic.id)
        if cohort is not None and cohort.due is None:
            cohort.due = self._clock.monotonic() + topic.config.claim_jitter_ms / 1000
            self._opened = True

    @property
    def next_due(self) -> float | None:
        """When `deliver` next has work, in monotonic seconds; None without waiting claims."""
        times = []
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for cohort in self._cohorts.values():
            times.append(min(claimer.deadline for claimer in cohort.claimers.values()))
            if cohort.due is not None:
                times.append(cohort.due)
                continue
            queue = cohort.topic.queue
            if queue is not None and queue.next_wake is not None:
                times.append(now + max(queue.next_wake - now_ms, 0) / 1000)
        return min(times, default=None)

    def deliver(self) -> None:
        """Serves the cohorts whose window has closed, and answers the claims whose wait is over."""
        if self._cohorts:
            self._serve_due()
        self._opened = False
        self._staging.commits.flush()
        if self._opened:  # jobs came back: a write failed, or an answer
            self._scheduler.more()

    def _serve_due(self) -> None:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for cohort in list(self._cohorts.values()):
            topic, queue = cohort.topic, cohort.topic.queue
            now_there = self._staging.directory.visible.get(topic.name)
            if now_there is not topic:
                a_log = now_there is not None and now_there.queue is None
                for claimer in list(cohort.claimers.values()):
                    self._leave(cohort, claimer)
                    self.turn_away(topic, claimer, not_a_queue(topic.name) if a_log else topic_not_found(topic.name))
                continue
            if cohort.due is None and queue is not None and queue.next_wake is not None and queue.next_wake <= now_ms:
                queue.expire(now_ms)
                self.changed(topic)
            if cohort.due is not None and cohort.due <= now:
                cohort.due = None
                if self._staging.silent:
                    self.refuse(topic, not_renewed("not_done"))
                    continue
                try:
                    self._serve(topic, self._leases.current(topic), list(cohort.claimers.values()), cohort)
                except SegmentError as error:
                    if isinstance(error, Exhausted):
                        self.refuse(topic, damaged(error))
                    continue  # else the topic is quarantined, and `refuse` answers its claims
                except Exception:
                    if indivisible.broken:
                        raise
                    self.refuse(topic, faults.failed("claim"))
                    continue
            for claimer in [c for c in cohort.claimers.values() if c.deadline <= now]:
                self._leave(cohort, claimer)
                self.turn_away(topic, claimer)
            if queue is not None and cohort.told != (cohort.due, queue.next_wake):  # a delay or lease may end earlier
                cohort.told = cohort.due, queue.next_wake
                self._scheduler.more()

    # Serving

    def _serve(self, topic: Topic, queue: Queue, claimers: list[Claimer], cohort: Cohort | None = None) -> int:
        """Serves all these claimers in one pass, and returns how many are answered. A patient claimer is answered only
        if it got jobs. The queue is as it is now."""
        wants = [claimer.wants(queue) for claimer in claimers]
        with indivisible:
            return self._lease(topic, queue, claimers, wants, cohort)

    def _lease(
        self, topic: Topic, queue: Queue, claimers: list[Claimer], wants: list[int], cohort: Cohort | None
    ) -> int:
        before: Saved = {}
        found, transfers = self._pick(topic, queue, sum(wants), before)
        now, lease_ms = self._clock.now_ms(), topic.config.lease_ms
        served: Served = []
        for claimer, jobs in zip(claimers, dealt(found, wants), strict=True):
            tokens, deadline = new_tokens(len(jobs)), now + (claimer.lease_ms or lease_ms)
            deliveries = queue.lease([each[0] for each in jobs], claimer.node, tokens, deadline, claimer.stream)
            part = list(map(claimed, jobs, tokens, repeat(deadline), deliveries))
            if part or not claimer.patient:
                served.append((claimer, part))
        queue.trim()
        for claimer, part in served:
            if cohort is not None:
                self._leave(cohort, claimer)
                if not claimer.stream:  # a stream has no time to be answered in, and would lose its leases
                    claimer.respond = self._staging.watch(claimer.key[1], claimer.respond)
            # A stream's answer, too, may be on its way while the client leaves, whether it waited here or not.
            if part and (cohort is not None or claimer.stream):
                self._remember(claimer, topic, part)
        if transfers:  # before the answers, because these count the ready jobs
            self._dead_letter(topic, transfers)
        targets = sorted({transfer.target for transfer in transfers.values()}) if topic.config.auto_create else []
        for those, follows in self._groups(served):
            were = before if len(those) == len(served) else {j.seq: before[j.seq] for _, part in those for j in part}
            done = partial(self._give_all, topic, those, targets)
            failed = partial(self._refuse_all, topic, those)
            change_leases(LeasesChanged(topic, self._staging, were, done, failed, follows=follows))
        if found and len(found) < sum(wants) and queue.ready(topic.records.count):
            self.changed(topic)  # the pass ended at its byte budget: another one follows
        return len(served)

    @staticmethod
    def _groups(served: Served) -> list[tuple[Served, bool]]:
        """The claims that may be answered as soon as their leases are good, and those that `follow` what they finish,
        which is not committed yet: others do not wait for them."""
        waiting = [each for each in served if each[0].unsettled]
        if len(waiting) in (0, len(served)):
            return [(served, bool(waiting))]
        return [([each for each in served if not each[0].unsettled], False), (waiting, True)]

    def _pick(self, topic: Topic, queue: Queue, count: int, before: Saved) -> tuple[list[Found], dict[int, Transfer]]:
        """Up to `count` jobs, reclaimed ones first, each group by seq; and the dead letters found: jobs that have had
        `max_deliveries`."""
        taken: list[int] = []
        try:
            found, transfers, budget = self._reclaimed(topic, queue, count, taken)
            new, queue.cursor = fresh(topic, queue.cursor, queue.jobs.__contains__, count - len(found), budget)
        except SegmentError:
            queue.offer(taken)
            raise
        before.update((each[0], queue.jobs[each[0]].saved()) for each in found)
        before.update((each[0], None) for each in new)
        return found + new, transfers

    @staticmethod
    def _reclaimed(
        topic: Topic, queue: Queue, count: int, taken: list[int]
    ) -> tuple[list[Found], dict[int, Transfer], int]:
        """Up to `count` jobs that were delivered before, the dead letters among them, and the bytes that are left.
        `taken` gets what it takes out of the queue."""
        found: list[Found] = []
        transfers: dict[int, Transfer] = {}
        budget, last = MAX_BATCH_BYTES, 0
        target = topic.config.dead_letter
        most = topic.config.max_deliveries if target is not None else 0
        while len(found) < count and budget > 0 and (seqs := queue.pop_ready(count - len(found))):
            taken += seqs
            seqs, last = seqs[seqs[0] == last :], seqs[-1]
            if most > 0 and target is not None:
                over = [seq for seq in seqs if queue.jobs[seq].deliveries >= most]
                alive = filter(topic.records.alive, over)
                transfers.update((seq, Transfer(target, queue.jobs[seq].deliveries)) for seq in alive)
                seqs = [seq for seq in seqs if queue.jobs[seq].deliveries < most]
            for record in chosen(topic, seqs):
                if budget <= 0:
                    queue.offer(seqs[seqs.index(record[0]) :])
                    break
                found.append(record)
                budget -= size_of(record)
        return found, transfers, budget

    def _give_all(self, topic: Topic, served: Served, targets: list[str], timing: Timing) -> None:
        for claimer, part in served:
            self.give(topic, claimer, part, timing, targets)

    def _refuse_all(self, topic: Topic, served: Served, error: TopicsError) -> None:
        for claimer, _ in served:
            self.turn_away(topic, claimer, error)

    def give(
        self, topic: Topic, claimer: Claimer, part: list[ClaimedJob], timing: Timing, dead_letters: Sequence[str] = ()
    ) -> None:
        """Answers a claimer. If that fails, its jobs are claimable again, and the others have theirs. `dead_letters`
        are the topics that dead letters are ordered to. The gateway creates the missing ones before it answers the
        client."""
        try:
            part.sort(key=_seq)
            if claimer.stream:
                claimer.respond(Reply(claimer.key[1], to_json(part), extra=Jobs(tuple(map(_seq, part)))))
                return
            ready = self._leases.current(topic).ready(topic.records.count)
            body = answers.ClaimedJobs(topic.name, part, len(part), ready)
            if claimer.finished is not None:
                body.ack, body.nack = claimer.finished.ack, claimer.finished.nack
            extra = LettersSent(tuple(dead_letters)) if dead_letters else None
            claimer.respond(Reply(claimer.key[1], to_json(body), performance=performance(timing), extra=extra))
        except Exception:
            fault = faults.failed("claim")
            if part:
                self.take_back(topic, leases_of(part))
                self.turn_away(topic, claimer, fault)
            else:
                claimer.refuse(fault)


def leases_of(part: Sequence[ClaimedJob]) -> list[tuple[int, int]]:
    """Seq and token of each job."""
    return [(job.seq, token_of(job.lease_id)) for job in part]
