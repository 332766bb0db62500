"""Priority: what a topic's band, its waiting and its last read are worth."""

from __future__ import annotations

import pytest

from proto.model.topic_config import TopicConfig
from shardd.delivery.priority import WEIGHTS, age_boost, band, effective_priority
from shardd.topic.topic import Topic


def topic(ident: int, priority: int | None = None) -> Topic:
    return Topic(f"t{ident}", ident, 1, TopicConfig(priority=priority))


class TestPriority:
    @pytest.mark.parametrize(
        ("priority", "weight"),
        [(2000, 8), (750, 8), (749, 4), (500, 4), (499, 2), (250, 2), (249, 1), (0, 1)],
    )
    def test_bands_have_weights(self, priority: int, weight: int) -> None:
        assert WEIGHTS[band(priority)] == weight

    def test_negative_priorities_have_a_band_of_their_own(self) -> None:
        assert band(-1) == band(-1000) == len(WEIGHTS) - 1 != band(0)

    @pytest.mark.parametrize(
        ("waited", "boost"), [(-1.0, 0), (0.0, 0), (0.5, 50), (1.0, 100), (10.0, 1000), (600.0, 1000)]
    )
    def test_waiting_is_worth_a_hundred_a_second_for_ten_seconds(self, waited: float, boost: int) -> None:
        assert age_boost(waited) == boost

    @pytest.mark.parametrize(("idle_ms", "expected"), [(0, 500), (30_000, 250), (60_000, 125), (300_001, 0)])
    def test_recency_halves_every_thirty_seconds(self, idle_ms: int, expected: int) -> None:
        """`auto_priority`."""
        assert effective_priority(TopicConfig(), 1000, 1000 + idle_ms) == expected

    def test_a_manual_priority_wins(self) -> None:
        assert effective_priority(TopicConfig(priority=-7), 1000, 1000) == -7
        assert effective_priority(TopicConfig(auto_priority=False), 1000, 1000) == 0
