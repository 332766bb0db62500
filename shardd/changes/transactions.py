"""Staging: an operation stages a change, which then commits (becomes visible) or is undone.

See `shardd.storage.group_commit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from proto.ipc.message import Reply, Request
from proto.model.errors import TopicsError, not_ready, not_renewed
from proto.model.limits import Limits
from shardd.changes.admission import Growth, too_many_bytes
from shardd.changes.allowance import Allowance, Waiter
from shardd.changes.containment import Containment
from shardd.changes.containment import Respond as Respond
from shardd.changes.patience import Patience
from shardd.clock import Clock
from shardd.frames import Leases, Pin
from shardd.storage.change import Change, Timing
from shardd.storage.free_space import Space
from shardd.storage.group_commit import Commits
from shardd.storage.indivisible import Undone
from shardd.topic.directory import Directory
from shardd.topic.job_table import Queue
from shardd.topic.lane import Lane
from shardd.topic.promises import Promises
from shardd.topic.topic import Topic

to_json = msgspec.json.Encoder().encode


class Asked(Change, eq=False):
    """A change of no topic, for a request."""

    request: Request
    respond: Respond

    def undo(self, error: TopicsError) -> None:
        refuse(self.request.id, self.respond, error)


class TopicChange(Change, eq=False):
    """A change of one topic."""

    topic: Topic

    @property
    def topic_id(self) -> int:
        return self.topic.id

    def commit(self, timing: Timing) -> None:
        self.topic.catalogued = None  # a checkpoint may have catalogued the topic between staging and commit
        self.apply(timing)

    def apply(self, timing: Timing) -> None:
        """Make the change visible, and answer its request."""


class TopicEvents(Protocol):
    """Hears of a topic's committed changes. Operations report them without knowing the listeners."""

    def written(self, topic: Topic) -> None:
        """Records that a client wrote became visible."""

    def copied(self, topic: Topic, head_before: int) -> None:
        """Records that routers copied became visible."""

    def restored(self, topic: Topic) -> None:
        """The copies from before a restart are back: routers may copy from the topic again."""

    def jobs_changed(self, topic: Topic) -> None:
        """Jobs of a queue may have become claimable."""

    def deleted(self, topic: Topic) -> None:
        """The topic was deleted: reads, pulls and claims that wait for it must end."""


