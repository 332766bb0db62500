"""Finishing: the ack and the nack in a claim. They are made before the claim takes jobs, and before it waits for some.

Each is a change of its own, staged in front of that of the claim: one write of the log has them all. A claim that is
served at once shares their outcome, so nothing of a refused one was done. One that waits may outlive them. Then they
hold, and it is answered without jobs where it would be refused.

What a claim finishes is committed before the claim is answered.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, Struct, UnsetType

from proto.api.answers import ClaimAcked, ClaimNacked
from proto.model.errors import TopicsError
from shardd.changes.transactions import Staging
from shardd.queues.job_deletion import JobsDeleted, remove
from shardd.queues.job_requests import Finish
from shardd.queues.leases import Released, change_leases, changed, forgets
from shardd.storage.change import Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.job_table import Queue
from shardd.topic.topic import Topic


class Finished(Struct, eq=False):
    """What one claim has finished. `undone` is called for each of its `changes` that is taken back."""

    undone: Callable[[TopicsError], None]
    ack: ClaimAcked | UnsetType = UNSET
    nack: ClaimNacked | UnsetType = UNSET
    changes: int = 0
    _open: int = 0
    _then: Callable[[], None] | None = None

    @property
    def settled(self) -> bool:
        """Whether all of it is committed."""
        return not self._open

    def begin(self) -> None:
        """One more change is about to be staged."""
        self.changes += 1
        self._open += 1

    def end(self, timing: Timing) -> None:
        """One of the changes is committed."""
        assert self._open > 0, "each change commits once"
        self._open -= 1
        if self.settled and self._then is not None:
            self._then()

    def when_settled(self, then: Callable[[], None]) -> None:
        """Calls `then` as soon as all is committed, and never if it is undone."""
        if self.settled:
            then()
        else:
            self._then = then


def finish(staging: Staging, topic: Topic, queue: Queue, asked: Finish, finished: Finished) -> None:
    """Stages what a claim finishes first."""
    with indivisible:
        if asked.ack is not None:
            before, skipped = changed(asked.ack, queue.ackable, queue.ack)
            finished.ack = ClaimAcked(len(before), skipped)
            if before:
                finished.begin()
                change = JobsDeleted(topic, staging, sorted(before), before, finished.end, finished.undone)
                # The frame behind this one waits for the device if it forgets old leases: both, or neither.
                change.requires_sync = forgets(topic) and topic.assigned_config.durability.reaches_device
                remove(change)
        if asked.nack is not None:
            now = staging.clock.now_ms()
            due = now + asked.delay_ms
            before, skipped = changed(asked.nack, queue.holder, lambda seq, job: queue.release(seq, job, due, now))
            finished.nack = ClaimNacked(len(before), skipped)
            if before:

                def done(timing: Timing) -> None:
                    staging.events.jobs_changed(topic)
                    finished.end(timing)

                finished.begin()
                given_back = Released(topic, staging, before, done, finished.undone, follows=True)
                given_back.explain(queue, asked.reason)
                change_leases(given_back)
