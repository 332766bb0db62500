"""Admission: what a request comes to under the caps over all topics, and the name prefixes of its key.

`shardd.changes.allowance` says whether the shard has room for it. The gateway does not know which topics exist or what
a body says. It passes these options, and the shard checks them:

    may_configure   False: the write must not create a topic with a configuration of its own
    prefixes        names in the body must begin with one of these; absent: any name

An update of an existing topic is never refused here.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple

from proto.format.columns import Columns
from proto.ipc.operations import Growing
from proto.model.errors import ErrorCode, TopicsError, throttled
from proto.model.limits import RECORD_OVERHEAD, Limits
from proto.model.topic_config import ConfigPatch, TopicConfig
from shardd.topic.topic import Topic


class Growth(NamedTuple):
    """The most bytes that a write adds to what its topic was promised, and the least: 0 if that is not known while
    other changes of the topic are staged."""

    most: int
    least: int


NO_BYTES = Growth(0, 0)


def too_many_topics(limits: Limits) -> TopicsError:
    most = limits.max_topics
    return throttled(
        "max_topics", most, f"there are as many topics as TOPICS_MAX_TOPICS allows, {most}; delete some first"
    )


def too_many_bytes(needed: Growth, limits: Limits, *, letters: bool) -> TopicsError:
    """The refusal of a client's write, or of `letters` from an outbox."""
    too_many = f"{needed.most} bytes are more than" if letters else f"this write needs {needed.most} bytes more than"
    return throttled(
        "max_total_bytes",
        limits.max_total_bytes,
        f"{too_many} TOPICS_MAX_TOTAL_BYTES, {limits.max_total_bytes}, has left for all topics; delete records or "
        "topics first",
        bytes=needed.most if letters else needed.least,
    )


def growth(topic: Topic | None, config: TopicConfig, size: int, count: int, columns: Columns | None = None) -> Growth:
    """The growth of a topic by a write of `count` records and `size` bytes, whose `columns` may be given. A topic that
    evicts holds less than both. `topic` is None if the write creates it.

    Costs nothing per record: at most a search in the batches that the write evicts."""
    if topic is None:
        return _of(0, size - _own(config, size, count, columns, count - config.cap_records, size - config.cap_bytes))
    records = topic.records
    promised = records.bytes if records.promise is None else records.promise.most
    held = records.bytes + records.pending_bytes
    if config.discard != "old" or not (config.cap_records or config.cap_bytes):
        return _of(promised, held + size)
    if topic.held_at:  # what is staged may change what is evicted, but not that bytes are
        return _at_most(promised, held + size, config, size, columns)
    lost, over, over_size, _ = records.evicted_by(config, count, size)
    after = held + size - lost
    if not records.pending_count:
        return _of(promised, after - _own(config, size, count, columns, over, over_size))
    if over or over_size:  # staged records are evicted, too
        return _at_most(promised, after, config, size, columns)
    return _of(promised, after)


def _of(promised: int, after: int) -> Growth:
    needed = max(after - promised, 0)
    return Growth(needed, needed)


def _at_most(promised: int, after: int, config: TopicConfig, size: int, columns: Columns | None) -> Growth:
    """Where it is not known what else is evicted: the cap holds, unless the newest record alone is larger."""
    if config.cap_bytes:
        newest = size if columns is None else columns.size(columns.count - 1, columns.count) + RECORD_OVERHEAD
        after = min(after, max(config.cap_bytes, newest))
    return Growth(max(after - promised, 0), 0)


def _own(config: TopicConfig, size: int, count: int, columns: Columns | None, over: int, over_size: int) -> int:
    """Bytes of the write's own records that it evicts, of which the caps allow `over` records and `over_size` bytes
    too many."""
    if config.discard != "old" or columns is None:
        return 0
    gone = max(over, 0) if config.cap_records else 0
    if config.cap_bytes and over_size > 0:

        def lost(end: int) -> int:
            return columns.size(0, end) + RECORD_OVERHEAD * end

        gone = max(gone, bisect_left(range(count + 1), over_size, key=lost))
    gone = min(gone, count - 1)
    return columns.size(0, gone) + RECORD_OVERHEAD * gone


def check_patch(patch: ConfigPatch | None, options: Growing[Any]) -> None:
    """Raises `403 forbidden` if the patch's dead-letter topic is outside the key's prefixes."""
    if patch is not None and isinstance(patch.dead_letter, str):
        check_target(patch.dead_letter, options, "dead_letter")


def check_target(target: str, options: Growing[Any], field: str) -> None:
    """Raises `403 forbidden` if `target`, a topic that the body names in `field`, is outside the key's prefixes."""
    prefixes = options.prefixes
    if prefixes and not target.startswith(prefixes):
        raise TopicsError(
            ErrorCode.FORBIDDEN,
            f'this key may not use "{target}" as {field}: its names begin with {" or ".join(prefixes)}',
            {"reason": "prefix", "topic": target},
        )


def check_inline(patch: ConfigPatch | None, options: Growing[Any]) -> None:
    """Checks the config of a write that is about to create its topic. Raises `403 forbidden`."""
    if patch is not None and not options.may_configure:
        raise TopicsError(
            ErrorCode.FORBIDDEN,
            "creating a topic with a config of its own needs the scope admin; leave config out, or use another key",
            {"reason": "scope", "missing": ["admin"]},
        )
    check_patch(patch, options)
