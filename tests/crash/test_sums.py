"""Claims about sums: whatever comes and leaves, segments add up to their topic; if they do not, that is told."""

from __future__ import annotations

import random
from typing import Any

import cbor2
import pytest
from structlog.testing import capture_logs

from shardd.offline.verify import verify
from shardd.storage import catalog
from shardd.storage.lost import FOLDER
from shardd.topic.records import Records
from tests.support.fault_disk import Crash, FaultDisk
from tests.support.harness import SHARD, FakeClock, Harness

LIMITS: dict[str, Any] = {"cache_bytes": 0, "segment_max_events": 40, "wal_segment_bytes": 4096, "cold_dir": "/cold"}
DURABLE = {"durability": "fsync"}


def checkpoint(shard: Harness) -> None:
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()


def topics(disk: FaultDisk) -> dict[str, dict[str, Any]]:
    """The entries of the newest catalog, by name."""
    found = catalog.load(disk, SHARD)
    assert found is not None
    return {entry["name"]: entry for entry in found[1]["topics"]}


def rewritten(disk: FaultDisk, change: Any) -> None:
    """Change each topic's entry in the newest catalog."""
    found = catalog.load(disk, SHARD)
    assert found is not None
    number, contents = found
    for entry in contents["topics"]:
        change(entry)
    catalog.write(disk, SHARD, number, {name: [cbor2.dumps(value)] for name, value in contents.items()})


def told(shard: Harness) -> tuple[Harness, list[str]]:
    """The shard, started again, and the topics of which it says that records are missing."""
    with capture_logs() as logs:
        again = shard.restarted()
    return again, [each["topic"] for each in logs if each["event"] == "records_missing"]


def problems(disk: FaultDisk, shard: Harness) -> list[str]:
    return verify(disk, SHARD, FakeClock(), shard.limits).problems


def stored() -> tuple[Harness, FaultDisk]:
    disk = FaultDisk()
    shard = Harness(disk, **LIMITS)
    for number in range(0, 120, 40):
        for topic in ("bad", "good"):
            shard.append(topic, *range(number, number + 40), config=DURABLE)
        checkpoint(shard)
    assert len(topics(disk)["bad"]["segments"]) == 3
    return shard, disk


@pytest.mark.parametrize("seed", range(12))
def test_segments_add_up_whatever_comes_and_leaves(seed: int) -> None:
    rng, disk = random.Random(seed), FaultDisk()
    shard = Harness(disk, **LIMITS)
    shard.append("t", 0, config=DURABLE | {"cap_records": rng.choice((0, 90))})
    with capture_logs() as logs:
        for step in range(150):
            match rng.randrange(12):
                case 0:
                    checkpoint(shard)
                case 1:
                    shard.call("delete_records", "t", {"before_seq": rng.randrange(1, 400)})
                case 2:
                    shard.call("delete_records", "t", {"match": f"t{rng.randrange(3)}"})
                case 3:
                    shard.shard.commits.sync_now()
                    shard = shard.restarted()
                case 4:
                    disk.crash_at = len(disk.calls) + rng.randrange(20)
                    try:
                        shard.append("t", step)
                        checkpoint(shard)
                    except Crash:
                        pass
                    disk = disk.after_crash(rng.choice(("process", "drop")))
                    shard = shard.restarted(disk)
                case _:
                    records = [{"data": step, "tag": f"t{n % 3}"} for n in range(rng.choice((1, 1, 2, 30)))]
                    shard.call("append", "t", {"records": records})
        checkpoint(shard)
    assert not [each for each in logs if each["event"] == "records_missing"]
    assert problems(disk, shard) == []
    assert topics(disk)["t"]["sums"]


def test_a_batch_that_no_segment_got_is_told_until_an_operator_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, disk = stored()
    unstored = Records.unstored

    def lacking(records: Records, upto: int) -> Any:
        found = unstored(records, upto)
        return found[1:] if records is shard.shard.directory.visible["bad"].records else found

    shard.append("bad", "lost")
    shard.append("good", "kept")
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(Records, "unstored", lacking)
        checkpoint(shard)
    assert [each["topic"] for each in logs if each["event"] == "records_missing"] == ["bad"]
    again = shard
    for number in range(3):
        again, found = told(again)
        assert found == ["bad"]
        again.append("bad", number)
        checkpoint(again)
    assert [problem.split(":")[0] for problem in problems(disk, again)] == ['topic "bad"']
    assert [r["data"] for r in again.everything("bad")] == [*range(120), *range(3)]
    assert again.everything("good")[-1]["data"] == "kept"


def test_a_segment_that_a_catalog_lacks_is_told_by_the_next_start() -> None:
    shard, disk = stored()
    before = {path: bytes(node.data) for path, node in disk.names.items() if path.match("topics/*/seg-*")}

    def shorten(entry: dict[str, Any]) -> None:
        if entry["name"] == "bad":
            for name in ("segments", "checks", "chains", "sums", "index"):
                del entry[name][1]

    rewritten(disk, shorten)
    assert [problem.split(":")[0] for problem in problems(disk, shard) if "sum" in problem] == ['topic "bad"']
    again, found = told(shard)
    assert found == ["bad"]
    assert [r["data"] for r in again.everything("bad")] == [*range(40), *range(80, 120)]
    for _ in range(3):
        again.append("good", "more")
        checkpoint(again)
    apart = {path: bytes(node.data) for path, node in disk.names.items() if FOLDER in path.parts}
    assert sorted(path.suffix for path in apart) == [".data", ".idx"]
    assert set(apart.values()) <= set(before.values()), "what is missing is kept"


def test_a_sum_that_a_segment_does_not_have_is_told() -> None:
    shard, disk = stored()

    def change(entry: dict[str, Any]) -> None:
        if entry["name"] == "bad":
            entry["sums"][1] ^= 1
            entry["sum"] += 1 if entry["sums"][1] & 1 else -1

    rewritten(disk, change)
    (problem,) = problems(disk, shard)
    assert 'topic "bad"' in problem
    assert "the sum of its frames" in problem


def test_segments_of_an_older_release_have_no_sum_and_get_no_more_batches() -> None:
    shard, disk = stored()
    shard.append("good", "the newest segment goes on")
    checkpoint(shard)
    rewritten(disk, lambda entry: (entry.pop("sum"), entry.pop("sums")))
    again, found = told(shard)
    assert found == []
    older = len(topics(disk)["good"]["segments"])
    again.append("good", "new")
    checkpoint(again)
    entry = topics(disk)["good"]
    assert entry["sums"][:older] == [None] * older
    assert entry["sums"][older:] == [entry["sum"]]
    assert problems(disk, again) == []
    again.call("delete_records", "good", {"before_seq": 122})
    for _ in range(2):
        again.append("good", "newer")
        checkpoint(again)
    assert None not in topics(disk)["good"]["sums"]
    assert told(again)[1] == problems(disk, again) == []
