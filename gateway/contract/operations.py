"""The table of every HTTP operation.

It drives routing and 405, the scopes that a key needs, the 415 and body rules, query parsing, metrics labels and the
OpenAPI document's list of operations. The gateway needs no other code for an operation of a single shard. An operation
that asks several shards, or none, also needs a handler in `gateway.api.dispatch`. CONTRIBUTING.md has all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from msgspec import Struct

from proto.api import answers, requests
from proto.ipc import operations
from proto.model.errors import ErrorCode
from proto.model.keys import Scope
from proto.model.limits import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from proto.model.router import RouterPatch
from proto.model.topic_config import ConfigPatch

QueryValue = bool | int | str


class Body(Enum):
    NONE = "none"
    """A body is ignored."""
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Param:
    """A query parameter. The handler or the shard gets `default` when the parameter is absent; with None, no value."""

    name: str
    type: Literal["boolean", "integer", "string"]
    default: QueryValue | None
    summary: str
    required: bool = False
    """For the OpenAPI document: the handler refuses a request without it."""
    schema: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """For the OpenAPI document: further keywords of JSON Schema."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row. `path` has the placeholders `{topic}`, `{router}`, `{cursor}` for names and `{wid}` for a watch session.
    `shard_op` is the operation that the topic's shard carries out; without one, the gateway's handler for `name`
    answers. `timed` responses carry `performance`. `always` operations are served while shards are down and while the
    service drains.

    `request` and `answer` are the Structs of the bodies, and `errors` the codes of this operation beside those that
    its other fields imply: the OpenAPI document has them. An operation that `creates` answers 201 when it did.

    `scope` is the set of scopes that a key needs. None needs no key, except that a `probe` needs any key when the
    service is configured so. `grows` operations may create topics or add bytes. `streams` operations hold a slot of
    the event streams instead of one of their key's requests. `upgrades` operations leave HTTP. `records` operations
    answer with records, up to the `max_batch_bytes` of their body. What an operation that `deletes` takes away does not
    come back: the page at `/docs` asks first."""

    name: str
    method: str
    path: str
    summary: str
    scope: Scope | None
    shard_op: type[Any] | None = None
    body: Body = Body.NONE
    request: type[Struct] | None = None
    answer: type[Struct] | None = None
    errors: tuple[ErrorCode, ...] = ()
    creates: bool = False
    query: tuple[Param, ...] = ()
    aliases: tuple[str, ...] = ()
    timed: bool = True
    always: bool = False
    probe: bool = False
    grows: bool = False
    streams: bool = False
    upgrades: bool = False
    records: bool = False
    deletes: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)

    @property
    def changes(self) -> bool:
        """Whether a request may change anything, be it a lease, a stream's position or a topic's last use."""
        writes = self.scope is not None and bool(self.scope & Scope.WRITE)
        return self.method != "GET" or writes or self.streams or any(each.name == "touch" for each in self.query)

    @property
    def event_stream(self) -> bool:
        """Whether the response is an event stream, which a browser's EventSource can open."""
        return self.streams and not self.upgrades


_TICKET = Param("ticket", "string", "", "in place of a key: one of POST /v0/tickets for this path")

