"""Append checks: what a write's topic and its configuration refuse. The caps of all topics together are in
`shardd.changes.admission`."""

from __future__ import annotations

from proto.api.requests import AppendRequest
from proto.model.errors import ErrorCode, TopicsError, invalid, topic_not_found
from proto.model.limits import MAX_IDEMPOTENCY_KEY_CHARS
from proto.model.topic_config import ConfigPatch, TopicConfig, apply
from shardd.topic.topic import Topic


def key_of(body: str | None, header: str | None) -> bytes:
    """The idempotency key of a write, b"" for none. The body's key takes precedence over the header's, which must be
    valid all the same."""
    for each in (body, header):
        if each is not None and len(each) > MAX_IDEMPOTENCY_KEY_CHARS:
            raise invalid(
                f"the idempotency key has {len(each)} characters, at most {MAX_IDEMPOTENCY_KEY_CHARS} are allowed",
                field="idempotency_key",
            )
    return ((header if body is None else body) or "").encode()


def check_delays(delays: list[int] | None, config: TopicConfig, name: str) -> None:
    if delays is not None and config.type != "queue":
        raise invalid(
            f'delay_ms holds back jobs of a queue, but topic "{name}" is a log: leave it out', field="delay_ms"
        )


def lazy_config(name: str, write: AppendRequest) -> TopicConfig:
    """The configuration of the topic that this write creates. Raises `404` if the write must not create it."""
    config = apply(name, None, write.config or ConfigPatch())
    if write.create is False or (write.create is None and not config.auto_create):
        raise topic_not_found(name)
    return config


def check_room(topic: Topic | None, config: TopicConfig, count: int, size: int, name: str) -> None:
    """Checks the caps of a topic with `discard: "reject"` for a write of `count` records and `size` bytes. Raises `422
    topic_full`, or `400 record_too_large` for a write that never fits."""
    if config.discard != "reject" or not (config.cap_records or config.cap_bytes):
        return
    records = 0 if topic is None else topic.records + topic.pending_records
    held = 0 if topic is None else topic.bytes + topic.pending_bytes
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
                    "head_seq": 0 if topic is None else topic.head_seq,
                    "earliest_seq": 1 if topic is None else topic.earliest_seq,
                },
            )
