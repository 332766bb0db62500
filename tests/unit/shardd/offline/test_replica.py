"""`topics replica verify` and `status`: what was changed or deleted by hand is found, with the object's name."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from shardd.offline import replica
from shardd.replication.attach import Mismatch
from shardd.replication.browse import Damaged
from shardd.replication.manifests import Heads
from shardd.replication.names import ShardNames
from shardd.storage import catalog
from shardd.storage.catalog import array
from shardd.topic.records import Records
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.shipped import SMALL, Shipped, contents, restored

NAMES = ShardNames(0)


@pytest.fixture
def shard() -> Shipped:
    shard = Shipped(MemoryStore(), **SMALL).attach()
    for round_ in range(3):
        for number in range(30):
            shard.append("a", "x" * 100, number, round_)
        shard.sync()
        shard.ship()
        shard.shard.checkpoint_now()
        shard.copy()
    return shard


def problems(shard: Shipped) -> list[str]:
    (report,) = replica.verify(shard.store)
    found: list[str] = report["problems"]
    return found


def test_a_sound_bucket_has_no_problems_and_its_figures(shard: Shipped) -> None:
    assert problems(shard) == []
    (report,) = replica.status(shard.store)
    expected: dict[str, Any] = {
        "parts": 4,
        "manifests": 3,
        "term": 1,
        "holder": "machine",
        "ended": False,
        "last_part": 4,
        "last_frame": shard.shipped_no,
        "problems": [],
    }
    assert {name: report[name] for name in expected} == expected


@pytest.mark.parametrize("folder", [NAMES.log, NAMES.checkpoints, NAMES.manifests])
def test_a_changed_object_is_found(shard: Shipped, folder: str) -> None:
    for name in [name for name in shard.store.objects if name.startswith(folder)]:
        whole = shard.store.objects[name]
        for changed in (whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], whole[:-8], b""):
            shard.store.objects[name] = changed
            assert any(name in problem for problem in problems(shard)), name
        shard.store.objects[name] = whole
    assert problems(shard) == []


@pytest.mark.parametrize("folder", [NAMES.log, NAMES.checkpoints])
def test_a_deleted_object_is_found(shard: Shipped, folder: str) -> None:
    fence = NAMES.part(1)  # nothing says that there was one
    for name in [name for name in shard.store.objects if name.startswith(folder) and name != fence]:
        whole = shard.store.objects.pop(name)
        assert any("missing" in problem for problem in problems(shard)), name
        shard.store.objects[name] = whole


def test_a_restore_from_a_damaged_bucket_names_the_object(shard: Shipped) -> None:
    for name in [name for name in shard.store.objects if "/log/" in name or "/checkpoints/" in name]:
        whole = shard.store.objects[name]
        shard.store.objects[name] = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
        found = ""
        try:
            assert contents(restored(shard)) == contents(shard), name  # the newest state does not need the object
        except Damaged as error:
            found = str(error)
        assert not found or "restore --until" in found
        shard.store.objects[name] = whole


def test_an_empty_prefix_is_no_service() -> None:
    with pytest.raises(Mismatch, match="holds no service"):
        list(replica.status(MemoryStore()))


@pytest.mark.parametrize("what", ["records", "topics"])
def test_what_a_catalog_lacks_is_told_by_verify_by_a_takeover_and_by_a_restore(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No object is damaged, and no catalog of the machine says more."""
    shard = Shipped(MemoryStore(), **SMALL).attach()
    shard.append("a", *range(50), config={"durability": "fsync"})
    shard.append("b", 1, config={"durability": "fsync"})
    shard.sync()
    shard.ship()
    with monkeypatch.context() as patch, capture_logs():
        if what == "records":
            patch.setattr(Records, "unstored", lambda *_: [])
        else:
            patch.setattr(catalog, "array", lambda items: array(items[1:]))
        shard.shard.checkpoint_now()
    shard.copy()
    (head,) = [head for _, head in Heads(shard.store, NAMES).ordered()]
    for number in range(1, head.first_part):  # as retention does
        del shard.store.objects[NAMES.part(number)]
    found = problems(shard)
    assert all(each.startswith(f"{NAMES.manifest(head.part)}: ") and "do not add up" in each for each in found)
    assert len(found) == (2 if what == "records" else 1)
    for again in (lambda: restored(shard), lambda: shard.again(FaultDisk(boot=3)).attach(by_hand=True)):
        with capture_logs() as logs:
            again()
        assert {each["event"] for each in logs if each["event"].endswith("_missing")} == {f"{what}_missing"}