_PAGE_SIZE = Param(
    "page_size",
    "integer",
    0,
    f"entries of a page, clamped to 1..{MAX_PAGE_SIZE}; 0 means {DEFAULT_PAGE_SIZE}",
)
_CURSOR = Param("cursor", "string", "", "`next_cursor` of the page before")

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "configure_topic",
        "PUT",
        "/v0/topics/{topic}",
        "Create a topic, or change the fields of its configuration that the body names",
        Scope.ADMIN,
        shard_op=operations.Configure,
        body=Body.OPTIONAL,
        grows=True,
        request=ConfigPatch,
        answer=answers.Configured,
        errors=(ErrorCode.TOPIC_EXISTS_INCOMPATIBLE,),
        creates=True,
    ),
    Operation(
        "append",
        "POST",
        "/v0/topics/{topic}",
        "Append records, all or none",
        Scope.WRITE,
        shard_op=operations.Append,
        body=Body.REQUIRED,
        query=(Param("return_seqs", "boolean", True, "whether the answer lists every seq"),),
        grows=True,
        request=requests.AppendRequest,
        answer=answers.Appended,
        errors=(
            ErrorCode.BATCH_TOO_LARGE,
            ErrorCode.RECORD_TOO_LARGE,
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.TOPIC_FULL,
        ),
        creates=True,
    ),
    Operation(
        "topic_state",
        "GET",
        "/v0/topics/{topic}",
        "State and configuration of a topic",
        Scope.READ,
        shard_op=operations.State,
        query=(Param("touch", "boolean", True, "whether this read counts as use of the topic"),),
        answer=answers.TopicState,
        errors=(ErrorCode.TOPIC_NOT_FOUND,),
    ),
    Operation(
        "diff",
        "POST",
        "/v0/topics/{topic}/diff",
        "Records after a cursor, optionally waiting for some to arrive",
        Scope.READ,
        shard_op=operations.Diff,
        records=True,
        body=Body.OPTIONAL,
        request=requests.DiffRequest,
        answer=answers.Diff,
        errors=(
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.CURSOR_NOT_FOUND,
        ),
    ),
    Operation(
        "list_topics",
        "GET",
        "/v0/topics",
        "Topics in order of their names, a page at a time",
        Scope.READ,
        query=(
            Param("prefix", "string", "", "only names that start with this"),
            _PAGE_SIZE,
            _CURSOR,
            Param("touch", "boolean", False, "whether this read counts as use of the topics"),
        ),
        answer=answers.TopicPage,
    ),
    Operation(
        "delete_records",
        "POST",
        "/v0/topics/{topic}/delete",
        "Delete records for good, before a seq, by tag, or both",
        Scope.DELETE,
        shard_op=operations.DeleteRecords,
        body=Body.REQUIRED,
        request=requests.DeleteRequest,
        answer=answers.RecordsDeleted,
        errors=(ErrorCode.TOPIC_NOT_FOUND,),
        deletes=True,
    ),
    Operation(
        "delete_topic",
        "DELETE",
        "/v0/topics/{topic}",
        "Remove a topic with everything in it",
        Scope.DELETE,
        shard_op=operations.DeleteTopic,
        query=(Param("if_empty", "boolean", False, "refuse when the topic has records"),),
        answer=answers.TopicDeleted,
        errors=(ErrorCode.TOPIC_NOT_EMPTY,),
        deletes=True,
    ),
    Operation(
        "claim",
        "POST",
        "/v0/topics/{topic}/claim",
        "Lease jobs of a queue to a worker",
        Scope.READ | Scope.WRITE,
        shard_op=operations.Claim,
        records=True,
        body=Body.REQUIRED,
        request=requests.ClaimRequest,
        answer=answers.ClaimedJobs,
        errors=(
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.NOT_A_QUEUE,
        ),
    ),
    Operation(
        "ack",
        "POST",
        "/v0/topics/{topic}/ack",
        "Complete jobs: they are deleted for good",
        Scope.WRITE,
        shard_op=operations.Ack,
        body=Body.REQUIRED,
        request=requests.AckRequest,
        answer=answers.Acked,
        errors=(
            ErrorCode.BATCH_TOO_LARGE,
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.NOT_A_QUEUE,
        ),
        deletes=True,
    ),
    Operation(
        "nack",
        "POST",
        "/v0/topics/{topic}/nack",
        "Give jobs back, to be claimed again at once or after a delay",
        Scope.WRITE,
        shard_op=operations.Nack,
        body=Body.REQUIRED,
        request=requests.NackRequest,
        answer=answers.Nacked,
        errors=(
            ErrorCode.BATCH_TOO_LARGE,
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.NOT_A_QUEUE,
        ),
    ),
    Operation(
        "extend",
        "POST",
        "/v0/topics/{topic}/extend",
        "Hold jobs for longer",
        Scope.WRITE,
        shard_op=operations.Extend,
        body=Body.REQUIRED,
        request=requests.ExtendRequest,
        answer=answers.Extended,
        errors=(
            ErrorCode.BATCH_TOO_LARGE,
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.NOT_A_QUEUE,
        ),
    ),
    Operation(
        "peek",
        "POST",
        "/v0/topics/{topic}/peek",
        "Look at the jobs of a queue without leasing any (an extension)",
        Scope.READ,
        shard_op=operations.PeekJobs,
        records=True,
        body=Body.OPTIONAL,
        request=requests.PeekRequest,
        answer=answers.Peeked,
        errors=(
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.NOT_A_QUEUE,
        ),
    ),
    Operation(
        "redrive",
        "POST",
        "/v0/topics/{topic}/redrive",
        "Move dead letters back to the queue they came from (an extension)",
        Scope.READ | Scope.WRITE | Scope.DELETE,
        shard_op=operations.Redrive,
        body=Body.REQUIRED,
        grows=True,
        request=requests.RedriveRequest,
        answer=answers.Redriven,
        errors=(
            ErrorCode.RECORD_TOO_LARGE,
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.NOT_A_QUEUE,
            ErrorCode.TOPIC_FULL,
        ),
        deletes=True,
    ),
    Operation(
        "work",
        "GET",
        "/v0/topics/{topic}/work",
        "Jobs of a queue as text/event-stream, as long as the worker holds fewer than `max`",
        Scope.READ | Scope.WRITE,
        query=(
            Param(
                "node",
                "string",
                "",
                "name of the worker that the jobs are leased to",
                required=True,
                schema={"minLength": 1, "maxLength": "{max_node_bytes}", "examples": ["worker-eu-1"]},
            ),
            Param("max", "integer", 1, "jobs that this stream may hold at a time"),
            Param("lease_ms", "integer", None, "how long each may be held, in ms; absent: as the queue says"),
            _TICKET,
        ),
        streams=True,
        errors=(
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.NOT_ACCEPTABLE,
            ErrorCode.NOT_A_QUEUE,
        ),
    ),
    Operation(
        "watch",
        "POST",
        "/v0/watch",
        "Make a watch session over many topics; its stream is at `stream_url`",
        Scope.READ,
        body=Body.REQUIRED,
        query=(Param("lenient", "boolean", False, "leave topics out that do not exist"),),
        request=requests.WatchRequest,
        answer=answers.Watch,
        errors=(ErrorCode.TOPIC_NOT_FOUND,),
    ),
    Operation(
        "watch_stream",
        "GET",
        "/v0/watch/{wid}",
        "The events of a watch session, as text/event-stream",
        Scope.READ,
        query=(_TICKET,),
        streams=True,
        errors=(
            ErrorCode.NOT_FOUND,
            ErrorCode.NOT_ACCEPTABLE,
        ),
    ),
    Operation(
        "websocket",
        "GET",
        "/v0/ws",
        "A WebSocket for publishing and subscribing; its commands ask for the scopes",
        Scope(0),
        query=(_TICKET,),
        streams=True,
        upgrades=True,
    ),
    Operation(
        "make_ticket",
        "POST",
        "/v0/tickets",
        "A ticket that opens one stream or WebSocket, once, within a minute, for pages that cannot send headers "
        "(an extension)",
        Scope(0),
        body=Body.REQUIRED,
        request=requests.TicketRequest,
        answer=answers.Ticket,
    ),
    Operation(
        "list_cursors",
        "GET",
        "/v0/topics/{topic}/cursors",
        "Named cursors of a topic in order of their names, a page at a time",
        Scope.READ,
        query=(
            _PAGE_SIZE,
            _CURSOR,
        ),
        answer=answers.CursorPage,
        errors=(ErrorCode.TOPIC_NOT_FOUND,),
    ),
    Operation(
        "list_all_cursors",
        "GET",
        "/v0/cursors",
        "Named cursors of all topics with their lag, in order of topics and names, a page at a time (an extension)",
        Scope.READ,
        query=(
            Param("prefix", "string", "", "only cursors of topics whose names start with this"),
            _PAGE_SIZE,
            _CURSOR,
        ),
        answer=answers.AllCursorsPage,
    ),
    Operation(
        "put_cursor",
        "PUT",
        "/v0/topics/{topic}/cursors/{cursor}",
        "Move a named cursor; never backwards unless `force` is true",
        Scope.WRITE,
        shard_op=operations.CursorPut,
        body=Body.REQUIRED,
        request=requests.CursorRequest,
        answer=answers.CursorState,
        errors=(ErrorCode.TOPIC_NOT_FOUND,),
    ),
    Operation(
        "get_cursor",
        "GET",
        "/v0/topics/{topic}/cursors/{cursor}",
        "A named cursor and how far it is behind",
        Scope.READ,
        shard_op=operations.CursorGet,
        answer=answers.CursorState,
        errors=(
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.CURSOR_NOT_FOUND,
        ),
    ),
    Operation(
        "delete_cursor",
        "DELETE",
        "/v0/topics/{topic}/cursors/{cursor}",
        "Forget a named cursor",
        Scope.WRITE,
        shard_op=operations.CursorDelete,
        answer=answers.CursorDeleted,
        errors=(ErrorCode.TOPIC_NOT_FOUND,),
        deletes=True,
    ),
    Operation(
        "put_router",
        "PUT",
        "/v0/routers/{router}",
        "Create a router, or change the fields of its configuration that the body names",
        Scope.ADMIN,
        body=Body.REQUIRED,
        request=RouterPatch,
        answer=answers.RouterPut,
        errors=(
            ErrorCode.TOPIC_NOT_FOUND,
            ErrorCode.ROUTER_CYCLE,
            ErrorCode.TOPIC_EXISTS_INCOMPATIBLE,
        ),
        creates=True,
    ),
    Operation(
        "get_router",
        "GET",
        "/v0/routers/{router}",
        "A router and what it has forwarded",
        Scope.READ,
        answer=answers.RouterState,
        errors=(ErrorCode.ROUTER_NOT_FOUND,),
    ),
    Operation(
        "list_routers",
        "GET",
        "/v0/routers",
        "Routers in order of their names, a page at a time",
        Scope.READ,
        query=(
            Param("prefix", "string", "", "only names that start with this"),
            Param("source", "string", "", "only routers from this topic"),
            Param("dest", "string", "", "only routers to this topic"),
            _PAGE_SIZE,
            _CURSOR,
        ),
        answer=answers.RouterPage,
    ),
    Operation(
        "delete_router",
        "DELETE",
        "/v0/routers/{router}",
        "Stop forwarding; what was forwarded stays",
        Scope.DELETE,
        answer=answers.RouterDeleted,
        deletes=True,
    ),
    Operation(
        "health",
        "GET",
        "/v0/health",
        "Whether the process serves",
        None,
        aliases=("/healthz",),
        timed=False,
        always=True,
        probe=True,
        answer=answers.Health,
    ),
    Operation(
        "ready",
        "GET",
        "/v0/ready",
        "Whether every shard serves",
        None,
        aliases=("/readyz",),
        timed=False,
        always=True,
        probe=True,
        answer=answers.Ready,
        errors=(
            ErrorCode.NOT_READY,
            ErrorCode.SHUTTING_DOWN,
        ),
    ),
    Operation(
        "metrics",
        "GET",
        "/v0/metrics",
        "Prometheus text, or JSON with `Accept: application/json`",
        Scope.READ,
        aliases=("/metrics",),
        timed=False,
        always=True,
    ),
    Operation(
        "metrics_history",
        "GET",
        "/v0/metrics/history",
        "Rates and latencies of the last hour, every ten seconds, for the console (an extension)",
        Scope.READ,
        timed=False,
        always=True,
        answer=answers.History,
    ),
    Operation("openapi", "GET", "/v0/openapi.json", "This document", None, timed=False, always=True),
    Operation(
        "asyncapi",
        "GET",
        "/v0/asyncapi.json",
        "The AsyncAPI document of the streams and the WebSocket",
        None,
        timed=False,
        always=True,
    ),
)
