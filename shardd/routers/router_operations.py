"""Router operations: creates, changes, deletes and lists the routers whose destination is in this shard.

The registrar decides which routers are allowed, because it alone sees the routers of all shards. It asks one shard
after the other (`shardd.routers.registrar`). Every change is one frame with the destination's whole new lane, and waits
for a sync. Before a router is deleted, a checkpoint saves its copies, so they stay whatever happens to the source.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator
from functools import partial

from msgspec import UNSET

from proto.api.answers import RouterDeleted, RouterEntry
from proto.ipc.message import Reply, Request
from proto.ipc.operations import (
    Graph,
    Page,
    Reading,
    RouterDelete,
    RouterFound,
    RouterGet,
    RouterGraph,
    RouterHold,
    RouterList,
    RouterMade,
    RouterPut,
    RouterSource,
    SourceFound,
)
from proto.model.errors import TopicsError, not_ready, topic_not_found
from proto.model.router import RouterConfig, as_map, fan_in, from_map
from shardd.changes.transactions import Respond, Staging, TopicChange, performance, refuse, to_json
from shardd.frames import RoutersChanged as RoutersFrame
from shardd.routers.holds import Holds, Waiter, Waiting
from shardd.routers.source import forwardable
from shardd.storage.change import Change, Timing
from shardd.storage.indivisible import indivisible
from shardd.topic.lane import Lane, Router
from shardd.topic.topic import Topic

LOOK = 4096
"""Topics visited between two breaks."""


class Routing:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._directory = staging.directory
        self.unsaved = Waiting()
        self._holds = Holds(staging.clock)
        self.expire = self._holds.expire
        self._saving: tuple[list[Waiter], list[tuple[Lane, int]]] = [], []
        """The callbacks for the checkpoint that is being made, and the lanes that it saves, each with its `done`."""
        self._reading: Reading = (0, 0)
        """The latest reading of the routers that the registrar has begun."""
        self.changed: Callable[[Topic], None] = lambda topic: None
        """Called when a topic's lane has changed: its router task may have to start or stop."""

    def source(self, request: Request[RouterSource], respond: Respond) -> None:
        """Answers with the epoch of a future source and the head at which a new router starts. Waits until everything
        up to that head is on the device."""
        topic = self._directory.find(request.topic)
        change = _SourceFound(topic, request, respond, requires_sync=True)
        if forwardable(topic) == topic.records.head_seq:
            change.apply(Timing())
        else:
            self._staging.stage(change)

    def put(self, request: Request[RouterPut], respond: Respond) -> None:
        """Creates or changes a router. Options: `router`, `config`, and the source's `epoch` and `head`.

        A router that gets another source remains the same router; its lane starts at the new source's head. A
        checkpoint saves the copies from the old source first, as for a deletion."""
        options = request.options
        name, config = options.router, from_map(options.config)

        def change() -> None:
            topic = self._directory.assigned.get(config.dest)
            if topic is None:
                raise topic_not_found(config.dest)
            self._put(topic, config, request, respond)

        topic = self._directory.assigned.get(config.dest)
        lane = None if topic is None else topic.lane
        if lane is not None and name in lane.routers and (lane.source, lane.epoch) != (config.source, options.epoch):
            self._when_saved(topic, request, respond, change)
        else:
            change()

    def _contained(self, request: Request, respond: Respond, work: Callable[[], None]) -> Waiter:
        """`work` as a callback. Its exception is the request's answer, and so is the error that the callback gets."""
        attempt = partial(self._staging.containment.attempt, request, respond, work)
        return lambda error: attempt() if error is None else refuse(request.id, respond, error)

    def _put(self, topic: Topic, config: RouterConfig, request: Request[RouterPut], respond: Respond) -> None:
        self._check_reading(request.options.reading)
        options, name, lane = request.options, request.options.router, topic.lane
        others = {} if lane is None else {n: router for n, router in lane.routers.items() if n != name}
        other = lane is not None and (lane.source, lane.epoch) != (config.source, options.epoch)
        # The others stay, unless their source is gone: a topic of its name that was created later is another one.
        fresh = lane is None or (other and (not others or lane.source == config.source))
        if not fresh and lane is not None and lane.source != config.source:
            raise fan_in(config.dest, None)  # the key is not known here, nor whether it may know the source
        before = None if lane is None else lane.routers.get(name)
        now = self._staging.clock.now_ms()
        if not fresh and before is not None and before.config == config:
            respond(_answer(request, name, before.config, created=False, timing=Timing()))
            return
        forwarded = 0 if before is None else before.forwarded
        if fresh or lane is None:
            version = 1 if lane is None else lane.version + 1
            changed = Lane(config.source, options.epoch, options.head, options.head, version)
            changed.routers = {name: Router(name, config, options.head, now, forwarded)}
        else:
            since = options.head if before is None else before.since
            router = Router(name, config, since, now, forwarded)
            # In place, to keep the order of routers, which is the order of their copies.
            changed = lane.changed({**lane.routers, name: router})
        created = before is None if options.created is None else options.created

        def done(timing: Timing) -> None:
            reply = _answer(request, name, config, created=created, timing=timing)
            reply.extra = RouterMade(now)
            respond(reply)

        self._change(topic, changed, done, partial(refuse, request.id, respond))
        self._staging.commits.flush()

    def delete(self, request: Request[RouterDelete], respond: Respond) -> None:
        """Deletes a router, once a checkpoint has saved its copies. Option `router`; the topic is its destination."""
        name = request.options.router

        def done(timing: Timing, *, deleted: bool) -> None:
            body = to_json(RouterDeleted(name, deleted))
            respond(Reply(request.id, body, performance=performance(timing)))

        def remove() -> None:
            self._check_reading(request.options.reading)
            topic = self._directory.assigned.get(request.topic)
            lane = None if topic is None else topic.lane
            visible = None if topic is None else topic.lane_visible
            there = lane is not None and name in lane.routers
            if topic is None or lane is None or not (there or (visible is not None and name in visible.routers)):
                done(Timing(), deleted=False)
                return
            # One whose removal is staged is still visible: the answer waits for that, behind a change of its own.
            left = {n: router for n, router in lane.routers.items() if n != name}
            failed = partial(refuse, request.id, respond)
            self._change(topic, lane.changed(left), partial(done, deleted=there), failed)
            self._staging.commits.flush()

        topic = self._directory.assigned.get(request.topic)
        self._when_saved(topic, request, respond, remove)

    def _check_reading(self, reading: Reading) -> None:
        """Raises `503` for a change that rests on an earlier reading than the latest: its registrar is gone or gave it
        up, and it may contradict what was allowed since."""
        if reading < self._reading:
            raise not_ready("the routers were read again before this change, which was not made", outcome="not_done")

    def _when_saved(
        self,
        topic: Topic | None,
        request: Request[RouterPut] | Request[RouterDelete],
        respond: Respond,
        work: Callable[[], None],
    ) -> None:
        """Calls `work` when a checkpoint has saved every copy of the topic's lane, staged ones too; at once if one has
        already. Raises `503` as `_check_reading`."""
        contained = self._contained(request, respond, work)
        lane = None if topic is None else topic.lane
        if topic is None or lane is None or not (lane.unsaved or topic.copies_staged):
            contained(None)
            return

        def then(error: TopicsError | None) -> None:
            contained(error)
            self._holds.release(lane, request)

        self._check_reading(request.options.reading)
        # On hold, the lane adds no copies, so the checkpoint saves all of them.
        with indivisible:
            self._holds.hold(lane, request)
            self.unsaved.add([topic], then)

    def drop(self, topic: Topic) -> None:
        """Removes the topic's routers, because their source no longer exists."""
        lane = topic.lane
        if lane is not None and lane.routers:
            self._change(topic, lane.changed({}), lambda timing: None, lambda error: None)

    def _change(
        self, topic: Topic, lane: Lane, done: Callable[[Timing], None], failed: Callable[[TopicsError], None]
    ) -> None:
        """Gives the topic another lane. `done` answers the request, `failed` refuses it."""
        before = topic.lane
        lane.held = False
        body = RoutersFrame(lane.dump(lane.cursor))
        change = _RoutersChanged(topic, self, lane, before, done, failed, body=body, requires_sync=True)
        with indivisible:
            self._staging.stage(change)
            topic.lane = lane
            lane.unpinned = False  # staging this change has pinned the old lane's copies
            if before is not None:
                before.gone = True

    def hold(self, request: Request[RouterHold], respond: Respond) -> None:
        """Stops copying from a source that is about to be deleted, and answers when a checkpoint has saved the copies;
        with `release`, resumes copying.

        Options: `source`, `release`.
        """
        release, unsaved, staged = request.options.release, False, list[Topic]()

        with indivisible:
            for topic in self.destinations():
                lane = topic.lane
                if lane is not None and lane.source == request.options.source:
                    if release:
                        self._holds.release(lane)
                    else:
                        self._holds.hold(lane, request)
                    unsaved = unsaved or lane.unsaved
                    if topic.copies_staged:
                        staged.append(topic)
            if (unsaved or staged) and not release:
                self.unsaved.add(staged, self._contained(request, respond, partial(respond, Reply(request.id))))
            else:
                respond(Reply(request.id))

    # Saving

    def saving(self) -> Generator[None, None, None]:
        """Notes the lanes that the checkpoint which now begins saves: they are unsaved until it has ended. Yields after
        every `LOOK` topics."""
        self._saving = self.unsaved.take(), []
        for looked, topic in enumerate(list(self._directory.visible.values()), 1):
            lane = topic.lane
            if lane is not None and lane.routers and lane.unsaved and topic.unloaded is None:
                self._saving[1].append((lane, lane.done))
            if looked % LOOK == 0:
                yield

    def saved(self, error: OSError | None) -> None:
        """Calls the waiters: the checkpoint has ended. Its lanes are saved, except those with later copies. With
        `error`, none is, and the waiters get `503`."""
        waiting, lanes = self._saving
        self._saving = [], []
        refusal = None
        if error is None:
            for lane, done in lanes:
                lane.unsaved = lane.cursor != done
        else:
            refusal = not_ready(
                f"copies could not be saved ({error.strerror or error}); free space or mend the disk, then try again",
                reason="write_failed",
            )
        for waiter in waiting:
            waiter(refusal)

    # Looking

    def waiting(self) -> int:
        """Number of routers that wait, for room in their destination or under a cap."""
        lanes = [topic.lane for topic in self.destinations() if topic.lane is not None]
        return sum(len(lane.routers) for lane in lanes if lane.waits_for is not None)

    def destinations(self) -> list[Topic]:
        """The topics that are the destination of a router."""
        return [
            topic
            for topic in self._directory.visible.values()
            if topic.lane is not None and topic.lane.routers and topic.unloaded is None
        ]

    def visible(self) -> list[Router]:
        lanes = [topic.lane_visible for topic in self._directory.visible.values() if topic.lane_visible is not None]
        return [router for lane in lanes for router in lane.routers.values()]

    def routers(self) -> dict[str, Router]:
        """The shard's visible routers, by name."""
        return {each.name: each for each in self.visible()}

    def graph(self, request: Request[RouterGraph], respond: Respond) -> None:
        """Answers the registrar with the shard's visible routers, `[name, config, made_ms]` each. Option `reading`.

        A reading ends the changes that rest on earlier ones: those that wait for a sync are waited for, and those that
        wait for a checkpoint, or arrive later, are refused. So the answer has all that will ever come of them."""
        reading = request.options.reading
        change = _GraphRead(self, request, respond, requires_sync=True)
        if reading is not None:
            self._reading = max(self._reading, reading)
        if reading is not None and self._staging.commits.depth:
            self._staging.stage_apart(change)
        else:
            change.commit(Timing())

    def get(self, request: Request[RouterGet], respond: Respond) -> None:
        """Answers with one router. Options: `router`. `found` is False if it is not in this shard."""
        topic = self._directory.visible.get(request.topic)
        lane = None if topic is None else topic.lane_visible
        router = None if lane is None else lane.routers.get(request.options.router)
        if topic is None or router is None:
            respond(Reply(request.id, extra=RouterFound(False)))
        else:
            shown = {"router": router.name, **as_map(router.config), "forwarded_total": router.forwarded}
            if (reason := _waits_for(topic)) is not None:
                shown["waits_for"] = reason
            respond(Reply(request.id, to_json(shown), extra=RouterFound(True)))

    def list(self, request: Request[RouterList], respond: Respond) -> None:
        """Answers a page of routers, sorted by name. Options: `prefix`, `prefixes`, `source`, `dest`, `after`,
        `page_size`."""
        options = request.options
        prefixes = options.prefixes
        every = self.routers()
        waiting = {topic.name: reason for topic in self.destinations() if (reason := _waits_for(topic)) is not None}
        names = sorted(
            name
            for name, router in every.items()
            if name.startswith(options.prefix)
            and (not prefixes or all(n.startswith(prefixes) for n in (name, router.config.source, router.config.dest)))
            and options.source in ("", router.config.source)
            and options.dest in ("", router.config.dest)
        )
        start = bisect_right(names, options.after)
        page = names[start : start + options.page_size]
        entries: list[RouterEntry] = []
        for name in page:
            router, config = every[name], every[name].config
            waits = waiting.get(config.dest, UNSET)
            entries.append(RouterEntry(name, config.source, config.dest, config.guarantee, router.forwarded, waits))
        more = start + len(page) < len(names)
        respond(Reply(request.id, to_json(entries), extra=Page(tuple(page), more)))


