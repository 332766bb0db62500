"""Fairness of caps: one key never takes the last one from the others."""

from __future__ import annotations

import pytest

from gateway.admission.slots import Bound, Slots, fair
from proto.model.errors import TopicsError
from proto.model.keys import Key
from tests.support.gateway_stage import Answer, key, stage
from tests.support.harness import Harness
from tests.support.real_shard import start_real


@pytest.mark.parametrize(
    ("total", "per_key", "several", "most"),
    [
        (20, 0, True, 10),
        (20, 3, True, 3),
        (20, 100, True, 10),
        (1, 100, True, 1),
        (0, 100, True, 100),
        (0, 0, True, 0),
        (20, 0, False, 0),
        (20, 100, False, 100),
    ],
)
def test_one_of_several_keys_gets_half_at_most(total: int, per_key: int, several: bool, most: int) -> None:
    assert fair(total, per_key, several) == most


def test_a_second_key_makes_the_bound_and_its_end_lifts_it() -> None:
    several = False
    slots = Slots(Bound("all", 4), Bound("each", 100), lambda: several)
    one: Key = key("one")
    held = [slots.take(one) for _ in range(4)]
    held.pop().release()
    several = True
    with pytest.raises(TopicsError) as refused:
        slots.take(one)
    assert refused.value.detail == {"limit": "each", "max": 2}
    slots.take(key("two"))


@pytest.mark.parametrize("per_key", [0, 1000])
async def test_a_key_that_makes_watch_sessions_without_end_leaves_half_to_the_others(per_key: int) -> None:
    limits = {"max_watch_sessions": 6, "max_watch_sessions_per_key": per_key}
    async with stage(keys=[key("one"), key("two")], **limits) as there, there.client() as client:
        shard = Harness()
        shard.append("a", 1)
        await start_real(there, shard)

        async def made(name: str) -> Answer:
            headers = {"Authorization": f"Bearer {name}"}
            return await client.ask("POST", "/v0/watch", b'{"topics":{"a":{}}}', headers)

        assert [(await made("one")).status for _ in range(4)] == [200, 200, 200, 429]
        refusal = (await made("one")).json["error"]["detail"]
        assert refusal == {"limit": "max_watch_sessions_per_key", "max": 3}
        assert [(await made("two")).status for _ in range(3)] == [200] * 3


async def test_an_only_key_gets_all_watch_sessions() -> None:
    async with stage(keys=[key("one")], max_watch_sessions=4) as there, there.client() as client:
        shard = Harness()
        shard.append("a", 1)
        await start_real(there, shard)
        headers = {"Authorization": "Bearer one"}
        body = b'{"topics":{"a":{}}}'
        made = [(await client.ask("POST", "/v0/watch", body, headers)).status for _ in range(5)]
        assert made == [200] * 4 + [429]