@dataclass(eq=False, repr=False)
class Staging:
    """The parts that every changing operation needs: directory, log, clock, and the events to report changes to."""

    directory: Directory
    commits: Commits
    events: TopicEvents
    clock: Clock
    limits: Limits
    boot_id: str
    space: Space
    allowance: Allowance
    promises: Promises

    def __post_init__(self) -> None:
        self.containment = Containment(self.commits)
        self.patience: Patience | None = None
        """Set by `Shard.await_bucket`."""
        self.serving: Callable[[], bool] | None = None
        """Whether requests may be answered at a moment; None: always. Set by the server, where there is a term."""

    def check_bucket(self) -> None:
        """Raises `503` while changes wait too long for the bucket. Call it before staging one that requires a sync."""
        if self.patience is not None:
            self.patience.check()

    @property
    def silent(self) -> bool:
        """Whether no request may be answered now."""
        return self.serving is not None and not self.serving()

    def check_term(self) -> None:
        """Raises `503` while no request may be answered. Call it before anything is staged that gives out what counts
        as given also if the answer is withheld."""
        if self.silent:
            raise not_renewed("not_done")

    def watch(self, ident: int, respond: Respond) -> Respond:
        """The `respond` of a parked request whose answer depends on a change from now on: it is called in time, also if
        the bucket is late."""
        return respond if self.patience is None else self.patience.watch(ident, respond)

    def has_room(
        self,
        topics: int,
        grows: Growth,
        request: Request,
        respond: Respond,
        again: Callable[[], None],
        *,
        letters: bool = False,
    ) -> bool:
        """Whether the shard may hold what a request adds. If not, the request waits, or is refused: when there is room
        `again` carries it out, from its beginning. Call it before anything of the request is staged."""
        if self.allowance.fits(topics, grows.most):
            return True

        def work() -> None:
            self.check_deadline(request)
            again()

        until_s = self.clock.monotonic() + self.allowance.patience_s
        if request.deadline_ns:
            until_s = min(until_s, request.deadline_ns / 1e9)
        self.allowance.wait(
            Waiter(
                request.topic,
                topics,
                *grows,
                until_s,
                partial(self.containment.attempt, request, respond, work),
                partial(refuse, request.id, respond),
                too_many_bytes(grows, self.limits, letters=letters),
            )
        )
        return False

    def stage(self, change: TopicChange) -> None:
        """Stages one change of a topic. `commit` or `undo` of the change is called once, later. Does not block.

        The change waits for a sync if it requires one, or if an earlier change of the topic waits for one.

        Copies that routers made since the topic's last frame are *pinned* first. Replay then knows where in the topic
        they belong, and makes them again before it continues. A clock that was set back before this start is noted
        first, too: replay then moves no times that are written from now on."""
        topic = change.topic
        if topic.lane is not None and change.logged:
            self.pin_copies(topic)
        if topic.queue is not None and topic.queue.ahead is not None and change.logged:
            self._note_set_back(topic, topic.queue, topic.queue.ahead)
        if change.body is not None:
            change.ts_ms = self.clock.now_ms()
        if not change.requires_sync and topic.position.sync_required_no > self.commits.safe_no:
            change.requires_sync = True
        topic.catalogued = None
        self.commits.stage(change)
        topic.position.logged(change.number, change.requires_sync)

    def stage_apart(self, change: Change) -> None:
        """Stages a change of no topic, or one that a topic's later changes need not wait for. Does not block."""
        change.ts_ms = self.clock.now_ms()
        self.commits.stage(change)

    def check_deadline(self, request: Request) -> None:
        """Raises `503` if the request is past its deadline. Call it before anything of the request is staged: the asker
        has given the request up, or is about to, and relies on `outcome: "not_done"`."""
        if request.deadline_ns and self.clock.monotonic() * 1e9 > request.deadline_ns:
            raise too_late()

    def _note_set_back(self, topic: Topic, queue: Queue, ahead: tuple[int, int]) -> None:
        queue.ahead = None
        try:
            self.stage(_SetBack(topic, queue, ahead, body=Leases(set_back=ahead), requires_sync=False))
        except Undone as error:
            raise RuntimeError("the change before which this is noted is not staged yet") from error

    def pin_copies(self, topic: Topic) -> None:
        """Logs a pin if the topic has unpinned copies. Call it before any frame of the topic is logged."""
        if topic.lane is not None and topic.lane.unpinned:
            self.pin(topic, topic.lane)

    def pin(self, topic: Topic, lane: Lane, *, exact: bool = True) -> None:
        """Logs where the lane's copies end. With `exact` False, replay cannot make these copies again."""
        before, lane.unpinned = lane.unpinned, False
        pin = Pin(lane.cursor, lane.head, lane.ts, lane.version, exact, lane.stopped)
        try:
            self.stage(_Pinned(topic, lane, before, body=pin, requires_sync=False))
        except Undone as error:
            raise RuntimeError("the change for which the copies are pinned is not staged yet") from error


class _Pinned(TopicChange, eq=False):
    lane: Lane
    before: bool
    """Whether the lane was unpinned."""

    def undo(self, error: TopicsError) -> None:
        self.lane.unpinned = self.before


class _SetBack(TopicChange, eq=False):
    queue: Queue
    ahead: tuple[int, int]

    def undo(self, error: TopicsError) -> None:
        self.queue.ahead = self.ahead


def performance(timing: Timing) -> dict[str, float]:
    return {"wal_append_ms": timing.write_ms, "fsync_ms": timing.sync_ms}


def refuse(ident: int, respond: Respond, error: TopicsError) -> None:
    respond(Reply(ident, error=error))


def too_late() -> TopicsError:
    """`503` for a request that is past its deadline."""
    return not_ready("the request came too late and was not carried out", outcome="not_done")
