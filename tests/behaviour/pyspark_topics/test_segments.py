"""The Spark reader against a shard that makes checkpoints: it returns the shard's records, wherever their bytes are."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.model.router import RouterConfig, as_map
from pyspark_topics import catalog
from pyspark_topics.columns import EVERYTHING as SCHEMA
from pyspark_topics.datasource import Reader
from pyspark_topics.directory import places
from pyspark_topics.errors import ColdPathMissing, CorruptFile, UnknownFormat
from shardd.routers.source import read as read_pull
from tests.support.scene import Chance, Record, Scene, records


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happened_the_reader_sees_what_the_shard_serves(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path)
    chance = Chance(scene, seed)
    for step in range(240):
        chance.step()
        if step % 4 == 3:
            assert scene.read() == scene.served(), f"seed {seed}, step {step}"
    assert any(piece.first == 0 for piece in scene.plan())


@pytest.mark.slow
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
    with pytest.raises(CorruptFile, match=rf"{path.name}, byte 0 .topic \"a\".: checksum does not match"):
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
    unknown = catalog.HELD_VERSION + 1
    newest.write_bytes(b"TPCC" + unknown.to_bytes(4, "little") + older.read_bytes()[8:])
    with pytest.raises(UnknownFormat, match=f"catalog version {unknown}, known here: {catalog.HELD_VERSION}"):
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
    # A cold tier may also be one of the paths.
    assert [shard.cold for shard in places([str(scene.path), str(scene.cold)])] == [scene.cold / "shard-00"]
    with pytest.raises(ValueError, match="one for each"):
        places([str(scene.path)], ["/x", "/y"])


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
        # The checkpoint includes records written while the topic was ephemeral, besides the logged ones.
        kept = ["never logged"] if round_ else []
        logged = [f"logged {n}" for n in range(round_ + 1)]
        assert [record[3] for record in scene.read() if record[0] == "a"] == [1, 2, *kept, *logged]


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


def test_one_piece_per_segment_and_log_file_and_small_ones_in_one_task(grown: Scene) -> None:
    reader = Reader({"path": str(grown.path)}, SCHEMA)
    pieces = [piece for part in reader.partitions() for piece in part.value]
    assert [Path(piece.path).suffix for piece in pieces] == [".data"] * (len(pieces) - 1) + [".log"]
    assert len({piece.path for piece in pieces}) == len(pieces) > 4
    assert len(reader.partitions()) == 1
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
    # Until a checkpoint writes the copies to files, the topic ends before them.
    assert {r[0] for r in scene.read()} == {"source"}
    scene.checkpoint()
    assert scene.read() == scene.served()
    shard.append("dest", 4)
    shard.shard.commits.sync_now()
    assert scene.read() == scene.served()


def shard_records(scene: Scene, topic: str) -> list[Record]:
    return [record for record in scene.served() if record[0] == topic]
