"""The position of one topic's writes: the seqs, commit times and frames that were given to them, visible or not.

    next_seq       the first seq of the next write; `Records.head_seq` is the last seq that readers may see
    ceiling        seqs up to this one may be used without a further reservation: see `shardd.changes.seq_reservation`
    reserved_in    boot id of the machine when `ceiling` was reserved; empty if a crash of the machine loses no records
    block          size of the last reservation of seqs in this process; 0 before the first
    reserving      a further reservation is staged, and no write waits for it
    last_ts        the newest commit time, in ms; commit times never decrease with seq
    ahead_ms       ms by which the topic's time is ahead of the clock, because the clock was ahead at earlier writes. A
                   start sets it, and a jump of the clock makes it smaller
    durable_head   the last seq that is on the device for certain. For classes whose records are visible before a sync;
                   see `shardd.routers.source`
    logged_seq     the last seq that is not in memory only. A stop loses the records after it that were written while
                   the topic was ephemeral. It counts while the topic is ephemeral, and afterwards until a checkpoint
                   has these records
    logged_no      number of the newest frame of this topic that this process has logged
    sync_required_no  number of the newest frame of this topic that had to wait for a sync
    as_of          frame number up to which the catalog that this topic was loaded from has all its frames

Only this module writes the fields.
"""

from __future__ import annotations


class LogPosition:
    def __init__(self) -> None:
        self.next_seq = 1
        self.ceiling, self.reserved_in = 0, ""
        self.block = 0
        self.reserving = False
        self.last_ts = self.ahead_ms = 0
        self.durable_head = self.logged_seq = 0
        self.logged_no = self.sync_required_no = self.as_of = 0

    def load(self, field: str, value: object) -> None:
        """Set a field as the catalog has it."""
        setattr(self, field, value)

    def take(self, count: int) -> int:
        """Give the next `count` seqs to a write. Returns the first."""
        first = self.next_seq
        self.next_seq += count
        return first

    def give_back(self, first_seq: int) -> None:
        """Take back the seqs from `first_seq` on, of a write that is undone."""
        assert first_seq <= self.next_seq, "later writes are undone first"
        self.next_seq = first_seq

    def used(self, upto: int) -> None:
        """Count the seqs up to `upto` as used."""
        self.next_seq = max(self.next_seq, upto + 1)

    def reserve(self, ceiling: int, boot_id: str, block: int = 0) -> None:
        """Set the reservation, and the size of its block if it is a new one."""
        self.ceiling, self.reserved_in, self.block = ceiling, boot_id, block or self.block

    def reserve_meanwhile(self, staged: bool) -> None:
        """A further reservation is staged, or is not any more."""
        assert staged is not self.reserving, "one at a time"
        self.reserving = staged

    def commit_time(self, now_ms: int) -> int:
        """`$ts` of a write made now, in ms: the topic's time, but never less than that of an earlier write."""
        self.last_ts = max(self.last_ts, now_ms + self.ahead_ms)
        return self.last_ts

    def committed(self, ts_ms: int) -> None:
        """A write has this commit time."""
        self.last_ts = max(self.last_ts, ts_ms)

    def clock_set(self, now_ms: int) -> None:
        """The clock begins at `now_ms`. If the newest commit time is later, the topic's time begins there."""
        self.ahead_ms = max(self.last_ts - now_ms, 0)

    def clock_jumped(self, ms: int) -> int:
        """The clock was set ahead by `ms`. Returns by how many ms commit times are ahead of those before."""
        before, self.ahead_ms = self.ahead_ms, max(self.ahead_ms - ms, 0)
        return ms - (before - self.ahead_ms)

    def logged(self, frame_no: int, requires_sync: bool) -> None:
        """A frame of the topic is staged."""
        self.logged_no = frame_no
        if requires_sync:
            self.sync_required_no = frame_no

    def logged_upto(self, seq: int) -> None:
        """Set the last seq that is not in memory only."""
        self.logged_seq = seq

    def on_device(self, upto: int) -> None:
        """The records up to `upto` are on the device."""
        self.durable_head = max(self.durable_head, upto)
