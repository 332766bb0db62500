"""The roster's process: it shows its machine in the bucket, reports the members, and ends with its supervisor."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio
from msgspec.structs import replace

from proto.ipc.control import (
    Askers,
    Cluster,
    Control,
    Failed,
    Holder,
    Local,
    Members,
    Ping,
    Placement,
    Pong,
    Ready,
    Shards,
    ShardState,
    Start,
    Step,
    StepDone,
    Stop,
)
from proto.ipc.control_link import ControlLink
from proto.model.limits import Limits
from shardd.process import roster
from shardd.process.bucket import Copy
from shardd.replication.attach import FORMAT, Mark, Service, Term, write_mark
from shardd.replication.names import ShardNames
from shardd.roster.members import Member
from shardd.roster.roster import Roster
from shardd.storage.disk import Claim, RealDisk

CREATED_MS = 77
SHARDS = 2


class Scene:
    """The supervisor's end of a roster."""

    def __init__(self, link: ControlLink, bucket: Path) -> None:
        self.link = link
        self.bucket = bucket
        self.statuses: list[int] = []

    async def receive(self, kind: type[Control]) -> Control:
        with trio.fail_after(60):
            while True:
                message = await self.link.receive()
                assert message is not None
                if isinstance(message, kind):
                    return message

    def members(self) -> list[Member]:
        found = (self.bucket / "members").glob("*")
        return [msgspec.json.decode(each.read_bytes(), type=Member) for each in found if "#" not in each.name]

    def other(self, beat: int, **fields: Any) -> None:
        """Write the object of another machine."""
        made = Member("two", "mTwo", place="there", beat=beat, at_ms=time.time_ns() // 1_000_000, ttl_ms=1000, **fields)
        self.put("members/two", made)

    def put(self, name: str, content: Any) -> None:
        path = self.bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("temporary").write_bytes(msgspec.json.encode(content))
        path.with_name("temporary").replace(path)

    def term(self, shard: int, term: int, member: str, **fields: Any) -> None:
        self.put(ShardNames(shard).term(term), Term(term, f"{term:032d}", "host", 0, member=member, **fields))

    async def decides(self, expected: Callable[[Placement], object]) -> Placement:
        """The first placement of which that is true. Another machine is seen to live meanwhile."""
        while True:
            found = await self.receive(Placement)
            assert isinstance(found, Placement)
            if expected(found):
                return found


@asynccontextmanager
async def running(path: Path, monkeypatch: pytest.MonkeyPatch, bucket: str = "") -> AsyncIterator[Scene]:
    monkeypatch.setattr(roster, "configure", lambda name: None)
    (path / "bucket").mkdir()
    (path / "data").mkdir()
    (path / "bucket" / "service.json").write_bytes(msgspec.json.encode(Service(FORMAT, CREATED_MS, 2)))
    ours, theirs = socket.socketpair()
    there = Scene(ControlLink(ours), path / "bucket")
    start = Start(
        "roster",
        Limits(bucket=bucket or (path / "bucket").as_uri(), replication="sync", term_ttl_ms=1000),
        data_dir=str(path / "data"),
        created_ms=CREATED_MS,
        address="http://one",
        shards=SHARDS,
        cluster=Cluster("mOne", "public", "secret", "0.0.0.0:4100", "tcp://one", member="one", place="here"),
    )

    async def run() -> None:
        there.statuses.append(await roster.main(theirs.detach()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await there.link.send(start)
        yield there
    await there.link.aclose()


def contents(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in path.rglob("*") if each.is_file())


async def test_a_machine_is_a_member_until_it_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as there:
        await there.receive(Ready)
        while await there.receive(Members) != Members({"public": "mOne"}):
            pass
        (member,) = there.members()
        assert (member.nonce, member.address, member.key, member.endpoint) == (
            "mOne",
            "http://one",
            "public",
            "tcp://one:4100",
        )
        await there.link.send(Askers({}))  # a message for shards
        await there.link.send(Ping())
        assert await there.receive(Pong) == Pong()
        await there.link.send(Stop())
    assert there.statuses == [0]
    assert there.members() == []
    assert b"secret" not in contents(tmp_path)


async def test_a_bucket_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, "nonsense://x") as there:
        failed = await there.receive(Failed)
        assert isinstance(failed, Failed)
        assert "TOPICS_BUCKET=nonsense://x" in failed.message
    assert there.statuses == [3]


async def test_a_machine_that_is_alone_claims_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as there:
        first = await there.receive(Placement)
        assert isinstance(first, Placement)
        assert (first.ranks, first.wanted) == ([math.inf] * 2, []), "the others do not see it yet"
        await there.decides(lambda found: (found.ranks, found.wanted) == ([0, 0], [0, 1]))
        await there.link.send(Stop())


async def test_the_holders_of_shards_that_do_not_run_here_are_named_as_long_as_they_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as there:
        there.term(1, 5, "two", address="http://two", endpoint="tcp://two:1", key="the key", ttl_ms=600)
        named, over = (Holder(address, "tcp://two:1", "the key", 5) for address in ("http://two", ""))
        await there.decides(lambda found: found.holders == [Holder(), named])
        await there.decides(lambda found: found.holders == [Holder(), over])
        (there.bucket / ShardNames(1).alive(5)).parent.mkdir(parents=True)
        (there.bucket / ShardNames(1).alive(5)).write_bytes(b"1")
        await there.decides(lambda found: found.holders == [Holder(), named])
        await there.link.send(Shards([ShardState(shard, "standby") for shard in range(SHARDS)]))
        await there.link.send(Stop())


async def test_other_machines_see_which_shards_cannot_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as there:
        await there.receive(Ready)
        await there.link.send(Shards([ShardState(0, "standby"), ShardState(1, "failed")]))
        with trio.fail_after(60):
            while [each.fails for each in there.members()] != [[1]]:  # noqa: ASYNC110 — a file is written
                await trio.sleep(0.01)
        await there.link.send(Stop())


async def test_files_of_shards_that_are_not_needed_are_removed_if_the_bucket_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Roster, "spare", lambda self, now: {0, 1, 7})
    monkeypatch.setattr(roster, "TIDY_S", 0.01)
    url = (tmp_path / "bucket").as_uri()
    with structlog.testing.capture_logs() as lines:
        async with running(tmp_path, monkeypatch) as there:
            for shard in range(SHARDS):
                path = tmp_path / "data" / f"shard-{shard:02d}"
                (path / "topics").mkdir(parents=True)
                (path / "topics" / "x").write_bytes(b"?")
                write_mark(RealDisk(), path, Mark(url, "l", part=0))
                there.term(shard, 5, "one" if shard == 0 else "two")
            await there.receive(Ready)
            await there.link.send(Shards([ShardState(shard, "elsewhere") for shard in range(SHARDS)]))
            with trio.fail_after(60):
                while not {"files_kept", "files_removed"} <= {each["event"] for each in lines}:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await there.link.send(Stop())
    assert {each["event"]: each["shard"] for each in lines if each["event"].startswith("files_")} == {
        "files_kept": 0,
        "files_removed": 1,
    }
    assert list((tmp_path / "data" / "shard-01").iterdir()) == []
    assert (tmp_path / "data" / "shard-00" / "topics" / "x").exists()


async def test_a_process_of_the_shard_and_the_removal_of_its_files_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = trio.Event()

    def spare(self: Roster, now: float) -> set[int]:
        looked.set()
        return {1}

    monkeypatch.setattr(Roster, "spare", spare)
    monkeypatch.setattr(roster, "TIDY_S", 0.01)
    path, url = tmp_path / "data" / "shard-01", (tmp_path / "bucket").as_uri()
    async with running(tmp_path, monkeypatch) as there:
        path.mkdir()
        write_mark(RealDisk(), path, Mark(url, "l", part=0))
        there.term(1, 5, "two")
        started = Claim(path)
        await there.receive(Ready)
        await there.link.send(Shards([ShardState(shard, "elsewhere") for shard in range(SHARDS)]))
        for _ in range(3):
            looked = trio.Event()
            await looked.wait()
        assert [each.name for each in path.iterdir()] == ["bucket.json"]
        with Copy(Start("shard", Limits()), path) as copy:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(copy.claim)
                await trio.sleep(0.01)
                assert nursery.child_tasks, "another process has it"
                started.close()
        await there.link.send(Stop())


@asynccontextmanager
async def holding_two(there: Scene) -> AsyncIterator[list[ShardState]]:
    """This machine holds both shards, and another one that lives has caught up with them."""

    async def other_lives() -> None:
        beat = 0
        while True:
            there.other(beat := beat + 1, lags={0: 0.1, 1: 0.1})
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_lives)
        for shard in range(SHARDS):
            there.term(shard, 5, "one")
        await there.link.send(Shards([ShardState(shard, "ready", term=5) for shard in range(SHARDS)]))
        yield [ShardState(shard, "ready", term=5) for shard in range(SHARDS)]
        nursery.cancel_scope.cancel()


