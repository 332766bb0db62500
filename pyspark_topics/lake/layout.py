"""Layout of a lake: paths, columns, `lake.json`, and what a commit says of itself. Nothing here imports an engine.

    <lake>/events/                   one table of all topics (form `one`), partitioned by topic and date, or
    <lake>/topics/<escaped name>/    a table for each topic (form `topic`), partitioned by date
    <lake>/gaps/                     losses that were met
    <lake>/_topics/lake.json         `About`, below
    <lake>/_topics/checkpoint/<n>/   Spark's checkpoint of the query that began after version n
    <lake>/_topics/lock              held, as of flock(2), while one process changes the tables; on local disks only

Every commit that a lake makes to a table has in its commit information the member `userMetadata`, a text:

    {"topics": {"version": 7, "positions": {"orders": {"seq": 501, "epoch": 2}}}}

`positions` is where version 7 ends: the next seq of each topic and its epoch (`offsets.dump`). In a table of one topic
it has this topic alone. Commits of maintenance and of `reconcile` repeat what they find, with `"repeated": true`, so
that it is there whichever older commits Delta has removed. One that repeats may come after a commit of rows that it did
not see: the newest commit that does not repeat counts, else the highest version. A commit of rows also has the Delta
transaction identifier `app_id(lake, ROWS)` with that version, one of gaps `app_id(lake, GAPS)`.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from pyspark_topics import offsets
from pyspark_topics.offsets import Gap, Offsets

FORMAT = 1
EVENTS, TOPICS, GAPS, ROWS = "events", "topics", "gaps", "rows"
STATE = "_topics"
ABOUT = f"{STATE}/lake.json"
CHECKPOINTS = f"{STATE}/checkpoint"
LOCK = f"{STATE}/lock"
ONE, PER_TOPIC = "one", "topic"
DELTA, ICEBERG = "delta", "iceberg"

COLUMNS: Mapping[str, str] = {
    "topic": "string",
    "date": "date",
    "epoch": "bigint",
    "offset": "bigint",
    "timestamp": "timestamp",
    "partition": "int",
    "node": "string",
    "tag": "string",
    "value": "string",
    "meta": "string",
}
"""Name → type, as DDL has it. All columns are nullable; `timestamp` has microseconds, in UTC."""
GAP_COLUMNS: Mapping[str, str] = {
    "topic": "string",
    "epoch": "bigint",
    "first": "bigint",
    "last": "bigint",
    "cause": "string",
    "noticed": "timestamp",
}
SKIPPING = ("epoch", "offset", "timestamp")
"""Columns with statistics in the log of a table."""
RESCUED = "_rescued"
VARIANT = "value_variant"
PARTITIONED: Mapping[str, tuple[str, ...]] = {ONE: ("topic", "date"), PER_TOPIC: ("date",)}
"""Form → columns that partition its tables. `gaps` is not partitioned."""

LENIENT: Mapping[str, str] = {"failOnDataLoss": "false", "failOnDamage": "true"}
"""Options of a read for a lake: losses are rows of `gaps`, damage is an error."""
COMPACT_EVERY = 10
"""Batches between two looks for small files."""
VACUUM_EVERY_S = 3600.0
ENDED = frozenset(("deleted", "recreated"))
"""Reasons of gaps that the end of a topic's instance made."""

_PLAIN = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run works, unlike `About`, which says what the tables are."""

    max_records: int = 1_000_000
    """Of a batch."""
    compact_to: int = 128 << 20
    """Bytes; 0: no compaction."""
    vacuum_after: float | None = None
    """Hours; None: no vacuum."""


class LakeError(ValueError):
    """The lake cannot be read or written. The message names the path, the reason and the remedy."""


def escaped(topic: str) -> str:
    """Name of a topic's table, which is no path. A name too long for file systems is cut and ends with a digest."""
    name = _PLAIN.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), topic)
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 33]}~{hashlib.sha256(topic.encode()).hexdigest()[:32]}"


def table(form: str, topic: str) -> str:
    """Path of the table of a topic, below the lake."""
    return EVENTS if form == ONE else f"{TOPICS}/{escaped(topic)}"


