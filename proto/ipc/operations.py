"""The operations between processes: the options of each request, and the fields of its answer besides the body.

Each is a Struct, and on the wire an array: the name of the operation or answer, then its fields in order. So a field is
added at the end, and with a default. `TABLE` lists all operations; `shardd.shard` executes them.

The client's JSON is the body of a request, unchanged, and the JSON answer is the body of a reply; neither is here.
`None` and empty values mean that an option is absent.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union

from msgspec import Struct

from proto.ipc.figures import ShardFigures

A = TypeVar("A")
Names = tuple[str, ...]
Letters = tuple[bytes, tuple[int, ...]]
"""Letters of another topic's outbox: the id of the source, and their seqs there."""
Reading = tuple[int, int]
"""One reading of all routers: the incarnation of the registrar, and a number in it. Later ones are larger."""
REGISTRAR = 0
"""The shard that makes all changes of routers: see `shardd.routers.registrar`."""


class Operation(Struct, Generic[A], array_like=True, frozen=True):
    """Request to a shard. The `extra` of its reply is an `A`."""


class Answer(Struct, array_like=True, frozen=True):
    """Data for the asker besides the body. The tag on the wire tells the type."""


# Writing and reading


class Growing(Operation[A], frozen=True):
    """Operation that may create a topic or add bytes. The shard gets the key's restrictions, because only
    it knows which topics exist and reads the body."""

    may_configure: bool = True
    """False: the write must not create a topic with a configuration of its own."""
    prefixes: Names = ()
    """Names in the body must begin with one of these; empty: any name is allowed."""


class Arrived(Answer, tag="arrived", frozen=True):
    known: tuple[int, ...]
    """Seqs of the letters that had arrived before. If there are some, none of the letters was written."""


class Append(Growing[Arrived], tag="append", frozen=True):
    return_seqs: bool = True
    idempotency_key: str | None = None
    stamped: bool = False
    """The engine has added to each `meta`: it may be larger than a client's."""
    jobs: bool = False
    """The letters are jobs that go back to their queue."""
    letters: Letters | None = None


class Diff(Operation[None], tag="diff", frozen=True):
    pass


class Led(Answer, tag="led", frozen=True):
    runs: tuple[tuple[int, str], ...]
    """Which machine led from which seq on, up to the next run; the last one leads now. "": it is not known."""


class StateGet(Operation[Led], tag="state", frozen=True):
    touch: bool = True
    """The request counts as use of the topic."""
    led: bool = False
    """The answer has `Led`."""


class Configure(Growing[None], tag="configure", frozen=True):
    if_absent: bool = False
    """The config applies only to a topic that this request creates."""


# Deleting, cursors, lists


class DeleteTopic(Operation[None], tag="delete_topic", frozen=True):
    if_empty: bool = False


class DeleteRecords(Operation[None], tag="delete_records", frozen=True):
    pass


class CursorPut(Operation[None], tag="cursor_put", frozen=True):
    cursor: str
    maker: bytes = b""
    """Id of the key that asks, b"" without keys."""
    most_made: int = 0
    """The most cursors of the topic that this key may have made, 0 for no limit."""


class CursorGet(Operation[None], tag="cursor_get", frozen=True):
    cursor: str


class CursorDelete(Operation[None], tag="cursor_delete", frozen=True):
    cursor: str


class Page(Answer, tag="page", frozen=True):
    """Page of a list, whose entries are in the body: the entries' names, and whether more entries follow."""

    names: tuple[str, ...]
    more: bool


class CursorList(Operation[Page], tag="cursor_list", frozen=True):
    page_size: int
    after: str = ""


class Listing(Operation[Page], frozen=True):
    """Request for a page of the names with `prefix`, after the last one of the page before."""

    page_size: int
    after: str = ""
    prefix: str = ""
    prefixes: Names = ()


class AllCursors(Listing, tag="all_cursors", frozen=True):
    """The names of the page, and `after`, are those of `proto.model.names.place_of_cursor`."""


class ListTopics(Listing, tag="list", frozen=True):
    touch: bool = False


# One record at a time


class Record(Answer, tag="record", frozen=True):
    """The record whose `data` is the body."""

    seq: int
    meta: bytes | None = None


class Take(Operation[Record], tag="take", frozen=True):
    cursor: str


class Peek(Operation[Record], tag="peek", frozen=True):
    cursor: str


class Step(Operation[None], tag="step", frozen=True):
    cursor: str
    seq: int | None = None
    """The exact seq to move to, that of a record peeked earlier."""


class LogCreate(Operation[None], tag="log_create", frozen=True):
    partitions: int


class Partitions(Answer, tag="partitions", frozen=True):
    partitions: int
    """0 for an unknown log."""


class LogFind(Operation[Partitions], tag="log_find", frozen=True):
    pass


