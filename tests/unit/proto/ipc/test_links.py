"""Links to a shard that another machine holds: one to the holder that is named last, made again after it was lost."""

from __future__ import annotations

import msgspec
import pytest
import structlog
import trio
from msgspec.structs import replace

from proto.ipc import links as links_module
from proto.ipc import remote_link
from proto.ipc.control import ShardState
from proto.ipc.message import Reply
from proto.ipc.operations import StateGet
from proto.model.errors import TopicsError, is_passing, moving
from proto.model.memory_shares import SMALLEST_WINDOW
from tests.support.holder import CLUSTER, asker, holder, reaches, until


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "AGAIN_S", 0.01)


async def test_until_the_shard_was_heard_requests_are_refused_and_the_holder_named() -> None:
    async with holder() as there:
        there.router.allow({})
        async with asker(there) as links:
            with pytest.raises(TopicsError, match="http://b holds shard 0") as raised:
                links.to(0)
            assert raised.value.detail["outcome"] == "not_done"
            there.router.allow({CLUSTER.public: "mA"})
            await until(lambda: reaches(links))


async def test_without_a_cluster_no_other_machine_is_asked() -> None:
    async with holder() as there, asker(there, None) as links:
        with pytest.raises(TopicsError, match="http://b holds shard 0"):
            links.to(0)
        assert links.current(0) is None


async def test_news_of_another_holder_may_come_before_the_answers_of_the_last_one() -> None:
    """What the last one still refuses is not lost, although the next one is known at once."""
    async with holder() as there, holder() as heir, asker(there) as links:
        await until(lambda: reaches(links))
        link = links.to(0)
        sent = [link.ask(StateGet(), "t", b"x" * size) for size in (1, SMALLEST_WINDOW, SMALLEST_WINDOW)]
        links.update([there.state()])
        await until(lambda: len(there.requests) == 2)
        links.update([heir.state()])
        for unsent in (sent[2], link.ask(StateGet(), "t", b"")):
            assert isinstance(unsent._outcome, Reply)
            assert is_passing(unsent._outcome.error, 0)
        await until(lambda: reaches(links))
        links.to(0).ask(StateGet(), "t", b"")
        await until(lambda: heir.requests)
        assert [pending._outcome for pending in sent[:2]] == [None, None]
        assert not there.no_more
        for peer, request in there.requests:
            there.router.send(Reply(request.id, error=moving(0)), peer)
        await until(lambda: there.no_more)
        assert all(isinstance(pending._outcome, Reply) for pending in sent[:2])
        assert there.no_more == there.names


