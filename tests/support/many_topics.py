"""Shards with many topics, and what each of them has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proto.format.frame import check
from shardd.shard import Shard, opened_shard
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness


def shard_with(topics: int, **limits: Any) -> Harness:
    shard = Harness(FaultDisk(), **limits)
    for n in range(topics):
        shard.append(f"t{n}", n, config={"durability": "fsync"} if n % 3 == 0 else {})
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    return shard


def state(shard: Harness) -> dict[str, Any]:
    found = {}
    for name, topic in sorted(shard.shard.directory.visible.items()):
        records = [(r["$seq"], r["data"]) for r in shard.everything(name)] if topic.records.count else []
        cursors = {cursor: at.seq for cursor, at in topic.cursors.items()}
        found[name] = [records, topic.records.losses.evict_floor, topic.config, cursors, topic.records.head_seq]
    return found


def check_restarts(shard: Harness, expected: dict[str, Any]) -> None:
    """After the death of the process, and of the machine, when seqs may jump: `disk` topics had reserved some."""
    assert isinstance(shard.disk, FaultDisk)
    assert state(shard.restarted(shard.disk.after_crash("process"))) == expected
    found = state(shard.restarted(shard.disk.after_crash("drop")))
    assert {name: fields[:-1] for name, fields in found.items()} == {n: fields[:-1] for n, fields in expected.items()}


class CountingDisk(FaultDisk):
    """The segment files that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Path] = []

    def read(self, path: Path) -> memoryview:
        if "topics" in path.parts:
            self.reads.append(path)
        return super().read(path)

    def read_part(self, path: Path, offset: int, size: int) -> bytes:
        if "topics" in path.parts:
            self.reads.append(path)
        return super().read_part(path, offset, size)


def various(disk: FaultDisk, topics: int = 20) -> Harness:
    """A cleanly stopped shard with topics whose records were evicted, acked and deleted."""
    shard = Harness(disk, segment_max_events=20)
    for n in range(topics):
        config = {"durability": "fsync", "cap_records": 25} if n % 3 == 0 else {"cap_bytes": 900}
        kind = {"type": "queue"} if n % 4 == 0 else {}
        for first in range(0, 30, 10):
            records = [{"data": first + at, "tag": f"t{at % 4}"} for at in range(10)]
            shard.call("append", f"t{n}", {"records": records, "config": config | kind})
            shard.shard.checkpoint_now()
            if kind:
                jobs = shard.call("claim", f"t{n}", {"node": "w", "max": 2})["claimed"]
                shard.call("ack", f"t{n}", {"node": "w", "seqs": [job["$seq"] for job in jobs]})
            elif n % 4 == 1:
                shard.call("delete_records", f"t{n}", {"match": f"t{first // 10}"})
            elif n % 4 == 2:
                shard.call("delete_records", f"t{n}", {"before_seq": first + 5})
    shard.shard.close()
    return shard


def inner(shard: Shard) -> dict[str, Any]:
    """The state of the topics that can be read without using them."""
    found = {}
    for topic in shard.directory.visible.values():
        records = topic.records
        found[topic.name] = [
            *(records.head_seq, records.floor, records.count, records.bytes),
            *(records.last_live, records.losses.evict_floor),
            [(b.first_seq, b.count, b.live, b.live_size, bytes(b.mask(b.start, b.count))) for b in records.batches],
            [(s.first_seq, s.size, s.records, s.frames, s.sealed) for s in topic.segments],
            None if topic.queue is None else topic.queue.dump(everything=True),
        ]
    return found


def started(disk: FaultDisk, shard: Harness, *, from_files: bool) -> Shard:
    return opened_shard(disk, shard.clock, shard.path, shard.limits, from_files=from_files)


def break_file(disk: FaultDisk, path: Path, how: str) -> None:
    if how == "missing":
        del disk.names[path], disk.durable[path]
    elif how == "short":
        del disk.names[path].data[100:]
    else:
        header = check(memoryview(bytes(disk.names[path].data)))
        disk.names[path].data[header.flags_at + 2] ^= 0xD5


def state_but(shard: Harness, name: str) -> dict[str, Any]:
    apart = shard.shard.directory.visible.pop(name)
    try:
        return state(shard)
    finally:
        shard.shard.directory.visible[name] = apart
