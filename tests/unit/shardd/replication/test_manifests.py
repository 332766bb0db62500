"""Manifests that cannot be true are damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proto.model.limits import Limits
from shardd.offline import replica
from shardd.offline.fetch import fetch
from shardd.replication import manifests
from shardd.replication.browse import Damaged
from shardd.replication.manifests import File, Head, ManifestError, Stream
from shardd.replication.names import ShardNames
from tests.support.bucket import MemoryStore
from tests.support.shipped import SMALL, Shipped

NAMES = ShardNames(0)


HUGE = 1 << 64


@pytest.fixture
def shard() -> Shipped:
    made = Shipped(MemoryStore(), **SMALL).attach()
    for number in range(30):
        made.append("a", "x" * 100, number)
    made.sync()
    made.shard.checkpoint_now()
    made.copy()
    return made


def newest(of: Shipped) -> tuple[str, Head, list[File]]:
    name = NAMES.manifest(manifests.numbers(of.store, NAMES)[-1])
    return name, *manifests.decode(of.store.objects[name])


Change = Callable[[dict[str, Any], list[list[Any]]], object]


CHANGES: dict[str, Change] = {
    "part": lambda head, files: head.update(part=-1),
    "part of another": lambda head, files: head.update(part=head["part"] + 1),
    "part float": lambda head, files: head.update(part=float(head["part"]) + 0.5),
    "first part": lambda head, files: head.update(first_part=0),
    "first part behind": lambda head, files: head.update(first_part=head["part"] + 2),
    "term": lambda head, files: head.update(term=HUGE),
    "frame": lambda head, files: head.update(frame_no=-1),
    "frame behind": lambda head, files: head.update(frame_no=head["upto_no"] + 1),
    "frame huge": lambda head, files: head.update(upto_no=HUGE),
    "time": lambda head, files: head.update(upto_ms=-1),
    "catalog": lambda head, files: head.update(catalog="1"),
    "stream size": lambda head, files: head["streams"][0].__setitem__(1, HUGE),
    "stream smaller": lambda head, files: head["streams"][0].__setitem__(1, 1),
    "stream negative": lambda head, files: head["streams"][0].__setitem__(1, -1),
    "stream name": lambda head, files: head["streams"][0].__setitem__(0, "../../log"),
    "chunk checksum": lambda head, files: head["streams"][0][2].__setitem__(0, HUGE),
    "chunks": lambda head, files: head["streams"][0][2].append(1),
    "stream of file": lambda head, files: files[0].__setitem__(1, 7),
    "stream of file negative": lambda head, files: files[0].__setitem__(1, -1),
    "offset": lambda head, files: files[0].__setitem__(2, HUGE),
    "offset negative": lambda head, files: files[0].__setitem__(2, -1),
    "size": lambda head, files: files[0].__setitem__(3, HUGE),
    "size negative": lambda head, files: files[0].__setitem__(3, -1),
    "size float": lambda head, files: files[0].__setitem__(3, 1.5),
    "checksum": lambda head, files: files[0].__setitem__(4, HUGE),
    "twice": lambda head, files: files.append(list(files[0])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_whose_numbers_fit_nothing_is_damage(shard: Shipped, change: str) -> None:
    name, head, files = newest(shard)
    plain, rows = msgspec.to_builtins(head), msgspec.to_builtins(files)
    CHANGES[change](plain, rows)
    encoded = msgspec.json.encode(plain)
    body = encoded + msgspec.json.encode(rows)
    digest = manifests.xxhash.xxh3_64_intdigest(body)
    shard.store.objects[name] = manifests._START.pack(b"TPCM", 1, len(encoded), digest) + body
    number = manifests.numbers(shard.store, NAMES)[-1]
    with pytest.raises(ManifestError):
        manifests.decode(shard.store.objects[name], number)
    assert any(name in problem for problem in next(iter(replica.verify(shard.store)))["problems"])
    with pytest.raises(Damaged, match=f"{name}: "):
        list(fetch(shard.disk, shard.store, Path("/else"), None, Limits(**SMALL), None))


@pytest.mark.parametrize("head_len", [0, 1 << 63, HUGE - 1])
def test_a_manifest_with_a_length_that_fits_nothing_is_damage(shard: Shipped, head_len: int) -> None:
    name = newest(shard)[0]
    whole = shard.store.objects[name]
    shard.store.objects[name] = whole[:8] + head_len.to_bytes(8, "little") + whole[16:]
    with pytest.raises(ManifestError, match=f"{name}: "):
        manifests.read_head(shard.store, NAMES, manifests.numbers(shard.store, NAMES)[-1])


def test_a_stream_is_named_by_its_time_and_a_nonce(shard: Shipped) -> None:
    _, head, _ = newest(shard)
    assert all(isinstance(each, Stream) and manifests.STREAM_NAME.fullmatch(each.name) for each in head.streams)