class _SourceFound(TopicChange, eq=False):
    """Changes nothing: everything that was visible is on the device."""

    request: Request[RouterSource]
    respond: Respond

    def apply(self, timing: Timing) -> None:
        self.respond(Reply(self.request.id, extra=SourceFound(self.topic.epoch, self.topic.records.head_seq)))

    def undo(self, error: TopicsError) -> None:
        refuse(self.request.id, self.respond, error)


class _GraphRead(Change, eq=False):
    """Changes nothing: all changes of routers that were staged before it are visible, or undone."""

    routing: Routing
    request: Request[RouterGraph]
    respond: Respond

    def commit(self, timing: Timing) -> None:
        rows = tuple((each.name, as_map(each.config), each.made_ms) for each in self.routing.visible())
        self.respond(Reply(self.request.id, extra=Graph(rows)))

    def undo(self, error: TopicsError) -> None:
        refuse(self.request.id, self.respond, error)


class _RoutersChanged(TopicChange, eq=False):
    """The destination has another lane."""

    routing: Routing
    lane: Lane
    before: Lane | None
    done: Callable[[Timing], None]
    failed: Callable[[TopicsError], None]

    def apply(self, timing: Timing) -> None:
        self.topic.lane_visible = self.lane
        self.routing.changed(self.topic)
        self.done(timing)

    def undo(self, error: TopicsError) -> None:
        before = self.topic.lane = self.before
        if before is not None:
            before.gone = before.held = False
        self.routing.changed(self.topic)
        self.failed(error)


def _waits_for(topic: Topic) -> str | None:
    return None if topic.lane is None else topic.lane.waits_for


def _answer(request: Request, name: str, config: RouterConfig, *, created: bool, timing: Timing) -> Reply:
    body = to_json({"router": name, "created": created, **as_map(config)})
    return Reply(request.id, body, created=created, performance=performance(timing))
