"""Claims about `shardd.process.peers`: requests to another shard use a real socket, requests to itself do not, and the
death of a shard is reported. A shard of another machine is asked there."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from proto.ipc.askers import machine_of
from proto.ipc.control import ShardState
from proto.ipc.message import Reply
from proto.ipc.operations import Append, Configure, Diff, StateGet
from proto.ipc.transport import MessageSocket
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.clock import SystemClock
from shardd.process.peers import Peers, links
from shardd.process.server import Server
from shardd.shard import Shard, opened_shard
from shardd.storage.disk import RealDisk
from tests.support.holder import CLUSTER, Holder, holder, until


def _shard(path: Path) -> Shard:
    path.mkdir()
    return opened_shard(RealDisk(), SystemClock(), path, Limits())


@asynccontextmanager
async def _two(path: Path) -> AsyncIterator[tuple[Peers, list[Shard], trio.CancelScope]]:
    """Shard 0's view of two shards. Both run; the scope ends shard 1."""
    shards = [_shard(path / "0"), _shard(path / "1")]
    endpoint = f"ipc://{path}/1.sock"
    async with trio.open_nursery() as nursery:
        ending = trio.CancelScope()

        async def other(task_status: trio.TaskStatus[None]) -> None:
            socket = MessageSocket.router(endpoint)
            try:
                with ending:
                    await Server(shards[1], socket, Limits()).run(task_status)
            finally:
                socket.close()

        nursery.start_soon(shards[0].commits.run)
        await nursery.start(other)
        peers = Peers(shards[0], 0, links(2, timeout_s=20))
        await nursery.start(peers.run)
        peers.update([ShardState(0, "ready", "ipc://unused", 1), ShardState(1, "derive", endpoint, 1)])
        with trio.fail_after(60):
            yield peers, shards, ending
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("index", [0, 1])
async def test_asks_any_shard_the_same_way(short_path: Path, index: int) -> None:
    async with _two(short_path) as (peers, shards, _):
        body = b'{"records":[{"data":1}],"create":true}'
        assert (await peers.request(index, Append(), "jobs", body)).created
        reply = await peers.request(index, Diff(), "jobs", b'{"from_seq":0}')
        assert b'"data":1' in reply.body
        assert shards[index].directory.counters()[:2] == (1, 1)
        with pytest.raises(TopicsError) as raised:
            await peers.request(index, StateGet(), "none")
        assert raised.value.code == ErrorCode.TOPIC_NOT_FOUND


@pytest.mark.parametrize("index", [0, 1])
async def test_a_read_nobody_waits_for_is_not_kept(short_path: Path, index: int) -> None:
    async with _two(short_path) as (peers, shards, _):
        await peers.request(index, Configure(), "jobs")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peers.request, index, Diff(), "jobs", b'{"from_seq":0,"wait_ms":20000}')
            while not len(shards[index].reads):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        while len(shards[index].reads):
            await trio.lowlevel.checkpoint()


