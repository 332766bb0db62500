"""Claims about sums: whatever comes and leaves, segments add up to their topic; if they do not, that is told."""

from __future__ import annotations

import random
from typing import Any

import cbor2
import pytest
from structlog.testing import capture_logs

from shardd.offline.rewind import Cuts, cut
from shardd.offline.salvage import salvage
from shardd.offline.verify import verify
from shardd.storage import catalog
from shardd.storage.catalog import CatalogError
from shardd.storage.lost import FOLDER
from shardd.topic.records import Records
from tests.support.fault_disk import Crash, FaultDisk
from tests.support.harness import SHARD, FakeClock, Harness
from tests.support.queues import claim, seqs
from tests.support.routed import Net

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


def rewritten(disk: FaultDisk, change: Any = lambda entry: None, without: str = "") -> None:
    """Change each topic's entry in the newest catalog, or leave one out."""
    found = catalog.load(disk, SHARD)
    assert found is not None
    number, contents = found
    for entry in contents["topics"]:
        change(entry)
    contents["topics"] = [entry for entry in contents["topics"] if entry["name"] != without]
    catalog.write(disk, SHARD, number, {name: [cbor2.dumps(value)] for name, value in contents.items()})


def told(shard: Harness) -> tuple[Harness, list[str]]:
    """The shard, started again, and the topics of which it says that records are missing."""
    with capture_logs() as logs:
        again = shard.restarted()
    return again, [each["topic"] for each in logs if each["event"] == "records_missing"]


def problems(disk: FaultDisk, shard: Harness) -> list[str]:
    return verify(disk, SHARD, FakeClock(), shard.limits).problems


def quietly(disk: FaultDisk, shard: Harness) -> list[str]:
    with capture_logs():
        return problems(disk, shard)


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
    for step in range(150):
        match rng.randrange(13):
            case 0:
                checkpoint(shard)
            case 12 if len(numbers := catalog.numbers(disk, SHARD)) > 1:  # the one before is used, and more of the log
                disk.names[SHARD / catalog.file_name(numbers[-1])].data[-1] ^= 1
                shard = shard.restarted()
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
    assert problems(disk, shard) == []
    assert topics(disk)["t"]["sums"]


@pytest.mark.parametrize("seed", range(12))
def test_topics_and_segments_add_up_with_copies_jobs_and_what_only_memory_has(seed: int) -> None:
    rng, net = random.Random(seed), Net(2, **LIMITS | {"hot_retain_segments": 1, "hot_retain_bytes": 0})
    net.router("r", "in", "out")
    net.of("jobs").call("configure", "jobs", {"type": "queue"})
    net.of("brief").call("configure", "brief", {"durability": "ephemeral", "ttl_ms": 3000})
    net.of("in").call("configure", "in", DURABLE | {"cap_records": 200})
    for step in range(150):
        net.clock.advance(rng.choice((0, 1, 900)))
        match rng.randrange(10):
            case 0:
                checkpoint(rng.choice(net.shards))
            case 1:
                net.settle()
            case 2:
                net.crash(survival=rng.choice(("process", "drop", "tear")), seed=step)
            case 3 | 4:
                if claimed := seqs(claim(net.of("jobs"), topic="jobs")):
                    net.of("jobs").call("ack", "jobs", {"node": "w", "seqs": claimed[::2]})
            case 5:
                net.of("short").append("short", "lived")
                if step % 2:
                    net.of("short").call("delete_topic", "short")
            case _:
                name = rng.choice(("in", "jobs", "brief", "out"))
                net.of(name).append(name, *range(rng.choice((1, 1, 5, 50))))
    net.settle()
    for shard in net.shards:
        checkpoint(shard)
        assert isinstance(shard.disk, FaultDisk)
        assert problems(shard.disk, shard) == []
        assert all("sum" in entry for entry in topics(shard.disk).values())


def lose(shard: Harness, patch: pytest.MonkeyPatch) -> None:
    """A checkpoint passes over the first batch that it would have to write."""
    unstored = Records.unstored

    def lacking(records: Records, upto: int) -> Any:
        found = unstored(records, upto)
        return found[1:] if records is shard.shard.directory.visible["bad"].records else found

    patch.setattr(Records, "unstored", lacking)


def flip(shard: Harness, patch: pytest.MonkeyPatch) -> None:
    """A bit flips in memory: the segment would have the wrong record in a frame whose checksum is right."""
    batch = shard.shard.directory.visible["bad"].records.batches[-1]
    assert batch.buffer is not None
    batch.buffer = bytes(batch.buffer).replace(b"kept", b"kepu")


