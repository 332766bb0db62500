"""The operation: what the gateway, the documents and the clients' examples know about one HTTP operation.

`gateway.contract.operations` is the table of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from proto.ipc.operations import Growing
from proto.model.errors import ErrorCode
from proto.model.keys import Scope

QueryValue = bool | int | str


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
class Header:
    """A header that the operation reads beside those of every request. With `option`, its text is that field of
    `shard_op`; else the handler reads it."""

    name: str
    summary: str
    option: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """For the OpenAPI document: further keywords of JSON Schema."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row. `path` has the placeholders `{topic}`, `{router}`, `{cursor}` for names and `{wid}` for a watch session.
    `shard_op` is the operation that the topic's shard carries out; without one, the gateway's handler for `name`
    answers. `always` operations are served while shards are down and while the service drains; their responses carry no
    `performance`.

    `request` and `answer` are the Structs of the bodies, `errors` the codes of this operation beside those that its
    other fields imply, and `events` the text that the OpenAPI document has of its stream. Without `request`, a body is
    ignored. An operation that `creates` answers 201 when it did.

    `scope` is the set of scopes that a key needs. None needs no key, except that a `probe` needs any key when the
    service is configured so. `streams` operations hold a slot of the event streams instead of one of their key's
    requests. `upgrades` operations leave HTTP. `records` operations answer with records, up to the `max_batch_bytes` of
    their body; a `repeatable` one of them may be asked twice. What an operation that `deletes` takes away does not come
    back: the page at `/docs` asks first.

    The handler of an `at_once` operation waits for nothing, so it needs no task."""

    name: str
    method: str
    path: str
    summary: str
    scope: Scope | None
    shard_op: type[Any] | None = None
    request: type[Struct] | None = None
    body_optional: bool = False
    answer: type[Struct] | None = None
    errors: tuple[ErrorCode, ...] = ()
    creates: bool = False
    query: tuple[Param, ...] = ()
    headers: tuple[Header, ...] = ()
    aliases: tuple[str, ...] = ()
    always: bool = False
    probe: bool = False
    streams: bool = False
    events: str = ""
    upgrades: bool = False
    records: bool = False
    repeatable: bool = False
    deletes: bool = False
    at_once: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)

    @property
    def grows(self) -> bool:
        """Whether a request may create topics or add bytes."""
        return self.shard_op is not None and issubclass(self.shard_op, Growing)

    @property
    def changes(self) -> bool:
        """Whether a request may change anything, be it a lease, a stream's position or a topic's last use."""
        writes = self.scope is not None and bool(self.scope & Scope.WRITE)
        return self.method != "GET" or writes or self.streams or any(each.name == "touch" for each in self.query)

    @property
    def event_stream(self) -> bool:
        """Whether the response is an event stream, which a browser's EventSource can open."""
        return self.streams and not self.upgrades
