"""The commands of a WebSocket and their answers. `gateway.http.websocket` is the transport.

Commands are carried out one at a time, in order, and each is answered. A client that sends more than it reads is not
read from until it has caught up. Subscribed topics are streamed as on an event stream. Answers share the queue of the
frames, so no frame overtakes the answer that announces it.

    subscribe    topic, topics or prefix, and a watch's fields    subscribed, then record, tombstone, caught_up, …
    unsubscribe  topic, topics (a list) or prefix                 unsubscribed, with the topics that were subscribed
    publish      the body of an append, plus topic, return_seqs   ack
    ping                                                          pong
    auth         token: first, within 5 s, where no key came      authenticated

A command that fails is answered with `error`, and the socket stays open. No state outlives the socket: a client that
connects again names its position with `from_seq`.

When the service ends a socket, it sends the answers that wait, and that of a publish whose shard has it: the outcome is
`unknown` if the shard takes longer than `ANSWER_S`. It carries out no later command. So where a last frame and a close
arrive, a publish without an answer was not carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic, perf_counter
from typing import Any, Protocol

import msgspec
import trio
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.contract import responses
from gateway.contract.auth import Keyring, check_scope, restrictions, unauthorized
from gateway.http.chunked_body import too_large
from gateway.http.messages import ClientGone
from gateway.shards.client import Shards
from gateway.streams.event_ids import TOLD
from gateway.streams.states import SubscriptionState
from gateway.streams.stream import LAST_WORD_S, Shown, Stream
from gateway.streams.subscription import Item
from gateway.streams.topic_feed import Batch
from gateway.streams.watch_request import begun, described, options_of
from proto.api.requests import WatchRequest, WatchStart
from proto.ipc.message import Reply
from proto.ipc.operations import Append
from proto.model import nesting
from proto.model.body import Form, parse
from proto.model.errors import ErrorCode, TopicsError, invalid, not_ready
from proto.model.keys import Key, Scope, check_name
from proto.model.names import check_topic
from proto.model.unknown_fields import MAX_NAMED
from proto.process.faults import faults

MAX_REQUEST_ID_BYTES = 1024
MAX_PARAMETERS_BYTES = 1 << 20
"""Largest command without records, because names in Python take many times the memory of their JSON."""
ANSWER_S = 1.0
"""How long an ending socket waits for the answer to a publish."""
GOING_AWAY, SERVICE_RESTART = 1001, 1012
_CODES = {
    401: ErrorCode.UNAUTHORIZED,
    408: ErrorCode.REQUEST_TIMEOUT,
    429: ErrorCode.THROTTLED,
    500: ErrorCode.INTERNAL,
    503: ErrorCode.SHUTTING_DOWN,
}
_REFUSALS = (ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN)
_PASSED_ON = ("records", "node", "idempotency_key", "create", "config", "disable_backpressure")
"""Fields of a publish that go to the shard unchanged."""

_IGNORED = b',"ignored":'
_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(list[str]).decode


class Socket(Protocol):
    """The transport's side of a socket. `key` is the client's key; its scopes are not checked yet."""

    @property
    def key(self) -> Key: ...

    async def receive(self) -> bytes:
        """Wait for the next text message and return it, UTF-8. Raises `ClientGone` when there will be none."""

    async def send(self, text: bytes) -> None:
        """Send a text message; return when the socket has taken it. Raises `ClientGone`."""

    async def close(self, code: int, reason: str) -> None: ...


Audited = Callable[[str, list[str], int, bool], None]
"""Is told the operation of a command, the names in it, the status of its answer, and whether it needed `admin`."""


class Command(Struct):
    """The fields of every command; a ping has no others."""

    op: str
    request_id: Raw | UnsetType = UNSET


class Subscribe(WatchRequest, kw_only=True):
    op: str
    request_id: Raw | UnsetType = UNSET
    topic: str | None = None
    from_seq: int | None = None
    lenient: bool | None = None


class Unsubscribe(Command, kw_only=True):
    topic: str | None = None
    topics: list[str] | None = None
    prefix: str | None = None


class Publish(Command, kw_only=True):
    topic: str
    records: Raw
    node: Raw | UnsetType = UNSET
    idempotency_key: Raw | UnsetType = UNSET
    create: Raw | UnsetType = UNSET
    config: Raw | UnsetType = UNSET
    disable_backpressure: Raw | UnsetType = UNSET
    return_seqs: bool | None = None


class Auth(Command, kw_only=True):
    token: str


_decode_command = msgspec.json.Decoder(Command).decode
_PING = Form(Command)
_SUBSCRIBE = Form(Subscribe)
_UNSUBSCRIBE = Form(Unsubscribe)
_PUBLISH = Form(Publish, keeps_values=True)
_AUTH = Form(Auth)


class SocketStream(Stream):
    def __init__(self, live: Shown, socket: Socket) -> None:
        super().__init__(live, socket.key, most_items=live.limits.websocket_queue_messages)
        self._socket = socket
        self._room = trio.Event()
        self.publishing: bytes | None = None
        """The beginning of the answer to the publish whose shard has it."""
        self._answered = trio.Event()

    async def send(self) -> None:
        item = self.taken()
        if len(self.queue) <= self.most:
            self._room.set()
        text = _form(item)
        if text:
            await self._socket.send(text)

    def problem(
        self, code: int, message: str, topics: list[str] | None = None, retry_after_ms: int | None = None
    ) -> Item:
        fields: dict[str, Any] = {"op": "error", "code": _CODES[code].value, "message": message}
        if retry_after_ms is not None:
            fields["retry_after_ms"] = retry_after_ms
        if topics:
            fields["topics"] = topics
        return Item("raw", None, _encode(fields), None, 0)

    def say(self, text: bytes) -> None:
        """Queue an answer. An ending stream takes only the one to the publish in flight, and none after it."""
        item = Item("raw", None, text, None, len(text))
        if not self.ending:
            self.put(item)
        elif self.publishing is not None:
            self.queue.append(item)
        self.publishing = None
        self._answered.set()

    async def owed(self) -> list[Item]:
        """The answers that the client has not been sent. Waits for that of a publish in flight for up to `ANSWER_S`."""
        if self.publishing is not None:
            self._end_by = monotonic() + ANSWER_S + LAST_WORD_S
            self._answered = trio.Event()
            with trio.move_on_after(ANSWER_S):
                await self._answered.wait()
        if self.publishing is not None:
            late = "the connection ends before the shard has answered; the request may have taken effect"
            self.say(failure(not_ready(late, outcome="unknown"), self.publishing))
        return [item for item in self.queue if item.kind == "raw"]

    def told_deleted(self) -> set[str]:
        """Return the topics whose deletion the client has been sent. Those of a prefix are the prefix's to forget."""
        return {
            name
            for name, each in self.subscriptions.items()
            if each.state is SubscriptionState.OVER and each.handed.epoch == TOLD and not self.covered(name)
        }

    async def room(self) -> None:
        """Wait until the queue holds at most `most` items."""
        while len(self.queue) > self.most:
            self._room = trio.Event()
            await self._room.wait()