async def test_a_shard_is_given_away_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as there:
        async with holding_two(there):
            step = (await there.decides(lambda found: found.step)).step
            assert step is not None
            shard = step.shard
            assert step == Step(shard, 5, 1, "saving")
            assert (there.bucket / "moves" / f"{1:020d}").exists()
            await there.link.send(Local({}, StepDone(9, "saved")))  # of another move
            await there.link.send(Local({}, StepDone(1, "saved")))
            assert (await there.decides(lambda found: found.step != step)).step == Step(shard, 5, 1, "refusing")
            await there.link.send(Local({}, StepDone(1, "shipped")))
            ending = await there.decides(lambda found: found.step and found.step.state == "ending")
            assert ending.ranks[shard] == 1, "the target is before this machine"
            await there.link.send(Local({}, StepDone(1, "ended")))
            assert (await there.decides(lambda found: found.step is None)).ranks[shard] == 1
        await there.link.send(Stop())


async def test_a_shard_that_dies_ends_its_hand_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as there:
        async with holding_two(there) as states:
            await there.decides(lambda found: found.step)
            await there.link.send(Shards([replace(state, phase="down") for state in states]))
            await there.decides(lambda found: found.step is None)
        await there.link.send(Stop())


async def test_the_log_tells_of_a_hand_over_that_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with structlog.testing.capture_logs() as lines:
        async with running(tmp_path, monkeypatch) as there:
            async with holding_two(there):
                step = (await there.decides(lambda found: found.step)).step
            await there.decides(lambda found: found.step is None)  # the target shows no sign of life any more
            await there.link.send(Stop())
    assert step is not None
    (line,) = [each for each in lines if each["event"] == "hand_over_given_up"]
    assert (line["shard"], line["move"], line["target"]) == (step.shard, 1, "two")


async def test_a_machine_that_leaves_claims_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as there:
        await there.decides(lambda found: found.ranks == [0, 0])
        await there.link.send(Local({}, None, leaving=True))
        await there.decides(lambda found: found.ranks == [math.inf, math.inf])
        assert [each.leaving for each in there.members()] == [True]
        await there.link.send(Stop())


async def test_a_copy_of_a_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as there:
        there.put("members/one", Member("one", "a", place="elsewhere", beat=1, ttl_ms=1000))
        # The roster may have been admitted before: it is refused then, since the nonce of the other one is smaller.
        beat = 1
        with trio.fail_after(60):
            while True:
                beat += 1
                there.put("members/one", Member("one", "a", place="elsewhere", beat=beat, ttl_ms=1000))
                with trio.move_on_after(0.2):
                    failed = await there.receive(Failed)
                    break
        assert isinstance(failed, Failed)
        assert "copy of this data directory" in failed.message
    assert there.statuses == [3]
    assert [each.nonce for each in there.members()] == ["a"]
