"""Claims about each kind of file of a shard, when it is missing, empty, cut, bent, another shard's or an older one:
what is served is right, or it is refused with the path; nothing that is intact is removed or written over; and
`topics verify` tells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.model.errors import TopicsError
from shardd.offline.verify import Report, verify
from shardd.recovery.wal_scan import RecoveryError
from shardd.storage.disk import RealDisk
from shardd.storage.lost import FOLDER
from tests.support.harness import FakeClock, Harness

LIMITS: dict[str, Any] = {"wal_segment_bytes": 2048, "segment_max_events": 20, "cache_bytes": 0}
TOPICS = ("one", "two")
LOGS = ("covered log", "needed log", "newest log")
KINDS = ("newest catalog", "catalog before", *LOGS, "segment", "index", "held frames")
STATES = ("missing", "empty", "cut", "bent", "another shard's", "older")
LOSES_A_TAIL = {("newest log", state) for state in ("missing", "empty", "cut", "older")}
"""What a stop of the machine may leave as well: the log ends earlier. So nothing can tell."""
Expected = dict[str, list[Any]]


def start(data: Path, shard: int = 0) -> Harness:
    return Harness(RealDisk(), FakeClock(), data / f"shard-{shard:02d}", **LIMITS)


def grow(shard: Harness, number: int) -> None:
    """The same writes in each shard, so that lengths and numbers are the same and only the bytes differ."""
    for turn in range(16):
        for topic in TOPICS:
            record = {"data": f"{number}.{turn:02d}.{shard.path.name}"}
            shard.call("append", topic, {"records": [record], "config": {"durability": "fsync"}})
    shard.shard.commits.sync_now()


class Scene:
    """A data directory after a kill, an older state of it, and the records that it has."""

    def __init__(self, top: Path, *, held: bool) -> None:
        self.data, self.older = top / "data", top / "older"
        self.data.mkdir(parents=True)
        (self.data / "manifest.json").write_text(json.dumps({"format": 1, "shards": 2, "created_ms": 1_700_000_000}))
        shards = [start(self.data, number) for number in range(2)]
        for turn in range(4):
            for shard in shards:
                grow(shard, turn)
                if turn < 3:
                    shard.shard.checkpoint_now()
                if turn == 3 and held:
                    self._hold(shard.path)
            if turn == 2:
                shutil.copytree(self.data, self.older)
                for number in range(2):
                    grow(start(self.older, number), 9)  # the older state went on in its own way
                    start(self.older, number).shard.checkpoint_now()
        self.expected: Expected = {name: start(self.data).everything(name) for name in TOPICS}

    def _hold(self, path: Path) -> None:
        """Have a checkpoint made while a segment of topic 2 is away, so that its frames of the log are held."""
        segment = max((path / "topics" / f"{2:016x}").glob("*.data"))
        segment.rename(path.parent / "away")
        start(self.data, int(path.name[-1])).shard.checkpoint_now()
        (path.parent / "away").rename(segment)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Scene]:
    return {held: Scene(tmp_path_factory.mktemp("scene"), held=held) for held in (False, True)}


def place(shard: Path, kind: str) -> Path:
    """The file of a kind in a shard's directory."""
    topic = shard / "topics" / f"{2:016x}"
    if "catalog" in kind:
        return sorted(shard.glob("catalog-*"))[-1 if kind == "newest catalog" else -2]
    if "log" in kind:
        logs = sorted(path for path in (shard / "wal").iterdir() if path.stat().st_size)
        return logs[{"covered log": 0, "needed log": -2, "newest log": -1}[kind]]
    return min(topic.glob({"segment": "*.data", "index": "*.idx", "held frames": "held-*"}[kind]))


def spoil(scene: Scene, data: Path, kind: str, state: str) -> tuple[Path, bytes]:
    """Bring one file of shard 0 into a state. Returns its path, and its bytes if they are intact."""
    path = place(data / "shard-00", kind)
    raw = path.read_bytes()
    if state == "missing":
        path.unlink()
        return path, b""
    if state in ("another shard's", "older"):
        there = scene.data / "shard-01" if state != "older" else scene.older / "shard-00"
        names = sorted(path.parent.glob(f"*{path.suffix}"), reverse=True)
        if kind in ("segment", "index") and state == "older":  # of those that are older there, the last one
            path = next(each for each in names if _differs(each, there / each.relative_to(data / "shard-00")))
            found = (there / path.relative_to(data / "shard-00")).read_bytes()
        else:
            found = place(there, "covered log" if kind == "held frames" and state == "older" else kind).read_bytes()
        assert found != raw
        path.write_bytes(found)
        return path, found
    middle = len(raw) // 2
    bent = raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
    path.write_bytes({"empty": b"", "cut": raw[:middle], "bent": bent}[state])
    return path, b""


def _differs(ours: Path, theirs: Path) -> bool:
    return theirs.exists() and theirs.read_bytes() != ours.read_bytes()


def contents(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (data / "shard-00").rglob("*") if path.is_file()}


def told(report: Report, path: Path) -> bool:
    return any(path.name in line or str(path.parent) in line for line in (*report.problems, *report.notes))


def served(shard: Harness) -> Iterator[tuple[str, list[Any] | None]]:
    """The records of each topic; None for one that is refused because its files are damaged."""
    for name in TOPICS:
        try:
            yield name, shard.everything(name)
        except TopicsError as error:
            if (error.detail or {}).get("reason") != "damaged":
                raise
            yield name, None