# Queues


class LettersSent(Answer, tag="letters_sent", frozen=True):
    dead_letters: Names
    """Topics that dead letters are being sent to."""


class Claim(Operation[LettersSent], tag="claim", frozen=True):
    pass


class Ack(Operation[None], tag="ack", frozen=True):
    pass


class Nack(Operation[None], tag="nack", frozen=True):
    pass


class Extend(Operation[None], tag="extend", frozen=True):
    pass


class PeekJobs(Operation[None], tag="peek_jobs", frozen=True):
    pass


class Redrive(Growing[None], tag="redrive", frozen=True):
    pass


class Jobs(Answer, tag="jobs", frozen=True):
    seqs: tuple[int, ...]


class Worker(Operation[A], frozen=True):
    """A stream of jobs."""

    stream: str
    node: str
    max: int
    lease_ms: int | None
    """None: the topic's."""


class WorkOpen(Worker[None], tag="work_open", frozen=True):
    pass


class WorkTake(Worker[Jobs], tag="work_take", frozen=True):
    pass


class WorkClose(Operation[None], tag="work_close", frozen=True):
    stream: str


# Routers, and requests between shards


class SourceFound(Answer, tag="source_found", frozen=True):
    epoch: int
    head: int


class RouterSource(Operation[SourceFound], tag="router_source", frozen=True):
    pass


class RouterMade(Answer, tag="router_made", frozen=True):
    made_ms: int


class RouterPut(Operation[RouterMade], tag="router_put", frozen=True):
    router: str
    config: dict[str, Any]
    epoch: int
    """The source's epoch."""
    head: int
    """The source's head: the router copies what follows."""
    created: bool | None = None
    """The answer's `created`; None: whether the router is new to this topic."""
    reading: Reading = (0, 0)
    """The reading that the change rests on."""


class RouterDelete(Operation[None], tag="router_delete", frozen=True):
    router: str
    reading: Reading = (0, 0)
    """The reading that the change rests on."""


class RouterHold(Operation[None], tag="router_hold", frozen=True):
    source: str
    release: bool = False


class RouterFound(Answer, tag="router_found", frozen=True):
    found: bool


class RouterGet(Operation[RouterFound], tag="router_get", frozen=True):
    router: str


class RouterList(Listing, tag="router_list", frozen=True):
    source: str = ""
    dest: str = ""


class Graph(Answer, tag="graph", frozen=True):
    routers: tuple[tuple[str, dict[str, Any], int], ...]
    """Name, config and `made_ms` of each."""


class RouterGraph(Operation[Graph], tag="router_graph", frozen=True):
    reading: Reading | None = None
    """Changes that rest on an earlier reading are refused from now on; None: a look, which ends no change."""


class RegistrarRequest(Operation[None], frozen=True):
    """Request to the registrar, with the restrictions of the key that asks. The registrar alone knows the routers that
    the request concerns, and the topics that they name."""

    key: bytes
    """Id of the key, b"" without keys."""
    prefixes: Names
    """All names that the request concerns must begin with one of these, and an answer shows no others; empty: any."""


class RegistrarPut(RegistrarRequest, tag="registrar_put", frozen=True):
    router: str


class RegistrarGet(RegistrarRequest, tag="registrar_get", frozen=True):
    router: str


class RegistrarDelete(RegistrarRequest, tag="registrar_delete", frozen=True):
    router: str


class RegistrarDeleteTopic(RegistrarRequest, tag="registrar_delete_topic", frozen=True):
    if_empty: bool = False


class Position(Answer, tag="position", frozen=True):
    """A topic's progress. `source` is the topic it copies from, with its epoch, None for none. `idle` means it has no
    deferred frames left to replay."""

    name: str
    head: int
    cursor: int
    source: tuple[str, int] | None
    idle: bool
    source_truncated: bool
    asked: int


class RouterPosition(Operation[Position], tag="router_position", frozen=True):
    epoch: int


class Pulled(Answer, tag="pulled", frozen=True):
    """The body has the records of (`after`, `upto`]; `lost` are the ranges of it whose records are lost."""

    after: int
    upto: int
    head: int
    lost: tuple[tuple[int, int], ...]
    settled: bool


class Pull(Operation[Pulled], tag="pull", frozen=True):
    epoch: int
    after: int
    wait: bool = False
    """Park the request until there are records."""


# Streams and watch sessions


class Fed(Answer, tag="fed", frozen=True):
    to: int
    head: int
    earliest: int
    epoch: int
    gap: tuple[int, int, str, str | None] | None = None


class Feed(Operation[Fed], tag="feed", frozen=True):
    epoch: int
    from_seq: int
    wait_ms: int
    touch: bool
    limit: int
    budget: int
    nodes: tuple[str, ...]
    tags: bool
    meta: bool
    data: bool
    strong: bool


