"""A valid request for each operation of the table, each command of the WebSocket, and each of Walrus and Rog.

A new operation gets an entry in `EXAMPLES`, by its name, unless it has neither a body nor a query: its example then
follows from its path. Together the bodies of an operation name every field of its request's Struct.
`before` are the requests that make what the example needs; they are sent again now and then, since mutations that
succeed use it up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.contract.operations import OPERATIONS
from proto.wire import rog, walrus

LEASE = "lease-of-the-first-job"
"""Stands for a lease that the requests before got, in a body; it is as long as one."""
SESSION = "session-of-the-watch"
"""Stands for the name of a session that the requests before made, in a path."""

Before = tuple[tuple[str, str, Any], ...]
"""Method, path and body of each request."""

JOBS = [{"data": {"n": number}, "tag": f"t{number}"} for number in range(6)]
LOG: Before = (
    ("PUT", "/v0/topics/m-log", {"durability": "memory", "cap_records": 1000, "cap_bytes": 0, "dedupe_node": True}),
    (
        "POST",
        "/v0/topics/m-log",
        {"records": [{"data": {"a": "\ud800"}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": 1}]},
    ),
)
QUEUE: Before = (
    ("DELETE", "/v0/topics/m-queue", None),
    ("PUT", "/v0/topics/m-queue", {"type": "queue", "dead_letter": None, "max_deliveries": 0, "durability": "memory"}),
    ("POST", "/v0/topics/m-queue", {"records": JOBS}),
)
LEASED: Before = (*QUEUE, ("POST", "/v0/topics/m-queue/claim", {"node": "w", "max": 4, "lease_ms": 86_400_000}))
DEAD: Before = (
    *QUEUE,
    ("DELETE", "/v0/topics/m-dead", None),
    (
        "POST",
        "/v0/topics/m-dead",
        {
            "records": [
                {"data": number, "tag": "t", "meta": {"$dead_letter_from": "m-queue", "k": 1}} for number in range(6)
            ]
        },
    ),
)
CURSOR: Before = (*LOG, ("PUT", "/v0/topics/m-log/cursors/c", {"seq": 1, "force": True}))
ROUTER: Before = (*LOG, ("PUT", "/v0/routers/m-router", {"source": "m-log", "dest": "m-copy"}))
WATCHED: Before = (*LOG, ("POST", "/v0/watch", {"topics": {"m-log": None}}))


@dataclass(frozen=True)
class Example:
    """A valid request. `values` are those of the path's placeholders, in order. With `body` None it has none."""

    values: tuple[str, ...] = ()
    query: str = ""
    body: Any = None
    before: Before = ()
    headers: dict[str, str] = field(default_factory=dict)


