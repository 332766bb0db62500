"""Evidence: what the lines of a history so far prove, by topic, and nothing that a line does not say.

All of it is a dict or a list that grows with records appended, jobs leased, and new maxima. Reads leave nothing
behind unless they pass over a seq that is not yet explained. So reading a topic more often takes no more memory.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import accumulate

from topics_history.format import Router, Topic


class Highs:
    """A maximum over time: the greatest value of all operations that ended before a moment."""

    __slots__ = ("_ends", "_lines", "_values")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._values: list[int] = []
        self._lines: list[int] = []

    def add(self, end_ns: int, value: int, line: int) -> None:
        """Ends never decrease, as lines do not."""
        if not self._values or value > self._values[-1]:
            self._ends.append(end_ns)
            self._values.append(value)
            self._lines.append(line)

    def before(self, start_ns: int) -> tuple[int, int]:
        """The greatest value before a moment, and its line; (0, 0) if there is none. Strictly before: two operations
        that meet in one nanosecond are concurrent."""
        at = bisect_left(self._ends, start_ns)
        return (self._values[at - 1], self._lines[at - 1]) if at else (0, 0)

    @property
    def last(self) -> int:
        return self._values[-1] if self._values else 0


@dataclass(slots=True)
class Batch:
    """An append, with all attempts under its idempotency key."""

    topic: str
    bodies: list[str]
    tags: list[str | None] | None
    start_ns: int
    """Of the first attempt."""
    line: int
    acked: bool = False
    failed: bool = True
    """Whether every attempt has certainly failed."""
    first: int = 0
    """The seq of its first record; 0: not known."""
    acked_ns: int = 0
    seen_line: int = 0
    """The operation that proved `first`, or showed a copy."""
    ordered: bool = False
    """Whether its seq was compared with those before it."""

    def tag_of(self, body: str) -> str | None:
        return self.tags[self.bodies.index(body)] if self.tags else None


@dataclass(slots=True)
class Cut:
    """Deletions of one tag, or of all tags: which seqs each may have removed, and which it certainly has."""

    maybe: list[tuple[int, int]] = field(default_factory=list)
    """(start, seqs before this one may be gone): sorted by start, both growing."""
    sure: Highs = field(default_factory=Highs)

    def add(self, start_ns: int, before: int) -> None:
        at = bisect_left(self.maybe, (start_ns, before))
        if at and self.maybe[at - 1][1] >= before:
            return
        insort(self.maybe, (start_ns, before))
        at += 1
        while at < len(self.maybe) and self.maybe[at][1] <= before:
            del self.maybe[at]

    def before(self, end_ns: int) -> int:
        """Seqs before this one may have been deleted by an operation that began before a moment."""
        at = bisect_left(self.maybe, (end_ns, 0))
        return self.maybe[at - 1][1] if at else 0


class Faults:
    """The faults of a history, in the order of their ends. They are asked for when the history has ended."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._earliest: list[int] = []

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, start_ns: int, end_ns: int) -> None:
        self._starts.append(start_ns)
        self._ends.append(end_ns)

    def first(self, after_ns: int) -> int:
        """The earliest start of all faults that had not ended before a moment; beyond all times if there is none."""
        if len(self._earliest) != len(self._ends):
            self._earliest = list(accumulate(reversed(self._starts), min))[::-1]
        at = bisect_left(self._ends, after_ns)
        return self._earliest[at] if at < len(self._ends) else NEVER_NS


NEVER_NS = 2**63


@dataclass(slots=True)
class Connection:
    """A connection of a stream: start and end of its opening."""

    opened_ns: int
    until_ns: int
    silent: dict[str, int]
    """Topics that had no frame yet → start of the last connection on which they had one."""


@dataclass(slots=True)
class Piece:
    """Seqs that one answer claims to cover, or those of them that it does not show."""

    first: int
    last: int
    start_ns: int
    end_ns: int
    line: int
    caught_up: bool = False


@dataclass(slots=True)
class Lease:
    """A job in the hands of a worker. Times say when it was certainly held."""

    seq: int
    start_ns: int
    end_ns: int
    until_ns: int
    line: int
    released: bool = False
    """Whether its holder began to give it back."""


@dataclass(slots=True)
class Use:
    """An accepted ack, nack or extend of a lease."""

    kind: str
    start_ns: int
    end_ns: int
    line: int
    lease_id: str


