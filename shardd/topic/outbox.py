"""Records on their way from one topic to another, which may live in another shard: dead letters, and redrives of them.

    source                                              target
    1  an order: a LEASE frame with the transfers (`letters`)
                              ── append, with the source's id and seqs ──►
                                                        2  the records, and in the same frame whose and which they are
                              ◄──────────── done, or: I have these ────────
    3  a deletion of these seqs

The next batch for a target leaves when 3 of the one before is committed. So a target need remember nothing but the last
batch of each source, for as long as it lives itself, and no window bounds how long a source may be away in between.
Orders, arrivals and deletions wait for the device where the topic's class ever does (`disk`, `fsync`).

    who dies                    what happens
    source before 1             nothing was begun
    source between 1 and 3      the order is found at the start, the target is asked again, and says what it has
    target before 2             it is asked again
    target after 2              the same, and it says that it has them
    source, machine crash       what 3 had deleted stays deleted; no seq comes twice (`shardd.changes.seq_reservation`)

A copy of a source's shard that is older than its target's (a backup takes shards one after the other) finds its letters
known, or sends them a second time if others have followed since: never does one get lost.

A record in the outbox stays where it is, and visible, until it has arrived. A job among them is DOOMED: no claim gets
it. A record that is deleted, evicted or expires on its way need not be sent any more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import xxhash

from shardd.topic.job_table import Queue

MARK = b"\xff"
"""Begins the idempotency key of a batch that arrived. No client's key does: those are UTF-8."""
_SOURCE = 24


class Transfer(NamedTuple):
    """Where a record goes. `deliveries` of a dead letter is how often it was handed out; a redrive has 0."""

    target: str
    deliveries: int


class Outbox:
    """The transfers of one topic by seq, their orders committed. `queue` is the topic's, if it is one."""

    __slots__ = ("ordered", "transfers")

    def __init__(self) -> None:
        self.transfers: dict[int, Transfer] = {}
        self.ordered: set[int] = set()
        """Of whom orders are staged."""

    def __bool__(self) -> bool:
        return bool(self.transfers)

    def apply(self, fields: dict[str, Any], queue: Queue | None) -> None:
        """What a LEASE frame or a catalog says."""
        for seq, target, deliveries in fields.get("letters", ()):
            self.transfers[seq] = Transfer(target, deliveries)
            if queue is not None:
                queue.doom(seq)
        self.call_back(fields.get("called_back", ()), queue)

    def call_back(self, seqs: Iterable[int], queue: Queue | None) -> None:
        """They go nowhere. Jobs among them may be handed out again."""
        for seq in seqs:
            self.transfers.pop(seq, None)
            if queue is not None:
                queue.cancel_transfer(seq)

    def gone(self, seqs: Iterable[int]) -> None:
        """They have been deleted."""
        if self.transfers:
            for seq in seqs:
                self.transfers.pop(seq, None)

    def dump(self, alive: Callable[[int], bool]) -> list[list[Any]]:
        """For a catalog."""
        return rows({seq: transfer for seq, transfer in self.transfers.items() if alive(seq)})


def rows(transfers: dict[int, Transfer]) -> list[list[Any]]:
    return [[seq, *transfer] for seq, transfer in transfers.items()]


def source_id(name: str, epoch: int) -> bytes:
    """The same for one instance of a topic for ever, wherever it lives."""
    return xxhash.xxh3_128_digest(name.encode()) + struct.pack("<Q", epoch)


def arrival_key(source: bytes, seqs: Collection[int]) -> bytes:
    """The idempotency key of a batch that has these records of a source."""
    return MARK + source + struct.pack(f"<{len(seqs)}Q", *seqs)


class Arrivals:
    """What came last from each source."""

    __slots__ = ("last", "pending")

    def __init__(self) -> None:
        self.last: dict[bytes, tuple[int, ...]] = {}
        self.pending: set[bytes] = set()
        """Sources of batches that are staged."""

    def add(self, key: bytes) -> None:
        """A batch with such a key is there."""
        source, packed = key[len(MARK) : len(MARK) + _SOURCE], key[len(MARK) + _SOURCE :]
        self.last[source] = struct.unpack(f"<{len(packed) // 8}Q", packed)

    def dump(self) -> list[bytes]:
        """Keys, one for each source, for a catalog."""
        return [arrival_key(source, seqs) for source, seqs in self.last.items()]

    def load(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.add(key)
