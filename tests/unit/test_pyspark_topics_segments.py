"""The Spark reader against a shard that makes checkpoints: the same records as the shard gives, whatever is where."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from proto.errors import TopicsError
from proto.router import RouterConfig, as_map
from pyspark_topics import catalog, plan
from pyspark_topics.datasource import SCHEMA, Reader, arrow_schema, cold_paths
from pyspark_topics.errors import ColdPathMissing, CorruptFile, UnknownFormat
from pyspark_topics.plan import Piece
from shardd.cut import Cuts, cut
from shardd.disk import RealDisk
from shardd.pulls import read as read_pull
from tests.support.harness import FakeClock, Harness

ARROW = arrow_schema(SCHEMA)
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
    """A shard on the real disk, small in everything, and what Spark would read of it."""

    def __init__(self, root: Path, **limits: Any) -> None:
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

    def checkpoint(self, *, synced: bool = True) -> None:
        if synced:
            self.shard.shard.commits.sync_now()
        self.shard.shard.checkpoint_now()

    def plan(self) -> list[Piece]:
        return plan.plan(str(self.path), (), str(self.cold), self.shard.clock.ms)

    def read(self) -> list[Record]:
        return records(self.plan())

    def served(self, shard: Harness | None = None) -> list[Record]:
        """What the shard itself answers."""
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
        return Harness(RealDisk(), self.shard.clock, copy, **self.shard.limits.model_dump())


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
    """One random thing after the other."""

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
                head = topic.head_seq if topic else 0
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


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happened_the_reader_sees_what_the_shard_serves(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path)
    chance = Chance(scene, seed)
    for step in range(240):
        chance.step()
        if step % 4 == 3:
            assert scene.read() == scene.served(), f"seed {seed}, step {step}"
    assert any(piece.first == 0 for piece in scene.plan())


@pytest.mark.parametrize("seed", range(12))
def test_a_read_that_takes_long_gives_what_was_there_and_stayed(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path)
    chance = Chance(scene, seed)
    moved = 0
    for round_ in range(12):
        for _ in range(15):
            chance.step()
        pieces, before = scene.plan(), scene.served()
        for _ in range(chance.rng.choice([3, 30])):
            chance.step()
        for _ in range(chance.rng.randrange(5)):
            scene.checkpoint()
        moved += sum(not Path(piece.path).exists() for piece in pieces)
        got, after = records(pieces), scene.served()
        assert len(set(map(repr, got))) == len(got), f"seed {seed}, round {round_}: a record twice"
        known, kept = set(map(repr, before)), set(map(repr, after))
        assert set(map(repr, got)) <= known, f"seed {seed}, round {round_}: a record from the future"
        assert known & kept <= set(map(repr, got)), f"seed {seed}, round {round_}: a record lost"
    assert moved


def test_files_that_vanish_while_planning_are_looked_for_through_a_newer_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    scene.shard.append("a", *range(50), config={"cap_bytes": 1 << 20})
    scene.checkpoint()
    real = catalog.newest
    calls: list[int] = []

    def newest(path: Path) -> catalog.Catalog:
        found = real(path)
        if len(calls) < 4:
            for _ in range(3):
                for number in range(60):
                    scene.shard.append("a", f"{len(calls)}.{number}")
                scene.checkpoint()
        calls.append(found.number)
        return found

    monkeypatch.setattr(catalog, "newest", newest)
    assert scene.read() == scene.served()
    assert calls == [1, 4, 7, 10, 13]


def test_a_file_that_is_missing_for_good_is_an_error(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for number in range(100):
        scene.shard.append("a", number, config={"cap_records": 1000} if not number else {})
        if number % 20 == 19:
            scene.checkpoint()
    scene.shard.append("a", "more")
    segments = sorted(scene.cold.rglob("*.data"))
    assert segments
    contents = segments[0].read_bytes()
    segments[0].unlink()
    with pytest.raises(CorruptFile, match="took its place"):
        scene.read()
    segments[0].write_bytes(contents[:-8])
    with pytest.raises(CorruptFile, match="the catalog says"):
        scene.read()
    segments[0].write_bytes(contents)
    for number in range(100):
        scene.shard.append("a", number)
        scene.shard.shard.commits.sync_now()
    logs = [Path(piece.path) for piece in scene.plan() if piece.first]
    assert len(logs) > 1
    logs[0].unlink()
    with pytest.raises(CorruptFile, match="missing"):
        scene.plan()


def test_damage_in_a_segment_is_told_with_its_place(tmp_path: Path) -> None:
    scene = Scene(tmp_path, cold_dir="")
    scene.shard.append("a", 1, 2, 3)
    scene.checkpoint()
    (path,) = scene.path.rglob("*.data")
    raw = bytearray(path.read_bytes())
    raw[80] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match=rf"{path.name}, byte 0: checksum does not match"):
        scene.read()


def test_a_catalog_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for number in range(30):
        scene.shard.append("a", number, number)
        if number % 10 == 9:
            scene.checkpoint()
    older, newest = sorted(scene.path.glob("catalog-*"))
    for damage in (b"", b"TPCC", newest.read_bytes()[:-1]):
        newest.write_bytes(damage)
        assert scene.read() == scene.served()
    newest.write_bytes(b"TPCC" + (2).to_bytes(4, "little") + older.read_bytes()[8:])
    with pytest.raises(UnknownFormat, match="catalog version 2"):
        scene.read()
    newest.unlink()
    older.write_bytes(b"nothing")
    with pytest.raises(CorruptFile, match="no catalog can be read"):
        scene.read()


def test_cold_segments_need_the_cold_path(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for number in range(100):
        scene.shard.append("a", number)
        if number < 10:
            scene.shard.append("b", number)
        if number % 20 == 19:
            scene.checkpoint()
    assert list(scene.cold.rglob("*.data"))
    with pytest.raises(ColdPathMissing, match="coldPath"):
        Reader({"path": str(scene.path)}, SCHEMA).partitions()
    only_b = Reader({"path": str(scene.path), "subscribe": "b"}, SCHEMA)
    assert [row for part in only_b.partitions() for batch in only_b.read(part) for row in batch["topic"].to_pylist()]
    reader = Reader({"path": str(scene.path), "coldPath": str(scene.cold)}, SCHEMA)
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 110
    assert cold_paths({"coldPath": '["/x", "/y"]'}, 2) == ["/x", "/y"]
    with pytest.raises(ValueError, match="one for each"):
        cold_paths({"coldpath": "/x"}, 2)


def test_ephemeral_records_are_in_no_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.shard.append("a", 1, 2)
    scene.shard.append("b", 1, 2)
    scene.shard.append("c", 1, config={"durability": "ephemeral"})
    for round_ in range(3):
        scene.shard.call("configure", "a", {"durability": "ephemeral"})
        scene.shard.append("a", "never logged")
        if round_ == 1:
            scene.checkpoint()
        assert {record[0] for record in scene.read()} == {"b"}
        scene.shard.call("configure", "a", {"durability": "disk"})
        scene.shard.append("a", f"logged {round_}")
        assert scene.read() == scene.served(scene.restarted(tmp_path / "copy"))
        assert [record[3] for record in scene.read() if record[0] == "a"] == [f"logged {round_}"]


def test_a_topic_created_while_the_catalog_was_made_is_read(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.shard.append("a", 1)
    scene.shard.shard.commits.sync_now()
    scene.shard.send("configure", "new", {})
    scene.shard.shard.flush()
    scene.checkpoint(synced=False)
    scene.shard.shard.commits.sync_now()
    scene.shard.append("new", 2)
    assert [record[0] for record in scene.read()] == ["a", "new"]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    scene = Scene(tmp_path_factory.mktemp("grown"), segment_max_events=100, cold_dir="")
    for number in range(0, 500, 10):
        scene.shard.append("a", *range(number, number + 10))
        if number % 100 == 90:
            scene.checkpoint()
    for number in range(500, 520):
        scene.shard.append("a", number)
        scene.shard.append("b", number)
    return scene


def test_one_task_per_segment_and_log_file(grown: Scene) -> None:
    reader = Reader({"path": str(grown.path)}, SCHEMA)
    pieces = [part.piece for part in reader.partitions()]  # type: ignore[attr-defined]
    assert [Path(piece.path).suffix for piece in pieces] == [".data"] * (len(pieces) - 1) + [".log"]
    assert len({piece.path for piece in pieces}) == len(pieces) > 4
    assert grown.read() == grown.served()


def test_segments_wholly_below_the_floor_are_not_planned(grown: Scene) -> None:
    before = len(grown.plan())
    grown.shard.call("delete_records", "a", {"before_seq": 400})
    assert len(grown.plan()) < before
    assert grown.read() == grown.served()


def test_copies_of_routers_are_read_once_a_checkpoint_has_them_and_never_passed_by(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    shard = scene.shard
    for name in ("source", "dest"):
        shard.call("configure", name)
    config = as_map(RouterConfig("source", "dest"))
    shard.call("router_put", "dest", router="r", config=config, **shard.call("router_source", "source"))
    shard.append("source", 1, 2)
    shard.shard.commits.sync_now()
    topic = shard.shard.directory.find("dest")
    reply = shard.reply("pull", "source", epoch=shard.shard.directory.find("source").epoch, after=0)
    shard.shard.copier.copy(topic, read_pull(reply))
    shard.shard.flush()
    shard.append("dest", "behind the copies")
    shard.shard.commits.sync_now()
    assert [(r[1], r[3]) for r in shard_records(scene, "dest")] == [(1, 1), (2, 2), (3, "behind the copies")]
    # Until a checkpoint brings the copies into files, the topic ends before them.
    assert {r[0] for r in scene.read()} == {"source"}
    scene.checkpoint()
    assert scene.read() == scene.served()
    shard.append("dest", 4)
    shard.shard.commits.sync_now()
    assert scene.read() == scene.served()


def shard_records(scene: Scene, topic: str) -> list[Record]:
    return [record for record in scene.served() if record[0] == topic]


@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_jobs_that_are_done_are_not_read(tmp_path: Path, checkpoints: int) -> None:
    scene = Scene(tmp_path)
    scene.shard.call("configure", "q", {"type": "queue", "leases_durable": True})
    for _ in range(10):
        scene.shard.append("q", *range(7))
    claimed = scene.shard.call("claim", "q", {"node": "w", "max": 40})["claimed"]
    for _ in range(checkpoints):
        scene.checkpoint()
    scene.shard.call("ack", "q", {"node": "w", "seqs": [job["$seq"] for job in claimed if job["$seq"] % 3]})
    scene.shard.shard.commits.sync_now()
    assert [record[1] for record in scene.read()] == [r["$seq"] for r in scene.shard.everything("q")]
    assert len(scene.read()) == 70 - 27
    scene.checkpoint()
    assert len(scene.read()) == 70 - 27


@pytest.mark.parametrize("seed", range(4))
def test_topics_that_were_cut_end_where_the_shard_says(seed: int, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene")
    chance = Chance(scene, seed)
    for _ in range(300):
        chance.step()
    scene.shard.shard.close()
    before = scene.served(scene.shard.restarted())
    assert before
    moment = random.Random(seed).choice(before)[2]
    shard = scene.shard
    for _ in cut(RealDisk(), [shard.path], shard.clock, shard.limits, Cuts(until_ms=moment)):
        pass
    assert scene.read() == [record for record in before if record[2] <= moment]
    assert scene.read() == scene.served(shard.restarted())
