"""Claims about the audit of a directory's files."""

from __future__ import annotations

import json
from pathlib import Path

from proto.model.limits import Limits
from proto.model.names import shard_of
from pyspark_topics import directory
from pyspark_topics.jobs.audit import _overlaps, _units, examine
from shardd.offline.reshard import MANIFEST, Reshard, shard_name
from shardd.storage.disk import RealDisk
from tests.support.harness import FakeClock, Harness


def findings(path: Path) -> list[str]:
    """What the audit finds in the files of a data directory."""
    found: list[str] = []
    for shard in directory.shards(str(path)):
        units, problems = _units(shard)
        seen = [examine(unit) for unit in units]
        assert sum(one.records for one in seen)
        found += [each.text for each in [*problems, *(each for one in seen for each in one.findings)]]
        found += [each.text for each in _overlaps(seen)]
    return found


def test_topics_of_two_shards_that_a_reshard_put_into_one_are_no_duplicates(tmp_path: Path) -> None:
    """Their frames keep the ids that they had, which each shard counts for itself."""
    (tmp_path / MANIFEST).write_text(json.dumps({"format": 1, "shards": 2, "created_ms": 5}))
    names = {shard_of(name, 2): name for name in ("a", "b", "c", "d", "e")}
    for index, name in names.items():
        shard = Harness(RealDisk(), FakeClock(), tmp_path / shard_name(index))
        shard.append(name, 1, 2, 3)
        assert shard.shard.directory.find(name).id == 1
        shard.shard.close()
    assert len(names) == 2
    assert not findings(tmp_path)
    assert Reshard(RealDisk(), tmp_path, FakeClock(), Limits()).run(1) == 1
    assert not findings(tmp_path)


def test_a_seq_in_two_segments_of_a_topic_is_a_duplicate(tmp_path: Path) -> None:
    shard = Harness(RealDisk(), FakeClock(), tmp_path / shard_name(0))
    for name in ("a", "b"):
        shard.append(name, 1, 2, 3)
    shard.shard.close()
    units, _ = _units(*directory.shards(str(shard.path)))
    a, b = (examine(unit) for unit in units if unit.topic)
    assert not _overlaps([a, b])
    b.runs[:] = a.runs
    (found,) = _overlaps([a, b])
    assert (found.check, found.text.split(" are also in ")[0]) == ("duplicates", "seqs 1 to 3 of topic id 1")
