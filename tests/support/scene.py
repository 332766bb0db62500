"""The scene: a shard that makes checkpoints, the records that Spark would read of its files, and random operations."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec

from proto.model.errors import TopicsError
from pyspark_topics import plan
from pyspark_topics.columns import EVERYTHING, arrow_schema
from pyspark_topics.plan import Piece
from shardd.storage.disk import RealDisk
from tests.support.harness import FakeClock, Harness

ARROW = arrow_schema(EVERYTHING)
Record = tuple[str, int, int, Any, str | None, str | None, Any]
TAGS = [None, "a", "ab", "abc", "b", "b1", "ü"]
NAMES = ["plain", "counted", "sized", "aging", "safe", "small"]
CONFIGS: dict[str, list[dict[str, int | str]]] = {
    "plain": [{}],
    "counted": [
        {"cap_records": 25},
        {"cap_records": 7},
        {"cap_records": 0},
        {"cap_records": 60},
        {"cap_records": 20, "discard": "reject"},
        {"discard": "old"},
    ],
    "sized": [{"cap_bytes": 900}, {"cap_bytes": 3000}, {"cap_bytes": 300}, {"cap_bytes": 0}],
    "aging": [{"ttl_ms": 5000}, {"ttl_ms": 700}, {"ttl_ms": 0}, {"ttl_ms": 5000, "cap_records": 10}],
    "safe": [{"durability": "fsync"}, {"durability": "memory"}],
    "small": [{"cap_records": 1}, {"cap_records": 3, "cap_bytes": 150}],
}


class Scene:
    """A shard on the real disk with small limits, and the records that Spark would read from it."""

    def __init__(self, root: Path, **limits: Any) -> None:
        root.mkdir(exist_ok=True)
        self.cold = root / "cold"
        limits = {
            "wal_segment_bytes": 4096,
            "segment_max_events": 20,
            "cache_bytes": 0,
            "cold_dir": str(self.cold),
            "hot_retain_segments": 1,
        } | limits
        self.shard = Harness(RealDisk(), FakeClock(), root / "shard-00", **limits)
        self.path = self.shard.path
        self.options = {"path": str(self.path), "coldPath": str(self.cold)}
        """The options of a read."""

    def checkpoint(self, *, synced: bool = True) -> None:
        if synced:
            self.shard.shard.commits.sync_now()
        self.shard.shard.checkpoint_now()

    def settle(self) -> None:
        """Let readers find everything that was written."""

    def plan(self) -> list[Piece]:
        self.settle()
        return plan.plan(self.options["path"], (), self.options.get("coldPath"), self.shard.clock.ms)

    def read(self) -> list[Record]:
        return records(self.plan())

    def served(self, shard: Harness | None = None) -> list[Record]:
        """The records by the shard's own replies."""
        shard = shard or self.shard
        return sorted(
            (
                (name, r["$seq"], r["$ts"], r["data"], r.get("$tag"), r.get("$node"), r.get("meta"))
                for name in shard.shard.directory.visible
                for r in shard.everything(name)
            ),
            key=lambda record: record[:2],
        )

    def restarted(self, tmp: Path) -> Harness:
        """Another shard on a copy of the files."""
        copy = tmp / "shard-00"
        shutil.rmtree(tmp, ignore_errors=True)
        shutil.copytree(self.path, copy)
        return Harness(RealDisk(), self.shard.clock, copy, **msgspec.structs.asdict(self.shard.limits))


def records(pieces: list[Piece]) -> list[Record]:
    found: list[Record] = []
    for piece in pieces:
        for batch in plan.read(piece, ARROW):
            batch.validate(full=True)
            assert batch.num_rows
            found += [
                (
                    row["topic"],
                    row["offset"],
                    round(row["timestamp"].timestamp() * 1000),
                    json.loads(row["value"]),
                    row["tag"],
                    row["node"],
                    row["meta"] and json.loads(row["meta"]),
                )
                for row in batch.to_pylist()
            ]
    found.sort(key=lambda record: record[:2])
    return found


class Chance:
    """A source of random operations."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.rng = random.Random(seed)
        self.count = 0

    def step(self) -> None:
        shard, rng = self.scene.shard, self.rng
        name = rng.choice(NAMES)
        what = rng.random()
        try:
            if what < 0.55:
                self.append(name)
            elif what < 0.67:
                match: Any = rng.choice(
                    ["a", "b", ["tag", "Glob", "a*"], ["tag", "Glob", "*"], ["tag", "Eq", "ü"], "no"]
                )
                if match == ["tag", "Glob", "*"] and rng.random() < 0.7:
                    match = ["tag", "Glob", "b*"]
                before = {"before_seq": rng.randrange(self.count + 2)} if rng.random() < 0.3 else {}
                shard.call("delete_records", name, {"match": match, **before})
            elif what < 0.71:
                topic = shard.shard.directory.visible.get(name)
                head = topic.records.head_seq if topic else 0
                shard.call("delete_records", name, {"before_seq": max(head - rng.randrange(30), 0)})
            elif what < 0.78:
                shard.call("configure", name, rng.choice(CONFIGS[name]))
            elif what < 0.79:
                shard.call("delete_topic", name)
            elif what < 0.80:
                shard.call("cursor_put", name, {"seq": 1}, cursor="reader")
            elif what < 0.88:
                shard.clock.advance(rng.randrange(900))
            elif what < 0.91:
                shard.shard.commits.sync_now()
            elif what < 0.99:
                self.scene.checkpoint(synced=rng.random() < 0.6)
            else:
                shard.shard.close()
                self.scene.shard = shard.restarted()
        except TopicsError as error:
            if error.code not in ("topic_not_found", "topic_full", "record_too_large"):
                raise

    def append(self, name: str) -> None:
        rng = self.rng
        self.count += 1
        tags = TAGS if rng.random() < 0.6 else [rng.choice(TAGS)]
        batch = []
        for place in range(rng.choice([1, 1, 1, 2, 5, 12, 40])):
            record: dict[str, Any] = {"data": f"{self.count}.{place}" + "x" * rng.randrange(30)}
            if tag := rng.choice(tags):
                record["tag"] = tag
            if rng.random() < 0.1:
                record["node"] = "n"
            if rng.random() < 0.1:
                record["meta"] = {"m": place}
            batch.append(record)
        known = name in self.scene.shard.shard.directory.visible
        extra: dict[str, Any] = {} if known else {"config": CONFIGS[name][0]}
        if rng.random() < 0.1:
            extra["idempotency_key"] = f"k{rng.randrange(3)}"
        self.scene.shard.call("append", name, {"records": batch, **extra})