def tables(files: Any, form: str) -> list[str]:
    """Paths of the tables of rows that a lake in the directory `files` has."""
    return [EVENTS] if form == ONE else [f"{TOPICS}/{name}" for name in files.list(TOPICS)]


def ddl(columns: Mapping[str, str]) -> str:
    """Columns as DDL, each name quoted."""
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def arrow(columns: Mapping[str, str]) -> Any:
    """Columns, of the types of `COLUMNS`, as an Arrow schema."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "date": pa.date32(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "binary": pa.binary(),
    }
    return pa.schema([pa.field(name, types[kind]) for name, kind in columns.items()])


def creation(name: str, form: str) -> bytes:
    """The first commit of the table `name` without rows: its protocol and its schema, without typed columns."""
    columns, partitioned = (GAP_COLUMNS, ()) if name == GAPS else (COLUMNS, PARTITIONED[form])
    types = {"bigint": "long", "int": "integer"}
    schema = [
        {"name": name, "type": types.get(kind, kind), "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    now = time.time_ns() // 1_000_000
    about = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": schema}),
        "partitionColumns": [*partitioned],
        # Statistics of texts would stay in the log when their rows are deleted and vacuumed.
        "configuration": {"delta.dataSkippingStatsColumns": ",".join(name for name in SKIPPING if name in columns)},
        "createdTime": now,
    }
    operation = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}}
    actions = [
        {"commitInfo": {**operation, "userMetadata": Mark().dump(), "engineInfo": "topics"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": about},
    ]
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


@dataclass(frozen=True, slots=True)
class About:
    """`lake.json`. `lake` is a random id. `source` is where the first run read, for people. `columns` are the typed
    columns, name → DDL type; `members` has those whose member of the value has another name. `tables` is their
    format."""

    form: str = ONE
    lake: str = field(default_factory=lambda: uuid.uuid4().hex)
    source: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)
    infer: bool = False
    variant: bool = False
    tables: str = DELTA

    def dump(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode() + b"\n"

    @property
    def all_columns(self) -> dict[str, str]:
        """Columns of a table of rows, in order."""
        typed = {**self.columns, RESCUED: "string"} if self.columns or self.infer else {}
        return {**COLUMNS, **typed, **({VARIANT: "variant"} if self.variant else {})}


def about(content: bytes, path: str) -> About:
    """`lake.json` at `path`. Raises `LakeError`. Members that are not known are left out: older writers keep to
    `format`."""
    try:
        found = json.loads(content)
        version = found["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(f"{path}: it does not describe a lake ({error!r})") from error
    if version != FORMAT:
        raise LakeError(f"{path}: format {version!r}, known here: {FORMAT}; update topics")
    return About(**{name.name: found[name.name] for name in fields(About) if name.name in found})


def described(store: Any, wanted: About | None) -> About:
    """`lake.json` of the directory `store`, created as `wanted` if there is none. Raises `LakeError` if it is of
    another form, or if there is none and nothing is `wanted`."""
    path = store.path(ABOUT)
    if not store.exists(ABOUT):
        if wanted is None:
            raise LakeError(f"{store.root}: no {ABOUT}: this is not a lake")
        taken = [name for name in (EVENTS, GAPS, TOPICS) if store.exists(name)]
        if taken:
            raise LakeError(f"{store.path(taken[0])} exists, and no {ABOUT}: this is not a lake; take another --to")
        try:
            store.create(ABOUT, wanted.dump(), wanted.lake)
        except FileExistsError:
            pass  # another run was faster; its rows count
        except OSError as error:
            raise LakeError(f"{path}: {error.strerror or error}") from None
    found = about(store.read(ABOUT), path)
    if wanted is not None and found.form != wanted.form:
        has, way = ("one table", "without") if found.form == ONE else ("a table for each topic", "with")
        raise LakeError(f"{store.root} has {has}: run it {way} --table-per-topic, or take another --to")
    return found


def same_format(root: str, found: About, wanted: str) -> None:
    """Raise `LakeError` if the tables of the lake at `root` are of another format than `wanted`."""
    if found.tables != wanted:
        raise LakeError(
            f"{root} has {found.tables.capitalize()} tables: take topics-spark lake --format {found.tables}, or "
            "another --to"
        )


def app_id(lake: str, of: str) -> str:
    """Delta's application id of a lake's commits of `ROWS` or `GAPS`."""
    return f"topics-lake/{lake}/{of}"


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a commit; see above. Version 0 is a lake without rows."""

    version: int = 0
    positions: Offsets = field(default_factory=dict)
    repeated: bool = field(default=False, compare=False)

    def dump(self) -> str:
        said: dict[str, Any] = {"version": self.version, "positions": offsets.dump(self.positions)}
        if self.repeated:
            said["repeated"] = True
        return json.dumps({"topics": said}, separators=(",", ":"))


