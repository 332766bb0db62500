"""Direct requests: they go where a topic is held, and back when that fails; a token goes nowhere else."""

from __future__ import annotations

import httpx
import pytest
import trio.testing

from tests.unit.topics_client.fake import Fake, answer, appended, error
from topics_client import direct
from topics_client.direct import Direct

HELD = {"Topics_Holder": "http://two:4000"}


def asked(fake: Fake) -> list[str]:
    return [f"{request.url.host}{request.url.path}" for request in fake.requests]


async def test_later_requests_of_a_topic_go_to_its_holder_and_no_others() -> None:
    fake = Fake([answer(200, {"head_seq": 1}, **HELD), appended(1, 1), answer(200, {"head_seq": 1})])
    async with fake.client(direct=True, token="secret") as client:
        await client.state("t")
        await client.publish("t", 1)
        await client.state("tt")
    assert asked(fake) == ["fake/v0/topics/t", "two/v0/topics/t", "fake/v0/topics/tt"]
    assert {request.headers["authorization"] for request in fake.requests} == {"Bearer secret"}


async def test_without_the_option_no_holder_is_followed() -> None:
    fake = Fake([answer(200, {"head_seq": 1}, **HELD) for _ in range(2)])
    async with fake.client() as client:
        await client.state("t")
        await client.state("t")
    assert asked(fake) == ["fake/v0/topics/t"] * 2


@pytest.mark.parametrize(
    "failure", [httpx.ConnectError("refused"), httpx.ReadError("reset"), error(503, "not_ready"), answer(502)]
)
async def test_a_holder_that_fails_is_asked_no_more(
    failure: httpx.Response | Exception, autojump_clock: trio.testing.MockClock
) -> None:
    fake = Fake([answer(200, {"head_seq": 1}, **HELD), failure, answer(200, {"head_seq": 2})])
    async with fake.client(direct=True) as client:
        await client.state("t")
        assert (await client.state("t"))["head_seq"] == 2
    assert asked(fake) == ["fake/v0/topics/t", "two/v0/topics/t", "fake/v0/topics/t"]


async def test_a_holder_that_has_moved_names_the_next_one() -> None:
    moved = answer(200, {"head_seq": 1}, Topics_Holder="http://three:4000/")
    fake = Fake([answer(200, {"head_seq": 1}, **HELD), moved, answer(200, {"head_seq": 1})])
    async with fake.client(direct=True) as client:
        for _ in range(3):
            await client.state("t")
    assert asked(fake) == ["fake/v0/topics/t", "two/v0/topics/t", "three/v0/topics/t"]


@pytest.mark.parametrize(
    "holder",
    [
        "http://two:4000",
        "https://me:secret@two",
        "https://two/path",
        "https://two?x",
        "two",
        "",
        "https://[",
        "https://two:99999",
    ],
)
def test_a_token_goes_to_plain_addresses_of_the_same_scheme_only(holder: str) -> None:
    found = Direct("https")
    found.heard("/v0/topics/t", httpx.Response(200, headers={"topics-holder": holder}))
    assert found.target("/v0/topics/t") == "/v0/topics/t"


def test_the_holders_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MOST", 2)
    found = Direct("http")
    for topic in ("a", "b", "a", "c"):
        found.heard(f"/v0/topics/{topic}/diff?x", httpx.Response(200, headers={"topics-holder": "http://two"}))
    known = [topic for topic in "abc" if found.target(f"/v0/topics/{topic}").startswith("http")]
    assert known == ["a", "c"]


def test_a_refused_key_is_not_sent_to_that_machine_again() -> None:
    found = Direct("http")
    found.heard("/v0/topics/t", httpx.Response(200, headers={"topics-holder": "http://two"}))
    found.heard("/v0/topics/t", httpx.Response(401))
    assert found.target("/v0/topics/t") == "/v0/topics/t"