@pytest.mark.parametrize("end", ["says nothing", "ends"])
async def test_what_the_last_holder_does_not_answer_is_unknown(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if end == "says nothing":
        monkeypatch.setattr(remote_link, "RETIRED_S", 0.05)
    async with holder() as there, holder() as heir, asker(there) as links:
        await until(lambda: reaches(links))
        pending = links.to(0).ask(StateGet(), "t", b"")
        await until(lambda: there.requests)
        links.update([heir.state()])
        if end == "ends":
            there.cable.end_all()
        with trio.fail_after(60), pytest.raises(TopicsError) as raised:
            await pending.wait()
        assert raised.value.detail["outcome"] == "unknown"
        await until(lambda: reaches(links))


async def test_a_shard_that_is_given_away_gets_what_was_sent_and_no_more() -> None:
    async with holder() as there, holder() as heir, asker(there) as links:
        await until(lambda: reaches(links))
        link = links.to(0)
        sent = [link.ask(StateGet(), "t", b"x" * size) for size in (1, SMALLEST_WINDOW, SMALLEST_WINDOW, 1)]
        await until(lambda: len(there.requests) == 2)
        there.give()
        await until(lambda: there.no_more)
        assert len(there.requests) == 2, "those that wait for their window are not sent"
        late = links.to(0).ask(StateGet(), "t", b"")
        for pending in (*sent[2:], late):
            assert isinstance(pending._outcome, Reply)
            assert is_passing(pending._outcome.error, 0)
        assert [pending._outcome for pending in sent[:2]] == [None, None], "it may still answer"
        assert links.returns(0)
        assert links.unheld(0)
        peer, request = there.requests[0]
        there.router.send(Reply(request.id), peer)
        await until(lambda: sent[0]._outcome)
        assert len(there.no_more) == 1
        links.update([heir.state()])
        await until(lambda: reaches(links) and links.to(0) is not link)
        assert not links.returns(0)
        peer, request = there.requests[1]
        there.router.send(Reply(request.id), peer)
        await until(lambda: sent[1]._outcome)
        assert isinstance(sent[1]._outcome, Reply)


async def test_a_link_says_that_it_asks_no_more_when_all_that_it_sent_was_read() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        answer, there.answer = there.answer, lambda request: None  # type: ignore[method-assign]
        there.give()
        await until(lambda: links.unheld(0) and there.requests)
        assert not there.no_more
        for peer, request in there.requests:
            there.router.send(answer(request), peer)  # type: ignore[arg-type]
        await until(lambda: there.no_more)


async def test_a_link_that_is_given_up_says_so() -> None:
    async with holder() as there, holder() as heir, asker(there) as links:
        await until(lambda: reaches(links))
        links.update([heir.state()])
        await until(lambda: there.no_more)
        assert not heir.no_more
        await until(lambda: reaches(links))
    assert there.no_more == there.names


WRONG = {
    "no host": {"holder_at": "tcp://nowhere.invalid:1"},
    "no port": {"holder_at": "tcp://127.0.0.1:x"},
    "a port too large": {"holder_at": "tcp://127.0.0.1:99999"},
    "no address": {"holder_at": "nonsense"},
    "no name": {"holder_at": f"tcp://{'x' * 100}.{'y' * 300}:1"},
    "empty": {"holder_at": ""},
    "a short key": {"holder_key": "short"},
    "a long key": {"holder_key": "x" * 400},
    "letters beyond ASCII": {"holder_key": "\u00e9" * 40},
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_holder_that_is_nowhere_harms_nothing(what: str) -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        with structlog.testing.capture_logs() as lines:
            links.update([msgspec.structs.replace(there.state(), **WRONG[what])])
            await until(lambda: [line["event"] for line in lines].count("holder_not_found") > 1)
        with pytest.raises(TopicsError):
            links.to(0)
        links.update([there.state()])
        await until(lambda: reaches(links))


async def test_a_shard_of_this_machine_takes_the_place_of_the_holder() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        links.update([ShardState(0, "replay", "ipc://own", 1)])
        assert links.current(0) is None
        links.update([ShardState(0, "ready", "ipc://own", 1)])
        link = links.to(0)
        assert link.state.phase == "ready"
        assert not link.up
        links.update([there.state()])
        await until(lambda: reaches(links))


@pytest.mark.parametrize("phase", ["down", "open", "standby", "failed", "elsewhere"])
async def test_while_the_process_that_follows_the_shard_is_away_the_link_to_the_holder_stays(phase: str) -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        pending = links.to(0).ask(StateGet(), "t", b"")
        dead = replace(there.state(), phase=phase)  # with what the process said before
        for state in (dead, ShardState(0, phase), ShardState(0, "open", "ipc://next", 2), there.state()):
            links.update([state])
            assert reaches(links)
            links.to(0).ask(StateGet(), "t", b"")
        await until(lambda: len(there.requests) == 5)
        assert not pending._outcome
        assert len(there.names) == 1


async def test_a_lost_link_is_not_made_again_when_the_shard_has_no_holder_any_more() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        links.update([ShardState(0, "standby", "ipc://own", 1)])
        there.cable.end_all()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert links.current(0) is None
        assert len(there.names) == 1


@pytest.mark.parametrize("phase", ["down", "failed", "elsewhere"])
async def test_a_process_that_follows_the_shard_and_cannot_start_keeps_no_holder_from_being_reached(phase: str) -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        links.update([replace(there.state(), phase=phase)])
        there.cable.end_all()
        await until(lambda: not reaches(links))
        assert links.elsewhere(0)
        assert links.returns(0)
        await until(lambda: reaches(links))
        assert not links.returns(0)
        links.update([replace(there.state(), phase="open", holder="", holder_at="", holder_key="")])
        assert reaches(links), "it begins to look"
        links.update([ShardState(0, "ready", "ipc://own", 2)])
        assert not links.elsewhere(0)


async def test_who_is_waited_for() -> None:
    async with holder() as there, asker(there) as links:
        await until(lambda: reaches(links))
        assert not links.returns(0)
        links.update([replace(there.state(), phase="open", holder="", holder_at="", holder_key="")])
        assert not links.returns(0), "the link is there"
        there.cable.whole = False
        there.cable.end_all()
        await until(lambda: not reaches(links))
        for phase in ("down", "open", "replay", "derive", "stopping"):
            links.update([ShardState(0, phase)])
            assert links.returns(0)
            assert links.unheld(0), "it may be another machine's by now"
        for phase in ("failed", "ready"):
            links.update([ShardState(0, phase, "ipc://own")])
            assert not links.returns(0)
        links.update([ShardState(0, "standby")])
        assert links.returns(0)
        assert links.unheld(0)
        links.update([ShardState(0, "standby", holder="http://b")])
        assert not links.returns(0), "a machine that hears no other one"


async def test_a_shard_without_a_process_here_may_have_moved_while_its_holder_is_not_reached() -> None:
    async with holder() as there, holder() as heir, asker(there) as links:
        links.update([replace(there.state(), phase="elsewhere")])
        await until(lambda: reaches(links))
        assert not links.unheld(0)
        there.cable.whole = False
        there.cable.end_all()
        await until(lambda: not reaches(links))
        assert links.unheld(0)
        assert links.returns(0)
        with pytest.raises(TopicsError, match="http://b holds shard 0"):
            links.to(0)
        links.update([replace(heir.state(), phase="elsewhere")])
        await until(lambda: reaches(links))
        assert not links.unheld(0)
        links.update([ShardState(0, "elsewhere")])
        heir.cable.end_all()
        await until(lambda: not reaches(links))
        with pytest.raises(TopicsError, match="no machine holds shard 0"):
            links.to(0)


async def test_without_a_cluster_a_standby_waits_for_no_holder() -> None:
    async with holder() as there, asker(there, None) as links:
        for phase in ("standby", "stopping"):
            links.update([ShardState(0, phase)])
            assert not links.unheld(0)
            assert not links.returns(0)