class Resolved(Answer, tag="resolved", frozen=True):
    topics: dict[str, tuple[int, int, int]]
    """Epoch, head_seq and earliest_seq of each existing topic, by name."""


class WatchResolve(Operation[Resolved], tag="watch_resolve", frozen=True):
    names: tuple[str, ...]


class Listed(Answer, tag="listed", frozen=True):
    epochs: dict[str, int]
    """The first topics in the order of their names, with their epochs."""
    version: int
    """Version of the shard's names that the list shows."""


class WatchNames(Operation[Listed], tag="watch_names", frozen=True):
    prefix: str
    prefixes: Names
    """Names also begin with one of these; empty: any name is listed."""
    most: int


class ChangedNames(Answer, tag="changed_names", frozen=True):
    epochs: dict[str, int]
    """The names that were made or deleted, with their present epochs; 0 for those that are deleted."""
    version: int
    """Version of the shard's names that `epochs` shows."""
    known: bool = True
    """False if `epochs` is not what has changed: the shard does not know the version asked for."""


class NameChanges(Operation[ChangedNames], tag="name_changes", frozen=True):
    since: int | None
    """Park the request as long as the shard's names have this version. None asks for the version."""


class Sessions(Answer, tag="sessions", frozen=True):
    owned: int
    """Number of the owner's sessions."""


class SessionMake(Operation[Sessions], tag="session_make", frozen=True):
    owner: bytes
    options: dict[str, Any]
    """The stream's options; the shard only stores them."""
    most_sessions: int | None = None
    """The most sessions that the shard may hold; None: no cap."""
    most_owned: int | None = None
    """The most sessions of this owner that the shard may hold, likewise."""
    most_per_key: int = 0
    """The most sessions of this owner in all shards, which a refusal names."""


class SessionFound(Answer, tag="session_found", frozen=True):
    options: dict[str, Any]
    topics: dict[str, tuple[int, int, int]]
    generation: int
    stream: int = 0
    """Of a take: the number of the stream that begins."""
    previous: int = 0
    """Of a take: the number of the session's stream before it, 0 if there was none."""


class SessionOpen(Operation[SessionFound], tag="session_open", frozen=True):
    owner: bytes


class SessionTake(Operation[SessionFound], tag="session_take", frozen=True):
    """Open the session for a new stream. Parked until the stream before it has ended."""

    owner: bytes


class SessionsTaken(Answer, tag="sessions_taken", frozen=True):
    streams: tuple[tuple[str, int], ...]
    """Wid and number of streams of the asker that are to end, because others wait for the sessions."""


class SessionNews(Operation[SessionsTaken], tag="session_news", frozen=True):
    """Park the request until streams of the asker are to end."""


class SessionsMoved(Answer, tag="sessions_moved", frozen=True):
    unknown: tuple[str, ...]
    """The wids without a session."""
    superseded: tuple[str, ...] = ()
    """The wids whose streams in this request are not the latest ones: their positions were refused."""


class SessionMove(Operation[SessionsMoved], tag="session_move", frozen=True):
    pass


class SessionCount(Operation[Sessions], tag="session_count", frozen=True):
    owner: bytes


# Tickets


class TicketHolder(Answer, tag="ticket_holder", frozen=True):
    """The key that requested a ticket, as it was then. There is none if the ticket is unknown or for another path."""

    owner: bytes
    """The key's digest, b"" without keys."""
    scopes: int
    prefixes: Names


class TicketMake(Operation[None], tag="ticket_make", frozen=True):
    ticket: bytes
    """SHA-256 of the ticket."""
    path: bytes
    """SHA-256 of the path that it opens."""
    owner: bytes
    """As the next two fields, that of `TicketHolder`."""
    scopes: int
    prefixes: Names


class TicketUse(Operation[TicketHolder], tag="ticket_use", frozen=True):
    ticket: bytes
    path: bytes


# The shard itself


class Ping(Operation[None], tag="ping", frozen=True):
    pass


class Figures(Answer, tag="figures", frozen=True):
    figures: ShardFigures


class Stats(Operation[Figures], tag="stats", frozen=True):
    per_topic: int = 0
    cursors: int = 0
    prefixes: Names = ()


class Sampled(Answer, tag="sampled", frozen=True):
    records: int
    """Written since the shard started, as are the others."""
    copies: int
    bytes: int
    waiting: int
    """Requests that wait for the log."""
    bounds: tuple[float, ...]
    """Of `syncs`, in µs."""
    syncs: tuple[int, ...]


class Sample(Operation[Sampled], tag="sample", frozen=True):
    """Asks for the counters that the gateway keeps a history of: few numbers, whatever is stored."""


# The caps over all shards: `shardd.changes.treasurer`


