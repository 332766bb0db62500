"""Workers: acks, nacks, heartbeats, and how they stop."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import anyio
import httpx
import pytest
import trio
import trio.testing

from tests.unit.topics_client.fake import answer, error
from topics_client import AsyncClient, Job, NotAQueue, Work, worker

Clock = trio.testing.MockClock


class Queue:
    """A queue in memory: a claim takes what waits, or waits until it is cancelled. It remembers what workers said."""

    def __init__(self, *jobs: int) -> None:
        self.jobs = list(jobs)
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[httpx.Response] = []
        self.finishes = True
        """Whether a claim may ack."""
        self.most = 1000
        """Jobs of a claim, and of any other request."""
        self.refused = 0
        self.slow_s = 0.0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        name, body = request.url.path.rpartition("/")[2], json.loads(request.content)
        if name != "claim" and len(body["seqs"]) > self.most:
            self.refused += 1
            return error(400, "batch_too_large")
        if name != "claim":
            self.said.append((name, body))
            return answer(200, {"skipped": []})
        if self.failures:
            return self.failures.pop(0)
        finished = {}
        for part in ("ack", "nack") if self.finishes else ():
            if part in body:
                self.said.append((part, {**body[part], "in": "claim"}))
                finished[part] = {f"{part}ed": len(body[part]["seqs"]), "skipped": []}
        await anyio.sleep(self.slow_s)
        if not self.jobs:
            await anyio.sleep(body["wait_ms"] / 1000)
        most = min(body["max"], self.most)
        taken, self.jobs = self.jobs[:most], self.jobs[most:]
        lease = {"$ts": 1, "deadline": 1, "deliveries": 2}
        claimed = [{"$seq": seq, "data": seq, "lease_id": f"l{seq}", **lease} for seq in taken]
        return answer(200, {"claimed": claimed, **finished})

    def client(self) -> AsyncClient:
        return AsyncClient("http://fake", transport=httpx.MockTransport(self))

    def told(self, name: str) -> list[dict[str, Any]]:
        return [body for said, body in self.said if said == name]


async def test_jobs_are_acked_when_their_handler_returns(autojump_clock: Clock) -> None:
    queue, seen = Queue(1, 2, 3), []

    async def handler(job: Job) -> None:
        seen.append(job.data)
        if job.data == 3:
            running.stop()

    async with queue.client() as client:
        running = client.worker("q", handler)
        await running.run()
    assert seen == [1, 2, 3]
    assert [(body["seqs"], body["lease_ids"]) for body in queue.told("ack")] == [([n], [f"l{n}"]) for n in (1, 2, 3)]
    assert (running.done, running.failed) == (3, 0)


async def test_as_many_run_at_a_time_as_they_may(autojump_clock: Clock) -> None:
    queue, now, most = Queue(*range(9)), 0, 0

    async def handler(job: Job) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await trio.sleep(1)
        now -= 1

    async with queue.client() as client:
        running = client.worker("q", handler, concurrency=3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            await trio.sleep(10)
            running.stop()
    assert (most, running.done) == (3, 9)


async def test_a_handler_that_raises_has_its_job_nacked_with_a_pause(autojump_clock: Clock) -> None:
    queue, told = Queue(7), []

    def handler(job: Job) -> None:  # a plain function runs in a thread
        raise KeyError("reason")

    def on_failure(job: Job, error: Exception) -> None:
        told.append((job.seq, repr(error)))
        running.stop()

    async with queue.client() as client:
        running = client.worker("q", handler, backoff=lambda deliveries: deliveries * 2.5, on_failure=on_failure)
        await running.run()
    assert [(body["seqs"], body["delay_ms"]) for body in queue.told("nack")] == [([7], 5000)]
    assert told == [(7, "KeyError('reason')")]
    assert not queue.told("ack")


async def test_leases_are_extended_while_handlers_run(autojump_clock: Clock) -> None:
    queue = Queue(1)

    async def handler(job: Job) -> None:
        await trio.sleep(7)
        running.stop()

    async with queue.client() as client:
        running = client.worker("q", handler, lease_ms=6000)
        await running.run()
    assert [(body["seqs"], body["lease_ids"], body["lease_ms"]) for body in queue.told("extend")] == [
        ([1], ["l1"], 6000)
    ] * 3


async def test_leases_of_more_jobs_than_a_request_may_name_are_extended_in_parts(autojump_clock: Clock) -> None:
    queue = Queue(*range(8))
    queue.most = 3

    async def handler(job: Job) -> None:
        await trio.sleep(7)

    async with queue.client() as client:
        running = client.worker("q", handler, concurrency=8, lease_ms=6000)
        with trio.move_on_after(10):
            await running.run()
    extended = [seq for body in queue.told("extend") for seq in body["seqs"]]
    assert extended == [*range(8)] * 3
    assert queue.refused == 2  # 8 jobs, then 4; what it takes is remembered


async def test_the_leases_of_jobs_that_come_one_by_one_are_extended_in_one_request(autojump_clock: Clock) -> None:
    """A claim of few jobs does not say that the service takes no more."""
    queue = Queue()

    async def handler(job: Job) -> None:
        await trio.sleep(7)

    async with queue.client() as client:
        running = client.worker("q", handler, concurrency=8, lease_ms=6000, wait_ms=100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            for seq in range(5):
                queue.jobs = [seq]
                await trio.sleep(0.3)
            await trio.sleep(8)
            running.stop()
    assert [0, 1, 2, 3, 4] in [body["seqs"] for body in queue.told("extend")]


async def test_a_cancelled_worker_finishes_what_runs(autojump_clock: Clock) -> None:
    queue = Queue(1, 2, 3)

    async def handler(job: Job) -> None:
        await trio.sleep(job.data * 10)

    async with queue.client() as client:
        running = client.worker("q", handler, concurrency=2, grace_s=15)
        with trio.move_on_after(1) as scope:
            await running.run()
    assert scope.cancelled_caught
    assert [body["seqs"] for body in queue.told("ack")] == [[1]]
    assert [(body["seqs"], body["delay_ms"]) for body in queue.told("nack")] == [([2], 0)]  # the grace was over
    assert queue.jobs == [3]
    assert trio.current_time() == pytest.approx(16)


async def test_claims_go_on_after_an_outage_and_end_by_an_error_that_stays(autojump_clock: Clock) -> None:
    queue = Queue(1)
    queue.failures = [error(503, "not_ready", None, Retry_After="40") for _ in range(3)]
    done = trio.Event()

    async def handler(job: Job) -> None:
        queue.failures = [error(409, "not_a_queue")]
        done.set()

    async with queue.client() as client:
        with pytest.raises(NotAQueue):
            await client.work("q", handler)
    assert done.is_set()
    assert len(queue.told("ack")) == 1


async def test_a_decorated_handler_is_called_as_before_and_can_be_run(autojump_clock: Clock) -> None:
    @worker("q", concurrency=2, lease_ms=1000)
    async def handler(job: Job) -> str:
        return f"job {job.seq}"

    assert isinstance(handler, Work)
    assert await handler(Job("q", 5, 1, None, "l", 1, 1)) == "job 5"
    queue = Queue(5)
    async with queue.client() as client:
        with trio.move_on_after(1):
            await client.work(handler)
    assert len(queue.told("ack")) == 1


async def test_a_worker_acks_in_the_claim_for_the_next_job(autojump_clock: Clock) -> None:
    queue = Queue(1, 2, 3)

    async def handler(job: Job) -> None:
        await trio.sleep(1)

    async with queue.client() as client:
        running = client.worker("q", handler)
        with trio.move_on_after(10):
            await running.run()
    assert [(body["seqs"], body.get("in")) for body in queue.told("ack")] == [([n], "claim") for n in (1, 2, 3)]
    assert running.done == 3


async def test_a_job_that_ends_while_a_claim_waits_is_acked_at_once(autojump_clock: Clock) -> None:
    queue = Queue(1)

    async def handler(job: Job) -> None:
        await trio.sleep(1)

    async with queue.client() as client:
        running = client.worker("q", handler, concurrency=2, wait_ms=20_000)
        with trio.move_on_after(2):
            await running.run()
    assert [body.get("in") for body in queue.told("ack")] == [None]
    assert running.done == 1


async def test_a_claim_acks_no_more_jobs_than_one_ever_brought(autojump_clock: Clock) -> None:
    queue = Queue(*range(8))
    queue.most = 2

    async def handler(job: Job) -> None:
        await trio.sleep(10)

    async with queue.client() as client:
        running = client.worker("q", handler, concurrency=8)
        with trio.move_on_after(15):
            await running.run()
    assert sorted(seq for body in queue.told("ack") for seq in body["seqs"]) == list(range(8))
    assert max(len(body["seqs"]) for body in queue.told("ack")) <= 2
    assert running.done == 8


@pytest.mark.parametrize("finishes", [True, False])
async def test_a_service_that_passes_over_the_ack_in_a_claim_gets_one_of_its_own(
    autojump_clock: Clock, finishes: bool
) -> None:
    queue = Queue(1, 2, 3)
    queue.finishes = finishes
    async with queue.client() as client:
        (first,) = await client.claim("q", "n")
        claimed = await client.claim("q", "n", ack=[first])
        more = await client.claim("q", "n", nack=claimed, delay_ms=7, reason="no")
    assert ([job.seq for job in claimed], [job.seq for job in more]) == ([2], [3])
    assert claimed.ack is not None
    assert more.nack is not None
    assert (claimed.ack["skipped"], claimed.nack, more.ack, more.nack["skipped"]) == ([], None, None, [])
    (ack,), (nack,) = queue.told("ack"), queue.told("nack")
    assert (ack["seqs"], ack["lease_ids"], nack["seqs"], nack["delay_ms"], nack["reason"]) == (
        [1],
        ["l1"],
        [2],
        7,
        "no",
    )


async def test_what_a_claim_that_failed_was_to_ack_is_acked_by_the_next_one(autojump_clock: Clock) -> None:
    queue = Queue(1, 2)

    async def handler(job: Job) -> None:
        if job.data == 1:
            queue.failures = [error(503, "not_ready", None, Retry_After="40") for _ in range(3)]

    async with queue.client() as client:
        running = client.worker("q", handler)
        with trio.move_on_after(500):
            await running.run()
    assert [(body["seqs"], body.get("in")) for body in queue.told("ack")] == [([1], "claim"), ([2], "claim")]
    assert running.done == 2


async def test_a_worker_that_is_stopped_in_a_claim_with_an_ack_acks_again(autojump_clock: Clock) -> None:
    queue = Queue(1)

    async def handler(job: Job) -> None:
        queue.slow_s = 5

    async with queue.client() as client:
        running = client.worker("q", handler)
        with trio.move_on_after(2):
            await running.run()
    assert [body.get("in") for body in queue.told("ack")] == ["claim", None]
    assert running.done == 1


async def test_a_handler_gets_data_of_its_type_and_a_job_of_another_one_fails(autojump_clock: Clock) -> None:
    queue, seen, failed = Queue(1, 2), [], []

    async def handler(job: Job) -> None:
        seen.append(job.data)

    def on_failure(job: Job, error: Exception) -> None:
        failed.append((job.data, str(error)))
        running.stop()

    async with queue.client() as client:
        running = client.worker("q", handler, type=Literal[1], on_failure=on_failure)
        await running.run()
    assert seen == [1]
    assert failed == [(2, "2 in place of one of 1")]
    assert [body["seqs"] for body in queue.told("ack")] == [[1]]
    assert [body["seqs"] for body in queue.told("nack")] == [[2]]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({}, "ValueError: K\u00f8ln"), ({"reason": str}, "K\u00f8ln"), ({"reason": lambda error: None}, None)],
    ids=["default", "own", "none"],
)
async def test_the_service_is_told_why_unless_the_worker_says_otherwise(
    autojump_clock: Clock, options: dict[str, Any], reason: str | None
) -> None:
    queue = Queue(1)

    async def handler(job: Job) -> None:
        running.stop()
        raise ValueError("K\u00f8ln")

    async with queue.client() as client:
        running = client.worker("q", handler, **options)
        await running.run()
    assert [body.get("reason") for body in queue.told("nack")] == [reason]


@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        ("x" * 512, "x" * 512),
        ("x" * 513, "x" * 512),
        ("\u00f8" * 300, "\u00f8" * 256),
        ("x" + "\u00f8" * 300, "x" + "\u00f8" * 255),
        ("\ud800", "?"),
        ("", ""),
    ],
    ids=ascii,
)
async def test_a_long_reason_is_cut_and_never_within_a_character(reason: str, sent: str) -> None:
    queue = Queue(1)
    async with queue.client() as client:
        (job,) = await client.claim("q", "n")
        await client.nack("q", "n", [job], reason=reason)
        await client.nack("q", "n", [job])
    assert [body.get("reason") for body in queue.told("nack")] == [sent, None]


async def test_an_error_that_has_no_text_gives_its_job_back_all_the_same(autojump_clock: Clock) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    queue = Queue(1)

    async def handler(job: Job) -> None:
        running.stop()
        raise Mute

    async with queue.client() as client:
        running = client.worker("q", handler)
        await running.run()
    assert [body["reason"] for body in queue.told("nack")] == ["Mute"]


@pytest.mark.parametrize(
    ("most", "told"),
    [(0, "the next is in"), (3, "the next is in"), (2, "the last: it is a dead letter now"), (1, "the last")],
)
async def test_the_last_attempt_is_told_from_the_others(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, most: int, told: str
) -> None:
    queue = Queue(1)

    async def handler(job: Job) -> None:
        running.stop()
        raise ValueError

    async with queue.client() as client:
        running = client.worker("q", handler, max_deliveries=most)
        await running.run()
    (line,) = [each.getMessage() for each in caplog.records if "failed at delivery" in each.getMessage()]
    assert line.startswith(f"job 1 of q failed at delivery 2, {told}")


def test_a_handler_whose_task_is_cancelled_fails_and_the_worker_continues() -> None:
    queue, failed = Queue(1, 2), []

    async def main() -> None:
        async def handler(job: Job) -> None:
            if job.data == 2:
                running.stop()
                return
            lost = asyncio.ensure_future(asyncio.Event().wait())
            lost.cancel()
            await lost

        async with queue.client() as client:
            running = client.worker("q", handler, on_failure=lambda job, error: failed.append(repr(error)))
            await running.run()
        assert (running.done, running.failed) == (1, 1)

    asyncio.run(main())
    assert [(body["seqs"], body["reason"]) for body in queue.told("nack")] == [([1], "RuntimeError: cancelled")]
    assert [body["seqs"] for body in queue.told("ack")] == [[2]]
    assert failed == ["RuntimeError('cancelled')"]


@pytest.mark.parametrize("stops", [True, False], ids=["stop", "Task.cancel"])
def test_a_handler_that_asyncio_cancels_with_its_worker_has_not_failed(stops: bool) -> None:
    queue = Queue(1)

    async def main() -> None:
        begun = asyncio.Event()

        async def handler(job: Job) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with queue.client() as client:
            running = client.worker("q", handler, grace_s=0)
            task = asyncio.create_task(running.run())
            await begun.wait()
            if stops:
                running.stop()
                await task
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert (running.done, running.failed) == (0, 0)

    asyncio.run(main())
    assert [(body["seqs"], body["delay_ms"]) for body in queue.told("nack")] == [([1], 0)]