async def test_whoever_waits_for_a_shard_that_goes_away_is_told(short_path: Path) -> None:
    async with _two(short_path) as (peers, shards, ending):
        await peers.request(1, Configure(), "jobs")

        async def lose() -> None:
            while not len(shards[1].reads):
                await trio.lowlevel.checkpoint()
            ending.cancel()
            peers.update([ShardState(1)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            with pytest.raises(TopicsError) as raised:
                await peers.request(1, Diff(), "jobs", b'{"from_seq":0,"wait_ms":20000}')
        assert raised.value.code == ErrorCode.NOT_READY
        assert not peers.reachable(1)
        with pytest.raises(TopicsError, match="phase down"):
            await peers.request(1, StateGet(), "jobs")


@pytest.mark.parametrize("index", [0, 1])
async def test_a_step_past_the_deadline_of_its_request_is_not_carried_out(tmp_path: Path, index: int) -> None:
    async with _two(tmp_path) as (peers, shards, _):
        with pytest.raises(TopicsError) as raised:
            await peers.request(index, Configure(), "late", deadline_ns=1)
        assert raised.value.detail == {"outcome": "not_done"}
        assert not shards[index].directory.visible


async def test_only_a_shard_that_is_being_started_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardd.process.peers.PATIENCE_S", 50.0)
    async with _two(tmp_path) as (peers, _, _):
        endpoint, life = peers.states[1].endpoint, peers.life(1)
        await peers.returned(0)
        for phase in ("failed", "standby", "stopping"):
            peers.update([ShardState(1, phase)])
            await peers.returned(1)
        assert peers.lives[1] != life
        peers.update([ShardState(1, "replay")])
        async with trio.open_nursery() as nursery:
            returned: list[int] = []

            async def wait() -> None:
                await peers.returned(1)
                returned.append(1)

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            peers.update([ShardState(1, "derive", endpoint, 1)])
            await trio.testing.wait_all_tasks_blocked()
            assert not returned
            peers.update([ShardState(1, "ready", endpoint, 1)])
        assert returned
        monkeypatch.setattr("shardd.process.peers.PATIENCE_S", 0.01)
        peers.update([ShardState(1)])
        await peers.returned(1)
        with pytest.raises(TopicsError, match="phase down"):
            await peers.request(1, StateGet(), "jobs")


class Clocked:
    """A clock that a test sets, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def _apart(
    path: Path, away_s: float = 60.0, serving: Callable[[], bool] | None = None
) -> AsyncIterator[tuple[Peers, Holder, Clocked]]:
    """Shard 0, in term 7, and a scripted holder of shard 1 on another machine."""
    shard, clock = _shard(path / "0"), Clocked()
    shard.monotonic = clock  # type: ignore[method-assign]
    async with holder() as there, trio.open_nursery() as nursery:
        asking = links(2, timeout_s=20, name="s0.3", cluster=CLUSTER)
        peers = Peers(shard, 0, asking, term=7, away_s=away_s, serving=serving)
        await nursery.start(peers.run)
        peers.update([ShardState(0, "ready", "ipc://unused", 3, term=7), there.state(1)])
        with trio.fail_after(60):
            yield peers, there, clock
        nursery.cancel_scope.cancel()


async def test_a_shard_that_another_machine_holds_is_asked_there(tmp_path: Path) -> None:
    async with _apart(tmp_path) as (peers, there, _):
        there.answer = lambda request: Reply(request.id, request.topic.encode())  # type: ignore[method-assign]
        with pytest.raises(TopicsError, match="http://b holds shard 1") as raised:
            await peers.request(1, StateGet(), "jobs")
        assert raised.value.detail["outcome"] == "not_done"
        await peers.returned(1)
        assert peers.reachable(1)
        assert (await peers.request(1, StateGet(), "jobs")).body == b"jobs"
        assert [machine_of(name) for name in there.names] == ["mA"]
        assert there.names[0].startswith(b"mA.s0."), "under this shard's name"


async def test_a_process_has_a_name_of_its_own_on_whichever_machine(tmp_path: Path) -> None:
    async with _apart(tmp_path) as (peers, there, _), holder() as heir:
        assert peers.epoch == 7, "the term, because another machine's incarnations may be larger"
        own, first = peers.lives
        assert (own, first) == (3, there.keys.public)
        await peers.returned(1)
        there.cable.end_all()
        await until(lambda: not peers.reachable(1))
        assert peers.life(1) == first, "the link is lost, the process may live"
        peers.update([peers.states[0], heir.state(1)])
        await until(lambda: peers.reachable(1))
        assert peers.life(1) == heir.keys.public != first
        peers.update([peers.states[0], ShardState(1, "ready", "ipc://one", 3)])
        assert peers.life(1) == 3


async def test_a_shard_is_away_when_it_was_not_reached_for_long(tmp_path: Path) -> None:
    async with _apart(tmp_path) as (peers, there, clock):
        await peers.returned(1)
        clock.now = 100.0
        assert not peers.one_away
        there.cable.whole = False
        there.cable.end_all()
        await until(lambda: not peers.reachable(1))
        clock.now = 159.0
        assert not peers.away(1)
        clock.now = 160.0
        assert peers.away(1)
        assert peers.one_away
        assert not peers.lost(1), "its holder may let it grow"
        peers.update([peers.states[0], ShardState(1, "standby", "ipc://own", 1)])
        assert peers.lost(1)
        there.cable.whole = True
        peers.update([peers.states[0], there.state(1)])
        await until(lambda: peers.reachable(1))
        assert not peers.away(1)
        assert not peers.away(0)


async def test_a_shard_whose_term_may_be_over_asks_nobody(tmp_path: Path) -> None:
    serves = True
    async with _apart(tmp_path, serving=lambda: serves) as (peers, there, _):
        there.answer = lambda request: Reply(request.id)  # type: ignore[method-assign]
        await peers.returned(1)
        await peers.request(1, StateGet(), "jobs")
        serves = False
        with pytest.raises(TopicsError, match="could not renew its term") as raised:
            await peers.request(1, StateGet(), "jobs")
        assert raised.value.detail["outcome"] == "not_done"


async def test_a_request_waits_for_the_next_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardd.process.peers.MOVING_S", 50.0)
    async with _apart(tmp_path) as (peers, there, _), trio.open_nursery() as nursery:
        await peers.returned(1)
        there.cable.whole = False
        peers.update([peers.states[0], ShardState(1, "standby", "ipc://own", 1)])
        there.cable.end_all()
        await until(lambda: not peers.reachable(1))
        with pytest.raises(TopicsError, match="no machine holds shard 1"):
            await peers.request(1, StateGet(), "jobs")
        returned: list[int] = []

        async def wait() -> None:
            await peers.returned(1)
            returned.append(1)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not returned
        there.cable.whole = True
        peers.update([peers.states[0], there.state(1)])
        await until(lambda: bool(returned))
