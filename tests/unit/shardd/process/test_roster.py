"""The roster's process: it shows its machine in the bucket, reports the members, and ends with its supervisor."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from proto.ipc.control import Askers, Cluster, Control, Failed, Members, Ping, Pong, Ready, Start, Stop
from proto.ipc.control_link import ControlLink
from proto.model.limits import Limits
from shardd.process import roster
from shardd.replication.attach import FORMAT, Service
from shardd.replication.members import Member

CREATED_MS = 77


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
        return [msgspec.json.decode(each.read_bytes(), type=Member) for each in found if each.suffix == ""]


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
        cluster=Cluster("mOne", "public", "secret", "0.0.0.0:4100", "tcp://one"),
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
