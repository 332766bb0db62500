"""Topic configuration: the stored form, the patch that a client sends, and how a patch is applied."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from proto.model.body import Form
from proto.model.durability import BY_NAME, Durability, DurabilityName
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.fields import U64, Name, about
from proto.model.limits import MAX_LEASE_MS, MAX_U64, MIN_LEASE_MS
from proto.model.names import check_topic

MAX_PRIORITY = 1000
MAX_CLAIM_JITTER_MS = 5000


# Each field of a configuration, for the stored form and for the patch.
Type = Annotated[
    Literal["log", "queue"], about("a queue also has jobs, leased to workers. It never changes", examples=["queue"])
]
Ttl = Annotated[U64, about("records older than this expire, ms; 0: never", examples=[86400000])]
CapRecords = Annotated[U64, about("most records kept; 0: no cap")]
CapBytes = Annotated[U64, about("most bytes kept; 0: no cap")]
Discard = Annotated[
    Literal["old", "reject"], about("at a cap: drop the oldest records, or refuse the append, topic_full")
]
Durable = Annotated[bool, about("short for `durability`: true is fsync, false is disk. `durability` goes before it")]
_LOSSES = (
    "what a stop may take back. ephemeral: any stop takes all records; memory: a stop of the machine may; disk: it may "
    "take the last moments; fsync: nothing that was acknowledged"
)
Priority = Annotated[int | None, about(f"order among topics under load, clamped to -{MAX_PRIORITY}..{MAX_PRIORITY}")]
AutoPriority = Annotated[bool, about("raise the priority of a topic that is being read")]
AutoCreate = Annotated[bool, about("whether an append that does not say may create the topic")]
Window = Annotated[U64, about("how long an idempotency key is remembered, ms")]
DedupeNode = Annotated[bool, about("whether reads leave out records of the node that they name")]
Lease = Annotated[int, about(f"how long a job may be held, ms, clamped to {MIN_LEASE_MS}..{MAX_LEASE_MS}")]
Jitter = Annotated[
    int, about(f"how long claims wait to be served fairly together, ms, clamped to 0..{MAX_CLAIM_JITTER_MS}")
]
Deliveries = Annotated[U64, about("deliveries after which a job becomes a dead letter; 0: never", examples=[5])]
DeadLetter = Annotated[
    Name | None,
    about("the topic that dead letters go to, another one than the queue; null: none", examples=["jobs:dead"]),
]
LeasesDurable = Annotated[bool, about("whether leases are as durable as records")]


class TopicConfig(Struct, frozen=True):
    """The configuration of a topic. Answers have the fields in this order."""

    type: Type = "log"
    ttl_ms: Ttl = 0
    cap_records: CapRecords = 0
    cap_bytes: CapBytes = 0
    discard: Discard = "old"
    durable: Durable = False
    durability: Annotated[Durability, about(_LOSSES)] = Durability.DISK
    priority: Priority = None
    auto_priority: AutoPriority = True
    auto_create: AutoCreate = True
    idempotency_window_ms: Window = 120_000
    dedupe_node: DedupeNode = True
    lease_ms: Lease = 30_000
    claim_jitter_ms: Jitter = 0
    max_deliveries: Deliveries = 0
    dead_letter: DeadLetter = None
    leases_durable: LeasesDurable = False


class ConfigPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration to make, or to change. A missing field keeps its value, as does a null field that cannot be null.
    A new topic has the defaults of TopicConfig."""

    type: Type | None = None
    ttl_ms: Ttl | None = None
    cap_records: CapRecords | None = None
    cap_bytes: CapBytes | None = None
    discard: Discard | None = None
    durable: Durable | None = None
    durability: Annotated[DurabilityName | None, about(_LOSSES)] = None
    priority: Priority | UnsetType = UNSET
    auto_priority: AutoPriority | None = None
    auto_create: AutoCreate | None = None
    idempotency_window_ms: Window | None = None
    dedupe_node: DedupeNode | None = None
    lease_ms: Lease | None = None
    claim_jitter_ms: Jitter | None = None
    max_deliveries: Deliveries | None = None
    dead_letter: DeadLetter | UnsetType = UNSET
    leases_durable: LeasesDurable | None = None


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
    config = msgspec.structs.replace(current or TopicConfig(), **fields)
    return msgspec.structs.replace(config, durable=config.durability.acks_synced)


def as_map(config: TopicConfig) -> dict[str, Any]:
    """The configuration as a map for the log."""
    return {**msgspec.structs.asdict(config), "durability": config.durability.value}


def from_map(fields: dict[str, Any]) -> TopicConfig:
    """The configuration of a map from the log. Ignores fields of later releases; missing fields take their
    defaults."""
    return msgspec.convert(fields, TopicConfig)
