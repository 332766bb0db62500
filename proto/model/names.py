"""Names of topics, routers and watch sessions: their grammar, and the shard that owns a name."""

from __future__ import annotations

import re

import xxhash

from proto.model.errors import TopicsError, invalid
from proto.model.limits import MAX_CURSOR_NAME_BYTES

TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)
ROUTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)
WATCH_SESSION = re.compile(r"wid_[A-Za-z0-9_-]{22}", re.ASCII)
RULE = "1 to 255 characters of A-Z a-z 0-9 . _ : - and the first one a letter or digit"


def is_topic(name: str) -> bool:
    return TOPIC.fullmatch(name) is not None


def check_topic(name: str, what: str = "topic name") -> str:
    """Return `name`, or raise `400 invalid_request`. The gateway sends no other names to a shard."""
    if TOPIC.fullmatch(name) is None:
        raise _bad(name, what, "topic")
    return name


def is_router(name: str) -> bool:
    return ROUTER.fullmatch(name) is not None


def is_cursor(name: str) -> bool:
    return 0 < len(name.encode()) <= MAX_CURSOR_NAME_BYTES


def place_of_cursor(topic: str, cursor: str) -> str:
    """Return a text that sorts as the pair: no name of a topic has a NUL."""
    return f"{topic}\0{cursor}"


def cursor_at(place: str) -> tuple[str, str]:
    """Return the topic and the cursor of a `place_of_cursor`; both are empty for an empty one."""
    topic, _, cursor = place.partition("\0")
    return topic, cursor


def is_place_of_cursor(place: str) -> bool:
    topic, cursor = cursor_at(place)
    return is_topic(topic) and is_cursor(cursor)


def check_router(name: str) -> str:
    """Return `name`, or raise `400 invalid_request`."""
    if ROUTER.fullmatch(name) is None:
        raise _bad(name, "router name", "router", "; > is allowed, too")
    return name


def _bad(name: str, what: str, field: str, more: str = "") -> TopicsError:
    shown = name if len(name) <= 64 else name[:64] + "…"
    return invalid(f"{what} {shown!r} is not valid: {RULE}{more}", field=field)


def shard_of(name: str, shards: int) -> int:
    """The shard that owns `name`: `xxh3_64(name) % shards`. Part of the on-disk format: never change it."""
    return xxhash.xxh3_64_intdigest(name.encode()) % shards
