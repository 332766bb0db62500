"""The figures of the other gateways: asked for at each scrape, and the last ones if no answer comes."""

from __future__ import annotations

import trio
import trio.testing

from gateway.observe.colleagues import Colleagues
from proto.ipc.control import FiguresWanted, OtherFigures
from proto.ipc.figures import ShardFigures
from proto.ipc.gateway_figures import GatewayFigures


class Supervisor:
    """Keeps the questions, and answers them if it is told what."""

    def __init__(self, *, asks: bool = True) -> None:
        self.own = 1
        self.colleagues = Colleagues(lambda: GatewayFigures(in_flight=self.own))
        self.colleagues.asks = asks
        self.asked: list[FiguresWanted] = []
        self.others: int | None = 0

    async def send(self, message: FiguresWanted) -> None:
        self.asked.append(message)
        await trio.lowlevel.checkpoint()
        if self.others is not None:
            self.answer(message.number)

    def answer(self, number: int) -> None:
        self.colleagues.heard(OtherFigures(number, GatewayFigures(in_flight=self.others or 0)))

    async def scraped(self) -> tuple[int, int]:
        own, others = await self.colleagues.ask()
        return own.in_flight, others.in_flight


async def test_a_gateway_without_a_supervisor_asks_none() -> None:
    supervisor = Supervisor(asks=False)
    assert await supervisor.scraped() == (1, 0)
    assert supervisor.asked == []


async def test_what_is_shown_of_itself_is_what_the_supervisor_knows() -> None:
    supervisor = Supervisor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.colleagues.run, supervisor.send)
        supervisor.others = 40
        assert await supervisor.scraped() == (1, 40)
        supervisor.own, supervisor.others = 2, 50
        assert await supervisor.scraped() == (2, 50)
        assert [(each.number, each.figures.in_flight) for each in supervisor.asked] == [(1, 1), (2, 2)]
        nursery.cancel_scope.cancel()


async def test_a_scrape_before_the_first_question_can_be_sent_waits_for_the_others() -> None:
    """Of a gateway that has just started: it accepts connections first. Without the others, counters would fall."""
    supervisor = Supervisor()
    supervisor.others = 40
    found: list[tuple[int, int]] = []

    async def scrape() -> None:
        found.append(await supervisor.scraped())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(scrape)
        await trio.testing.wait_all_tasks_blocked()
        assert found == []
        nursery.start_soon(supervisor.colleagues.run, supervisor.send)
        await trio.testing.wait_all_tasks_blocked()
        assert found == [(1, 40)]
        nursery.cancel_scope.cancel()


async def test_a_question_has_what_is_counted_when_it_is_sent() -> None:
    """So it is not older than the figures of a ping that was answered since the scrape."""
    supervisor = Supervisor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.scraped)
        await trio.testing.wait_all_tasks_blocked()
        supervisor.own = 5
        nursery.start_soon(supervisor.colleagues.run, supervisor.send)
        await trio.testing.wait_all_tasks_blocked()
        assert [each.figures.in_flight for each in supervisor.asked] == [5]
        nursery.cancel_scope.cancel()


async def test_scrapes_at_once_are_all_answered() -> None:
    supervisor = Supervisor()
    found: list[tuple[int, int]] = []

    async def scrape() -> None:
        found.append(await supervisor.scraped())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.colleagues.run, supervisor.send)
        async with trio.open_nursery() as scrapes:
            for _ in range(5):
                scrapes.start_soon(scrape)
        assert found == [(1, 0)] * 5
        assert len(supervisor.asked) < 5, "one question for those that come together"
        nursery.cancel_scope.cancel()


async def test_what_shards_answered_and_which_did_not_stands_in_the_question_that_is_sent() -> None:
    supervisor = Supervisor()
    supervisor.others = None
    colleagues = supervisor.colleagues
    async with trio.open_nursery() as nursery:
        nursery.start_soon(colleagues.run, supervisor.send)
        async with trio.open_nursery() as scrapes:
            scrapes.start_soon(colleagues.ask, {0: ShardFigures(topics=1)}, [1])
            scrapes.start_soon(colleagues.ask, {3: ShardFigures(topics=2)}, [2])
            await trio.testing.wait_all_tasks_blocked()
            scrapes.cancel_scope.cancel()
        (question,) = supervisor.asked
        assert (question.number, {*question.missing}) == (2, {1, 2})
        assert question.shards == {0: ShardFigures(topics=1), 3: ShardFigures(topics=2)}
        colleagues.heard(OtherFigures(2, GatewayFigures(), {1: ShardFigures(topics=5)}))
        colleagues.heard(OtherFigures(3, GatewayFigures()))
        assert colleagues.shards == {1: ShardFigures(topics=5)}, "for a scrape that has not looked yet"
        await colleagues.ask()
        await trio.testing.wait_all_tasks_blocked()
        assert (supervisor.asked[-1].number, supervisor.asked[-1].shards, supervisor.asked[-1].missing) == (3, {}, [])
        nursery.cancel_scope.cancel()


async def test_without_an_answer_the_last_one_counts(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.colleagues.run, supervisor.send)
        supervisor.others = 7
        assert await supervisor.scraped() == (1, 7)
        supervisor.others = None
        assert await supervisor.scraped() == (1, 7)
        supervisor.others = 9
        supervisor.answer(2)  # late
        supervisor.others = None
        assert await supervisor.scraped() == (1, 9)
        nursery.cancel_scope.cancel()


async def test_a_scrape_that_ends_early_leaves_no_half_message() -> None:
    supervisor = Supervisor()
    supervisor.others = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.colleagues.run, supervisor.send)
        with trio.CancelScope() as scope:
            scope.cancel()
            await supervisor.scraped()
        await trio.testing.wait_all_tasks_blocked()
        assert len(supervisor.asked) == 1
        nursery.cancel_scope.cancel()


async def test_a_supervisor_that_is_gone_ends_no_task() -> None:
    supervisor = Supervisor()

    async def broken(message: FiguresWanted) -> None:
        raise trio.BrokenResourceError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.colleagues.run, broken)
        with trio.move_on_after(0.01):
            await supervisor.scraped()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_what_shards_counted_is_what_the_supervisor_knows_and_before_its_answer_what_they_said_here() -> None:
    """It also knows what the processes of shards counted that had ended before this gateway was started."""
    supervisor = Supervisor(asks=False)
    colleagues = supervisor.colleagues
    await colleagues.ask({0: ShardFigures(life=2, records_written=5)})
    assert colleagues.counted["records_written"] == 5
    colleagues.heard(OtherFigures(1, GatewayFigures(), {}, {"records_written": 12}))
    assert colleagues.counted["records_written"] == 12