def _form(item: Item) -> bytes:
    if item.kind == "raw":
        what: bytes = item.what
        return what
    if item.kind == "position":
        return b""
    if item.kind == "record":
        batch: Batch = item.what
        form = batch.forms.get(SocketStream)
        if form is None:
            form = b'{"op":"record",' + batch.payload[1:]
            batch.keep(SocketStream, form)
        return form
    return _encode({"op": item.kind.replace("-", "_"), **item.what})


class Conversation:
    """The conversation over one socket: carries out its commands and streams its topics."""

    def __init__(self, live: Shown, shards: Shards, socket: Socket, audited: Audited = lambda *_: None) -> None:
        self.stream = SocketStream(live, socket)
        self._live = live
        self._limits = live.limits
        self._keyring = live.keyring
        self._shards = shards
        self._socket = socket
        self._audited = audited
        self._named: list[str] = []
        """What the command that is carried out names."""
        self._handlers = {
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "publish": self._publish,
            "ping": self._ping,
            "auth": self._auth,
        }

    async def run(self) -> None:
        """Serve the socket until either side ends it."""
        self._live.admit(self.stream)
        await self.stream.run(self._listen)
        if not self.stream.gone:
            # An error frame has told the client the reason, such as a stopping service or a slow client.
            try:
                await self._socket.close(SERVICE_RESTART if self.stream.service_stops else GOING_AWAY, "")
            except (OSError, ClientGone):
                pass

    async def _listen(self) -> None:
        while True:
            await self.stream.room()
            try:
                message = await self._socket.receive()
            except (OSError, ClientGone):
                return
            if self.stream.ending:
                continue  # it carries out no more commands, and its last frame is still to be sent
            answer = await self._answer(message)
            if answer:
                self.stream.say(answer)

    async def _answer(self, body: bytes) -> bytes:
        request_id: Raw | UnsetType = UNSET
        self._named, op = [], ""
        try:
            command = parse(_decode_command, body)
            op = command.op
            if command.request_id is not UNSET:
                if len(command.request_id) > MAX_REQUEST_ID_BYTES:
                    raise invalid(f"request_id may have {MAX_REQUEST_ID_BYTES} bytes", field="request_id")
                nesting.check(bytes(command.request_id), above=1)
                request_id = command.request_id
            handler = self._handlers.get(command.op)
            if handler is None:
                raise invalid(f"op {command.op[:64]!r} is not known; use {', '.join(self._handlers)}", field="op")
            if command.op != "publish" and len(body) > MAX_PARAMETERS_BYTES:
                raise too_large(MAX_PARAMETERS_BYTES)
            return await handler(body, _head(request_id))
        except TopicsError as error:
            if error.code in _REFUSALS:
                self._audited("append" if op == "publish" else "websocket", self._named, error.status, False)
            return failure(error, _head(request_id))
        except Exception:
            return failure(faults.failed("websocket"), _head(request_id))

    async def _subscribe(self, body: bytes, head: bytes) -> bytes:
        key = self._socket.key
        asked, ignored = _SUBSCRIBE.read(body)
        self._named = [each for each in (asked.topic, *(asked.topics or ()), asked.prefix) if each is not None]
        check_scope(key, Scope.READ)
        if asked.topic is not None and asked.topics is not None:
            raise invalid("subscribe needs either topic or topics", field="topic")
        if asked.topic is None and asked.topics is None and asked.prefix is None:
            raise invalid("subscribe needs topic, topics or prefix", field="topic")
        named: Mapping[str, WatchStart | None] = asked.topics or {}
        if asked.topic is not None:
            named = {asked.topic: WatchStart(asked.from_seq, asked.tail)}
        found = await begun(self._shards, named, asked, key, self._limits, lenient=bool(asked.lenient))
        stream = self.stream
        found = {name: each for name, each in found.items() if name in named or not stream.follows(name)}
        watched = {name for name in stream.subscriptions if stream.follows(name) or not stream.covered(name)}
        watched -= stream.told_deleted()
        if len(watched | found.keys()) > self._limits.max_watch_topics:
            most = self._limits.max_watch_topics
            raise invalid(f"at most {most} topics can be watched at once", field="topics", max=most)
        if asked.prefix is not None and len(stream.wildcards.keys() | {asked.prefix}) > self._limits.max_watch_topics:
            most = self._limits.max_watch_topics
            raise invalid(f"at most {most} prefixes can be watched at once", field="prefix", max=most)
        options = options_of(asked, self._limits)
        # The answer goes first, because the frames after it are of the topics that it names.
        stream.say(b'{"op":"subscribed"%b,"topics":%b%b}' % (head, _encode(described(found)), _tail(ignored)))
        for name, each in found.items():
            stream.add(name, options, each.position)
        if asked.prefix is not None:
            stream.add_prefix(asked.prefix, options)
        for name in stream.told_deleted():
            stream.forget(name)
        return b""

    async def _unsubscribe(self, body: bytes, head: bytes) -> bytes:
        asked, ignored = _UNSUBSCRIBE.read(body)
        if [asked.topic, asked.topics, asked.prefix].count(None) != 2:
            raise invalid("unsubscribe needs either topic, topics or prefix", field="topic")
        names = asked.topics or []
        if asked.topic is not None:
            names = [asked.topic]
        for name in names:
            if (prefix := self.stream.covered(name)) is not None:
                raise invalid(f'"{name}" is watched with the prefix "{prefix}": unsubscribe that', field="topic")
        ended = [name for name in dict.fromkeys(names) if self.stream.drop(name)]
        if asked.prefix is not None:
            ended = self.stream.drop_prefix(asked.prefix)
        return b'{"op":"unsubscribed"%b,"topics":%b%b}' % (head, _encode(ended), _tail(ignored))

    async def _publish(self, body: bytes, head: bytes) -> bytes:
        started = perf_counter()
        key = self._socket.key
        asked, ignored = _PUBLISH.read(body)
        self._named = [asked.topic]
        configures = asked.config is not UNSET and bytes(asked.config) != b"null"
        check_scope(key, Scope.WRITE | Scope.ADMIN if configures else Scope.WRITE)
        check_topic(asked.topic)
        check_name(key, asked.topic)
        fields = ((name, getattr(asked, name)) for name in _PASSED_ON)
        write = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields if value is not UNSET)
        write_it = Append(*restrictions(key), return_seqs=asked.return_seqs is not False)
        self.stream.publishing = head
        reply = await self._shards.call(write_it, asked.topic, b"{%b}" % write)
        if reply.error is not None and reply.error.code in _REFUSALS:
            raise reply.error
        status = reply.error.status if reply.error is not None else 201 if reply.created else 200
        self._audited("append", self._named, status, configures)
        reply.checked()
        return _ack(reply, head, started, ignored)

    async def _ping(self, body: bytes, head: bytes) -> bytes:
        _, ignored = _PING.read(body)
        return b'{"op":"pong"%b%b}' % (head, _tail(ignored))

    async def _auth(self, body: bytes, head: bytes) -> bytes:
        """Answer `auth` after the first message. A service without keys accepts it from any client. Raises `400` for a
        socket that has a key."""
        _, ignored = _AUTH.read(body)
        if not self._keyring.open:
            raise invalid("this socket has its key already", field="op")
        return authenticated(head, _tail(ignored))


