"""Catalogs on a disk: the newest valid one counts, and one of another shard never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cbor2
import pytest

from proto.format.frame import FORMAT_VERSION
from shardd.storage import catalog
from shardd.storage.catalog import HELD_VERSION, CatalogError
from shardd.storage.lost import lost
from tests.support.fault_disk import Crash, FaultDisk

BASE = Path("/data/shard-00")


def shard() -> FaultDisk:
    disk = FaultDisk()
    disk.make_dir(BASE)
    disk.sync_dir(BASE.parent)
    return disk


def write(disk: FaultDisk, number: int, /, version: int = FORMAT_VERSION, **contents: Any) -> None:
    encoded = {name: [cbor2.dumps(value)] for name, value in {"frame_no": number, "topics": [], **contents}.items()}
    catalog.write(disk, BASE, number, encoded, version)
    disk.sync_dir(BASE)


def flip(disk: FaultDisk, number: int, at: int = 30) -> None:
    disk.names[BASE / catalog.file_name(number)].data[at] ^= 1


def test_without_a_catalog_there_is_none() -> None:
    assert catalog.load(shard(), BASE) is None


@pytest.mark.parametrize("count", [0, 1, 23, 24, 300, 70_000])
def test_a_catalog_of_any_size_is_read_back(count: int) -> None:
    disk = shard()
    topics = [cbor2.dumps({"id": each}) for each in range(count)]
    size = catalog.write(disk, BASE, 1, {"frame_no": [cbor2.dumps(5)], "topics": catalog.array(topics)})
    assert disk.size(BASE / catalog.file_name(1)) == size
    found = catalog.load(disk, BASE)
    assert found is not None
    assert found == (1, {"frame_no": 5, "topics": [{"id": each} for each in range(count)]})
    raw = disk.read(BASE / catalog.file_name(1))
    assert list(catalog.topics_of(raw)) == [5, *({"id": each} for each in range(count))]


def test_a_damaged_one_is_set_apart_for_the_one_before() -> None:
    disk = shard()
    for number in (1, 2, 3):
        write(disk, number)
    flip(disk, 2)
    flip(disk, 3)
    apart: list[Path] = []
    found = catalog.load(disk, BASE, apart=apart)
    assert found is not None
    assert found[0] == 1
    assert [path.name for path in apart] == [catalog.file_name(2), catalog.file_name(3)]
    assert sorted(path.name for path in lost(disk, BASE)) == [catalog.file_name(2), catalog.file_name(3)]
    assert catalog.numbers(disk, BASE) == [1]


def test_where_none_is_valid_each_is_named_and_stays() -> None:
    disk = shard()
    for number in (1, 2):
        write(disk, number)
        flip(disk, number)
    with pytest.raises(CatalogError, match=r"catalog-0*2\.cbor: not whole.*catalog-0*1\.cbor: not whole"):
        catalog.load(disk, BASE)
    assert catalog.numbers(disk, BASE) == [1, 2]


@pytest.mark.parametrize("cut", [0, 5, 23, 24, 40])
def test_a_catalog_that_is_cut_is_damaged(cut: int) -> None:
    disk = shard()
    write(disk, 1)
    del disk.names[BASE / catalog.file_name(1)].data[cut:]
    with pytest.raises(CatalogError, match=r"too short|not whole"):
        catalog.load(disk, BASE)


def test_a_valid_one_of_a_later_version_is_refused_even_with_another_before_it() -> None:
    disk = shard()
    write(disk, 1)
    write(disk, 2, version=HELD_VERSION + 1)
    sentence = rf"catalog-0*2\.cbor: catalog format version {HELD_VERSION + 1}, .*: use the release that wrote it"
    with pytest.raises(CatalogError, match=sentence):
        catalog.load(disk, BASE)


def test_one_that_was_made_under_another_number_is_refused() -> None:
    disk = shard()
    write(disk, 1)
    write(disk, 2, number=7)
    with pytest.raises(CatalogError, match="was made as catalog 7"):
        catalog.load(disk, BASE)


@pytest.mark.parametrize("name", ["catalog-1.cbor.tmp", "catalog-x.cbor", "seg-1.cbor", "catalog-1.data"])
def test_other_names_are_no_catalogs(name: str) -> None:
    disk = shard()
    for each in (name, catalog.file_name(2**63)):
        disk.create(BASE / each).close()
    assert catalog.numbers(disk, BASE) == [2**63]


def test_a_death_at_any_step_leaves_the_catalog_before() -> None:
    for at in range(20):
        disk = shard()
        write(disk, 1)
        disk.crash_at = len(disk.calls) + at
        try:
            write(disk, 2)
        except Crash:
            found = catalog.load(disk.after_crash("drop"), BASE)
            assert found is not None
            assert found[0] == 1
        else:
            assert at > 3
            return
    raise AssertionError("it never ends")


def test_a_disk_that_takes_only_a_part_leaves_no_catalog() -> None:
    disk = shard()
    disk.capacity = 40
    with pytest.raises(OSError, match="did not take the whole catalog"):
        write(disk, 1)
    assert disk.list(BASE) == []


def test_what_a_catalog_lacks_is_told_by_its_sums() -> None:
    disk = shard()
    whole = {"id": 1, "name": "a", "sum": 5, "sums": [2, None, 3]}
    older = {"id": 2, "name": "b"}
    around = {"id": 3, "name": "c", "sum": 1, "sums": [2, (1 << 64) - 1]}
    lacking = {"id": 4, "name": "d", "sum": 5, "sums": [2]}
    write(disk, 1, topics=[whole, older, around], id_sum=6)
    write(disk, 2, topics=[whole, lacking], id_sum=6)
    write(disk, 3, topics=[lacking])
    found = [catalog.lacking(disk.read(BASE / catalog.file_name(number))) for number in (1, 2, 3)]
    assert found == [[], [f'topic "d": {catalog.LACKS}', catalog.TOPICS_LACK], [f'topic "d": {catalog.LACKS}']]


@pytest.mark.parametrize(
    "topics", [5, [5], [{}], [{"id": "x", "name": "y"}], [{"id": 1, "sum": 1}], [{"id": 1, "sum": 1, "sums": 9}]]
)
def test_a_catalog_that_no_shard_wrote_is_an_error_of_its_own(topics: Any) -> None:
    disk = shard()
    write(disk, 1, topics=topics)
    with pytest.raises(CatalogError, match="other content"):
        catalog.lacking(disk.read(BASE / catalog.file_name(1)))
    flip(disk, 1)
    with pytest.raises(CatalogError, match="not whole"):
        catalog.lacking(disk.read(BASE / catalog.file_name(1)))