class Log:
    """One topic."""

    def __init__(self, name: str, topic: Topic) -> None:
        self.name = name
        self.topic = topic
        self.at: dict[int, str] = {}
        """seq → body: acknowledged, or seen."""
        self.acked = Highs()
        self.heads = Highs()
        self.floors = Highs()
        self.tails: dict[int, int] = {}
        """head of which it is not known yet whether an append ends there → line."""
        self.cuts: dict[str | None, Cut] = {}
        """tag, or None for any → deletions."""
        self.finished: dict[int, int] = {}
        """seq of a job → start of the first operation that may have completed it."""
        self.acks: dict[int, tuple[int, int]] = {}
        """seq of a job → end and line of the ack that completed it."""
        self.leases: dict[str, Lease] = {}
        self.uses: dict[int, list[Use]] = {}
        self.holes: list[Piece] = []
        self.copies: dict[str, int] = {}
        """body of another topic's record → the lowest seq of a copy of it."""
        self.copied_tags: dict[int, str] = {}
        """seq of a copy → the tag of its original."""
        self.ghosts: set[str] = set()
        """Tags of appends of which it is not known whether they happened, and of copies that no read showed; filled in
        when the history has ended."""
        self.read_to = 0
        """Reads after the end of all faults cover everything up to this seq."""
        self.read_whole = False
        """Whether one of them was the last."""
        self._skip: dict[int, int] = {}

    def unexplained(self, first: int, last: int, batches: dict[str, Batch]) -> int:
        """The first seq from `first` to `last` that no operation so far explains; `last` + 1 if all are explained.

        Explained is for ever, so chains of such seqs are remembered and passed over in one step.
        """
        everything = self.cuts.get(None)
        at = max(first, everything.before(NEVER_NS)) if everything else first
        passed = []
        while at <= last:
            further = self._skip.get(at)
            if further is None and not self._gone(at, NEVER_NS, batches):
                break
            passed.append(at)
            at = further or at + 1
        for each in passed:
            self._skip[each] = at
        return min(at, last + 1)

    def unexplained_at(self, hole: Piece, batches: dict[str, Batch]) -> int:
        """As `unexplained`, of operations that began before the read ended; the history is known as a whole."""
        everything = self.cuts.get(None)
        at = max(hole.first, everything.before(hole.end_ns)) if everything else hole.first
        while at <= hole.last and self._gone(at, hole.end_ns, batches):
            at += 1
        return min(at, hole.last + 1)

    def _gone(self, seq: int, end_ns: int, batches: dict[str, Batch]) -> bool:
        """Whether an ack or a deletion by tag that began before a moment may have removed a record."""
        if self.finished.get(seq, end_ns) < end_ns:
            return True
        if len(self.cuts) <= (None in self.cuts):
            return False
        tag = self.tag_of(seq, batches)
        tags = self.ghosts if seq not in self.at else {tag} if tag is not None else set()
        return any(seq < self.cuts[each].before(end_ns) for each in tags & self.cuts.keys())

    def tag_of(self, seq: int, batches: dict[str, Batch]) -> str | None:
        """Of a copy, that of its original: a router without `preserve_tag` copied the record without it."""
        if (copied := self.copied_tags.get(seq)) is not None:
            return copied
        body = self.at.get(seq)
        batch = batches.get(body) if body is not None else None
        if body is None or batch is None or batch.topic != self.name or not batch.first:
            return None
        return batch.tag_of(body)


class Evidence:
    """All topics, and what belongs to none."""

    def __init__(self, topics: dict[str, Topic], routers: list[Router]) -> None:
        self.logs = {name: Log(name, topic) for name, topic in topics.items()}
        self.routers = routers
        self.sources = {name: _sources(name, routers) for name in topics}
        """topic → all topics whose records may reach it through routers."""
        self.batches: dict[str, Batch] = {}
        """body → append."""
        self.keys: dict[tuple[str, str], Batch] = {}
        self.early: dict[str, list[tuple[Log, int, int]]] = {}
        """body that was seen before its append had ended → where, and the line."""
        self.positions: dict[tuple[str, str], int] = {}
        """stream and topic → position."""
        self.cursors: dict[tuple[str, str], Highs] = {}
        self.puts: dict[tuple[str, str], dict[int, int]] = {}
        """topic and cursor → seq that a client asked for → start of the first such request."""
        self.cursor_answers: list[tuple[tuple[str, str], int, int, int]] = []
        """Answers whose position no request had asked for yet: cursor, seq, end, line."""
        self.faults = Faults()
        self.connections: dict[str, Connection] = {}
        """stream → its last connection."""
        self.rewound: list[tuple[Log, str, int, int, int]] = []
        """Frames that began before the position of their reconnect: what they are, their line, and the times between
        which a fault must explain each."""
        self.settled_ns: int | None = None
        self.records_read = 0

    def between(self, source: str, dest: str) -> list[Router]:
        """All routers over which a record of `source` may reach `dest`."""
        after = self.sources[dest] | {dest}
        found = [router for router in self.routers if router.dest in after]
        return [each for each in found if each.source == source or source in self.sources[each.source]]

    def copied_once(self, source: str, dest: str) -> bool:
        """Whether there is one way from `source` to `dest`, each of whose routers copies exactly once."""
        routers = self.between(source, dest)
        reached = [source, *(each.dest for each in routers)]
        return len(set(reached)) == len(reached) and all(each.guarantee == "exactly_once" for each in routers)


def _sources(name: str, routers: list[Router]) -> frozenset[str]:
    found: set[str] = set()
    ahead = [name]
    while ahead:
        dest = ahead.pop()
        for router in routers:
            if router.dest == dest and router.source not in found:
                found.add(router.source)
                ahead.append(router.source)
    return frozenset(found)
