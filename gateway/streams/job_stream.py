"""The job stream, `GET /v0/topics/{queue}/work`: sends a worker jobs as long as it holds fewer than its `max`.

The queue's shard decides which stream gets a job, because it knows the jobs that each stream holds. The stream asks the
shard for jobs and waits for the reply, which comes when there are some. When the connection ends, the stream gives its
jobs back. If this process dies, the supervisor tells the shard (`proto.ipc.askers`), which takes them back.

    id: <seq>
    event: job
    data: {"topic":…,"$seq":…,"lease_id":…,"deadline":…,…}
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from math import inf
from time import time
from typing import Any

import msgspec
import trio
from msgspec import Raw

from gateway.admission.body_budget import Budget, Hold, Kind
from gateway.contract.auth import Keyring, key_is_gone
from gateway.http.messages import ClientGone, Gone, Request, Response, Write
from gateway.shards.client import Shards
from gateway.streams.sse import CONTENT_TYPE, GATHER_BYTES, HEADERS, RETRY, check_accept, error_frame
from proto.ipc.message import Parked, Reply
from proto.ipc.operations import Jobs, WorkClose, WorkOpen, WorkTake
from proto.model.errors import TopicsError, invalid, shutting_down
from proto.model.keys import Key
from proto.model.limits import DEFAULT_BATCH_BYTES, Limits
from proto.model.surrogates import decode

HEARTBEAT_S = 15.0
GOODBYE_S = 5.0
"""How long an ending stream tries to send the rest of a piece and its last frame, and then to give its jobs back."""

_jobs = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""An event's data must have no line ends. JSON has them only between tokens, so a space may replace each."""
MAX_SENT = 2**63 - 1
"""The largest number that a message can hold."""


def _sendable(number: int) -> int:
    """Clamp a number to the range of a message. The shard clamps it to much less."""
    return min(max(number, -MAX_SENT), MAX_SENT)


class _Sender:
    """Sends the pieces of a stream, each whole: a last frame inside another frame would be read as a part of it."""

    def __init__(self, write: Write, patience_s: float) -> None:
        """`patience_s` is how long the client may take for a piece, but for the last one."""
        self._write = write
        self._patience_s = patience_s
        self.scope = trio.CancelScope()
        """All of the stream but its last frame."""
        self.cut = False
        """Whether a piece was begun and is not sent whole."""
        self.end_by = inf
        """Until when the stream may send once it ends, on trio's clock."""

    def end(self) -> None:
        """End the stream: at once, or when the piece that is being sent is whole, but within `GOODBYE_S`."""
        self.end_by = min(self.end_by, trio.current_time() + GOODBYE_S)
        if self.cut:
            self.scope.deadline = self.end_by
        else:
            self.scope.cancel()

    async def send(self, parts: Iterable[bytes]) -> None:
        """As `send_last`. Raises `ClientGone` for a client that does not take the piece in time."""
        with trio.move_on_after(self._patience_s) as patience:
            await self.send_last(parts)
        if patience.cancelled_caught:
            raise ClientGone

    async def send_last(self, parts: Iterable[bytes]) -> None:
        """Send a piece, a part at a time."""
        self.cut = True
        for part in parts:
            await self._write(part)
        self.cut = False
        if self.end_by < inf:
            self.scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()


