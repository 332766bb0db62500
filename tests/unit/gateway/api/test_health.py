"""Claims about probes."""

import pytest

from tests.support.gateway_stage import stage


async def test_probes_are_open_bare_and_have_aliases() -> None:
    async with stage() as there, there.client() as client:
        for path in ("/v0/health", "/healthz"):
            answer = await client.ask("GET", path)
            assert set(answer.json) == {"status", "version", "uptime_ms"}
        for path in ("/v0/ready", "/readyz"):
            answer = await client.ask("GET", path)
            assert answer.json == {"status": "ready", "wal_replay_complete": True, "topics": 3}
        assert (await client.ask("GET", "/v0/openapi.json")).json["openapi"] == "3.1.0"


async def test_the_uptime_counts_from_the_start_of_the_gateway_and_not_of_its_fork_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 5000.0
    monkeypatch.setattr("gateway.api.service.monotonic", lambda: now)
    async with stage() as there, there.client() as client:
        now += 1.5
        assert (await client.ask("GET", "/v0/health")).json["uptime_ms"] == 1500
