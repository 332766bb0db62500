"""What each kind of frame does to the directory when the log is read back."""

from __future__ import annotations

from typing import Any

import msgspec

from proto.frame import Header, Kind, decode_batch, decode_map
from shardd.config import from_map
from shardd.directory import Directory
from shardd.recovery import Found, RecoveryError
from shardd.topic import Topic


def replay(directory: Directory, found: Found) -> None:
    """Apply one frame. Raises `RecoveryError` for a frame that is whole but contradicts those before it."""
    header = found.header
    try:
        if header.kind == Kind.BATCH:
            _batch(directory, header, found.buffer)
        else:
            _control(directory, header, decode_map(found.buffer, header))
    except (KeyError, ValueError, msgspec.ValidationError) as error:
        raise RecoveryError(f"frame {header.frame_no} of the log is whole but makes no sense: {error!r}") from error


def _batch(directory: Directory, header: Header, buffer: memoryview) -> None:
    topic = directory.by_id[header.topic_id]
    if header.first_seq != topic.next_seq:
        raise ValueError(f"topic {topic.id}: a batch at seq {header.first_seq}, expected {topic.next_seq}")
    columns = decode_batch(buffer, header)
    directory.add(topic, buffer, header.first_seq, columns)
    topic.next_seq = topic.head_seq + 1
    topic.last_write_ts = topic.commit_time(next(iter(columns.times(columns.count - 1, columns.count))))


def _control(directory: Directory, header: Header, fields: dict[str, Any]) -> None:
    if header.kind == Kind.TOPIC_CREATE:
        topic = Topic(fields["name"], header.topic_id, fields["epoch"], from_map(fields["config"]))
        directory.used_id(topic.id)
        directory.show(topic)
    elif header.kind == Kind.TOPIC_CONFIG:
        topic = directory.by_id[header.topic_id]
        topic.config = topic.assigned_config = from_map(fields["config"])
    elif header.kind == Kind.TOPIC_DELETE:
        directory.hide(directory.by_id[header.topic_id])
    elif header.kind == Kind.RESCUED:
        pass
    else:
        raise ValueError(f"frame kind {header.kind} is not known")