class Work:
    def __init__(self, shards: Shards, limits: Limits, keyring: Keyring, budget: Budget) -> None:
        self._budget = budget
        self._keyring = keyring
        self._shards = shards
        self._limits = limits
        self._open: dict[str, _Sender] = {}
        self._draining = False
        self._over = trio.Event()

    async def open(self, topic: str, options: Mapping[str, Any], request: Request, key: Key) -> Response:
        """Return the response that streams jobs. Raises `400`, `404`, `409`, `503`, and `406` if nothing else is wrong.
        The shard leases nothing to a stream before it asks for jobs."""
        if not options["node"]:
            raise invalid("node is missing: the name of the worker that the jobs are leased to", field="node")
        lease_ms = options.get("lease_ms")
        worker = WorkTake(
            secrets.token_hex(8),
            str(options["node"]),
            _sendable(int(options["max"])),
            None if lease_ms is None else _sendable(int(lease_ms)),
        )
        opening = WorkOpen(worker.stream, worker.node, worker.max, worker.lease_ms)
        (await self._shards.call(opening, topic)).checked()
        check_accept(request.header(b"accept"))
        return Response(200, content_type=CONTENT_TYPE, headers=HEADERS, live=partial(self._run, topic, worker, key))

    async def _run(self, topic: str, worker: WorkTake, key: Key, write: Write, gone: Gone) -> bool:
        """Stream until something ends it. Returns True when it ended with a last frame, False when the client left or
        did not take the rest of a piece."""
        stream = worker.stream
        left = False
        last = shutting_down()
        sender = self._open[stream] = _Sender(write, self._limits.slow_consumer_timeout_ms / 1000)
        if self._draining:
            sender.end()

        def revoke() -> None:
            nonlocal last
            last = key_is_gone()
            sender.end()

        try:
            with self._keyring.while_known(key, revoke), sender.scope:
                async with trio.open_nursery() as nursery:

                    async def watch() -> None:
                        nonlocal left
                        await gone()
                        left = True
                        nursery.cancel_scope.cancel()

                    nursery.start_soon(watch)
                    try:
                        await trio.lowlevel.checkpoint_if_cancelled()  # the key may be gone, or the service draining
                        await self._push(topic, worker, key, sender)
                    except TopicsError as error:
                        last = error
                    except (OSError, ClientGone):
                        left = True
                    nursery.cancel_scope.cancel()
            if not left and not sender.cut:
                sender.end()
                with trio.move_on_at(sender.end_by):
                    await sender.send_last([error_frame(last.status, last.message, retry_after_ms=last.retry_after_ms)])
            return not left and not sender.cut
        finally:
            with trio.move_on_after(GOODBYE_S) as patience:
                patience.shield = True
                await self._close(topic, stream)
            del self._open[stream]
            if not self._open:
                self._over.set()

    async def _push(self, topic: str, worker: WorkTake, key: Key, sender: _Sender) -> None:
        """Send jobs until an error ends the stream. Raises that error: `TopicsError`, OSError or `ClientGone`."""
        name = _encode(topic)
        hold = self._budget.hold(Kind.STREAM, key)
        await sender.send([RETRY + _heartbeat()])
        try:
            while True:
                await self._reserve(hold, sender)
                await sender.send(_pieces(name, await self._take(topic, worker, hold, sender)))
                hold.release()
        finally:
            hold.release()

    async def _reserve(self, hold: Hold, sender: _Sender) -> None:
        """Wait for room for jobs, as a claim does before its shard is asked. Raises `429` where the budget does."""
        while not hold.size:
            with trio.move_on_after(HEARTBEAT_S):
                await hold.grow(DEFAULT_BATCH_BYTES)
            if not hold.size:
                await sender.send([_heartbeat()])

    async def _take(self, topic: str, worker: WorkTake, hold: Hold, sender: _Sender) -> Reply[Jobs]:
        """Wait for jobs and return them; they may be none. `hold` is empty while the shard has none, and as large as
        the reply in the end."""
        pending = self._shards.links.to(self._shards.index_of(topic)).ask(worker, topic, b"")
        try:
            while True:
                outcome = None
                with trio.move_on_after(HEARTBEAT_S):
                    outcome = await pending.wait()
                if outcome is None:
                    await sender.send([_heartbeat()])
                elif isinstance(outcome, Parked):
                    hold.release()
                else:
                    break
        except BaseException:
            pending.abandon()
            raise
        reply = outcome.checked()
        hold.set(len(reply.body))
        return reply

    async def _close(self, topic: str, stream: str) -> None:
        try:
            await self._shards.call(WorkClose(stream), topic)
        except TopicsError:
            pass  # the shard or the topic is gone, and the leases run out

    async def drain(self) -> None:
        """End every stream with a last frame and give its jobs back. Waits until all have ended."""
        self._draining = True
        while self._open:
            self._over = trio.Event()
            for sender in self._open.values():
                sender.end()
            await self._over.wait()


def _heartbeat() -> bytes:
    return b": hb %d\n\n" % (time() * 1000)


def _pieces(topic: bytes, reply: Reply[Jobs]) -> Iterator[bytes]:
    """The frames of a reply's jobs, some at a time: no second form of all of them is held. A heartbeat if there are
    none."""
    frames: list[bytes] = []
    size = 0
    seqs = () if reply.extra is None else reply.extra.seqs
    for seq, job in zip(seqs, decode(_jobs, reply.body), strict=True):
        data = bytes(job)[1:].translate(_ONE_LINE)
        frames.append(b'id: %d\nevent: job\ndata: {"topic":%b,%b\n\n' % (seq, topic, data))
        size += len(frames[-1])
        if size >= GATHER_BYTES:
            piece, frames, size = b"".join(frames), [], 0
            yield piece
    if frames or not seqs:
        yield b"".join(frames) or _heartbeat()