def started(data: Path) -> tuple[Harness | None, str]:
    """A shard, or why it does not start."""
    try:
        return start(data), ""
    except RecoveryError as error:
        return None, str(error)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_served_is_right_or_refused_and_nothing_intact_is_lost(
    scenes: dict[bool, Scene], tmp_path: Path, kind: str, state: str
) -> None:
    scene = scenes[kind == "held frames"]
    data = tmp_path / "data"
    shutil.copytree(scene.data, data)
    path, intact = spoil(scene, data, kind, state)
    before = contents(data)
    report = verify(RealDisk(), data / "shard-00", FakeClock(), start(scene.data).limits)
    assert contents(data) == before, "verify changes nothing"
    unneeded = kind in ("catalog before", "covered log") or (kind, state) == ("newest catalog", "missing")
    assert told(report, path) or unneeded or (kind, state) in LOSES_A_TAIL
    shard, refused = started(data)
    if shard is None:
        assert path.name in refused or str(path.parent) in refused
        assert contents(data) == before, "a refusal changes nothing"
        return
    for name, records in served(shard):
        expected = scene.expected[name]
        if (kind, state) in LOSES_A_TAIL and records is not None:
            assert records == expected[: len(records)]
        else:
            assert records in (None, expected)
    for _ in range(4):
        shard.append("three", "and on")
        shard.shard.checkpoint_now()
    assert not intact or kind == "index" or intact in contents(data).values(), "an intact file is still there"


def test_a_catalog_that_knows_less_than_the_files_removes_none(scenes: dict[bool, Scene], tmp_path: Path) -> None:
    """Catalogs and log are an older state, the files of topics are not."""
    scene, data = scenes[False], tmp_path / "data"
    shutil.copytree(scene.data, data)
    fresh = start(data)
    fresh.append("later", *range(30), config={"durability": "fsync"})
    fresh.shard.checkpoint_now()
    newer = {p.name: p.read_bytes() for p in (data / "shard-00" / "topics" / f"{3:016x}").iterdir()}
    assert newer
    for each in [*(data / "shard-00").glob("catalog-*"), data / "shard-00" / "wal"]:
        each.unlink() if each.is_file() else shutil.rmtree(each)
    for each in (scene.data / "shard-00").glob("catalog-*"):
        shutil.copy(each, data / "shard-00")
    shutil.copytree(scene.data / "shard-00" / "wal", data / "shard-00" / "wal")

    report = verify(RealDisk(), data / "shard-00", FakeClock(), fresh.limits)
    assert told(report, Path(f"{3:016x}"))
    shard = start(data)
    assert dict(served(shard)) == scene.expected
    shard.append("three", 1)
    for _ in range(3):
        shard.shard.checkpoint_now()
        shard.append("three", 1)
    apart = data / "shard-00" / FOLDER / "topics" / f"{3:016x}"
    assert {each.name: each.read_bytes() for each in apart.iterdir()} == newer
    assert shard.call("stats")["files_set_apart"] == len(newer)
    again = start(data)
    assert again.call("stats")["files_set_apart"] == len(newer)
    assert told(verify(RealDisk(), data / "shard-00", FakeClock(), fresh.limits), apart)


def test_nothing_but_files_of_topics_is_no_new_shard(scenes: dict[bool, Scene], tmp_path: Path) -> None:
    shutil.copytree(scenes[False].data, tmp_path / "data")
    shard = tmp_path / "data" / "shard-00"
    shutil.rmtree(shard / "wal")
    for each in shard.glob("catalog-*"):
        each.unlink()
    before = contents(tmp_path / "data")
    with pytest.raises(RecoveryError, match="no catalog and no log"):
        start(tmp_path / "data")
    assert contents(tmp_path / "data") == before


def test_a_file_without_a_suffix_that_was_set_apart_does_not_keep_the_shard_from_starting(tmp_path: Path) -> None:
    shard = start(tmp_path)
    grow(shard, 1)
    shard.shard.checkpoint_now()
    expected = shard.everything("one")
    (shard.path / "topics" / f"{1:016x}" / "README").write_text("not ours")
    shard = start(tmp_path)
    shard.shard.checkpoint_now()
    apart = shard.path / FOLDER / "topics" / f"{1:016x}" / "README"
    assert apart.read_text() == "not ours"
    for _ in range(2):
        shard = start(tmp_path)
        assert shard.everything("one") == expected
        assert shard.shard.checkpoints.inventory.files_apart == 1
    report = verify(RealDisk(), shard.path, FakeClock(), shard.limits)
    assert report.problems == []
    assert any(str(apart) in note for note in report.notes)


@pytest.mark.parametrize("what", ["shard", "service"])
def test_the_whole_directory_of_another_shard_is_refused(scenes: dict[bool, Scene], tmp_path: Path, what: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(scenes[False].data, data)
    if what == "shard":
        shutil.rmtree(data / "shard-00")
        (data / "shard-01").rename(data / "shard-00")
    else:
        (data / "manifest.json").write_text(json.dumps({"format": 1, "shards": 2, "created_ms": 5}))
    before = contents(data)
    with pytest.raises(RecoveryError, match=f"is of {what}"):
        start(data)
    assert contents(data) == before
