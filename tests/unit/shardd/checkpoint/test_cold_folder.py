"""The cold folder: missing only if a catalog of another shard names segments in it and it has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.checkpoint.cold_folder import missing
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD, Harness

OTHER = SHARD.with_name("shard-01")


def shard(disk: FaultDisk, *, cold: bool) -> None:
    """Shard 0 with a sealed segment, and no second catalog."""
    harness = Harness(disk, segment_max_events=2, hot_retain_segments=0, cold_dir="/cold" if cold else "")
    for number in range(3):
        harness.append("a", number, number)
        harness.shard.commits.sync_now()
        harness.shard.checkpoint_now()


def emptied(disk: FaultDisk) -> None:
    for path in [path for path in disk.names if path.parts[1] == "cold"]:
        del disk.names[path]
    disk.dirs = {path for path in disk.dirs if path.parts[1] != "cold"}


def looked(disk: FaultDisk) -> bool:
    return missing(disk, OTHER, Path("/cold") / OTHER.name)


@pytest.mark.parametrize("cold", [True, False])
def test_it_is_missing_when_it_is_empty_and_a_catalog_names_segments_in_it(cold: bool) -> None:
    disk = FaultDisk()
    assert not looked(disk)
    shard(disk, cold=cold)
    assert not looked(disk)
    emptied(disk)
    assert looked(disk) is cold


def test_a_catalog_that_cannot_be_read_may_name_segments() -> None:
    disk = FaultDisk()
    shard(disk, cold=False)
    newest = max(path for path in disk.names if path.name.startswith("catalog-"))
    disk.names[newest].data[-20] ^= 1
    assert looked(disk)
