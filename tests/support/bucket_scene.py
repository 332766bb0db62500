"""A scene whose shard ships to a file:/// bucket, which is all that Spark reads, with short retention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pyspark_topics import plan
from pyspark_topics.directory import places
from pyspark_topics.options import Topics
from pyspark_topics.plan import Piece
from shardd.replication.seal import Sealed
from shardd.replication.store import open_store
from shardd.storage.disk import Disk, RealDisk
from tests.support.harness import FakeClock, Harness
from tests.support.scene import Scene
from tests.support.shipped import Shipped


class BucketShard(Shipped):
    """Each process ships when it is told to."""

    def restarted(self, disk: Disk | None = None, **limits: Any) -> Harness:
        given = limits or msgspec.structs.asdict(self.limits)
        return BucketShard(self.store, disk or self.disk, clock=self.clock, path=self.path, **given).attach()

    def everything_shipped(self) -> None:
        self.sync()
        self.ship()


class BucketScene(Scene):
    shard: BucketShard

    def __init__(self, root: Path, *, key: bytes = b"", encrypts: bool = False, **limits: Any) -> None:
        super().__init__(root, **{"bucket_retain_ms": 3000} | limits)
        self.bucket = root / "bucket"
        self.bucket.mkdir()
        store: Any = open_store(f"file://{self.bucket}")
        store = Sealed(store, key, encrypts) if key else store
        given = msgspec.structs.asdict(self.shard.limits)
        self.shard.shard.close()
        made = BucketShard(store, RealDisk(), clock=FakeClock(), path=root / "shard-00", **given)
        made.attach()
        self.shard = made
        self.options = {"path": str(self.bucket)}

    def plan(self) -> list[Piece]:
        self.settle()
        shards = places([str(self.bucket)], (), self.options.get("bucketKeyFile", ""))
        return plan.survey(shards, Topics(), now_ms=self.shard.clock.ms).pieces

    def settle(self) -> None:
        self.shard.everything_shipped()

    def checkpoint(self, *, synced: bool = True) -> None:
        super().checkpoint(synced=synced)
        self.shard.sync()
        if list(self.path.glob("catalog-*")):
            self.shard.copy()
            self.shard.copies.retain()

    def object(self, name: str) -> Path:
        """The last object whose name begins with `name`, below that of the shard."""
        return sorted(path for path in (self.bucket / "shard-00").rglob("*") if path.is_file() and name in str(path))[
            -1
        ]
