"""Options of reads and streams, parsed and checked. Names are those of Spark's Kafka source where it has the option.

    path, paths               data directories, shard directories, backups, cold tiers, buckets: see `directory`
    coldPath                  the server's TOPICS_COLD_DIR, one for each path
    bucketKeyFile             the service's TOPICS_BUCKET_KEY_FILE, on driver and executors; default: that variable
    url, token                a running service instead of files: see `feed`
    subscribe                 "orders,returns"; they must exist when a read or a new stream begins
    subscribePattern          a regular expression that the whole name of a topic matches
    assign                    {"orders": [0]}: topic and shard, or ["orders", "returns"]
    startingOffsets           "earliest", "latest", or {"orders": 23}, {"orders": {"0": 23}}: first seq to read, -2 for
                              the earliest, -1 for the latest. A topic that is not named begins at its earliest
    endingOffsets             "latest", or the same JSON: one past the last seq to read. Batch only
    startingTimestamp         ms since 1970, for all topics; startingOffsetsByTimestamp: {"orders": 1700000000000}
    endingTimestamp           likewise, exclusive; endingOffsetsByTimestamp. Batch only
    failOnDataLoss            "true" (the default), "false"
    failOnDamage              whether damaged files are errors; default: as failOnDataLoss
    columns                   "offset, value": the columns of the read, in this order; see `columns`
    includeHeaders            "true": column `headers`
    includeTombstones         "true": rows, and columns, for seqs that were lost
    minPartitions             split files until there are as many tasks
    maxOffsetsPerTrigger      records, and
    maxBytesPerTrigger        bytes, that a micro-batch has at most. Streams only
    consumerGroup             the named cursor that shows a stream's progress

Case does not matter, because Spark may convert option names to lower case. Unknown names are ignored, as everywhere in
Spark, unless they resemble one of these.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

NAMES = tuple(
    """
    path paths coldPath bucketKeyFile url token subscribe subscribePattern assign startingOffsets endingOffsets
    startingTimestamp startingOffsetsByTimestamp endingTimestamp endingOffsetsByTimestamp failOnDataLoss failOnDamage
    columns includeHeaders includeTombstones minPartitions maxOffsetsPerTrigger maxBytesPerTrigger consumerGroup
    """.split()  # noqa: SIM905 - as a list it would be a page
)
EARLIEST, LATEST = -2, -1
BUCKETS = ("s3://", "s3a://", "gs://", "gcs://", "az://", "abfs://", "abfss://")
"""How the URL of a bucket begins."""
SERVICE = "service.json"
"""The object that a bucket has in place of a manifest."""
KEY_FILE_VARIABLE = "TOPICS_BUCKET_KEY_FILE"


class BadOption(ValueError):
    """An option is invalid. The message names it, its value, and the allowed values."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Selection of topics. `name in topics` tests a name, without regard to its shard."""

    names: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    shards: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if self.pattern is not None:
            return self.pattern.fullmatch(name) is not None
        return not self.names or name in self.names

    def in_shard(self, number: int) -> Topics:
        """The selection for one shard: topics that are not assigned to other shards."""
        if not self.shards:
            return self
        return Topics(frozenset(name for name in self.names if number in self.shards.get(name, (number,))) or _NOBODY)


def all_there(topics: Topics, there: Collection[str]) -> None:
    """Raise `BadOption` if a named topic does not exist. A pattern may match nothing."""
    for name in sorted(topics.names - _NOBODY):
        if name not in there:
            raise BadOption(
                f'option {"assign" if topics.shards else "subscribe"} names the topic "{name}", which does not exist: '
                "make it first, or say subscribePattern, which may match topics that are made later"
            )


_NOBODY = frozenset({""})
"""A selection that matches no topic, because no topic has an empty name."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Start or end of a read, from option `option`. `seqs` and `times` (ms) apply to single topics, `time_ms` to all
    others if it is given, else `default` (`EARLIEST` or `LATEST`). A seq may be `EARLIEST` or `LATEST` too."""

    option: str
    default: int
    seqs: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, int] = field(default_factory=dict)
    time_ms: int | None = None

    def time_of(self, topic: str) -> int | None:
        """The bound of a topic in ms since 1970; None if it is not a time."""
        return self.times.get(topic, self.time_ms)

    def seq_of(self, topic: str, stop: int) -> int:
        """The bound of a topic as a seq up to `stop`, one past its last one, or `EARLIEST` or `LATEST`. Raises
        `BadOption`."""
        seq = self.seqs.get(topic, self.default)
        if seq > stop:
            raise BadOption(
                f'option {self.option} = {seq} for topic "{topic}": its last seq is {stop - 1}, so it is {stop} at most'
            )
        return seq

    def earliest(self, topic: str) -> bool:
        """Whether the bound of a topic is its earliest seq."""
        return self.time_of(topic) is None and self.seqs.get(topic, self.default) == EARLIEST

    def all_there(self, there: Collection[str]) -> None:
        """Raise `BadOption` if a named topic does not exist."""
        for name in {*self.seqs, *self.times} - {*there}:
            raise BadOption(f'option {self.option} names the topic "{name}", which does not exist')


