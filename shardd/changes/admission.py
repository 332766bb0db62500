"""Admission: checks of a request against the service-wide caps on topics and bytes, and the name prefixes of its key.

The gateway does not know which topics exist or what a body says. It passes these options, and the shard checks them:

    most_topics     the most topics this shard may hold, so that all shards together keep to the cap; absent: no cap
    most_bytes      the most retained bytes this shard may hold, likewise
    may_configure   False: the write must not create a topic with a configuration of its own
    prefixes        names in the body must begin with one of these; absent: any name

An update of an existing topic is never refused here.
"""

from __future__ import annotations

from typing import Any

from proto.ipc.operations import Growing
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from proto.model.topic_config import ConfigPatch, TopicConfig

RETRY_AFTER_MS = 1000


def check_topics(held: int, options: Growing[Any], limits: Limits) -> None:
    """Raises `429 throttled` if there is no room for one topic more than `held`, which includes lent ones."""
    cap = options.most_topics
    if cap is not None and held + 1 > cap:
        raise TopicsError(
            ErrorCode.THROTTLED,
            f"there are as many topics as TOPICS_MAX_TOPICS allows, {limits.max_topics}; delete some first",
            {"limit": "max_topics", "max": limits.max_topics},
            retry_after_ms=RETRY_AFTER_MS,
        )


def check_bytes(held: int, needed: int, options: Growing[Any], limits: Limits) -> None:
    """Raises `429 throttled` if there is no room for `needed` bytes more than `held`."""
    cap = options.most_bytes
    if cap is not None and needed and held + needed > cap:
        raise TopicsError(
            ErrorCode.THROTTLED,
            f"this write needs {needed} bytes more than TOPICS_MAX_TOTAL_BYTES, {limits.max_total_bytes}, has left for "
            "all topics; delete records or topics first",
            {"limit": "max_total_bytes", "max": limits.max_total_bytes, "bytes": needed},
            retry_after_ms=RETRY_AFTER_MS,
        )


def growth(size: int, held: int, config: TopicConfig) -> int:
    """The most bytes that a write of `size` bytes can add to a topic that holds `held` bytes, staged ones included. A
    topic that evicts does not grow past its cap."""
    if config.discard == "old" and size <= config.cap_bytes:
        return min(size, max(config.cap_bytes - held, 0))
    return size


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