CONFIG_OF_A_LOG = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 1000,
    "cap_bytes": 1_000_000,
    "discard": "reject",
    "durable": False,
    "durability": "disk",
    "priority": 1,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 1000,
    "dedupe_node": False,
}
CONFIG_OF_A_QUEUE = {
    "type": "queue",
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 5,
    "dead_letter": "m-dead",
    "leases_durable": True,
}
APPENDED = {
    "records": [{"data": {"a": [1, "\ud800"]}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": None}],
    "node": "x",
    "idempotency_key": "k",
    "create": True,
    "config": {"durability": "disk", "cap_records": 100},
    "disable_backpressure": True,
}
WATCH = {
    "topics": {"m-log": {"from_seq": 0, "tail": False}, "m-copy": None},
    "prefix": "m-",
    "tail": True,
    "cursor": "e30",
    "node": ["n", "x"],
    "limit": 10,
    "max_batch_bytes": 1000,
    "heartbeat_ms": 60_000,
    "include_meta": True,
    "include_tags": True,
    "include_data": True,
    "consistency": "strong",
}
EVENTS = {"Accept": "text/event-stream"}

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "configure_topic": (
        Example(("m-configured",), body=CONFIG_OF_A_LOG),
        Example(("m-configured-queue",), body=CONFIG_OF_A_QUEUE),
    ),
    "topic_state": (Example(("m-log",), "touch=true", before=LOG),),
    "list_topics": (Example((), "prefix=m&page_size=2&touch=true", before=LOG),),
    "delete_topic": (Example(("m-gone",), "if_empty=true", before=(("PUT", "/v0/topics/m-gone", {}),)),),
    "append": (
        Example(("m-appended",), "return_seqs=true", APPENDED),
        Example(("m-queue",), "", {"records": [{"data": 1, "delay_ms": 10}]}, QUEUE),
    ),
    "diff": (
        Example(
            ("m-log",),
            body={
                "from_seq": 0,
                "limit": 10,
                "node": ["x", "y"],
                "include_tags": True,
                "include_meta": True,
                "wait_ms": 5,
                "max_batch_bytes": 1000,
            },
            before=LOG,
        ),
        Example(("m-log",), body={"cursor": "c", "node": "x"}, before=CURSOR),
    ),
    "delete_records": (
        Example(("m-log",), body={"before_seq": 1, "match": ["tag", "Glob", "t*"]}, before=LOG),
        Example(("m-log",), body={"match": "t"}, before=LOG),
    ),
    "claim": (
        Example(("m-queue",), body={"node": "w", "max": 1, "lease_ms": 1000, "wait_ms": 5}, before=QUEUE),
        Example(
            ("m-queue",),
            body={
                "node": "w",
                "ack": {"seqs": [1, 9], "lease_ids": [LEASE, "x"], "node": "w"},
                "nack": {"seqs": [2], "lease_ids": ["x"], "node": "w", "delay_ms": 10, "reason": "exit status 1"},
            },
            before=LEASED,
        ),
    ),
    "ack": (Example(("m-queue",), body={"node": "w", "seqs": [1, 2], "lease_ids": [LEASE, "x"]}, before=LEASED),),
    "nack": (
        Example(
            ("m-queue",),
            body={"node": "w", "seqs": [1, 9], "lease_ids": [LEASE, "x"], "delay_ms": 10, "reason": "exit status 1"},
            before=LEASED,
        ),
    ),
    "extend": (
        Example(
            ("m-queue",),
            body={"node": "w", "seqs": [1, 9], "lease_ids": [LEASE, "x"], "lease_ms": 1000},
            before=LEASED,
        ),
    ),
    "peek": (Example(("m-queue",), body={"first_seq": 1, "from_seq": 1, "max": 10}, before=LEASED),),
    "redrive": (
        Example(
            ("m-dead",),
            body={
                "queue": "m-queue",
                "first_seq": 0,
                "last_seq": 10,
                "from_seq": 0,
                "to_seq": 10,
                "match": ["tag", "Glob", "t*"],
                "max": 10,
            },
            before=DEAD,
        ),
    ),
    "work": (Example(("m-queue",), "node=w&max=2&lease_ms=1000", before=QUEUE, headers=EVENTS),),
    "watch": (
        Example((), "lenient=true", {**WATCH, "cursor": None}, LOG),
        Example((), "", {"topics": {"m-log": {"tail": True}}, "cursor": "eyJtLWxvZyI6MX0", "node": "n"}, LOG),
    ),
    "watch_stream": (Example((SESSION,), "", before=WATCHED, headers={**EVENTS, "Last-Event-ID": "eyJtLWxvZyI6MX0"}),),
    "websocket": (
        Example(
            (),
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            },
        ),
    ),
    "make_ticket": (Example((), body={"path": "/v0/topics/m-queue/work?node=w"}),),
    "list_cursors": (Example(("m-log",), "page_size=2", before=CURSOR),),
    "list_all_cursors": (Example((), "prefix=m&page_size=2", before=CURSOR),),
    "put_cursor": (Example(("m-log", "c"), body={"seq": 1, "force": True}, before=CURSOR),),
    "put_router": (
        Example(
            ("m-router",),
            body={
                "source": "m-log",
                "dest": "m-copy",
                "preserve_node": True,
                "preserve_tag": False,
                "create_dest": True,
                "filter": ["tag", "Glob", "t*"],
                "allow_cycle": False,
                "guarantee": "exactly_once",
            },
            before=LOG,
        ),
    ),
    "list_routers": (Example((), "prefix=m&source=m-log&dest=m-copy&page_size=2", before=ROUTER),),
    "metrics": (Example(before=LOG),),
}
BY_PLACE: dict[str, tuple[str, Before]] = {
    "{topic}": ("m-log", LOG),
    "{cursor}": ("c", CURSOR),
    "{router}": ("m-router", ROUTER),
}
"""A value of each placeholder of paths, and the requests that make it."""
for operation in OPERATIONS:
    if operation.request is None and not operation.query:
        made = [BY_PLACE[part] for part in operation.path.split("/") if part in BY_PLACE]
        values = tuple(value for value, _ in made)
        EXAMPLES.setdefault(operation.name, (Example(values, before=made[-1][1] if made else ()),))

COMMANDS: dict[str, tuple[dict[str, Any], ...]] = {
    "subscribe": (
        {"op": "subscribe", "request_id": 1, **WATCH, "lenient": True, "cursor": None},
        {"op": "subscribe", "topic": "m-log", "from_seq": 1, "tail": False, "node": "n"},
    ),
    "unsubscribe": (
        {"op": "unsubscribe", "request_id": "u", "topics": ["m-log", "none"]},
        {"op": "unsubscribe", "topic": "m-log"},
        {"op": "unsubscribe", "prefix": "m-"},
    ),
    "publish": ({"op": "publish", "request_id": {"a": [1]}, "topic": "m-said", "return_seqs": True, **APPENDED},),
    "ping": ({"op": "ping", "request_id": None},),
    "auth": ({"op": "auth", "request_id": "a", "token": "key"},),
}
"""Commands of the WebSocket, by their `op`."""

WALRUS: dict[type, tuple[bytes, ...]] = {
    walrus.Register: (walrus.encode(b"REGISTER m-walrus"),),
    walrus.Put: (walrus.encode(b"PUT m-walrus some text"), walrus.encode("PUT m-walrus é\u2028".encode())),
    walrus.Get: (walrus.encode(b"GET m-walrus"),),
    walrus.StateCommand: (walrus.encode(b"STATE m-walrus"),),
    walrus.Metrics: (walrus.encode(b"METRICS"),),
}
ROG: dict[type, tuple[bytes, ...]] = {
    rog.Create: (rog.encode(rog.Create("m-rog", 2)),),
    rog.Publish: (rog.encode(rog.Publish("m-rog", 1, b"some \x00\xff bytes")),),
    rog.Fetch: (rog.encode(rog.Fetch("m-rog", 1, "group")),),
    rog.Ack: (rog.encode(rog.Ack("m-rog", 1, "group")),),
}
"""Commands of both protocols as bytes, by what they are read as."""
