"""With a key, only machines that have it make objects: what is changed, swapped, replaced or cut is told."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from shardd.offline import replica
from shardd.offline.fetch import fetch
from shardd.replication import parts, seal
from shardd.replication.attach import Mismatch, read_service
from shardd.replication.browse import Damaged
from shardd.replication.names import SERVICE, ShardNames
from shardd.replication.seal import Sealed, open_bucket
from shardd.replication.store import Store, Unsealed, Unsuitable
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.shipped import SMALL, Shipped, contents, restored

NAMES = ShardNames(0)
KEY = b"k" * 32
FOLDERS = {"term": NAMES.terms, "part": NAMES.log, "chunk": NAMES.checkpoints, "manifest": NAMES.manifests}


class Both:
    """A shard that ships to a sealed store, and the store below."""

    def __init__(self) -> None:
        self.below = MemoryStore()
        self.store = Sealed(self.below, KEY)
        self.shard = Shipped(self.store, **SMALL).attach()  # type: ignore[arg-type]
        for number in range(3):
            self.shard.append("a", "x" * 300, number)
            self.shard.sync()
            self.shard.ship()
            self.shard.shard.checkpoint_now()
            self.shard.copy()
        self.shard.append("a", "last")
        self.shard.sync()
        self.shard.ship()

    def named(self, kind: str) -> list[str]:
        return sorted(name for name in self.below.objects if name.startswith(FOLDERS[kind]))

    def fresh(self) -> Sealed:
        """As another process reads it."""
        return Sealed(self.below, KEY)


@pytest.fixture
def both() -> Both:
    return Both()


def problems(store: Store) -> list[str]:
    found: list[str] = next(iter(replica.verify(store)))["problems"]
    return found


def test_a_sealed_bucket_is_restored_and_goes_on(both: Both) -> None:
    assert contents(restored(both.shard)) == contents(both.shard)
    assert problems(both.fresh()) == []
    again = both.shard.again()
    again.store = both.fresh()  # type: ignore[assignment]
    again.attach()
    again.append("a", "more")
    again.sync()
    again.ship()
    assert contents(restored(again)) == contents(again)
    assert all(seal.is_sealed(data) for data in both.below.objects.values())


@pytest.mark.parametrize("kind", FOLDERS)
def test_each_kind_of_object_is_sealed_with_its_name(both: Both, kind: str) -> None:
    for name in both.named(kind):
        whole = both.below.objects[name]
        other = next(data for at, data in both.below.objects.items() if at != name)
        changes = [
            bytes([whole[0] ^ 1]) + whole[1:],
            whole[:-1] + bytes([whole[-1] ^ 1]),
            whole[: -seal.SIZE],
            whole[:-1],
            b"",
            other,
            b"made up",
        ]
        for changed in changes:
            both.below.objects[name] = changed
            with pytest.raises(Unsealed, match=name):
                both.fresh().get(name)
            assert any(name in problem for problem in problems(both.fresh()))
        both.below.objects[name] = whole


def test_what_a_stranger_makes_without_the_key_is_not_restored(both: Both) -> None:
    name = both.named("part")[-1]
    content = bytes(both.store.get(name))
    header, frames = parts.decode(content, int(name[-20:]))
    both.below.objects[name] = parts.encode(header, bytes(frames).replace(b"last", b"LAST"))
    with pytest.raises(Damaged, match=f"{name} has no seal"):
        list(fetch(FaultDisk(boot=7), both.fresh(), Path("/data"), None, both.shard.limits, None))


def test_another_part_of_the_same_service_does_not_fit_into_the_chain(both: Both) -> None:
    name = both.named("part")[-2]
    header, frames = parts.decode(both.store.get(name), int(name[-20:]))
    stranger = Sealed(MemoryStore(), KEY)
    stranger.create(name, parts.encode(header._replace(term=header.term, nonce=b"o" * 16), frames))
    both.below.objects[name] = bytes(stranger._store.get(name))
    with pytest.raises(Damaged, match="does not follow the part before"):
        list(fetch(FaultDisk(boot=7), both.fresh(), Path("/data"), None, both.shard.limits, None))


def test_a_manifest_that_is_missing_between_others_is_told(both: Both) -> None:
    del both.below.objects[both.named("manifest")[1]]
    assert any("when it was made is missing" in problem for problem in problems(both.fresh()))


def test_machines_with_and_without_the_key_do_not_meet(both: Both) -> None:
    with pytest.raises(Mismatch, match="is sealed with a key: set TOPICS_BUCKET_KEY_FILE"):
        read_service(both.below)
    without = both.shard.again()
    without.store = both.below
    with pytest.raises(Mismatch, match="TOPICS_BUCKET_KEY_FILE"):
        without.attach()
    with pytest.raises(Mismatch, match="TOPICS_BUCKET_KEY_FILE"):
        list(fetch(FaultDisk(boot=7), both.below, Path("/data"), None, both.shard.limits, None))
    with pytest.raises(Unsealed, match="another key"):
        read_service(Sealed(both.below, b"o" * 32))
    plain = Shipped(MemoryStore(), **SMALL).attach()
    with pytest.raises(Unsealed, match=rf"{SERVICE} has no seal.*unset TOPICS_BUCKET_KEY_FILE"):
        read_service(Sealed(plain.store, KEY))


def test_a_part_is_sealed_alike_at_each_attempt() -> None:
    below = MemoryStore()
    store = Sealed(below, KEY)
    store.create(NAMES.part(1), b"one")
    other = Sealed(below, KEY)
    other._previous_of(NAMES.part(2))
    other._given[NAMES.part(2)] = other.seal_of(NAMES.part(1)).mac
    first = other._given[NAMES.part(2)]
    del below.objects[NAMES.part(1)]  # retention
    other._seals.clear()
    other.create(NAMES.part(2), b"two")
    assert Sealed(below, KEY).seal_of(NAMES.part(2)).previous == first


@pytest.mark.parametrize("content", [None, b"", b"short\n", b" " * 64])
def test_a_key_that_is_missing_or_short_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Unsuitable, match="TOPICS_BUCKET_KEY_FILE"):
        open_bucket(f"file://{tmp_path}", str(file))


def test_a_key_is_read_without_the_line_break_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(secrets.token_hex(32) + "\n")
    assert seal.read_key(str(file)) == file.read_bytes().strip()
