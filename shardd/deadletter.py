"""Dead letters: jobs that were delivered too often go to another topic, which may live in another shard.

1. the job is DOOMED: claims pass it over, and a LEASE frame says so and names the target
2. its record, stamped, is appended to the target, with an idempotency key made of queue, epoch and seq
3. when that is acknowledged, the record is deleted here, and counted in the same frame

    the process dies before 1       the next claim dooms it again
    between 1 and 2                 the row is found at the start, and 2 follows
    between 2 and 3                 2 is repeated; the target knows the key and adds nothing; 3 follows

So there is exactly one copy, provided that the target remembers the key until 2 is repeated: its
`idempotency_window_ms` bounds how long this shard may be away in between. Where the target refuses, because it is full
or its shard is away, 2 is repeated after a pause of 50 ms to 5 s, and the job stays where it is.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import structlog
import trio
import xxhash
from msgspec import Raw, UnsetType

from proto.errors import TopicsError
from proto.message import Reply
from shardd.claims import Claims
from shardd.clock import Clock
from shardd.commit import Timing
from shardd.directory import Directory
from shardd.jobs import Found, one
from shardd.queue import State
from shardd.topic import Topic

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds."""
log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode


class Asking(Protocol):
    """The other shards: see `shardd.peers`."""

    def index_of(self, topic: str) -> int: ...

    async def request(
        self, index: int, op: str, topic: str, options: dict[str, object], body: bytes = b""
    ) -> Reply: ...


class DeadLetters:
    def __init__(self, directory: Directory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._queues: dict[tuple[int, int], tuple[Topic, str]] = {}
        """(Queue's id, seq) → queue, target: what is doomed."""
        self._more = trio.Event()

    def recovered(self, claims: Claims) -> None:
        """Take up what an earlier process began."""
        self._claims = claims
        for topic in self._directory.visible.values():
            if topic.queue is not None:
                self.add(topic, [seq for seq, job in topic.queue.jobs.items() if job.state is State.DOOMED])

    def add(self, topic: Topic, seqs: list[int]) -> None:
        """Jobs that are doomed, and whose rows are written."""
        assert topic.queue is not None
        for seq in seqs:
            job = topic.queue.jobs.get(seq)
            if job is not None:
                self._queues[topic.id, seq] = (topic, job.node)
        self._more.set()

    def __len__(self) -> int:
        return len(self._queues)

    async def run(self, peers: Asking) -> None:
        """Bury for ever."""
        pause = FIRST_PAUSE
        while True:
            if not self._queues:
                self._more = trio.Event()
                if not self._queues:
                    await self._more.wait()
                pause = FIRST_PAUSE
            if await self.bury(peers):
                pause = FIRST_PAUSE
            else:
                await trio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def bury(self, peers: Asking) -> bool:
        """Steps 2 and 3, for each that waits. Returns whether anything got on; one target that refuses keeps only
        what goes there."""
        refusing: set[str] = set()
        progress = False
        for (ident, seq), (topic, target) in list(self._queues.items()):
            if target in refusing:
                continue
            record = one(topic, seq) if self._directory.by_id.get(ident) is topic else None
            if record is None or topic.queue is None or seq not in topic.queue.jobs:
                self._queues.pop((ident, seq), None)  # deleted, expired or evicted meanwhile
                progress = True
                continue
            body, options = letter(topic, record, topic.queue.jobs[seq].deliveries)
            try:
                await peers.request(peers.index_of(target), "append", target, options, body)
            except TopicsError as error:
                refusing.add(target)
                log.warning("dead_letter_refused", queue=topic.name, target=target, reason=error.message)
                continue
            self._queues.pop((ident, seq), None)
            progress = True
            self._remove(topic, seq)
        return progress

    def _remove(self, topic: Topic, seq: int) -> None:
        assert topic.queue is not None
        job = topic.queue.jobs.get(seq)
        if job is None or self._directory.by_id.get(topic.id) is not topic:
            return
        before = job.saved()
        topic.queue.leave(seq, job)

        def done(timing: Timing) -> None:
            pass

        def failed(error: TopicsError) -> None:
            self.add(topic, [seq])

        self._claims.remove(topic, [seq], {seq: before}, done, failed, dead_lettered=1)
        self._claims.written()


def letter(topic: Topic, record: Found, deliveries: int) -> tuple[bytes, dict[str, object]]:
    """The append that makes the copy: its body and its options."""
    seq, _, _, tag, data, meta = record
    stamp = _encode(
        {
            "$dead_letter_from": topic.name,
            "$dead_letter_deliveries": deliveries,
            "$dead_letter_src_seq": seq,
        }
    )
    fields: dict[str, object] = {
        "data": data,
        "meta": Raw(stamped(b"" if isinstance(meta, UnsetType) else meta, stamp)),
    }
    if not isinstance(tag, UnsetType):
        fields["tag"] = tag
    name = xxhash.xxh3_128_hexdigest(topic.name.encode())
    options: dict[str, object] = {"idempotency_key": f"dead-letter:{name}:{topic.epoch}:{seq}", "stamped": True}
    return _encode({"records": [fields], "create": topic.config.auto_create}), options


def stamped(meta: bytes | Raw, stamp: bytes) -> bytes:
    """A JSON object with the members of another one behind its own."""
    own = bytes(meta).strip()
    return stamp if own in (b"", b"null") or not own[1:-1].strip() else own[:-1] + b"," + stamp[1:]
