"""The snapshot of a topic: its catalog fields besides its records."""

from __future__ import annotations

from typing import Any

from proto.model.topic_config import as_map
from shardd.topic.gaps import Gaps
from shardd.topic.job_table import Queue
from shardd.topic.tombstones import RESTART, Losses
from shardd.topic.topic import Topic


def _queue_fields(queue: Queue, durable: bool, last: bool) -> dict[str, Any]:
    return queue.dump(everything=durable or last or not queue.unlogged)


def kept_fields(topic: Topic, last: bool) -> dict[str, Any]:
    """The catalog fields of a topic besides its records.

    For an ephemeral topic they have the state that a restart finds: the lasting head, and the ceiling. With `last` they
    have the exact head and the losses instead, so that the restart does not move the head.
    """
    lasts = topic.config.durability.lasts
    head, losses = topic.lasting_seq, topic.losses
    inner = Gaps([(first, min(end, head), reason) for first, end, reason in topic.gaps.ranges if first <= head])
    if last and not lasts:
        lost = topic.last_live
        if lost > head and topic.floor > head:
            losses = Losses(list(losses.runs))
            losses.add(lost, RESTART)
        elif lost > head:
            inner.add(head + 1, lost, RESTART)
        head = topic.head_seq
    return {
        "name": topic.name,
        "id": topic.id,
        "epoch": topic.epoch,
        "config": as_map(topic.config),
        "head_seq": head,
        "floor": topic.floor,
        "losses": list(losses.runs),
        "last_ts": topic.last_ts,
        "last_write_ts": topic.last_write_ts,
        "ceiling": topic.head_seq if last and not lasts else max(topic.ceiling, 0 if lasts else head),
        "reserved_in": topic.reserved_in,
        "keys": topic.keys.dump(),
        "queue": None if topic.queue is None else _queue_fields(topic.queue, topic.config.leases_durable, last),
        "cursors": {name: [cursor.seq, cursor.updated_ts] for name, cursor in topic.cursors.items()},
        **_routed(topic),
        **_posted(topic),
        **({"gaps": inner.ranges} if inner.ranges else {}),
    }


def _posted(topic: Topic) -> dict[str, Any]:
    """Fields of topics with transfers to other topics, or from them."""
    fields: dict[str, Any] = {}
    if topic.outbox:
        fields["letters"] = topic.outbox.dump(topic.alive)
    if topic.arrivals.last:
        fields["arrivals"] = topic.arrivals.dump()
    return fields


def _routed(topic: Topic) -> dict[str, Any]:
    """Fields of topics with routers into them."""
    fields: dict[str, Any] = {}
    if topic.lane_visible is not None:
        fields["routers"] = topic.lane_visible.dump(topic.lane_visible.done)
    return fields