@dataclass(frozen=True, slots=True)
class Options:
    paths: tuple[str, ...]
    cold: tuple[str, ...]
    bucket_key_file: str
    topics: Topics
    starting: Bound
    ending: Bound
    fail_on_data_loss: bool
    fail_on_damage: bool
    columns: tuple[str, ...]
    """Empty: all columns that the other options ask for."""
    headers: bool
    tombstones: bool
    min_partitions: int
    max_offsets: int
    """0: no limit."""
    max_bytes: int
    """0: no limit."""
    url: str
    consumer_group: str


def parse(given: Mapping[str, str], *, streaming: bool = False) -> Options:
    """Parse and check options. Raises `BadOption`."""
    options = _Given(given)
    options.slips()
    paths = options.directories("paths") or options.directories("path")
    url = options.text("url")
    if url and paths:
        raise BadOption(f"path and url exclude each other: read files ({paths[0]}) or ask a service ({url})")
    if not url and not paths:
        raise BadOption(
            'no path: say spark.read.format("topics").load("<the server\'s data directory>"), or .option("url", …)'
        )
    cold = options.directories("coldPath")
    topics = _topics(options)
    strict = options.flag("failOnDataLoss", True)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            options.refuse(name, "a stream has no end; leave it out, or use spark.read")
    else:
        for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger"):
            options.refuse(name, "only a stream has triggers; leave it out, or use spark.readStream")
    if not url:
        options.refuse("token", "files need no token; it goes with url")
        if options.text("consumerGroup"):
            options.refuse("consumerGroup", "a cursor is kept by the service, so it goes with url")
    return Options(
        paths=tuple(paths),
        cold=tuple(cold),
        bucket_key_file=options.text("bucketKeyFile") or os.environ.get(KEY_FILE_VARIABLE, ""),
        topics=topics,
        starting=_bound(options, "starting", LATEST if streaming else EARLIEST, topics, streaming),
        ending=_bound(options, "ending", LATEST, topics, streaming),
        fail_on_data_loss=strict,
        fail_on_damage=options.flag("failOnDamage", strict),
        columns=options.columns(),
        headers=options.flag("includeHeaders", False),
        tombstones=options.flag("includeTombstones", False),
        min_partitions=options.number("minPartitions"),
        max_offsets=options.number("maxOffsetsPerTrigger"),
        max_bytes=options.number("maxBytesPerTrigger"),
        url=url,
        consumer_group=options.text("consumerGroup"),
    )


