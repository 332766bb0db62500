"""The fixture of all tests of the gateway in this process."""

from __future__ import annotations

import pytest

from gateway.shards import moves


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to a shard that a test has lost fail soon."""
    monkeypatch.setattr(moves, "PATIENCE_S", 0.01)
