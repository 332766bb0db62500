"""Each kind of object of a bucket in turn, missing or changed: what is served is right, or refused with its name.

A cell of the table in docs/design/replication.md is one test here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardd.offline import replica
from shardd.offline.fetch import fetch
from shardd.replication import checkpoint_copies, manifests
from shardd.replication.attach import Mismatch, Service, join_service
from shardd.replication.browse import Damaged
from shardd.replication.manifests import ManifestError
from shardd.replication.messages import Timing
from shardd.replication.names import SERVICE, ShardNames
from shardd.replication.seal import Sealed
from shardd.replication.store import StoreError, Unreachable
from tests.support import shipped
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD, Harness
from tests.support.shipped import SMALL, Shipped, contents

NAMES = ShardNames(0)
KEY = b"k" * 32
SEALINGS = {"no key": (b"", False), "key": (KEY, False), "encrypted": (KEY, True)}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_copies, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(shipped, "TIMING", Timing(10.0, follow=0.05, retry=0.05, retry_most=0.05))


class Scene:
    """A holder in its second term, with two checkpoints in the bucket."""

    def __init__(self, key: bytes, encrypts: bool = False) -> None:
        self.below = MemoryStore()
        self._key, self._encrypts = key, encrypts
        first = Shipped(self.store(), **SMALL).attach()
        self._grow(first, 0)  # fence 1, part 2
        self._copy(first)  # manifest 2
        self._grow(first, 1)  # part 3
        first.role.end()  # end 4
        assert isinstance(first.disk, FaultDisk)
        self.holder = first.again()
        self.holder.store = self.store()
        self.holder.attach()  # fence 5
        self._grow(self.holder, 2)  # part 6
        self._copy(self.holder)  # manifest 6
        self.before_last = contents(self.holder)
        self._grow(self.holder, 3)  # part 7
        self.expected = contents(self.holder)
        head = manifests.read_head(self.store(), NAMES, 6)
        self.names = {
            "service.json": SERVICE,
            "old term": NAMES.term(1),
            "newest term": NAMES.term(2),
            "alive": NAMES.alive(2),
            "old part": NAMES.part(2),
            "end": NAMES.part(4),
            "fence": NAMES.part(5),
            "newest part": NAMES.part(7),
            "old manifest": NAMES.manifest(2),
            "newest manifest": NAMES.manifest(6),
            "chunk": NAMES.chunk(head.streams[-1].name, 0),
        }

    def store(self) -> Any:
        """As another process opens it."""
        return Sealed(self.below, self._key, self._encrypts) if self._key else self.below

    @staticmethod
    def _grow(shard: Shipped, round_: int) -> None:
        for number in range(10):
            shard.append("a", "x" * 200, number, round_)
        shard.sync()
        shard.ship()

    @staticmethod
    def _copy(shard: Shipped) -> None:
        shard.shard.checkpoint_now()
        shard.copy()
        shard.clock.advance(1000)

    def damage(self, kind: str, how: str) -> str:
        """Damage an object. Returns its name."""
        name = self.names[kind]
        whole = self.below.objects.pop(name)
        if how != "missing":
            self.below.objects[name] = self._changed(kind, name, whole, how)
        return name

    def _changed(self, kind: str, name: str, whole: bytes, how: str) -> bytes:
        if how == "empty":
            return b""
        if how == "cut":
            return whole[: len(whole) // 2]
        if how == "one bit":
            at = len(whole) // 2
            return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        if kind == "service.json" and not self._key:
            found = msgspec.json.decode(whole, type=Service)
            return msgspec.json.encode(Service(1, found.service + (how == "another's"), found.shards))
        if kind == "alive" and not self._key:
            return b"7" if how == "another's" else b"0"
        folder = name.rpartition("/")[0] if kind != "chunk" else NAMES.checkpoints
        others = [each for each in sorted(self.below.objects) if each.startswith(folder) and each != name]
        return self.below.objects[others[0] if how == "an older one's" else others[-1]] if others else b"{}"


KINDS = (
    "service.json",
    "old term",
    "newest term",
    "alive",
    "old part",
    "end",
    "fence",
    "newest part",
    "old manifest",
    "newest manifest",
    "chunk",
)
DAMAGES = ("missing", "cut", "one bit", "another's", "an older one's", "empty")
UNTOLD = {
    ("newest part", "missing"),
    ("old manifest", "missing"),
    ("newest manifest", "missing"),
    *(("alive", how) for how in DAMAGES),
}
"""What a look at the bucket alone cannot tell: its newest objects may not have been made yet, and signs of life end."""
HARMLESS = {
    ("service.json", "another's"),
    ("service.json", "an older one's"),
    *((kind, "one bit") for kind in ("service.json", "old term", "newest term")),
}
"""Without a key, what is in its place may be valid."""


def refused_by(scene: Scene, name: str, action: Callable[[], Shipped | Harness | None]) -> Shipped | Harness | None:
    """What the action makes; None if it was refused with the object's name."""
    try:
        return action()
    except (Mismatch, Damaged, ManifestError, StoreError) as error:
        if name not in str(error) and name != SERVICE:
            raise
    return None


