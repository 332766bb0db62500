"""Rules of topics as logs: appends, reads, deletions.

The seqs that the service gives are their own witness, so nothing is searched: a rule compares one operation with what
all operations that ended before it began have proved. A rule yields a violation for each contradiction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topics_history.evidence import Batch, Cut, Evidence, Log, Piece
from topics_history.format import Append, Delete, HistoryError
from topics_history.violations import (
    Changed,
    CopyTwice,
    Doubled,
    EarlyCaughtUp,
    FailedPresent,
    HeadBack,
    Hole,
    Invented,
    Lost,
    NotAPiece,
    OutOfOrder,
    Split,
    StaleHead,
    Undeleted,
    Violation,
)

ANY = 2**63 - 1


def take_append(evidence: Evidence, log: Log, append: Append, line: int) -> Iterator[Violation]:
    """An acknowledged append is at its seqs; attempts under one key are one append."""
    batch = _batch_of(evidence, log, append, line)
    batch.failed &= append.outcome == "failed"
    for index, body in enumerate(batch.bodies if evidence.early else ()):
        for where, seq, seen in evidence.early.pop(body, ()):
            yield from attribute(evidence, where, seq, index, batch, seen)
    result = append.result
    if result is not None:
        if result.last_seq - result.first_seq + 1 != len(batch.bodies):
            yield Split(log.name, f"{len(batch.bodies)} records got {result.first_seq} to {result.last_seq}", (line,))
            return
        if batch.first and batch.first != result.first_seq:
            text = f"is at {batch.first} and was acknowledged at {result.first_seq}"
            yield Doubled(log.name, f"the append of {batch.bodies[0]} {text}", (batch.seen_line, line))
            return
        if not batch.first:
            yield from place(log, batch, result.first_seq, line)
        if not batch.acked:
            batch.acked, batch.acked_ns = True, append.end_ns
        log.acked.add(append.end_ns, result.last_seq, line)
        if batch.line == line:  # a repeated append gets the answer of the first one
            yield from heads_never_go_back(log, append.start_ns, result.head_seq, None, line)
        note_heads(log, append.end_ns, result.head_seq, None, line)
    yield from seqs_follow_time(log, batch, line)


def _batch_of(evidence: Evidence, log: Log, append: Append, line: int) -> Batch:
    """The append that a line is an attempt of. Raises `HistoryError` if two appends have a body in common."""
    args = append.args
    key = (log.name, args.key) if args.key is not None else None
    batch = evidence.keys.get(key) if key else None
    if batch is None:
        batch = Batch(log.name, args.bodies, args.tags, append.start_ns, line)
        if key:
            evidence.keys[key] = batch
        for body in args.bodies:
            if (other := evidence.batches.setdefault(body, batch)) is not batch:
                raise HistoryError(line, f"the body {body} is already in line {other.line}; a body names one record")
    elif batch.bodies != args.bodies:
        raise HistoryError(line, f"the key {args.key} had other bodies in line {batch.line}")
    batch.start_ns = min(batch.start_ns, append.start_ns)
    return batch


def place(log: Log, batch: Batch, first: int, line: int) -> Iterator[Violation]:
    """The records of one append have consecutive seqs, all or none, and no seq has two contents."""
    if first < 1:
        yield Split(log.name, f"{batch.bodies[0]} is before seq 1, if its batch is whole", (batch.line, line))
        return
    batch.first, batch.seen_line = first, line
    at = log.at
    for seq, body in enumerate(batch.bodies, first):
        if at.setdefault(seq, body) != body:
            yield Changed(log.name, f"seq {seq} is {at[seq]} and {body}", (batch.line, line))


def contents_agree(evidence: Evidence, log: Log, seq: int, body: str, line: int) -> Iterator[Violation]:
    """Each reader gets one content for one seq: that which was appended."""
    known = log.at.get(seq)
    if known is not None:
        if known != body:
            yield Changed(log.name, f"seq {seq} was {known}, and is {body}", (line,))
        return
    log.at[seq] = body
    batch = evidence.batches.get(body)
    if batch is None:
        evidence.early.setdefault(body, []).append((log, seq, line))
    else:
        yield from attribute(evidence, log, seq, batch.bodies.index(body), batch, line)


def attribute(evidence: Evidence, log: Log, seq: int, index: int, batch: Batch, line: int) -> Iterator[Violation]:
    """An append is in its topic once; in another topic only as a copy of a router."""
    body = batch.bodies[index]
    if batch.topic != log.name:
        if batch.topic not in evidence.sources[log.name]:
            yield Invented(log.name, f"seq {seq} is {body}, which was appended to {batch.topic}", (batch.line, line))
            return
        batch.seen_line = batch.seen_line or line
        if batch.tags is not None and (tag := batch.tags[index]) is not None:
            log.copied_tags[seq] = tag
        first = log.copies.setdefault(body, seq)
        if first != seq:
            log.copies[body] = min(first, seq)
            if evidence.copied_once(batch.topic, log.name):
                yield CopyTwice(log.name, f"{body} is at {first} and at {seq}", (batch.line, line))
        return
    first = seq - index
    if not batch.first:
        yield from place(log, batch, first, line)
        yield from seqs_follow_time(log, batch, line)
    elif batch.first != first:
        kind = Split if index else Doubled
        yield kind(log.name, f"{body} is at {seq}, and its append at {batch.first}", (batch.seen_line, line))


def seqs_follow_time(log: Log, batch: Batch, line: int) -> Iterator[Violation]:
    """An append that began after a seq was acknowledged or seen is after it."""
    if batch.ordered or not batch.first:
        return
    batch.ordered = True
    for highs in (log.acked, log.heads):
        value, of = highs.before(batch.start_ns)
        if value >= batch.first:
            text = f"{batch.bodies[0]} got seq {batch.first}, and {value} was there before it began"
            yield OutOfOrder(log.name, text, tuple(sorted({of, batch.line, line})))
            return


def heads_never_go_back(log: Log, start_ns: int, head: int | None, floor: int | None, line: int) -> Iterator[Violation]:
    """Heads and first seqs never go back, for any client, and a head includes all that was acknowledged before."""
    if head is not None:
        value, of = log.acked.before(start_ns)
        if head < value:
            yield StaleHead(log.name, f"the head is {head}, and {value} was acknowledged before", (of, line))
        value, of = log.heads.before(start_ns)
        if head < value:
            yield HeadBack(log.name, f"the head is {head}, and was {value} before", (of, line))
    if floor is not None:
        value, of = log.floors.before(start_ns)
        if floor < value:
            yield HeadBack(log.name, f"the first seq is {floor}, and was {value} before", (of, line))


def appends_are_visible_as_a_whole(evidence: Evidence, log: Log, head: int | None, line: int) -> Iterator[Violation]:
    """A head is the last seq of an append. Copies have other batches than their source."""
    if head:
        ends = _ends_an_append(evidence, log, head)
        if ends is None:
            log.tails.setdefault(head, line)
        elif not ends:
            yield Split(log.name, f"the head is {head}, within an append", (line,))


def _ends_an_append(evidence: Evidence, log: Log, head: int) -> bool | None:
    """None if it is not known what has this seq."""
    body = log.at.get(head)
    batch = evidence.batches.get(body) if body is not None else None
    if batch is None or not batch.first:
        return None
    return batch.topic != log.name or head == batch.first + len(batch.bodies) - 1


def heads_end_appends(evidence: Evidence, log: Log) -> Iterator[Violation]:
    """As `appends_are_visible_as_a_whole`, of heads that were shown before their append was known."""
    for head, line in log.tails.items():
        if _ends_an_append(evidence, log, head) is False:
            yield Split(log.name, f"the head is {head}, within an append", (line,))


def note_heads(log: Log, end_ns: int, head: int | None, floor: int | None, line: int) -> None:
    if head:
        log.heads.add(end_ns, head, line)
    if floor:
        log.floors.add(end_ns, floor, line)


def pieces_are_contiguous(
    evidence: Evidence,
    log: Log,
    piece: Piece,
    records: Sequence[tuple[int, str]],
    gap: tuple[int, int] | None,
) -> Iterator[Violation]:
    """The records of an answer are every seq of its range, but those that were deleted, completed or reported lost.

    `piece` is the range. A hole that is not explained yet waits for the end of the history: the deletion that
    explains it may end later.
    """
    line, at, known = piece.line, piece.first - 1, log.at
    evidence.records_read += len(records)
    if piece.last < at:
        yield NotAPiece(log.name, f"the position went from {at} back to {piece.last}", (line,))
    if gap is not None and not log.topic.lossy:
        yield Hole(log.name, f"{gap[0]} to {gap[1]} are reported lost, of a topic that loses nothing", (line,))
    for seq, body in records:
        if seq <= at or seq > piece.last:
            text = f"seq {seq} after {at}, in a range from {piece.first} to {piece.last}"
            yield NotAPiece(log.name, text, (line,))
            return
        if seq != at + 1:
            _leave_hole(evidence, log, piece, at + 1, seq - 1, gap)
        at = seq
        if known.get(seq) != body:
            yield from contents_agree(evidence, log, seq, body, line)
    if at < piece.last:
        _leave_hole(evidence, log, piece, at + 1, piece.last, gap)
    yield from deleted_stays_deleted(evidence, log, records, piece)


def _leave_hole(evidence: Evidence, log: Log, piece: Piece, first: int, last: int, gap: tuple[int, int] | None) -> None:
    parts = [(first, last)]
    if gap is not None and log.topic.lossy and gap[0] <= last and gap[1] >= first:
        parts = [(first, gap[0] - 1), (gap[1] + 1, last)]
    for low, high in parts:
        if low <= high and (low := log.unexplained(low, high, evidence.batches)) <= high:
            log.holes.append(Piece(low, high, piece.start_ns, piece.end_ns, piece.line, piece.caught_up))


def deleted_stays_deleted(
    evidence: Evidence, log: Log, records: Sequence[tuple[int, str]], piece: Piece
) -> Iterator[Violation]:
    """A record that was deleted, or a job that was completed, before the request is not shown."""
    if not records:
        return
    everything = log.cuts.get(None)
    before, of = everything.sure.before(piece.start_ns) if everything else (0, 0)
    if records[0][0] < before:
        yield Undeleted(log.name, f"seq {records[0][0]} is shown after a deletion before {before}", (of, piece.line))
    if log.acks:
        for seq, _ in records:
            end_ns, of = log.acks.get(seq, (piece.start_ns, 0))
            if end_ns < piece.start_ns:
                yield Undeleted(log.name, f"job {seq} is shown after its ack", (of, piece.line))
    if len(log.cuts) > (everything is not None):
        for seq, _ in records:
            tag = log.tag_of(seq, evidence.batches)
            cut = log.cuts.get(tag) if tag is not None else None
            before, of = cut.sure.before(piece.start_ns) if cut else (0, 0)
            if seq < before and _has_its_tag(evidence, log, seq):
                yield Undeleted(log.name, f"seq {seq} is shown after a deletion of {tag}", (of, piece.line))


def _has_its_tag(evidence: Evidence, log: Log, seq: int) -> bool:
    """Whether a record certainly has the tag of `Log.tag_of`: one of the routers of a copy may have removed it."""
    if seq not in log.copied_tags:
        return True
    source = evidence.batches[log.at[seq]].topic
    return all(router.preserve_tag for router in evidence.between(source, log.name))


def take_delete(log: Log, delete: Delete, line: int) -> None:
    """What a deletion may explain from now on, and what it certainly removed."""
    if delete.outcome == "failed":
        return
    args, result = delete.args, delete.result
    head = result.head_seq if result else ANY - 1
    asked = ANY if args.before_seq is None else args.before_seq
    cut = log.cuts.setdefault(args.tag, Cut())
    cut.add(delete.start_ns, min(asked, head + 1))
    if result is not None:
        there = max(log.acked.before(delete.start_ns)[0], log.heads.before(delete.start_ns)[0])
        cut.sure.add(delete.end_ns, min(asked, there + 1), line)


# When the history has ended


def holes_are_explained(evidence: Evidence, log: Log) -> Iterator[Violation]:
    """Every hole was caused by a deletion, or by an ack, that began before the read ended."""
    batches = evidence.batches
    for hole in log.holes:
        seq = log.unexplained_at(hole, batches)
        if seq > hole.last:
            continue
        body = log.at.get(seq)
        batch = batches.get(body) if body is not None else None
        if hole.caught_up:
            yield EarlyCaughtUp(log.name, f"seq {seq} was there before, and is not shown", (hole.line,))
        elif batch is not None and batch.acked and batch.topic == log.name and batch.acked_ns < hole.start_ns:
            yield Lost(log.name, f"seq {seq}, {body}, is not shown", (batch.line, hole.line))
        else:
            yield Hole(log.name, f"nothing explains that seq {seq} is not shown", (hole.line,))


def note_ghosts(evidence: Evidence) -> None:
    """A deletion by tag also explains holes of records that no operation showed."""
    dests: dict[str, list[tuple[Log, bool]]] = {}
    for log in evidence.logs.values():
        for name in evidence.sources[log.name] - {log.name}:
            dests.setdefault(name, []).append((log, evidence.copied_once(name, log.name)))
    for batch in {id(each): each for each in evidence.batches.values() if not each.failed}.values():
        tagged = [(body, tag) for body, tag in zip(batch.bodies, batch.tags or (), strict=False) if tag is not None]
        if not batch.acked and not batch.first:
            evidence.logs[batch.topic].ghosts.update(tag for _, tag in tagged)
        for dest, once in dests.get(batch.topic, ()):
            dest.ghosts.update(tag for body, tag in tagged if not once or body not in dest.copies)


def failures_are_absent(evidence: Evidence) -> Iterator[Violation]:
    """An append that had certainly failed is nowhere."""
    seen: set[int] = set()
    for batch in evidence.batches.values():
        if batch.failed and batch.seen_line and id(batch) not in seen:
            seen.add(id(batch))
            text = f"{batch.bodies[0]} had failed, and is there"
            yield FailedPresent(batch.topic, text, (batch.line, batch.seen_line))


def nothing_is_invented(evidence: Evidence) -> Iterator[Violation]:
    """Each content that was read is one that a client sent."""
    for body, places in evidence.early.items():
        log, seq, line = places[0]
        yield Invented(log.name, f"seq {seq} is {body}, which no client sent", (line,))
