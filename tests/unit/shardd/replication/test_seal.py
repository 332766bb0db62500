"""With a key, only machines that have it make objects: what is changed, swapped, replaced or cut is told."""

from __future__ import annotations

import hmac
import secrets
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shardd.offline import replica
from shardd.offline.fetch import fetch
from shardd.replication import manifests, parts, seal
from shardd.replication.attach import Mismatch, read_service
from shardd.replication.browse import Damaged
from shardd.replication.messages import Position, ReadPart, Restore, Result
from shardd.replication.names import SERVICE, ShardNames
from shardd.replication.seal import Sealed, open_bucket
from shardd.replication.store import Store, Unsealed, Unsuitable
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.shipped import SMALL, Shipped, contents, restored
from tests.unit.shardd.standby.test_closed_log import Files

NAMES = ShardNames(0)
KEY = b"k" * 32
FOLDERS = {"term": NAMES.terms, "part": NAMES.log, "chunk": NAMES.checkpoints, "manifest": NAMES.manifests}


class Both:
    """A shard that ships to a sealed store, and the store below."""

    def __init__(self, encrypts: bool) -> None:
        self.encrypts = encrypts
        self.below = MemoryStore()
        self.store = Sealed(self.below, KEY, encrypts)
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
        return Sealed(self.below, KEY, self.encrypts)


