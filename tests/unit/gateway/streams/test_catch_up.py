"""Claims about the reads for subscriptions that are behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.admission.body_budget import Budget
from gateway.contract.auth import EVERYBODY
from gateway.streams.catch_up import MOST_READS, CatchUp
from gateway.streams.states import SubscriptionState
from gateway.streams.topic_feed import TopicFeeds, frame_bytes
from proto.model.limits import Limits
from tests.unit.gateway.streams.test_stream import OPTIONS, PATIENCE_S, HeldShard

FRAME = frame_bytes(OPTIONS, Limits())


class Behind:
    """A subscription that notes what becomes of its reads."""

    def __init__(self, retry_at: float = 0.0) -> None:
        self.name, self.options, self.first = "a", OPTIONS, True
        self.epoch, self.seq, self.position = 1, 0, (1, 0, 0)
        self.state = SubscriptionState.BEHIND
        self.retry_at = retry_at
        self.reads = 0

    def note(self, _: object) -> None:
        """It is behind from the beginning."""

    def read(self, _: object, hold: Any) -> None:
        self.reads += 1
        hold.release()


@contextmanager
def catching_up(shard: HeldShard, room: int) -> Iterator[tuple[CatchUp, list[int]]]:
    budget = Budget(FRAME * 2 * MOST_READS * 2, PATIENCE_S * 1000)
    rooms = [room]
    yield CatchUp(TopicFeeds(cast(Any, shard), Limits(), budget), EVERYBODY, lambda: rooms[-1]), rooms
    assert budget.used == 0


@pytest.mark.parametrize(("room", "reads"), [(1, 1), (3 * FRAME, 3), (100 * FRAME, MOST_READS)])
async def test_as_many_reads_are_sent_as_their_frames_have_room(room: int, reads: int) -> None:
    shard = HeldShard()
    with catching_up(shard, room) as (catch_up, _):
        async with trio.open_nursery() as catch_up.nursery:
            for _ in range(2 * MOST_READS):
                catch_up.add(cast(Any, Behind()))
            await wait_all_tasks_blocked()
            assert shard.reads == reads
            catch_up.nursery.cancel_scope.cancel()


async def test_without_room_nothing_is_read_until_there_is_some() -> None:
    shard, behind = HeldShard(), Behind()
    shard.answers.set()
    with catching_up(shard, 0) as (catch_up, rooms):
        async with trio.open_nursery() as catch_up.nursery:
            catch_up.add(cast(Any, behind))
            await wait_all_tasks_blocked()
            assert behind.reads == 0
            rooms.append(FRAME)
            catch_up.roomy.set()
            await wait_all_tasks_blocked()
            assert behind.reads == 1


async def test_a_reply_that_comes_after_the_queue_was_dropped_is_read_again() -> None:
    shard, behind = HeldShard(), Behind()
    with catching_up(shard, FRAME) as (catch_up, _):
        async with trio.open_nursery() as catch_up.nursery:
            catch_up.add(cast(Any, behind))
            await wait_all_tasks_blocked()
            behind.position = (1, 7, 0)
            shard.answers.set()
            await wait_all_tasks_blocked()
            assert (shard.reads, behind.reads) == (2, 1)


async def test_a_subscription_that_ended_or_waits_is_not_read(autojump_clock: MockClock) -> None:
    shard = HeldShard()
    shard.answers.set()
    ended, waiting = Behind(), Behind(retry_at=float("inf"))
    with catching_up(shard, 10 * FRAME) as (catch_up, _):
        catch_up.add(cast(Any, ended))
        catch_up.add(cast(Any, waiting))
        ended.state = SubscriptionState.OVER
        async with trio.open_nursery() as catch_up.nursery:
            catch_up.begin()
            with trio.move_on_after(60):
                await trio.sleep_forever()
            assert (shard.reads, ended.reads, waiting.reads) == (0, 0, 0)
            catch_up.nursery.cancel_scope.cancel()
