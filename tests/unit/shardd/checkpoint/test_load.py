"""Loading the files of topics: none that nothing is asked of, and damage at the first use."""

from __future__ import annotations

import pytest

from shardd.checkpoint import segment_summary
from tests.support.fault_disk import FaultDisk
from tests.support.many_topics import (
    CountingDisk,
    break_file,
    inner,
    started,
    state,
    state_but,
    various,
)


def test_a_start_opens_no_file_of_topics_that_nothing_is_asked_of() -> None:
    disk = CountingDisk()
    shard = various(disk)
    expected = state(shard)
    disk.reads.clear()
    again = shard.restarted()
    assert len(again.shard.directory.visible) == 20
    assert inner(again.shard) == inner(started(disk.after_crash("process"), shard, from_files=True))
    assert disk.reads == []
    again.everything("t7")
    assert {path.parent.name for path in disk.reads} == {f"{again.shard.directory.find('t7').id:016x}"}
    assert state(again) == expected
    again.shard.checkpoint_now()
    disk.reads.clear()
    assert inner(again.restarted().shard) == inner(again.shard)
    assert disk.reads == []


@pytest.mark.parametrize("how", ["missing", "short", "flag"])
@pytest.mark.parametrize("use", ["diff", "append", "delete_records", "log"])
def test_damage_is_met_at_the_first_use_and_is_the_trouble_of_its_topic_alone(how: str, use: str) -> None:
    disk = FaultDisk()
    shard = various(disk, 6)
    expected = state(shard)
    shard = shard.restarted()
    if use == "log":
        shard.append("t1", "later")
        shard.shard.commits.sync_now()
    folder = f"{shard.shard.directory.find('t1').id:016x}"
    path = max(path for path in disk.names if path.parent.name == folder and path.suffix == ".data")
    whole = bytes(disk.names[path].data)
    node = disk.names[path]
    break_file(disk, path, how)
    again = shard.restarted()
    assert len(again.shard.quarantine) == (1 if use == "log" else 0)
    body = {"diff": {}, "append": {"records": [{"data": 1}]}, "delete_records": {"match": "t2"}, "log": {}}[use]
    error = again.reply("diff" if use == "log" else use, "t1", body).error
    assert error is not None
    assert (error.detail or {})["reason"] == "damaged"
    assert again.call("state", "t1")["quarantined"]["reason"] == "damaged"
    assert state_but(again, "t1") == {name: fields for name, fields in expected.items() if name != "t1"}
    for _ in range(3):
        again.append("t2", "more")
        again.shard.checkpoint_now()
    node.data[:] = whole
    disk.names[path] = node
    disk.durable[path] = node
    again.clock.advance(61_000)
    found = [(r["$seq"], r["data"]) for r in again.everything("t1")]
    assert found == expected["t1"][0] + ([(31, "later")] if use == "log" else [])
    again.shard.checkpoint_now()
    assert [(r["$seq"], r["data"]) for r in again.restarted().everything("t1")] == found


def test_large_topics_are_read_from_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_summary, "FRAMES", 2)
    disk = CountingDisk()
    shard = various(disk, 4).restarted()
    shard.append("small", 1)
    shard.shard.close()
    disk.reads.clear()
    again = shard.restarted()
    small = f"{again.shard.directory.find('small').id:016x}"
    assert {path.parent.name for path in disk.reads}.isdisjoint({small})
    assert len({path.parent.name for path in disk.reads}) >= 3
    assert state(again) == state(shard)