class _Given:
    """Options by name, in any case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._names = list(given)
        self._given = {name.lower(): str(value) for name, value in given.items()}

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), "").strip()

    def refuse(self, name: str, why: str) -> None:
        if value := self.text(name):
            shown = "" if name == "token" else f" = {value!r}"
            raise BadOption(f"option {name}{shown}: {why}")

    def slips(self) -> None:
        known = {name.lower(): name for name in NAMES}
        for name in self._names:
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.85)
            if name.lower() not in known and near:
                raise BadOption(f"option {name} is not known; did you mean {known[near[0]]}?")

    def columns(self) -> tuple[str, ...]:
        value = self.text("columns")
        names = tuple(name.strip() for name in value.split(",")) if value else ()
        if "" in names or len({*names}) < len(names):
            raise BadOption(f"option columns = {value!r}: it names columns, each once, as in offset, value")
        return names

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name).lower() or str(default).lower()
        if value not in ("true", "false"):
            raise BadOption(f"option {name} = {self.text(name)!r}: it is true or false")
        return value == "true"

    def number(self, name: str) -> int:
        """A positive number, 0 if it was not given."""
        value = self.text(name)
        if value and not (value.isascii() and value.isdecimal() and 0 < int(value) < 2**63):
            raise BadOption(f"option {name} = {value!r}: it is a whole number, 1 or more")
        return int(value or 0)

    def time(self, name: str) -> int | None:
        value = self.text(name)
        if not value:
            return None
        return _time(f"option {name}", value)

    def directories(self, name: str) -> list[str]:
        """One directory, or a JSON list of them."""
        value = self.text(name)
        listed: Any = [value] if value else []
        if value.startswith("["):
            listed = self.json(name, '["/one", "/another"]')
            if not all(isinstance(path, str) for path in listed):
                raise BadOption(f"option {name} = {value!r}: a JSON list of directories must hold strings")
        return [_local(name, path) for path in listed]

    def json(self, name: str, like: str) -> Any:
        try:
            return json.loads(self.text(name))
        except ValueError as error:
            raise BadOption(f"option {name} = {self.text(name)!r}: not JSON ({error}); it looks like {like}") from None


def _local(option: str, path: str) -> str:
    scheme, colon, rest = path.partition(":")
    if colon and scheme == "file":
        return "/" + rest.lstrip("/")
    if colon and rest.startswith("//") and not (option != "coldPath" and path.startswith(BUCKETS)):
        also = "" if option == "coldPath" else ", or a bucket (s3://, gs://, az://, abfs://)"
        raise BadOption(f"option {option} = {path!r}: it is neither a local nor a mounted directory{also}")
    return path


def _time(what: str, value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal() and int(text) < 2**62):
        raise BadOption(f"{what} = {value!r}: it is a time in milliseconds since 1970")
    return int(text)


def _topics(options: _Given) -> Topics:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.text(name)]
    if len(given) > 1:
        raise BadOption(f"options {' and '.join(given)} exclude each other: give one of them, or none for all topics")
    if not given:
        return Topics()
    value = options.text(given[0])
    if given[0] == "subscribe":
        return Topics(frozenset(filter(None, map(str.strip, value.split(",")))) or _NOBODY)
    if given[0] == "subscribePattern":
        try:
            return Topics(pattern=re.compile(value))
        except re.error as error:
            raise BadOption(f"option subscribePattern = {value!r}: not a regular expression: {error}") from None
    like = '{"orders": [0]} (topic and shard), or ["orders", "returns"]'
    assigned = options.json("assign", like)
    if isinstance(assigned, list) and assigned and all(isinstance(name, str) for name in assigned):
        return Topics(frozenset(assigned))
    listed = (
        isinstance(assigned, dict) and assigned and all(isinstance(each, list) and each for each in assigned.values())
    )
    if not listed or not all(isinstance(shard, int) for shards in assigned.values() for shard in shards):
        raise BadOption(f"option assign = {value!r}: it looks like {like}")
    return Topics(frozenset(assigned), shards={name: frozenset(shards) for name, shards in assigned.items()})


def _bound(options: _Given, kind: str, default: int, topics: Topics, streaming: bool) -> Bound:
    offsets, by_time, at = f"{kind}Offsets", f"{kind}OffsetsByTimestamp", f"{kind}Timestamp"
    given = [name for name in (offsets, by_time, at) if options.text(name)]
    if len(given) > 1:
        raise BadOption(f"options {' and '.join(given)} exclude each other: give one of them")
    if not given:
        return Bound(offsets, default)
    (name,) = given
    if name == at:
        return Bound(name, default, time_ms=options.time(at))
    value = options.text(name)
    word = value.lower()
    if name == offsets and word in ("earliest", "latest"):
        if kind == "ending" and word == "earliest":
            raise BadOption("option endingOffsets = 'earliest': nothing would be left to read; it is latest, or JSON")
        if kind == "starting" and word == "latest" and not streaming:
            raise BadOption(
                "option startingOffsets = 'latest': nothing would be left to read; it is earliest, or JSON. "
                "Only a stream can begin at the latest"
            )
        return Bound(name, EARLIEST if word == "earliest" else LATEST)
    like = '{"orders": 1700000000000}' if name == by_time else '"earliest", "latest", or {"orders": 23}'
    named = options.json(name, like)
    if not isinstance(named, dict):
        raise BadOption(f"option {name} = {value!r}: it looks like {like}")
    places = {}
    for topic, place in named.items():
        if topic not in topics:
            raise BadOption(f'option {name} names the topic "{topic}", which is not one of those that are read')
        if isinstance(place, dict) and len(place) == 1:
            (place,) = place.values()  # Kafka's form, by partition; a topic is in one shard only
        if name == by_time:
            places[topic] = _time(f'option {name}, topic "{topic}"', place)
        else:
            places[topic] = _seq(name, topic, place, kind)
    if name == by_time:
        return Bound(name, default if kind == "ending" else EARLIEST, times=places)
    return Bound(name, LATEST if kind == "ending" else EARLIEST, seqs=places)


def _seq(name: str, topic: str, place: Any, kind: str) -> int:
    lowest = LATEST if kind == "ending" else EARLIEST
    if isinstance(place, bool) or not isinstance(place, int) or not lowest <= place < 2**63:
        also = "-1 for the latest" if kind == "ending" else "-2 for the earliest, -1 for the latest"
        raise BadOption(f'option {name}, topic "{topic}" = {place!r}: it is a seq, or {also}')
    return place