def attached(shard: Shipped, store: Any, name: str) -> Shipped | None:
    shard.store = store
    try:
        return shard.attach(by_hand=True)
    except AssertionError:  # the protocol did not get there
        if name not in str(shard.role.objects.damage):
            raise
    return None


def as_holder(scene: Scene, name: str) -> Shipped | Harness | None:
    """It goes on, copies a checkpoint, and starts again."""
    shard = scene.holder
    shard.append("b", 1)
    shard.sync()
    shard.ship()
    for _ in range(2):
        shard.shard.checkpoint_now()
        try:
            shard.copy()
            break
        except ManifestError:  # it is uploaded as a whole the next time
            shard.append("b", 2)
            shard.sync()
    shard.copies.retain()
    scene.expected = contents(shard)
    return attached(shard.again(), scene.store(), name)


def as_standby(scene: Scene, name: str) -> Shipped | Harness | None:
    """It has read the whole log, and takes over."""
    assert isinstance(scene.holder.disk, FaultDisk)
    return attached(scene.holder.again(scene.holder.disk.after_crash("process")), scene.store(), name)


def as_empty_machine(scene: Scene, name: str) -> Shipped | Harness | None:
    return attached(scene.holder.again(FaultDisk(boot=9)), scene.store(), name)


def as_restore(scene: Scene, name: str) -> Shipped | Harness | None:
    disk = FaultDisk(boot=7)
    for _ in fetch(disk, scene.store(), Path("/data"), None, scene.holder.limits, None):
        pass
    return Harness(disk, scene.holder.clock, SHARD, **msgspec.structs.asdict(scene.holder.limits))


SHORT = ["no key", *(pytest.param(each, marks=pytest.mark.slow) for each in SEALINGS if each != "no key")]
ACTORS = {"holder": as_holder, "standby": as_standby, "empty machine": as_empty_machine, "restore": as_restore}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("sealing", SHORT)
def test_what_is_served_is_right_or_refused_with_its_name(sealing: str, actor: str, how: str, kind: str) -> None:
    scene = Scene(*SEALINGS[sealing])
    name = scene.damage(kind, how)
    before = dict(scene.below.objects)
    made = refused_by(scene, name, lambda: ACTORS[actor](scene, name))
    if made is not None:
        unseen = (kind, how) == ("newest part", "missing") and actor in ("empty machine", "restore")
        assert contents(made) == (scene.before_last if unseen else scene.expected)
    assert before.keys() <= scene.below.objects.keys(), "nothing intact is deleted"
    kept = {each: data for each, data in scene.below.objects.items() if each in before}
    assert all(kept[each] == before[each] for each in before if each not in (name, SERVICE) and "/alive/" not in each)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("sealing", SHORT)
def test_verify_names_it(sealing: str, how: str, kind: str) -> None:
    scene, key = Scene(*SEALINGS[sealing]), SEALINGS[sealing][0]
    name = scene.damage(kind, how)
    try:
        problems = next(iter(replica.verify(scene.store())))["problems"]
    except (Mismatch, StoreError) as error:
        problems = [str(error)]
    missing = "missing" in " ".join(problems) and name[-6:].lstrip("0") in " ".join(problems)
    told = any(name in problem for problem in problems) or (how == "missing" and missing)
    assert told or (kind, how) in UNTOLD or (not key and (kind, how) in HARMLESS), problems
    assert not (told and (kind, how) in UNTOLD and not key)


def test_a_new_machine_does_not_make_a_missing_service_again() -> None:
    scene = Scene(b"")
    scene.damage("service.json", "missing")
    with pytest.raises(Mismatch, match=r"service.json is missing, although there are shards"):
        join_service(scene.below, Service(1, 7, 1))
    assert SERVICE not in scene.below.objects


def test_a_new_machine_lists_no_shards_if_the_service_is_there() -> None:
    scene = Scene(b"")
    scene.below.fault = lambda operation, name: Unreachable("away") if operation == "list" else None
    assert join_service(scene.below, Service(1, 7, 1)).shards == 1


def test_a_machine_claims_nothing_in_a_bucket_that_was_put_back_to_an_earlier_state() -> None:
    for sealing in SEALINGS.values():
        scene = Scene(*sealing)
        assert isinstance(scene.holder.disk, FaultDisk)
        scene.holder.role.kept_no()
        disk = scene.holder.disk.after_crash("process")
        for name in [name for name in scene.below.objects if name.startswith(NAMES.log)][5:]:
            del scene.below.objects[name]
        del scene.below.objects[NAMES.manifest(6)]
        assert attached(scene.holder.again(disk), scene.store(), NAMES.part(7)) is None
        assert NAMES.part(8) not in scene.below.objects


def test_a_sound_bucket_serves_everyone() -> None:
    for sealing in SEALINGS.values():
        for actor in ACTORS.values():
            scene = Scene(*sealing)
            made = actor(scene, "")
            assert made is not None
            assert contents(made) == scene.expected
        assert next(iter(replica.verify(Scene(*sealing).store())))["problems"] == []