def prove(message: bytes, keyring: Keyring) -> tuple[Key, bytes]:
    """Return the key in the first message of a socket opened without one, and the answer. Raises `400`, `401`."""
    if parse(_decode_command, message).op != "auth":
        raise unauthorized('this needs a key: send it with the upgrade, or first of all {"op":"auth","token":"<key>"}')
    asked, ignored = _AUTH.read(message)
    key = keyring.identify(b"Bearer " + asked.token.encode())
    return key, authenticated(_head(asked.request_id), _tail(ignored))


def authenticated(head: bytes, tail: bytes) -> bytes:
    return b'{"op":"authenticated"%b%b}' % (head, tail)


def _ack(reply: Reply, head: bytes, started: float, ignored: list[str]) -> bytes:
    """The answer to a publish. The shard's answer ends with the names of fields that the shard ignored."""
    figures = responses.performance(started, reply.performance)
    fields, _, further = reply.body[1:-1].partition(_IGNORED)
    if further:
        ignored = [*ignored, *_decode_names(further)][:MAX_NAMED]
    return b'{"op":"ack"%b,%b%b,"performance":%b}' % (head, fields, _tail(ignored), figures)


def _head(request_id: Raw | UnsetType) -> bytes:
    return b"" if request_id is UNSET else b',"request_id":%b' % bytes(request_id)


def _tail(ignored: list[str]) -> bytes:
    return _IGNORED + _encode(ignored) if ignored else b""


def failure(error: TopicsError, head: bytes = b"") -> bytes:
    """Return the answer for an error; without a `head`, of one that belongs to no command."""
    fields: dict[str, Any] = {"code": error.code.value, "message": error.message}
    if error.detail is not None:
        fields["detail"] = error.detail
    if error.retry_after_ms is not None:
        fields["retry_after_ms"] = error.retry_after_ms
    return b'{"op":"error"%b,%b' % (head, _encode(fields)[1:])
