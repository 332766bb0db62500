"""Files from a bucket are written where they belong, or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from proto.model.limits import Limits
from shardd.offline import replica
from shardd.offline.fetch import fetch
from shardd.replication import manifests
from shardd.replication.browse import Browser, Damaged
from shardd.replication.messages import Restore
from shardd.replication.objects import Objects
from shardd.standby.closed_log import ClosedLog
from shardd.storage.disk import RealDisk
from tests.behaviour.replication.test_untrusted import NAMES, PATHS, newest
from tests.support.bucket import MemoryStore
from tests.support.shipped import SMALL, Shipped


@pytest.fixture
def shard() -> Shipped:
    made = Shipped(MemoryStore(), **SMALL).attach()
    for number in range(30):
        made.append("a", "x" * 100, number)
    made.sync()
    made.shard.checkpoint_now()
    made.copy()
    return made


@pytest.mark.parametrize("path", PATHS)
def test_a_manifest_whose_files_lead_elsewhere_writes_nothing(shard: Shipped, path: str, tmp_path: Path) -> None:
    name, head, files = newest(shard)
    shard.store.objects[name] = manifests.encode(head, [*files, msgspec.structs.replace(files[0], path=path)])
    data, standby = tmp_path / "deep" / "data", tmp_path / "deep" / "standby" / "shard-00"
    data.mkdir(parents=True)
    standby.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Damaged, match=r"manifests/\d+: it names the file"):
        list(fetch(RealDisk(), shard.store, data, None, Limits(**SMALL), None))
    objects = Objects(shard.store, 0)
    local = ClosedLog(RealDisk(), standby, objects, Limits(**SMALL))
    local.open()
    with pytest.raises(Damaged, match=r"manifests/\d+: it names the file"):
        local.carry(Restore())
    made = {each.relative_to(tmp_path).as_posix() for each in set(tmp_path.rglob("*")) - set(before)}
    assert made <= {f"deep/{each}" for each in ("data/shard-00", "data/shard-00/wal", "standby/shard-00/wal")} | {
        "deep/standby/shard-00/bucket.json"
    }
    assert any(name in problem for problem in next(iter(replica.verify(shard.store)))["problems"])


def test_headers_are_those_that_can_be_read(shard: Shipped) -> None:
    for number in range(3):
        shard.append("a", number)
        shard.sync()
        shard.ship()
    with ThreadPoolExecutor(2) as threads:
        browser = Browser(shard.store, NAMES, threads)
        last = max(number for number, _ in browser.numbers(1))
        del shard.store.objects[NAMES.part(last - 1)]
        changed = bytearray(shard.store.objects[NAMES.part(last - 2)])
        changed[50] ^= 1
        shard.store.objects[NAMES.part(last - 2)] = bytes(changed)
        wanted = range(last - 3, last + 1)
        assert [part.number for part in browser.headers(wanted)] == [last - 3, last]


def test_no_file_is_written_through_a_link(shard: Shipped, tmp_path: Path) -> None:
    outside, data = tmp_path / "outside", tmp_path / "data"
    outside.mkdir()
    data.mkdir()
    (data / "topics").symlink_to(outside)
    with ThreadPoolExecutor(2) as threads:
        browser = Browser(shard.store, NAMES, threads)
        found = browser.manifest(manifests.numbers(shard.store, NAMES)[-1])
        with pytest.raises(Damaged, match="leads out of"):
            list(browser.copy_files(found, RealDisk(), data, None, sync=False))
    assert list(outside.iterdir()) == []
