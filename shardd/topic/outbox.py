"""The outbox of a topic: dead letters, and redrives of them, that move to another topic, maybe of another shard.

    source                                              target
    1  an order: a LEASE frame with the transfers (`letters`)
                              ── append, with the source's id and seqs ──►
                                                        2  the records, with the source's id and seqs in the same frame
                              ◄──────────── done, or: these are here ──────
    3  a deletion of these seqs

The next batch for a target leaves when step 3 of the batch before is committed. So a target stores only the last batch
of each source, as long as the target exists. A batch whose answer was lost is sent again, alone, before any other. A
source may be away for any time in between. Orders, arrivals and deletions wait for a sync if the topic's class is
`disk` or `fsync`.

    a process dies              what happens
    source before 1             nothing was begun
    source between 1 and 3      the start finds the order; the source asks the target again, which says what it has
    target before 2             the source asks again
    target after 2              the source asks again, and the target says that it has the records
    source, machine crash       what 3 had deleted stays deleted; no seq comes twice (`shardd.changes.seq_reservation`)

A source that starts does not know which batch was the last one. It sends the transfers in the order of their orders, as
before, so its first batch has records of that one, and the target says so. Parked letters (see below) are the
exception: the last batch may have begun after them, or have been one of them. If those that were ordered before it
fill a batch, and the target takes them now, its records arrive twice.

A backup copies one shard after the other, so the copy of a source's shard may be older than the copy of its target's.
The target then knows the records, or gets them a second time if later batches have replaced them: none is lost.

A record in the outbox stays in its topic, and visible, until it has arrived. If it is a job, it is TRANSFERRING: no
claim gets it. A record that is deleted, evicted or expired in the meantime is not sent any more.

A dead letter that its target refuses for what it is, as too large for a cap, is *parked*: it stays in the outbox, and
the letters after it are sent. Parked letters and reasons are in memory only. After a start the target is asked again.

The idempotency key of an arrived batch, little-endian:

    offset  size  field
         0     1  mark     0xFF
         1    16  name     XXH3-128 of the source's name
        17     8  epoch    of the source
        25   8 n  seqs     of the n records in the source
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import xxhash

from shardd.topic.job_table import Queue

MARK = b"\xff"
"""First byte of the idempotency key of an arrived batch. No client's key begins with it, because those are UTF-8."""
_SOURCE = 24


class Transfer(NamedTuple):
    """The target of a record. `deliveries` is the number of deliveries of a dead letter; 0 for a redrive."""

    target: str
    deliveries: int


class Parked(NamedTuple):
    """A dead letter that its target refused for what it is."""

    size: int
    reason: str


class Outbox:
    """The transfers of one topic by seq, whose orders are committed. `queue` arguments are the topic's queue, if it is
    one."""

    __slots__ = ("ordered", "parked", "refusals", "sent", "transfers")

    def __init__(self) -> None:
        self.transfers: dict[int, Transfer] = {}
        """In the order of their orders, also after a start."""
        self.ordered: set[int] = set()
        """Seqs whose orders are staged."""
        self.parked: dict[int, Parked] = {}
        self.refusals: dict[str, str] = {}
        """Targets that take no transfer at present, with the reason."""
        self.sent: dict[str, list[int]] = {}
        """Seqs of the last batch for each target, unless it was refused."""

    def __bool__(self) -> bool:
        return bool(self.transfers)

    def apply(self, fields: dict[str, Any], queue: Queue | None) -> None:
        """Apply the fields of a LEASE frame or of a catalog."""
        for seq, target, deliveries in fields.get("letters", ()):
            self.transfers[seq] = Transfer(target, deliveries)
            if queue is not None:
                queue.restore_order(seq)
        self.call_back(fields.get("called_back", ()), queue)

    def add(self, transfers: dict[int, Transfer]) -> None:
        """Take in transfers whose order has committed. They replace earlier ones of the same seqs."""
        assert transfers.keys() <= self.ordered, "an order is staged, then committed"
        self.transfers.update(transfers)
        self.ordered -= transfers.keys()
        for seq in self.parked.keys() & transfers.keys():
            del self.parked[seq]

    def call_back(self, seqs: Iterable[int], queue: Queue | None) -> None:
        """Remove the transfers of these seqs. Jobs among them are claimable again."""
        for seq in seqs:
            self._remove(seq)
            if queue is not None:
                queue.cancel_transfer(seq)

    def gone(self, seqs: Iterable[int]) -> None:
        """Remove the transfers of records that have been deleted."""
        if self.transfers:
            for seq in seqs:
                self._remove(seq)

    def _remove(self, seq: int) -> None:
        self.transfers.pop(seq, None)
        self.parked.pop(seq, None)

    def unsettled(self, target: str) -> dict[int, Transfer]:
        """The transfers of the last batch for a target that are still here: it may have them."""
        return {seq: self.transfers[seq] for seq in self.sent.get(target, ()) if seq in self.transfers}

    def redrives(self, target: str) -> dict[int, Transfer]:
        """The redrives to a target."""
        return {seq: each for seq, each in self.transfers.items() if each.target == target and not each.deliveries}

    def parked_for(self, target: str) -> list[int]:
        """Seqs of the parked letters of a target, the smallest letter first."""
        found = [seq for seq in self.parked if self.transfers[seq].target == target]
        return sorted(found, key=self.parked.__getitem__)

    def waits_for(self, seq: int) -> str | None:
        """Why the transfer of this seq waits; None if nothing keeps it."""
        if seq in self.parked:
            return self.parked[seq].reason
        return self.refusals.get(self.transfers[seq].target) if seq in self.transfers else None

    @property
    def reason(self) -> str | None:
        """Why a transfer of this outbox waits: of a parked letter, if there is one. None if nothing keeps any."""
        parked = next(iter(self.parked.values()), None)
        return next(iter(self.refusals.values()), None) if parked is None else parked.reason

    def dump(self, alive: Callable[[int], bool]) -> list[list[Any]]:
        """Rows of the transfers whose records are alive, for a catalog."""
        return rows({seq: transfer for seq, transfer in self.transfers.items() if alive(seq)})


def rows(transfers: dict[int, Transfer]) -> list[list[Any]]:
    return [[seq, *transfer] for seq, transfer in transfers.items()]


def source_id(name: str, epoch: int) -> bytes:
    """The id of one instance of a topic, 24 bytes: XXH3-128 of the name, and the epoch. It never changes, in whichever
    shard the topic is."""
    return xxhash.xxh3_128_digest(name.encode()) + struct.pack("<Q", epoch)


def arrival_key(source: bytes, seqs: Collection[int]) -> bytes:
    """The idempotency key of a batch with the records `seqs` of a source."""
    return MARK + source + struct.pack(f"<{len(seqs)}Q", *seqs)


class Arrivals:
    """The last batch that arrived from each source, as its seqs."""

    __slots__ = ("last", "pending")

    def __init__(self) -> None:
        self.last: dict[bytes, tuple[int, ...]] = {}
        self.pending: set[bytes] = set()
        """Sources of batches that are staged."""

    def add(self, key: bytes) -> None:
        """Record the arrival of the batch with this key."""
        source, packed = key[len(MARK) : len(MARK) + _SOURCE], key[len(MARK) + _SOURCE :]
        self.last[source] = struct.unpack(f"<{len(packed) // 8}Q", packed)

    def dump(self) -> list[bytes]:
        """The key of the last batch of each source, for a catalog."""
        return [arrival_key(source, seqs) for source, seqs in self.last.items()]

    def load(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.add(key)
