"""Top view: topics ordered by growth, computed from two samples of all topics, and its rendering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec
from rich.table import Table

from supervisor.cli.quantities import size
from supervisor.client.http_client import Client

PAGE = 1000


class _Topic(msgspec.Struct):
    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int


class _Page(msgspec.Struct):
    topics: list[_Topic]
    next_cursor: str | None = None


_decode = msgspec.json.Decoder(_Page).decode


@dataclass(frozen=True, slots=True)
class Sample:
    """All topics at time `at` (seconds of the caller's clock): their state, largest cursor lag and ready jobs."""

    at: float
    topics: dict[str, _Topic]
    lag: dict[str, int]
    ready: dict[str, int]


def look(client: Client, prefix: str, now: float) -> Sample:
    """Take a sample. Raises as `Client.get` does."""
    topics: dict[str, _Topic] = {}
    cursor: str | None = ""
    while cursor is not None:
        page = _decode(client.get(f"/v0/topics?page_size={PAGE}&prefix={quote(prefix)}&cursor={quote(cursor)}").body)
        topics |= {each.topic: each for each in page.topics}
        cursor = page.next_cursor
    metrics = client.get("/v0/metrics").json()
    lag: dict[str, int] = {}
    for each in metrics.get("topics_cursor_lag", ()):
        lag[each["labels"]["topic"]] = max(lag.get(each["labels"]["topic"], 0), each["value"])
    ready = {each["labels"]["topic"]: each["value"] for each in metrics.get("topics_topic_queue_ready", ())}
    return Sample(now, topics, lag, ready)


def rates(first: Sample, second: Sample, most: int) -> list[dict[str, Any]]:
    """The `most` fastest growing topics. The growth of a topic created or recreated in between is its head seq."""
    seconds = max(second.at - first.at, 1e-9)
    rows: list[dict[str, Any]] = []
    for name, topic in second.topics.items():
        before = first.topics.get(name)
        grown = topic.head_seq - (before.head_seq if before is not None else 0)
        rows.append(
            {
                "topic": name,
                "records_per_s": round((grown if grown >= 0 else topic.head_seq) / seconds, 3),
                "records": topic.count,
                "bytes": topic.bytes,
                "head_seq": topic.head_seq,
                "earliest_seq": topic.earliest_seq,
                "lag": second.lag.get(name),
                "queue_ready": second.ready.get(name),
            }
        )
    rows.sort(key=lambda row: (-row["records_per_s"], -row["bytes"], row["topic"]))
    return rows[:most]


def rendered(rows: list[dict[str, Any]]) -> Table:
    table = Table("topic", box=None, pad_edge=False)
    for title in ("records/s", "records", "size", "head", "lag", "ready"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row["topic"],
            f"{row['records_per_s']:,.1f}",
            f"{row['records']:,}",
            size(row["bytes"]),
            str(row["head_seq"]),
            "" if row["lag"] is None else f"{row['lag']:,}",
            "" if row["queue_ready"] is None else f"{row['queue_ready']:,}",
        )
    return table
