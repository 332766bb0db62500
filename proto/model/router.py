"""Router: the patch a client sends, the stored configuration, how a patch is applied, and checks of the router graph.

The registrar (`shardd.routers.registrar`) parses a client's body, because only it knows the routers of all shards.
Shards store the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from proto.model.body import Form
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.fields import MATCH, Match, Name, about
from proto.model.keys import Key
from proto.model.match import parse_match
from proto.model.names import check_topic

Guarantee = Literal["at_least_once", "exactly_once"]
MAX_HOPS = 8
"""Routers with `allow_cycle` do not forward a record that was forwarded this often."""


# Each field of a configuration, for the stored form and for the patch.
Source = Annotated[Name, about("copies from this topic, which is made if it is missing", examples=["jobs"])]
Dest = Annotated[Name, about("copies to this topic, another one than the source", examples=["audit"])]
PreserveNode = Annotated[bool, about("whether copies keep `$node`")]
PreserveTag = Annotated[bool, about("whether copies keep `$tag`")]
Filter = Annotated[Match | None, about(f"copies only records with this tag: {MATCH}; null: all")]
AllowCycle = Annotated[bool, about(f"whether it may close a cycle; it stops after {MAX_HOPS} copies of a record")]
Guarantees = Annotated[Guarantee, about("at_least_once: a crash may copy a record again")]


class RouterConfig(Struct, frozen=True):
    """Complete configuration of a router. Answers echo the fields in this order."""

    source: Source
    dest: Dest
    preserve_node: PreserveNode = True
    preserve_tag: PreserveTag = True
    filter: Filter = None
    allow_cycle: AllowCycle = False
    guarantee: Guarantees = "at_least_once"


class RouterPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """A router to make, or to change. A missing field keeps its value, and so does null, except in `filter`. A new
    router needs `source` and `dest`."""

    source: Source | None = None
    dest: Dest | None = None
    preserve_node: PreserveNode | None = None
    preserve_tag: PreserveTag | None = None
    create_dest: Annotated[bool | None, about("whether to make a missing `dest`", default=True)] = None
    filter: Filter | UnsetType = UNSET
    allow_cycle: AllowCycle | None = None
    guarantee: Guarantees | None = None


PATCH = Form(RouterPatch, RouterPatch)


def apply(current: RouterConfig | None, patch: RouterPatch) -> RouterConfig:
    """The configuration of a router after `patch`. `current` is None for a new router.

    Raises `400 invalid_request`.
    """
    fields: dict[str, Any] = {}
    for name in RouterConfig.__struct_fields__:
        value = getattr(patch, name)
        if value is not UNSET and (value is not None or name == "filter"):
            fields[name] = value
    if current is None:
        for name in ("source", "dest"):
            if name not in fields:
                raise invalid(f"a router needs {name}: the name of a topic", field=name)
        config = RouterConfig(**fields)
    else:
        config = msgspec.structs.replace(current, **fields)
    check_topic(config.source, "source")
    check_topic(config.dest, "dest")
    if config.source == config.dest:
        raise invalid("source and dest must be two topics, not the same one", field="dest")
    if config.filter is not None:
        parse_match(config.filter, "filter")
    return config


def as_map(config: RouterConfig) -> dict[str, Any]:
    """Fields for the WAL and for messages."""
    return msgspec.structs.asdict(config)


def from_map(fields: dict[str, Any]) -> RouterConfig:
    """The configuration from fields in the WAL. Fields of a later release are ignored, missing ones get defaults."""
    return msgspec.convert(fields, RouterConfig)


def path(edges: Iterable[tuple[str, str]], start: str, goal: str) -> list[str] | None:
    """The topics of a shortest path from `start` to `goal` along edges (source, dest), both included; None if there is
    no path."""
    following: dict[str, list[str]] = {}
    for source, dest in edges:
        following.setdefault(source, []).append(dest)
    came_from: dict[str, str] = {start: ""}
    front = [start]
    while front:
        reached: list[str] = []
        for topic in front:
            for dest in following.get(topic, ()):
                if dest not in came_from:
                    came_from[dest] = topic
                    reached.append(dest)
        if goal in came_from:
            way = [goal]
            while came_from[way[-1]]:
                way.append(came_from[way[-1]])
            return way[::-1]
        front = reached
    return None


def check_cycle(config: RouterConfig, others: Iterable[RouterConfig], key: Key) -> None:
    """Raises `409 router_cycle` if this router would close a cycle and has no `allow_cycle`. The error names only
    topics that the key may access."""
    if config.allow_cycle:
        return
    way = path([(other.source, other.dest) for other in others], config.dest, config.source)
    if way is not None:
        cycle = [config.source, *way]
        shown = " -> ".join(topic for topic, _ in groupby(each if key.covers(each) else "…" for each in cycle))
        raise TopicsError(
            ErrorCode.ROUTER_CYCLE,
            f"this router would close the cycle {shown}; set allow_cycle if that is meant",
            {"cycle": list(filter(key.covers, cycle))},
        )


def fan_in(dest: str, source: str | None) -> TopicsError:
    """`409 topic_exists_incompatible` for a destination that has another source; None for one not to be named."""
    named = {} if source is None else {"source": source}
    what = "another topic" if source is None else f'"{source}"'
    return TopicsError(
        ErrorCode.TOPIC_EXISTS_INCOMPATIBLE,
        f'topic "{dest}" already receives what {what} gets, and a destination has one source; '
        "use another dest, or delete that router first",
        {"reason": "router_dest_fan_in", "dest": dest, **named},
    )


def check_fan_in(config: RouterConfig, others: Iterable[RouterConfig], key: Key) -> None:
    """Raises `409 topic_exists_incompatible` if the destination has another source. The error names it only if the key
    may access it."""
    for other in others:
        if other.dest == config.dest and other.source != config.source:
            raise fan_in(config.dest, other.source if key.covers(other.source) else None)


def router_not_found(name: str) -> TopicsError:
    return TopicsError(ErrorCode.ROUTER_NOT_FOUND, f'router "{name}" does not exist', {"router": name})
