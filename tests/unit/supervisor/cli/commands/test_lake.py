"""Where `topics lake` reads, by its options and the environment."""

from __future__ import annotations

import pytest

from supervisor.cli.commands import lake


def test_a_token_of_the_environment_goes_to_the_service_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def source(url: str, token: str | None = None) -> dict[str, str]:
        return lake._given(None, None, url, token, ["a", "b"])

    monkeypatch.setenv("TOPICS_TOKEN", "variable")
    monkeypatch.setenv("TOPICS_URL", "http://a.example")
    assert source("http://a.example:80/") == {"url": "http://a.example:80/", "token": "variable", "subscribe": "a,b"}
    assert source("http://b.example") == {"url": "http://b.example", "subscribe": "a,b"}
    assert source("http://b.example", "option")["token"] == "option"
    assert "token" not in source("http://a.example", "")