@pytest.fixture(params=[False, True], ids=["in the clear", "encrypted"])
def both(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


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
    stranger = Sealed(MemoryStore(), KEY, both.encrypts)
    stranger.create(name, parts.encode(header._replace(term=header.term, nonce=b"o" * 16), frames))
    both.below.objects[name] = bytes(stranger._store.get(name))
    with pytest.raises(Damaged, match="does not follow the part before"):
        list(fetch(FaultDisk(boot=7), both.fresh(), Path("/data"), None, both.shard.limits, None))


def test_a_restored_shard_follows_the_log_behind_a_fence_in_a_gap_of_it(both: Both, tmp_path: Path) -> None:
    """A candidate was stopped before it created its fence, and retention had removed the part in that place."""
    number = int(both.named("part")[-2][-20:])
    del both.below.objects[NAMES.part(number - 1)]
    store = both.fresh()
    fence = parts.encode(parts.Part(number - 1, parts.FENCE, 9, b"o" * 16, 1, 0))
    store.create(NAMES.part(number - 1), fence)
    standby = Files(store, tmp_path)  # type: ignore[arg-type]
    assert standby.objects.carry(ReadPart(number)) is Result.DAMAGED
    position = standby.closed.carry(Restore())
    assert isinstance(position, Position)
    assert position.part == number - 1
    standby.position = position
    assert standby.follow() is Result.DONE
    assert standby.position.part == number + 1
    assert contents(standby.opened()) == contents(both.shard)


def test_a_restore_forgets_no_part_behind_it(both: Both) -> None:
    """And none of another shard."""
    name, last = both.named("part")[-2:]
    store, other = both.fresh(), ShardNames(1).part(1)
    store.create(other, b"another shard")
    seals = [store.seal_of(each) for each in (name, last, other)]
    stranger = Sealed(MemoryStore(), KEY, both.encrypts)
    stranger.create(name, bytes(store.get(name)))
    both.below.objects[name] = bytes(stranger._store.get(name))
    store.forget(NAMES.log, int(name[-20:]) - 1)
    with pytest.raises(Unsealed, match="does not follow the part before"):
        store.get(name)
    store.forget(NAMES.log, int(name[-20:]))
    assert [store._seals.get(each) for each in (name, last, other)] == [None, *seals[1:]]


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


@pytest.mark.parametrize("folder", [NAMES.part, NAMES.manifest])
def test_a_damaged_object_stops_no_later_one(folder: Callable[[int], str]) -> None:
    below = MemoryStore()
    Sealed(below, KEY).create(folder(1), b"one")
    below.objects[folder(1)] = below.objects[folder(1)][:-1]
    Sealed(below, KEY).create(folder(2), b"two")
    assert bytes(Sealed(below, KEY).get(folder(2))) == b"two"


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


def test_a_seal_in_the_clear_is_as_earlier_releases_made_it() -> None:
    below = MemoryStore()
    Sealed(below, KEY).create(NAMES.term(1), b"content")
    made = below.objects[NAMES.term(1)]
    name = NAMES.term(1).encode()
    signed = b"topics bucket object 1" + struct.pack("<I", len(name)) + name + bytes(32) + b"content"
    key_id = hmac.digest(KEY, b"topics bucket key", "sha256")[:8]
    mac = hmac.digest(KEY, signed, "sha256")
    assert made == b"content" + b"TPCS" + struct.pack("<I", 1) + key_id + bytes(32) + mac


def test_an_encrypted_object_is_as_the_format_says() -> None:
    below = MemoryStore()
    store = Sealed(below, KEY, encrypts=True)
    store.create(NAMES.part(1), b"first")
    store.create(NAMES.part(2), b"second one")
    made, name = below.objects[NAMES.part(2)], NAMES.part(2).encode()
    content, trailer = made[:-80], made[-80:]
    assert trailer[:8] == b"TPCS" + struct.pack("<I", 2)
    previous, salt, tag = trailer[16:48], trailer[48:64], trailer[64:]
    assert previous == below.objects[NAMES.part(1)][-32:]
    label = b"topics bucket object 2" + struct.pack("<I", len(name)) + name
    derived = hmac.digest(KEY, label + salt, "sha512")
    assert AESGCM(derived[:32]).decrypt(derived[32:44], content + tag, label + previous) == b"second one"


def test_nothing_of_a_record_is_in_an_encrypted_bucket() -> None:
    both = Both(encrypts=True)
    stored = b"".join(both.below.objects.values())
    assert b"x" * 8 not in stored
    assert b"last" not in stored
    assert b"x" * 300 in b"".join(Both(encrypts=False).below.objects.values())


def test_the_same_content_under_the_same_name_is_encrypted_otherwise_at_each_attempt() -> None:
    below = MemoryStore()
    store = Sealed(below, KEY, encrypts=True)
    seen = set()
    for _ in range(3):
        store.create(NAMES.part(1), b"content")
        seen.add(below.objects.pop(NAMES.part(1))[:-80])
        store.put(NAMES.alive(1), b"content")
        seen.add(below.objects[NAMES.alive(1)][:-80])
    assert len(seen) == 6


@pytest.mark.parametrize("encrypts", [False, True])
def test_a_seal_of_one_kind_is_not_taken_for_the_other(encrypts: bool) -> None:
    below = MemoryStore()
    Sealed(below, KEY, encrypts).create(NAMES.term(1), b"content")
    made = below.objects[NAMES.term(1)]
    below.objects[NAMES.term(1)] = made[:-76] + struct.pack("<I", 1 if encrypts else 2) + made[-72:]
    with pytest.raises(Unsealed, match="its seal does not match"):
        Sealed(below, KEY).get(NAMES.term(1))
    below.objects[NAMES.term(1)] = made[:-76] + struct.pack("<I", 3) + made[-72:]
    with pytest.raises(Unsealed, match="seal version 3, this release knows 1 and 2"):
        Sealed(below, KEY).get(NAMES.term(1))


@pytest.mark.parametrize("to", [False, True])
def test_a_bucket_is_read_and_goes_on_when_encryption_is_turned_on_or_off(to: bool) -> None:
    both = Both(encrypts=not to)
    for number in range(100):  # in sealed segments, which do not change any more
        both.shard.append("b", "z" * 300, number)
    both.shard.sync()
    both.shard.ship()
    both.shard.shard.checkpoint_now()
    both.shard.copy()
    before = contents(both.shard)
    assert contents(restored(_reading(both.shard, Sealed(both.below, KEY, to)))) == before
    both.shard.role.end()
    again = both.shard.again()
    old = set(both.below.objects)
    again.store = Sealed(both.below, KEY, to)  # type: ignore[assignment]
    again.attach()
    again.append("a", "y" * 300)
    again.sync()
    again.ship()
    again.shard.checkpoint_now()
    again.copy()
    assert contents(restored(again)) == contents(again) != before
    assert problems(Sealed(both.below, KEY, to)) == []
    made = {name: data for name, data in both.below.objects.items() if name not in old}
    assert made.keys() & set(both.named("chunk")), "all files are uploaded again, so that the old ones can be removed"
    head = manifests.read_head(again.store, NAMES, max(manifests.numbers(again.store, NAMES)))
    chunks = {NAMES.chunk(stream.name, index) for stream in head.streams for index in range(len(stream.chunks))}
    assert chunks <= made.keys()
    assert all(data[-76:-72] == struct.pack("<I", 2 if to else 1) for data in made.values())


def _reading(shard: Shipped, store: Store) -> Shipped:
    reader = shard.again()
    reader.store = store  # type: ignore[assignment]
    return reader


def test_encryption_needs_a_key_and_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsuitable, match="TOPICS_BUCKET_ENCRYPT=true needs the key of TOPICS_BUCKET_KEY_FILE"):
        open_bucket(f"file://{tmp_path}", "", encrypt=True)
    file = tmp_path / "key"
    file.write_text(secrets.token_hex(32))
    both = Both(encrypts=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(Unsuitable, match=r"install topics-server\[encrypt\]"):
        open_bucket(f"file://{tmp_path}", str(file), encrypt=True)
    open_bucket(f"file://{tmp_path}", str(file))
    with pytest.raises(Unsealed, match=rf"{SERVICE} is encrypted: install topics-server\[encrypt\]"):
        both.fresh().get(SERVICE)
