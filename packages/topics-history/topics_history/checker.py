"""The checker: one pass over a history, line by line, and the rules that need its end.

It needs no search and O(n log n) time. `evidence.py` says what it keeps in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from topics_history.copy_rules import copies_are_complete, copies_are_in_order
from topics_history.evidence import Evidence, Log, Piece
from topics_history.format import (
    Ack,
    AnyOperation,
    Append,
    Claim,
    CursorGet,
    CursorPut,
    Delete,
    Extend,
    Fault,
    Frame,
    GetState,
    Nack,
    Open,
    Read,
    Reader,
    Settled,
)
from topics_history.lease_rules import leases_are_exclusive, take_claim, take_use
from topics_history.log_rules import (
    appends_are_visible_as_a_whole,
    contents_agree,
    failures_are_absent,
    heads_end_appends,
    heads_never_go_back,
    holes_are_explained,
    note_ghosts,
    note_heads,
    nothing_is_invented,
    pieces_are_contiguous,
    take_append,
    take_delete,
)
from topics_history.stream_rules import (
    cursors_are_where_they_were_put,
    frames_are_the_log,
    only_faults_rewind_streams,
    take_cursor,
    take_open,
)
from topics_history.violations import Violation

SHOWN = 20
"""Violations of one kind that a report keeps; the rest are counted."""


@dataclass(slots=True)
class Report:
    operations: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: {"ok": 0, "failed": 0, "unknown": 0})
    records: int = 0
    """Records that were acknowledged."""
    records_read: int = 0
    faults: int = 0
    unread: list[str] | None = None
    """Topics that were not read to their head after the end of all faults; None if the history does not say when."""
    violations: list[Violation] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Violations by kind."""

    def add(self, found: Iterable[Violation]) -> None:
        for violation in found:
            kind = type(violation).__name__
            self.counts[kind] = self.counts.get(kind, 0) + 1
            if self.counts[kind] <= SHOWN:
                self.violations.append(violation)


def check(path: Path) -> Report:
    """Check a file. Raises `HistoryError` if it is not a whole history, and `OSError` if it cannot be read."""
    with path.open("rb") as file:
        return check_reader(Reader(file))


def check_reader(reader: Reader) -> Report:
    evidence = Evidence(reader.header.topics, reader.header.routers)
    report = Report()
    for operation in reader:
        report.operations += 1
        report.outcomes[operation.outcome] += 1
        report.add(take(evidence, operation, reader.line))
    report.faults = len(evidence.faults)
    report.records_read = evidence.records_read
    report.add(at_the_end(evidence))
    report.records = sum(batch.acked for batch in evidence.batches.values())
    if evidence.settled_ns is not None:
        report.unread = [log.name for log in evidence.logs.values() if not log.read_whole]
    return report


def take(evidence: Evidence, operation: AnyOperation, line: int) -> Iterator[Violation]:
    """What one line contradicts, of the lines before it; from then on it is evidence itself."""
    match operation:
        case Open():
            take_open(evidence, operation)
        case Fault():
            evidence.faults.add(operation.start_ns, operation.end_ns)
        case Settled():
            evidence.settled_ns = operation.end_ns
        case _:
            log = evidence.logs[operation.topic]
            match operation:
                case Append():
                    yield from take_append(evidence, log, operation, line)
                case Delete():
                    take_delete(log, operation, line)
                    yield from _take_bounds(evidence, log, operation, line)
                case GetState():
                    yield from _take_bounds(evidence, log, operation, line)
                case Ack() | Nack() | Extend():
                    yield from take_use(log, operation, line)
                case CursorPut() | CursorGet():
                    yield from take_cursor(evidence, log, operation, line)
                case Read():
                    yield from _take_read(evidence, log, operation, line)
                case Frame():
                    if operation.result is not None:
                        yield from frames_are_the_log(evidence, log, operation, line)
                case Claim():
                    if operation.result is not None:
                        for seq, body, _ in operation.result.jobs:
                            yield from contents_agree(evidence, log, seq, body, line)
                        yield from take_claim(log, operation, line)
                case _:
                    assert_never(operation)


def _take_bounds(evidence: Evidence, log: Log, operation: Delete | GetState, line: int) -> Iterator[Violation]:
    if (result := operation.result) is not None:
        yield from heads_never_go_back(log, operation.start_ns, result.head_seq, result.earliest_seq, line)
        yield from appends_are_visible_as_a_whole(evidence, log, result.head_seq, line)
        note_heads(log, operation.end_ns, result.head_seq, result.earliest_seq, line)


def _take_read(evidence: Evidence, log: Log, read: Read, line: int) -> Iterator[Violation]:
    result, first = read.result, read.args.from_seq + 1
    if result is None:
        return
    yield from heads_never_go_back(log, read.start_ns, result.head_seq, result.earliest_seq, line)
    piece = Piece(first, result.next_from_seq, read.start_ns, read.end_ns, line)
    yield from pieces_are_contiguous(evidence, log, piece, result.records, result.gap)
    yield from appends_are_visible_as_a_whole(evidence, log, result.head_seq, line)
    there = max(log.acked.before(read.start_ns)[0], result.head_seq or 0) if result.caught_up else 0
    if there > result.next_from_seq:
        rest = Piece(max(first, result.next_from_seq + 1), there, read.start_ns, read.end_ns, line, caught_up=True)
        yield from pieces_are_contiguous(evidence, log, rest, (), None)
    head = max(result.head_seq or 0, result.records[-1][0] if result.records else 0)
    note_heads(log, read.end_ns, head, result.earliest_seq, line)
    if evidence.settled_ns is not None and read.start_ns >= evidence.settled_ns and first <= log.read_to + 1:
        log.read_to = max(log.read_to, result.next_from_seq)
        log.read_whole |= result.caught_up


def at_the_end(evidence: Evidence) -> Iterator[Violation]:
    """The rules that need the whole history."""
    note_ghosts(evidence)
    for log in evidence.logs.values():
        yield from holes_are_explained(evidence, log)
        yield from heads_end_appends(evidence, log)
        yield from leases_are_exclusive(evidence, log)
        yield from copies_are_in_order(evidence, log)
        yield from copies_are_complete(evidence, log)
    yield from failures_are_absent(evidence)
    yield from nothing_is_invented(evidence)
    yield from cursors_are_where_they_were_put(evidence)
    yield from only_faults_rewind_streams(evidence)