class Room(NamedTuple):
    topics: int
    bytes: int


Mark = tuple[int, int, int, int]
"""The treasurer's epoch, three numbers, and the number of an order. The later of two orders has the larger mark."""


class RoomWant(Operation[None], tag="room_want", frozen=True):
    """A shard needs more room. To the treasurer."""

    shard: int
    at: Mark
    """The last order that the shard has obeyed."""
    limit: Room
    want: Room
    """What the limit lacks."""
    process: int = 0
    """A number of the shard's process, larger than those of earlier ones; 0 if it is not known."""


class RoomReport(Answer, tag="room_report", frozen=True):
    at: Mark
    """The last order that the shard has obeyed."""
    limit: Room


class RoomOrder(Operation[RoomReport], tag="room_order", frozen=True):
    at: Mark
    limit: Room | None = None
    """What the shard may hold from now on. None: as before."""
    give_back: bool = False
    """The limit is what the shard holds, from now on."""
    full: tuple[bool, bool] = (False, False)
    """Whether no more topics, and no more bytes, are free."""


@dataclass(frozen=True, slots=True)
class Row:
    request: type[Operation[Any]]
    answer: type[Answer] | None = None
    _: KW_ONLY
    records: bool
    """Whether it needs the topic's records, or what is kept with them: a quarantined topic refuses it then."""
    waits: bool = False
    """Whether the shard may park the request, or put it off until it is cancelled: its handler gets the caller too."""

    @property
    def op(self) -> str:
        return str(self.request.__struct_config__.tag)


TABLE = (
    Row(Append, Arrived, records=True),
    Row(Diff, records=True, waits=True),
    Row(StateGet, Led, records=False),
    Row(Configure, records=True),
    Row(DeleteTopic, records=False),
    Row(DeleteRecords, records=True),
    Row(CursorPut, records=True),
    Row(CursorGet, records=True),
    Row(CursorDelete, records=True),
    Row(CursorList, Page, records=True),
    Row(AllCursors, Page, records=False),
    Row(ListTopics, Page, records=False),
    Row(Take, Record, records=True),
    Row(Peek, Record, records=True),
    Row(Step, records=True),
    Row(LogCreate, records=False),
    Row(LogFind, Partitions, records=False),
    Row(Claim, LettersSent, records=True, waits=True),
    Row(Ack, records=True, waits=True),
    Row(Nack, records=True, waits=True),
    Row(Extend, records=True, waits=True),
    Row(PeekJobs, records=True),
    Row(Redrive, records=True),
    Row(WorkOpen, records=True, waits=True),
    Row(WorkTake, Jobs, records=True, waits=True),
    Row(WorkClose, records=False, waits=True),
    Row(RouterSource, SourceFound, records=True),
    Row(RouterPut, RouterMade, records=True),
    Row(RouterDelete, records=True),
    Row(RouterHold, records=False),
    Row(RouterGet, RouterFound, records=False),
    Row(RouterList, Page, records=False),
    Row(RouterGraph, Graph, records=False),
    Row(RegistrarPut, records=False, waits=True),
    Row(RegistrarGet, records=False, waits=True),
    Row(RegistrarDelete, records=False, waits=True),
    Row(RegistrarDeleteTopic, records=False, waits=True),
    Row(RouterPosition, Position, records=False),
    Row(Pull, Pulled, records=True, waits=True),
    Row(Feed, Fed, records=True, waits=True),
    Row(WatchResolve, Resolved, records=False),
    Row(WatchNames, Listed, records=False),
    Row(NameChanges, ChangedNames, records=False, waits=True),
    Row(SessionMake, Sessions, records=False),
    Row(SessionOpen, SessionFound, records=False),
    Row(SessionTake, SessionFound, records=False, waits=True),
    Row(SessionNews, SessionsTaken, records=False, waits=True),
    Row(SessionMove, SessionsMoved, records=False, waits=True),
    Row(SessionCount, Sessions, records=False),
    Row(TicketMake, records=False),
    Row(TicketUse, TicketHolder, records=False),
    Row(Ping, records=False),
    Row(Stats, Figures, records=False),
    Row(Sample, Sampled, records=False),
    Row(RoomWant, records=False),
    Row(RoomOrder, RoomReport, records=False),
)
BY_NAME = {row.op: row for row in TABLE}
NAMES: dict[type, str] = {row.request: row.op for row in TABLE}
NEED_RECORDS = frozenset[type](row.request for row in TABLE if row.records)

if TYPE_CHECKING:
    AnyOperation = Operation[Any]
    AnyAnswer = Answer
else:
    AnyOperation = Union[tuple(row.request for row in TABLE)]  # noqa: UP007 - built from the table
    AnyAnswer = Union[tuple({row.answer for row in TABLE if row.answer is not None})]  # noqa: UP007