def together(marks: Sequence[Mark]) -> Mark:
    """Up to where tables go together."""
    return Mark(
        max((mark.version for mark in marks), default=0),
        {topic: at for mark in marks for topic, at in mark.positions.items()},
    )


def mark(text: str | None) -> Mark | None:
    """The mark in a commit's `userMetadata`; None if the commit is not a lake's."""
    try:
        said = json.loads(text or "")["topics"]
        return Mark(int(said["version"]), offsets.load(said["positions"]), bool(said.get("repeated", False)))
    except (ValueError, KeyError, TypeError):
        return None


def same_service(lake: str, known: Offsets, there: Offsets) -> None:
    """Raise `LakeError` if the source has several topics of the lake, but all of them as later instances or with less:
    a service has no id to compare."""
    both = [topic for topic, at in known.items() if topic in there and not at.gone]
    if len(both) > 1 and all(offsets.recreated(known[topic], there[topic]) for topic in both):
        raise LakeError(
            f'{lake}: its {len(both)} topics ("{both[0]}" first) are other ones in this source, or end before '
            "the lake does: the lake is of another service, or the source lags. Take the former source, or another --to"
        )


def not_behind(lake: str, known: Offsets, there: Offsets) -> None:
    """Raise `LakeError` if the source has less of a topic than the lake, of the same instance: it would be read again
    from its first record. A lake without epochs cannot tell this from a topic that was created again."""
    for topic, at in known.items():
        now = there.get(topic, at)
        if at.epoch and at.epoch == now.epoch and now.seq < at.seq:
            raise LakeError(
                f'{lake}: topic "{topic}" ends at offset {now.seq - 1} in this source, before the lake does '
                f"({at.seq - 1}): a backup, or one that lags. Read the former source, or start again when this one has "
                "caught up; if it has lost these records, take another --to"
            )


def unseen(gap: Gap, seen: tuple[int, int] | None) -> Gap | None:
    """The part of a gap with an end that a batch lost, if any. `seen` are the first and last offset in the gap that the
    batch read; None: it read none.

    Caps and age take records from the front, so the first one that was read ends the gap. The end of a topic takes all
    that were left, so the gap begins after the last one."""
    if seen is not None:
        first, last = seen
        gap = gap._replace(first=last + 1) if gap.reason in ENDED else gap._replace(last=first - 1)
    return gap if gap.first <= gap.last else None


def missed(
    lost: Iterable[Gap],
    start: Offsets,
    end: Offsets,
    known: Mapping[tuple[str, int], tuple[int, bool]],
    seen: Callable[[Gap, int], tuple[int, int] | None],
) -> list[dict[str, Any]]:
    """Rows of `gaps` for what a source has lost from `start` to `end`, without the rows that are there.

    `known` has, by topic and epoch, the last seq of the gaps that the table has, and whether one of them has no end.
    `seen` returns the first and last offset of a gap that were read, None if none was. The last seq of an open gap is
    null."""
    noticed = datetime.now(UTC)
    rows = []
    for gap in lost:
        # A gap without an end is of the instance that ended.
        epoch = (end if gap.last else start)[gap.topic].epoch
        upto, endless = known.get((gap.topic, epoch), (0, False))
        gap = gap._replace(first=max(gap.first, upto + 1))
        left = unseen(gap, seen(gap, epoch)) if gap.last else gap
        if left is not None and (left.last or not endless):
            values = left.topic, epoch, left.first, left.last or None, left.reason, noticed
            rows.append(dict(zip(GAP_COLUMNS, values, strict=True)))
    return rows