@pytest.mark.parametrize("fault", [lose, flip])
def test_a_checkpoint_that_would_lack_records_ends_the_process_and_the_next_one_has_them(
    fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, disk = stored()
    shard.append("bad", "kept")
    shard.append("good", "kept")
    shard.shard.commits.sync_now()
    with monkeypatch.context() as patch, capture_logs() as logs:
        fault(shard, patch)
        with pytest.raises(CatalogError, match=r'topic "bad".*add up'):
            checkpoint(shard)
    assert [each["topic"] for each in logs if each["event"] == "records_missing"] == ["bad"]
    again = shard.restarted(disk.after_crash("drop"))
    for _ in range(2):
        assert [again.everything(name)[-1]["data"] for name in ("bad", "good")] == ["kept", "kept"]
        checkpoint(again)
        again = again.restarted()
    assert isinstance(again.disk, FaultDisk)
    assert problems(again.disk, again) == []


@pytest.mark.parametrize("fault", [lose, flip])
def test_the_first_checkpoint_of_a_process_is_made_and_what_it_lacks_is_told_until_an_operator_looks(
    fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that the log brings back would end each process."""
    shard, disk = stored()
    again = shard.restarted()
    again.append("bad", "kept")
    again.append("good", "kept")
    again.shard.commits.sync_now()
    with monkeypatch.context() as patch, capture_logs() as logs:
        fault(again, patch)
        checkpoint(again)
    assert [each["topic"] for each in logs if each["event"] == "records_missing"] == ["bad"]
    for number in range(3):
        again, found = told(again)
        assert found == ["bad"]
        again.append("bad", number)
        checkpoint(again)
        assert again.call("stats")["records_missing"] == 1
    problem = quietly(disk, again)[-1]
    assert problem.startswith('topic "bad": its segments do not add up')
    assert ("No segment has seqs 121 to 121;" in problem) == (fault is lose)
    assert [r["data"] for r in again.everything("bad")] == [*range(120), *(["kepu"] * (fault is flip)), *range(3)]
    assert again.everything("good")[-1]["data"] == "kept"
    again.call("delete_topic", "bad")
    checkpoint(again)
    assert again.call("stats")["records_missing"] == 0


def test_a_segment_that_a_catalog_lacks_is_told_by_the_next_start() -> None:
    shard, disk = stored()
    before = {path: bytes(node.data) for path, node in disk.names.items() if path.match("topics/*/seg-*")}

    def shorten(entry: dict[str, Any]) -> None:
        if entry["name"] == "bad":
            for name in ("segments", "checks", "chains", "sums", "index"):
                del entry[name][1]

    rewritten(disk, shorten)
    assert [problem for problem in quietly(disk, shard) if "No segment has seqs 41 to 80;" in problem]
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


def test_a_topic_that_a_catalog_lacks_is_told_and_its_files_are_kept() -> None:
    shard, disk = stored()
    folder = shard.shard.directory.visible["bad"].segments[0].directory
    before = {path: bytes(node.data) for path, node in disk.names.items() if path.parent == folder}
    rewritten(disk, without="bad")
    again = shard
    for _ in range(3):
        with capture_logs() as logs:
            again = again.restarted()
        assert [each["event"] for each in logs if "missing" in each["event"]] == ["topics_missing"]
        assert again.call("stats")["records_missing"] == 1
        again.append("good", "more")
        again.append("new", "one")
        checkpoint(again)
        again.call("delete_topic", "new")
        checkpoint(again)
    assert {path: bytes(disk.names[SHARD / FOLDER / path.relative_to(SHARD)].data) for path in before} == before
    assert [problem for problem in quietly(disk, again) if str(SHARD) in problem and "ids of its topics" in problem]


def test_a_catalog_of_an_older_release_says_nothing_of_topics() -> None:
    shard, disk = stored()
    found = catalog.load(disk, SHARD)
    assert found is not None
    number, contents = found
    del contents["id_sum"]
    catalog.write(disk, SHARD, number, {name: [cbor2.dumps(value)] for name, value in contents.items()})
    again = shard.restarted()
    assert problems(disk, again) == []
    again.call("delete_topic", "bad")
    checkpoint(again)
    rewritten(disk, without="good")
    with capture_logs() as logs:
        again.restarted()
    assert [each["event"] for each in logs if "missing" in each["event"]] == ["topics_missing"]


def test_a_topic_that_was_salvaged_adds_up_and_one_that_lacks_records_says_so_after_its_files_were_away() -> None:
    shard, disk = stored()
    path = max(path for path in disk.names if path.suffix == ".data" and path.parent.name == f"{1:016x}")
    disk.names[path].data[80] ^= 1
    assert [found["kind"] for found in salvage(disk, SHARD, shard.clock, shard.limits, "bad")] == ["salvaged"]
    again = shard.restarted()
    assert problems(disk, again) == []
    entry = topics(disk)["bad"]
    assert sum(entry["sums"]) % catalog.SUMS == entry["sum"] != 0

    rewritten(disk, lambda entry: entry.update(sum=entry["sum"] ^ 1) if entry["name"] == "good" else None)
    away = {path: disk.names.pop(path) for path in sorted(disk.names) if path.parent.name == f"{2:016x}"}
    for _ in range(2):
        with capture_logs():
            again = again.restarted()
            again.append("bad", "more")
            checkpoint(again)
    disk.names |= away
    assert told(again)[1] == ["good"]


def test_a_cut_tells_what_is_missing() -> None:
    shard, disk = stored()
    rewritten(disk, lambda entry: entry.update(sum=entry["sum"] ^ 1) if entry["name"] == "good" else None)
    with capture_logs():
        found = list(cut(disk, [SHARD], shard.clock, shard.limits, Cuts(seqs={"bad": 50})))
    assert [each["topic"] for each in found if "topic" in each] == ["bad"]
    (problem,) = [each["problem"] for each in found if "problem" in each]
    assert problem.startswith('topic "good": its segments do not add up')
    assert told(shard)[1] == ["good"]
