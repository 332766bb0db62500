"""Claims about loans, with a real shard behind the gateway's socket: made when wanted, recalled when clients need the
room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.gateway_stage import Stage, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import RealShard, start_real

CAP = 6400
CHUNK = CAP // 64
SIZE = 17
RECORD = b'{"records":[{"data":1}]}'


@asynccontextmanager
async def lending() -> AsyncIterator[tuple[Stage, RealShard]]:
    async with stage(max_total_bytes=CAP) as there:
        harness = Harness(max_total_bytes=CAP)
        harness.shard.allowance.bind()
        shard = await start_real(there, harness)
        there.gateway.shards.ledger.known[0] = (0, 0)
        there.nursery.start_soon(there.gateway.api.quota.allowances.run)
        yield there, shard


async def lent(there: Stage, shard: RealShard, wanted: int) -> int:
    """Make the shard want this; return what it is lent."""
    allowance = shard.harness.shard.allowance
    await until(lambda: allowance._loan is not None)
    allowance.want(wanted)
    await until(lambda: allowance.lent_bytes > 0)
    return allowance.lent_bytes


async def test_a_shard_is_lent_what_it_wants_and_not_less_than_is_worth_a_round_trip() -> None:
    async with lending() as (there, shard):
        ledger = there.gateway.shards.ledger
        assert await lent(there, shard, 1) == CHUNK
        assert ledger._bytes[0] == CHUNK
        assert await lent(there, shard, 1000) == 1000
        assert await lent(there, shard, 10 * CAP) == CAP
        assert ledger._bytes[0] == CAP
        shard.harness.shard.maintain()
        await until(lambda: ledger._bytes[0] == 0)


async def test_what_is_lent_and_not_used_is_had_back_before_a_client_is_refused() -> None:
    async with lending() as (there, shard), there.client() as client:
        allowance = shard.harness.shard.allowance
        assert await lent(there, shard, CAP) == CAP
        for _ in range(CAP // SIZE):
            assert (await client.ask("POST", "/v0/topics/a", RECORD)).status in (200, 201)
            assert shard.harness.shard.counters()[2] + allowance.lent_bytes <= CAP
        answer = await client.ask("POST", "/v0/topics/a", RECORD)
        assert (answer.status, answer.code) == (429, "throttled")
        # The room that is left is lent again.
        assert await lent(there, shard, CAP) == CAP % SIZE


async def test_a_loan_of_a_shard_that_died_is_booked_until_the_next_one_has_spoken() -> None:
    async with lending() as (there, shard):
        ledger = there.gateway.shards.ledger
        await lent(there, shard, 1000)
        there.lose_shard(0)
        assert ledger._bytes[0] == 1000
        await start_real(there, Harness(max_total_bytes=CAP), incarnation=3)
        await until(lambda: ledger._bytes[0] == 0)
