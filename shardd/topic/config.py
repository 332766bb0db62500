"""Topic configuration: the stored form, the patch that a client sends, and how a patch is applied."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from proto.model.body import Form
from proto.model.durability import BY_NAME, Durability, DurabilityName
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.limits import MAX_U64
from proto.model.names import check_topic

MAX_PRIORITY = 1000
MIN_LEASE_MS, MAX_LEASE_MS = 100, 86_400_000
MAX_CLAIM_JITTER_MS = 5000


class TopicConfig(Struct, frozen=True):
    """The configuration of a topic. Answers have the fields in this order. Durations in ms, sizes in bytes, 0 = off."""

    type: Literal["log", "queue"] = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Literal["old", "reject"] = "old"
    durable: bool = False
    durability: Durability = Durability.DISK
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False


class ConfigPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration as the client sends it. A missing field keeps its value, as does a null field that cannot be
    null."""

    type: Literal["log", "queue"] | None = None
    ttl_ms: int | None = None
    cap_records: int | None = None
    cap_bytes: int | None = None
    discard: Literal["old", "reject"] | None = None
    durable: bool | None = None
    durability: DurabilityName | None = None
    priority: int | UnsetType | None = UNSET
    auto_priority: bool | None = None
    auto_create: bool | None = None
    idempotency_window_ms: int | None = None
    dedupe_node: bool | None = None
    lease_ms: int | None = None
    claim_jitter_ms: int | None = None
    max_deliveries: int | None = None
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | None = None


_NULLABLE = ("priority", "dead_letter")
_U64 = ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries")
_CLAMPS = {
    "priority": (-MAX_PRIORITY, MAX_PRIORITY),
    "lease_ms": (MIN_LEASE_MS, MAX_LEASE_MS),
    "claim_jitter_ms": (0, MAX_CLAIM_JITTER_MS),
}

PATCH = Form(ConfigPatch, ConfigPatch)


def apply(topic: str, current: TopicConfig | None, patch: ConfigPatch) -> TopicConfig:
    """The configuration of `topic` after `patch`. `current` is None while the topic is being created.

    Raises `400 invalid_request` for a value that is not allowed, `409 topic_exists_incompatible` for a changed type.
    """
    fields: dict[str, Any] = {}
    for name in ConfigPatch.__struct_fields__:
        value = getattr(patch, name)
        if value is UNSET or (value is None and name not in _NULLABLE):
            continue
        if name in _CLAMPS and value is not None:
            low, high = _CLAMPS[name]
            value = min(max(value, low), high)
        elif name in _U64 and not 0 <= value <= MAX_U64:
            raise invalid(f"{name} is {value}, but must be between 0 and {MAX_U64}", field=name)
        fields[name] = value
    if current is not None and fields.get("type", current.type) != current.type:
        raise TopicsError(
            ErrorCode.TOPIC_EXISTS_INCOMPATIBLE,
            f'topic "{topic}" is a {current.type}; its type cannot change. Delete it first, or use another name',
            {"topic": topic, "type": current.type},
        )
    if (target := fields.get("dead_letter")) is not None:
        check_topic(target, "dead_letter")
        if target == topic:
            raise invalid("dead_letter must name another topic than the queue itself", field="dead_letter")
    if "durability" in fields:
        fields["durability"] = BY_NAME[fields["durability"]]
    elif "durable" in fields:
        fields["durability"] = Durability.FSYNC if fields["durable"] else Durability.DISK
    base = current or TopicConfig()
    config = msgspec.structs.replace(base, **fields)
    config = msgspec.structs.replace(config, durable=config.durability.acks_synced)
    return config


def as_map(config: TopicConfig) -> dict[str, Any]:
    """The configuration as a map for the log."""
    return {**msgspec.structs.asdict(config), "durability": config.durability.value}


def from_map(fields: dict[str, Any]) -> TopicConfig:
    """The configuration of a map from the log. Ignores fields of later releases; missing fields take their
    defaults."""
    return msgspec.convert(fields, TopicConfig)
