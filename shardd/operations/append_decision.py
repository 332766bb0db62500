"""Append decision: what becomes of a parsed write, from what is known when it arrives. It changes nothing.

    Plan           it is staged, with the configuration and the sizes of the plan
    Repeated       an earlier write had its idempotency key: it shares the earlier one's answer
    Arrived        it brings letters, some of which are here already: it is answered with their seqs
    TopicsError    it is refused

What the caps over all topics, the log, its queue and the disk have room for is asked afterwards
(`shardd.operations.append`).
"""

from __future__ import annotations

from msgspec import Struct

from proto.ipc.message import Request
from proto.ipc.operations import Append, Arrived, Letters
from proto.model.errors import ErrorCode, TopicsError, invalid, not_a_queue, not_ready, topic_not_found
from proto.model.limits import RECORD_OVERHEAD, Limits
from proto.model.topic_config import ConfigPatch, TopicConfig, apply
from shardd.changes.admission import Growth, check_inline, growth
from shardd.operations.append_request import Write
from shardd.topic.topic import Topic


class Plan(Struct, frozen=True):
    """A write that may be staged."""

    config: TopicConfig
    """Of its topic, or of the one that it creates."""
    data_size: int
    size: int
    """Bytes that the topic holds more, without what the write evicts."""
    grows: Growth | None
    """The bytes that it adds to the shard; None without a cap on them."""


class Repeated(Struct, frozen=True):
    topic: Topic


def decide(request: Request[Append], write: Write, topic: Topic | None, limits: Limits) -> Plan | Repeated | Arrived:
    """The decision on a write to `topic`, None if there is none, whose records and keys have been expired.

    Raises `400`, `403`, `404`, `409`, `422`, and `503` while a batch of the same letters' source is staged."""
    name, options, columns = request.topic, request.options, write.columns
    letters, count = options.letters, columns.count
    if topic is None:
        asked = write.asked
        config = apply(name, None, asked.config or ConfigPatch())
        if asked.create is False or (asked.create is None and not config.auto_create):
            raise topic_not_found(name)
        check_inline(asked.config, options)
    else:
        config = topic.assigned_config
        if letters is not None and (here := _arrived(topic, letters, jobs=options.jobs)):
            return Arrived(here)
    if write.delays is not None and config.type != "queue":
        raise invalid(
            f'delay_ms holds back jobs of a queue, but topic "{name}" is a log: leave it out', field="delay_ms"
        )
    if letters is None and columns.key and topic is not None and columns.key in topic.keys:
        return Repeated(topic)
    data_size = columns.size(0, count)
    size = data_size + RECORD_OVERHEAD * count
    if config.discard == "reject":
        _check_room(topic, config, count, size, name)
    grows = growth(topic, config, size, count, columns) if limits.max_total_bytes else None
    return Plan(config, data_size, size, grows)


def _arrived(topic: Topic, letters: Letters, *, jobs: bool) -> tuple[int, ...]:
    """Seqs of those letters of a batch that are here already. Raises `409` for jobs sent to a log, and `503` while a
    batch of the same source is staged."""
    if jobs and topic.queue is None:
        raise not_a_queue(topic.name)
    source, seqs = letters
    if source in topic.arrivals.pending:
        raise not_ready("another batch of the same source is on its way")
    return tuple(sorted(set(seqs).intersection(topic.arrivals.last.get(source, ()))))


def _check_room(topic: Topic | None, config: TopicConfig, count: int, size: int, name: str) -> None:
    """Checks the caps of a topic with `discard: "reject"` for a write of `count` records and `size` bytes. Raises `422
    topic_full`, or `400 record_too_large` for a write that never fits."""
    records = 0 if topic is None else topic.records.count + topic.records.pending_count
    held = 0 if topic is None else topic.records.bytes + topic.records.pending_bytes
    wanted = (
        ("records", config.cap_records, count, records),
        ("bytes", config.cap_bytes, size, held),
    )
    for what, cap, new, _ in wanted:
        if cap and new > cap:
            raise TopicsError(
                ErrorCode.RECORD_TOO_LARGE,
                f'a write of {new} {what} can never fit into topic "{name}", whose cap_{what} is {cap}',
                {"topic": name, f"cap_{what}": cap, what: new},
            )
    for what, cap, new, old in wanted:
        if cap and old + new > cap:
            raise TopicsError(
                ErrorCode.TOPIC_FULL,
                f'topic "{name}" is full: it holds {old} of {cap} {what}. Delete records, or raise cap_{what}',
                {
                    "topic": name,
                    "cap_records": config.cap_records,
                    "cap_bytes": config.cap_bytes,
                    "head_seq": 0 if topic is None else topic.records.head_seq,
                    "earliest_seq": 1 if topic is None else topic.records.floor,
                },
            )
