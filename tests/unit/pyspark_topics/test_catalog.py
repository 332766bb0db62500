"""Catalogs: the newest one that can be read counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cbor2
import pytest

from pyspark_topics import catalog
from pyspark_topics.catalog import HEAD, HELD_VERSION, MAGIC, Catalog
from pyspark_topics.errors import CorruptFile, UnknownFormat
from pyspark_topics.xxh3 import digest


def made(content: Any = None, version: int = 1) -> bytes:
    body = cbor2.dumps({"frame_no": 7, "next_id": 3, "topics": []} if content is None else content)
    return HEAD.pack(MAGIC, version, len(body), digest(body)) + body


def put(shard: Path, number: int, raw: bytes) -> None:
    (shard / f"catalog-{number:020d}.cbor").write_bytes(raw)


def test_a_shard_without_a_catalog_has_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "catalog-1.cbor.tmp").write_bytes(b"half")
    assert catalog.newest(tmp_path) == catalog.newest(tmp_path / "none") == Catalog(catalog.ABSENT)
    (tmp_path / "wal").mkdir()
    assert catalog.newest(tmp_path) == Catalog()


def test_the_newest_counts(tmp_path: Path) -> None:
    put(tmp_path, 9, made())
    put(tmp_path, 10, made({"frame_no": 20, "next_id": 4, "topics": [{"id": 1}], "later": 1}))
    assert catalog.newest(tmp_path) == Catalog(10, 20, 4, ({"id": 1},))


@pytest.mark.parametrize("cut", [0, 1, 23, 24, -1])
def test_one_that_is_cut_is_passed_over_for_the_one_before(tmp_path: Path, cut: int) -> None:
    put(tmp_path, 1, made())
    put(tmp_path, 2, made()[:cut])
    assert catalog.newest(tmp_path).number == 1


@pytest.mark.parametrize("at", range(len(made())))
def test_a_bit_that_has_flipped_is_found_wherever_it_is(tmp_path: Path, at: int) -> None:
    raw = bytearray(made())
    raw[at] ^= 1
    put(tmp_path, 2, bytes(raw))
    with pytest.raises((CorruptFile, UnknownFormat)):
        catalog.newest(tmp_path)


def test_where_none_can_be_read_each_is_named_with_its_reason(tmp_path: Path) -> None:
    put(tmp_path, 1, b"short")
    put(tmp_path, 2, made([1, 2]))
    with pytest.raises(CorruptFile, match=r"catalog-0*2\.cbor: not a catalog.*catalog-0*1\.cbor: 5 bytes, too short"):
        catalog.newest(tmp_path)


def test_a_catalog_with_held_frames_is_read_and_a_later_version_refused(tmp_path: Path) -> None:
    put(tmp_path, 1, made(version=HELD_VERSION))
    assert catalog.newest(tmp_path).number == 1
    put(tmp_path, 2, made(version=HELD_VERSION + 1))
    with pytest.raises(UnknownFormat, match="update pyspark_topics"):
        catalog.newest(tmp_path)
