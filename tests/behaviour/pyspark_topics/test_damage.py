"""Flipped bits: a read names the file, the offset and the topic, or leaves out the damaged records and no others."""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
from pathlib import Path

import pytest

from proto.format import frame as wire
from pyspark_topics import plan
from pyspark_topics.columns import EVERYTHING, arrow_schema
from pyspark_topics.datasource import Reader
from pyspark_topics.errors import CorruptFile
from pyspark_topics.files import Files
from pyspark_topics.options import parse
from tests.support.scene import Scene

Key = tuple[str, int, bytes]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Three topics in segments and in several files of the log."""
    scene = Scene(tmp_path_factory.mktemp("grown"), segment_max_events=60, cold_dir="")
    for n in range(30):
        for topic in ("a", "b", "c"):
            records = [{"data": f"{topic}.{n}.{i}", "tag": f"t{n % 3}"} for i in range(n % 5 + 1)]
            scene.shard.call("append", topic, {"records": records})
        if n in (8, 16):
            scene.checkpoint()
    scene.shard.call("configure", "b", {"priority": 5})
    scene.shard.call("append", "b", {"records": [{"data": "last"}]})
    scene.shard.shard.commits.sync_now()
    scene.shard.call("append", "a", {"records": [{"data": "behind the sync"}]})
    return scene


def read(path: Path, **options: str) -> list[Key]:
    reader = Reader({"path": str(path), **options}, EVERYTHING)
    return sorted(
        (row["topic"], row["offset"], row["value"])
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    )


def covered(path: Path) -> list[tuple[int, int, str]]:
    """The ranges of a file of frames that checksums cover: start, end and kind of each frame."""
    raw = path.read_bytes()
    found, at = [], 0
    while at < len(raw):
        _, _, kind, _, length, body = wire.HEADER.unpack_from(raw, at)[:6]
        found.append((at, at + 64 + body + 8, wire.Kind(kind).name))
        at += length
    return found


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(n, marks=pytest.mark.long) for n in range(40, 1500))])
def test_a_flipped_bit_is_told_with_its_place_or_skipped_alone(
    grown: Scene, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    shard = tmp_path / "shard-00"
    shutil.copytree(grown.path, shard)
    whole = read(shard)
    looked_at = {Path(piece.path) for piece in plan.plan(str(shard))}
    path = rng.choice(sorted(looked_at))
    raw = bytearray(path.read_bytes())
    start, end, kind = rng.choice(covered(path))
    place = rng.randrange(start, end)
    raw[place] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    newest = path.suffix == ".log" and path == max(looked_at)
    try:
        got = read(shard)
    except CorruptFile as error:
        text = str(error)
        assert str(path) in text, f"seed {seed}"
        assert f"byte {start}" in text or "frame" in text, f"seed {seed}: {text}"
        assert re.search(r'\(topic "[abc]"\)|of what topic cannot be told', text), f"seed {seed}: {text}"
        if not start + 32 <= place < start + 40 and kind == "BATCH":
            assert re.search(r'\(topic "[abc]"\)', text), f"seed {seed}: the id is whole, so the topic is known: {text}"
    else:
        # The catalog includes it, or it is the unsynced end of the log, which may be torn.
        assert got == whole or (newest and set(got) < set(whole)), (seed, newest, path.name, kind, start, place - start)
    with caplog.at_level(logging.WARNING, "pyspark_topics"):
        rest = read(shard, failOnDataLoss="false")
    assert set(rest) <= set(whole), f"seed {seed}: something that never was"
    if kind == "BATCH":
        lost = set(whole) - set(rest)
        assert len({topic for topic, _, _ in lost}) <= 1, f"seed {seed}: more than the damaged batch is gone"
        seqs = sorted(seq for _, seq, _ in lost)
        assert not seqs or seqs == list(range(seqs[0], seqs[-1] + 1)), (seed, place - start, seqs)
        if lost and not newest:
            assert str(path) in caplog.text, f"seed {seed}: lost in silence"


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_in_the_catalog_is_passed_over_for_the_one_before(
    grown: Scene, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    shard = tmp_path / "shard-00"
    shutil.copytree(grown.path, shard)
    whole = read(shard)
    older, newest = sorted(shard.glob("catalog-*"))
    flip(newest, rng)
    with caplog.at_level(logging.WARNING, "pyspark_topics"):
        assert read(shard) == whole
    assert newest.name in caplog.text
    flip(older, rng)
    with pytest.raises(CorruptFile, match=f"{re.escape(str(shard))}: no catalog can be read"):
        read(shard)
    assert read(shard, failOnDataLoss="false") == []
    assert "no catalog can be read" in caplog.text


def flip(path: Path, rng: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    # An unknown version may be that of a newer server, which is another error.
    place = rng.choice([place for place in range(len(raw)) if not 4 <= place < 8])
    raw[place] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)


def test_a_file_that_is_missing_costs_only_what_was_in_it(grown: Scene, tmp_path: Path) -> None:
    shard = tmp_path / "shard-00"
    shutil.copytree(grown.path, shard)
    whole = read(shard)
    pieces = plan.plan(str(shard))
    segment = next(piece for piece in pieces if not piece.first)
    ((_, wanted),) = segment.rows.items()
    Path(segment.path).unlink()
    with pytest.raises(CorruptFile, match=re.escape(Path(segment.path).name)):
        read(shard)
    lost = {key for key in whole if key[0] == wanted.name and wanted.low <= key[1] <= wanted.high}
    assert read(shard, failOnDataLoss="false") == sorted(set(whole) - lost)


def test_a_truncated_segment_costs_only_its_end(grown: Scene, tmp_path: Path) -> None:
    shard = tmp_path / "shard-00"
    shutil.copytree(grown.path, shard)
    whole = read(shard)
    path = next(Path(piece.path) for piece in plan.plan(str(shard)) if not piece.first)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CorruptFile, match=rf'{path.name}.*topic "[abc]".*the catalog says'):
        read(shard)
    rest = read(shard, failOnDataLoss="false")
    assert set(rest) < set(whole)
    assert len({topic for topic, _, _ in set(whole) - set(rest)}) == 1


def test_a_stream_fails_or_goes_on_in_the_same_way(grown: Scene, tmp_path: Path) -> None:
    shard = tmp_path / "shard-00"
    shutil.copytree(grown.path, shard)
    whole = read(shard)
    path = next(Path(piece.path) for piece in plan.plan(str(shard)) if not piece.first)
    raw = bytearray(path.read_bytes())
    raw[70] ^= 4
    path.write_bytes(raw)
    found = {}
    for fail in ("true", "false"):
        options = parse({"path": str(shard), "failOnDataLoss": fail, "startingOffsets": "earliest"}, streaming=True)
        source = Files(options, arrow_schema(EVERYTHING))
        parts = source.partitions(source.earliest(), source.latest())
        try:
            found[fail] = sum(batch.num_rows for part in parts for batch in source.read(part))
        except CorruptFile as error:
            told = str(error)
    assert f"{path}, byte 0" in told
    assert list(found) == ["false"]
    assert 0 < found["false"] < len(whole)


def test_what_checksums_do_not_cover_may_say_deleted_and_nothing_else(grown: Scene, tmp_path: Path) -> None:
    """Delete flags are written in place, so no checksum covers them: the format says that anything but 0xD5 is live."""
    shard = tmp_path / "shard-00"
    shutil.copytree(grown.path, shard)
    whole = read(shard)
    for path in {Path(piece.path) for piece in plan.plan(str(shard))}:
        raw = bytearray(path.read_bytes())
        for _, end, kind in covered(path):
            if kind == "BATCH":
                raw[end] ^= 1
        path.write_bytes(raw)
    assert read(shard) == whole
    assert json.loads(whole[0][2]) == "a.0.0"
