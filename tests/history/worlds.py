"""Worlds: the files of a shard that a client used and that was killed, with all that the client saw.

A world also has files that do not belong there: those of another shard of the service, and those of the same shard at
an earlier time, from which it continued in another way. Everything is in memory and comes from one seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from tests.history.inside import Inside, Notes
from tests.support.fault_disk import FaultDisk, Node
from tests.support.harness import FakeClock, Harness
from topics_history import format as f

MANIFEST = Path("/data/manifest.json")
OURS, THEIRS = Path("/data/shard-00"), Path("/data/shard-01")
COLD = Path("/cold")
QUEUE, STILL, TRIMMED, CAPPED = "d:jobs", "d:still", "d:trimmed", "d:capped"
CONFIGS: dict[str, dict[str, object]] = {
    "d:disk": {},
    "d:fsync": {"durability": "fsync"},
    TRIMMED: {},
    CAPPED: {"cap_records": 40},
    STILL: {},
    QUEUE: {"type": "queue", "leases_durable": True},
}
"""`STILL` is used at the beginning only: later, catalogs have it and the log does not."""
LOGS = [name for name in CONFIGS if name != QUEUE]
TAGS = ("a", "b", "c")
LEASE_MS = 10_000


def topics(lossy: set[str]) -> dict[str, f.Topic]:
    """The topics of a history. Those of `lossy` were salvaged, so a gap explains a hole."""
    kinds = {name: "queue" if name == QUEUE else "log" for name in CONFIGS}
    return {name: f.Topic(kinds[name], name == CAPPED or name in lossy, name == QUEUE) for name in CONFIGS}


def work(client: Inside, rng: Random, names: list[str]) -> None:
    """One request, or a claim and its ack."""
    draw, topic = rng.random(), rng.choice(names)
    if draw < 0.1 and TRIMMED in names:
        client.delete(TRIMMED, tag=rng.choice(TAGS))
    elif draw < 0.13 and TRIMMED in names:
        client.delete(TRIMMED, before=rng.randrange(1, 20))
    elif draw < 0.18:
        client.put_cursor("d:disk", "c", rng.randrange(1, 4))
    elif draw < 0.3 and QUEUE in names:
        found = client.claim(QUEUE, 2, LEASE_MS)
        if found is not None and found.jobs and rng.random() < 0.8:
            client.use(f.Ack, QUEUE, found.jobs)
    else:
        tag = rng.choice(TAGS) if topic == TRIMMED else None
        client.append(topic, rng.choice((1, 1, 2, 8)), tag=tag, keyed=rng.random() < 0.3)


def checkpoint(shard: Harness) -> None:
    shard.settle()
    shard.shard.checkpoint_now()


def killed(shard: Harness) -> FaultDisk:
    """The disk of a shard whose process was killed."""
    assert isinstance(shard.disk, FaultDisk)
    return shard.disk.after_crash("process")


class World:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(f"{seed} world")
        self.clock = FakeClock()
        self.limits: dict[str, Any] = {"wal_segment_bytes": 4096, "segment_max_events": 20, "cache_bytes": 0}
        if rng.random() < 0.5:
            self.limits |= {"cold_dir": str(COLD), "hot_retain_segments": 1, "hot_retain_bytes": 0}
        self.notes = Notes(self.clock)
        self.older = FaultDisk()
        """An earlier state of the same files. Logs are a part of the later ones, the rest continued in another way."""
        self.disk = self._made(OURS, self.notes, seed)
        self.theirs = self._made(THEIRS, Notes(self.clock), seed)
        shard = self.open(self.disk.after_crash("process"))
        self.checked = shard.limits
        self.epochs = {name: shard.call("state", name)["epoch"] for name in CONFIGS}
        self.names = {topic.id: name for name, topic in shard.shard.directory.visible.items()}

    def open(self, disk: FaultDisk, path: Path = OURS, clock: FakeClock | None = None) -> Harness:
        return Harness(disk, clock or self.clock, path, **self.limits)

    def _made(self, path: Path, notes: Notes, seed: int) -> FaultDisk:
        rng, disk = self.rng, FaultDisk()
        manifest = json.dumps({"format": 1, "shards": 2, "created_ms": 1_600_000_000_000 + seed}).encode()
        disk.names[MANIFEST] = disk.durable[MANIFEST] = Node(bytearray(manifest), manifest)
        client = Inside(self.open(disk, path), notes, f"c-{path.name}", seed)
        for name, config in CONFIGS.items():
            client.configure(name, config)
        for turn in range(8):
            names = list(CONFIGS) if turn < 2 else [name for name in CONFIGS if name != STILL]
            for _ in range(15):
                work(client, rng, names)
            if turn in (1, 3, 5) or (turn < 7 and rng.random() < 0.4):
                checkpoint(client.shard)
            if rng.random() < 0.4:
                client.shard = self.open(killed(client.shard), path)
            if turn == 3 and path == OURS:
                self.older = self._continued(killed(client.shard), seed)
        client.shard.settle()
        if path == OURS and rng.random() < 0.4:
            return self._with_held_frames(killed(client.shard))
        return killed(client.shard)

    def _continued(self, disk: FaultDisk, seed: int) -> FaultDisk:
        """The same files after other requests and a checkpoint, with the logs of before."""
        logs = {name: node for name, node in disk.after_crash("process").names.items() if name.match("wal/*")}
        client = Inside(self.open(disk), Notes(self.clock), "c-older", seed)
        for _ in range(20):
            work(client, self.rng, list(CONFIGS))
        checkpoint(client.shard)
        found = killed(client.shard)
        found.names = {name: node for name, node in found.names.items() if not name.match("wal/*")} | logs
        return found

    def _with_held_frames(self, disk: FaultDisk) -> FaultDisk:
        """Have a checkpoint made while a segment of `d:fsync` is away, so that its frames of the log are held."""
        path = max(name for name in disk.names if name.match(f"topics/{2:016x}/*.data"))
        node = disk.names.pop(path)
        disk.durable.pop(path, None)
        shard = self.open(disk)
        shard.shard.checkpoint_now()
        found = killed(shard)
        found.names[path] = found.durable[path] = Node(bytearray(node.data), bytes(node.data))
        return found
