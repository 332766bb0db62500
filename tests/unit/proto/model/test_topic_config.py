"""Configurations: what a patch makes of one, and what it may not."""

from __future__ import annotations

import msgspec
import pytest

from proto.model.durability import Durability
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import MAX_LEASE_MS, MAX_U64, MIN_LEASE_MS
from proto.model.topic_config import PATCH, TopicConfig, apply, as_map, from_map


def patched(body: str, current: TopicConfig | None = None, topic: str = "q") -> TopicConfig:
    patch, ignored = PATCH.read(body.encode())
    assert ignored == []
    return apply(topic, current, patch)


def refused(body: str, current: TopicConfig | None = None) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        patched(body, current)
    return caught.value


def test_a_new_topic_has_the_defaults() -> None:
    assert patched("{}") == TopicConfig()


def test_fields_that_are_missing_or_null_keep_their_values_unless_they_may_be_null() -> None:
    before = TopicConfig(ttl_ms=5, cap_records=7, priority=3, dead_letter="dead", discard="reject")
    assert patched("{}", before) == before
    assert patched('{"ttl_ms":null,"cap_records":null,"discard":null}', before) == before
    after = patched('{"priority":null,"dead_letter":null,"ttl_ms":0}', before)
    assert (after.priority, after.dead_letter, after.ttl_ms, after.cap_records) == (None, None, 0, 7)


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("priority", 5000, 1000),
        ("priority", -5000, -1000),
        ("lease_ms", 0, MIN_LEASE_MS),
        ("lease_ms", 2**62, MAX_LEASE_MS),
        ("claim_jitter_ms", -1, 0),
        ("claim_jitter_ms", 60_000, 5000),
    ],
)
def test_numbers_with_a_range_are_clamped(field: str, value: int, kept: int) -> None:
    assert getattr(patched(f'{{"{field}":{value}}}'), field) == kept


@pytest.mark.parametrize("field", ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"])
def test_other_numbers_are_those_of_64_bits(field: str) -> None:
    assert getattr(patched(f'{{"{field}":{MAX_U64}}}'), field) == MAX_U64
    for wrong in (-1, MAX_U64 + 1):
        error = refused(f'{{"{field}":{wrong}}}')
        assert error.code is ErrorCode.INVALID_REQUEST
        assert field in error.message


@pytest.mark.parametrize(
    ("body", "durability", "durable"),
    [
        ('{"durable":true}', Durability.FSYNC, True),
        ('{"durable":false}', Durability.DISK, False),
        ('{"durability":"memory"}', Durability.MEMORY, False),
        ('{"durable":true,"durability":"ephemeral"}', Durability.EPHEMERAL, False),
        ('{"durable":false,"durability":"fsync"}', Durability.FSYNC, True),
    ],
)
def test_durable_is_short_for_a_class_and_the_class_goes_first(
    body: str, durability: Durability, durable: bool
) -> None:
    for current in (None, TopicConfig(durability=Durability.MEMORY)):
        config = patched(body, current)
        assert (config.durability, config.durable) == (durability, durable)


def test_a_type_never_changes() -> None:
    queue = TopicConfig(type="queue")
    assert patched('{"type":"queue","ttl_ms":1}', queue).ttl_ms == 1
    error = refused('{"type":"log"}', queue)
    assert error.code is ErrorCode.TOPIC_EXISTS_INCOMPATIBLE
    assert error.detail == {"topic": "q", "type": "queue"}


def test_dead_letters_go_to_another_topic_with_a_valid_name() -> None:
    assert patched('{"dead_letter":"q:dead"}').dead_letter == "q:dead"
    assert "another topic" in refused('{"dead_letter":"q"}').message
    assert refused('{"dead_letter":"a/b"}').code is ErrorCode.INVALID_REQUEST


def test_a_configuration_survives_the_log_also_of_other_releases() -> None:
    config = TopicConfig(type="queue", durability=Durability.FSYNC, durable=True, priority=-3, dead_letter="d")
    fields = as_map(config)
    assert fields["durability"] == "fsync"
    assert from_map(fields) == config
    assert from_map(fields | {"of a later release": 1}) == config
    del fields["priority"]
    assert from_map(fields) == msgspec.structs.replace(config, priority=None)
