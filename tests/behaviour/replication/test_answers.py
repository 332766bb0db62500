"""Each request of a holder is answered in turn as no store should: it goes on by itself, and the bucket can be restored
after each answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.format.buffer import Buffer
from shardd.offline import replica
from shardd.replication import checkpoint_copies, manifests, role
from shardd.replication.manifests import ManifestError
from shardd.replication.messages import Timing
from shardd.replication.names import SERVICE, ShardNames
from shardd.replication.seal import Sealed
from shardd.replication.store import Entry, Exists, Throttled, UnknownOutcome, check_promises
from tests.support import shipped
from tests.support.bucket import MemoryStore
from tests.support.harness import Harness
from tests.support.roles import Pair
from tests.support.shipped import SMALL, Shipped, contents, restored

NAMES = ShardNames(0)
KINDS = {
    "service": SERVICE,
    "term": NAMES.terms,
    "alive": f"{NAMES.prefix}alive/",
    "part": NAMES.log,
    "chunk": NAMES.checkpoints,
    "manifest": NAMES.manifests,
}
ANSWERS = ("409", "412 after an own write", "429", "503", "late answer", "late request", "no answer")
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_copies, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(shipped, "TIMING", Timing(10.0, follow=0.05, retry=0.05, retry_most=0.05))


class Answers(MemoryStore):
    """Answers the first requests for names that begin with `prefix` in its own way."""

    def __init__(self, answer: str, prefix: str, times: int = 3) -> None:
        super().__init__()
        self.left = times
        self.after_each: Callable[[], None] = lambda: None
        self._answer = answer
        self._prefix = prefix
        self._late: list[tuple[int, str, bytes]] = []

    def _turn(self, operation: str, name: str, data: Buffer | None = None) -> None:
        for due, late, content in self._late:
            if len(self.calls) >= due:
                self.objects.setdefault(late, content)
        self.after_each()
        if not self.left or not name.startswith(self._prefix) or "probe-" in name:
            return
        writes = operation in ("create", "put")
        if self._answer in ("429", "503"):
            self.left -= 1
            raise Throttled(self._answer)
        if not writes:
            return
        self.left -= 1
        assert data is not None
        if self._answer == "409":
            raise Exists("409: another request is under way")
        if self._answer in ("412 after an own write", "late answer"):
            self.objects.setdefault(name, bytes(data))
            raise Exists("412") if self._answer != "late answer" else UnknownOutcome("no answer in time")
        if self._answer == "late request":
            self._late.append((len(self.calls) + 2, name, bytes(data)))
        raise UnknownOutcome("no answer")

    def create(self, name: str, data: Buffer) -> None:
        self._turn("create", name, data)
        super().create(name, data)

    def put(self, name: str, data: Buffer) -> None:
        self._turn("put", name, data)
        super().put(name, data)

    def get(self, name: str) -> Buffer:
        self._turn("get", name)
        return super().get(name)

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        self._turn("list", prefix)
        return super().list(prefix, after)

    def delete(self, name: str) -> None:
        self._turn("delete", name)
        super().delete(name)


def begun(store: Any) -> Shipped:
    """A start repeats what waits for the store, as `Role` does."""
    for _ in range(8):
        try:
            return Shipped(store, **SMALL).attach()
        except (Throttled, UnknownOutcome):
            pass
    raise AssertionError("it does not start")


def repeated(harness: Harness, action: Callable[[], object]) -> None:
    for _ in range(4):
        try:
            action()
            return
        except (ManifestError, AssertionError):  # the next checkpoint is tried
            harness.append("a", "more")
            harness.shard.checkpoint_now()
    raise AssertionError("the checkpoint is not copied")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_failover_succeeds_whatever_a_request_is_answered(
    answer: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role, "TURN_S", 0.005)
    monkeypatch.setattr(role, "RETRY_S", 0.005)
    async with trio.open_nursery() as nursery:
        pair = Pair(nursery, tmp_path)
        store = pair.store = Answers(answer, KINDS[kind], 0)
        one = pair.machine("one")
        await one.open()
        await one.write("a", 1)
        two = pair.machine("two")
        await pair.until(lambda: two.role.holder)
        store.left = 3
        await one.write("a", 2)
        one.stop()
        for _ in range(4):
            await pair.silence()
        await two.open()
        store.left = 3
        await two.write("a", 3)
        assert two.contents() == {"a": [1, 2, 3]}
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_holder_goes_on_whatever_a_request_is_answered(encrypted: bool, answer: str, kind: str) -> None:
    store = Answers(answer, KINDS[kind])

    def seen(below: MemoryStore) -> Any:
        """A store as a process opens it: of an encrypted one, no two attempts have the same bytes."""
        return Sealed(below, b"k" * 32, encrypts=True) if encrypted else below

    shard = begun(seen(store))
    checking = False

    def restorable() -> None:
        nonlocal checking
        if checking or SERVICE not in store.objects:
            return
        checking = True
        plain = MemoryStore()
        plain.objects = dict(store.objects)
        taken = shard.store
        shard.store = seen(plain)
        try:
            assert contents(restored(shard)).keys() >= ({"a"} if shard.shipped_no > 1 else set())
        finally:
            shard.store, checking = taken, False

    store.after_each = restorable
    for round_ in range(3):
        shard.append("a", "x" * 3000, round_)
        shard.sync()
        shard.ship()
        shard.shard.checkpoint_now()
        repeated(shard, shard.copy)
        shard.clock.advance(shard.limits.bucket_retain_ms + 2 * DAY_MS)
        shard.copies.retain()
    assert kind in ("service", "term", "alive") or store.left == 0
    assert len(manifests.numbers(seen(store), NAMES)) in (1, 2)  # older ones are removed
    store.after_each = lambda: None
    again = shard.again()
    again.store = seen(store)
    again.attach()
    again.append("a", "last")
    again.sync()
    again.ship()
    assert contents(restored(again)) == contents(again)
    assert len(again.everything("a")) >= 7
    # A late request makes an object again that retention had removed.
    assert answer == "late request" or next(iter(replica.verify(seen(store))))["problems"] == []


def test_no_manifest_names_a_chunk_that_is_not_there() -> None:
    shard = Shipped(MemoryStore(), **SMALL).attach()
    for number in range(50):
        shard.append("a", "x" * 100, number)
    shard.sync()
    shard.shard.checkpoint_now()
    shard.copy()
    shard.append("b", 1)
    shard.sync()
    shard.shard.checkpoint_now()
    chunk = next(name for name in shard.store.objects if name.startswith(NAMES.checkpoints))
    del shard.store.objects[chunk]
    with pytest.raises(ManifestError, match="is missing"):
        shard.copy()
    assert len(manifests.numbers(shard.store, NAMES)) == 1
    shard.copy()  # uploads everything
    assert contents(restored(shard)) == contents(shard)


def test_no_manifest_is_made_for_a_log_with_a_hole() -> None:
    shard = Shipped(MemoryStore(), **SMALL).attach()
    for number in range(3):
        shard.append("a", number)
        shard.sync()
        shard.ship()
    shard.shard.checkpoint_now()
    uploaded = shard.copies.upload()
    assert uploaded is not None
    shard.append("a", "behind the checkpoint")
    shard.sync()
    shard.ship()
    del shard.store.objects[NAMES.part(shard.role.position.part)]
    with pytest.raises(ManifestError, match=r"log/\d+ is missing"):
        shard.copies.create_manifest(uploaded)
    shard.append("a", "more")
    shard.sync()
    shard.ship()
    shard.shard.checkpoint_now()
    shard.copy()
    assert contents(restored(shard)) == contents(shard)


def test_retention_removes_nothing_for_a_manifest_that_lacks_something() -> None:
    shard = Shipped(MemoryStore(), **SMALL).attach()
    for number in range(3):
        shard.append("a", "x" * 3000, number)
        shard.sync()
        shard.shard.checkpoint_now()
        shard.copy()
        shard.clock.advance(1000)
    newest = manifests.read_head(shard.store, NAMES, manifests.numbers(shard.store, NAMES)[-1])
    before = manifests.read_head(shard.store, NAMES, manifests.numbers(shard.store, NAMES)[-2])
    fresh = {each.name for each in newest.streams} - {each.name for each in before.streams}
    assert fresh
    for name in [name for name in shard.store.objects if name.split("/")[2:3] and name.split("/")[2] in fresh]:
        del shard.store.objects[name]
    shard.clock.advance(shard.limits.bucket_retain_ms + 2 * DAY_MS)
    shard.copies.retain()
    del shard.store.objects[NAMES.manifest(newest.part)]
    assert contents(restored(shard)) == contents(shard)


def test_a_store_that_answers_409_to_requests_at_once_keeps_its_promises() -> None:
    store = Answers("409", "shard-00/probe", times=0)
    refused = iter([Exists("409")] * 8)
    store.fault = lambda operation, name: next(refused, None) if operation == "create" else None
    check_promises(store, "shard-00/")
