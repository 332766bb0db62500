"""Rules of positions that a client keeps: streams over reconnects, and named cursors."""

from __future__ import annotations

from collections.abc import Iterator

from topics_history.evidence import Connection, Evidence, Highs, Log, Piece
from topics_history.format import CursorGet, CursorPut, Frame, Open
from topics_history.log_rules import note_heads, pieces_are_contiguous
from topics_history.violations import CursorBack, NotOpened, Repeated, Violation


def take_open(evidence: Evidence, opened: Open) -> None:
    """The stream continues after these positions: its client has everything up to them."""
    before = evidence.connections.get(opened.args.stream)
    silent = dict.fromkeys(opened.args.positions, before.opened_ns if before else opened.start_ns)
    if before:
        silent |= before.silent  # what a fault set back stays so until the topic has a frame
    evidence.connections[opened.args.stream] = Connection(opened.start_ns, opened.end_ns, silent)
    for topic, position in opened.args.positions.items():
        evidence.positions[opened.args.stream, topic] = position


def frames_are_the_log(evidence: Evidence, log: Log, frame: Frame, line: int) -> Iterator[Violation]:
    """All frames of a stream, over its connections, are one piece of the log.

    A record, or a gap, is repeated only after a reconnect with a position before it, or with one that a fault took from
    the service's memory: then the first frame of the topic may begin earlier. `caught-up` is true; gaps are those of
    the topic.
    """
    result = frame.result
    assert result is not None
    key = frame.args.stream, log.name
    position = evidence.positions.get(key)
    if position is None:
        yield NotOpened(log.name, f"a frame of the stream {frame.args.stream}", (line,))
        return
    connection = evidence.connections[frame.args.stream]
    begins = result.records[0][0] if result.records else result.gap_from
    if 0 < begins <= position:
        text = f"{'seq' if result.records else 'a gap from'} {begins} after {position}"
        if log.name not in connection.silent:
            yield Repeated(log.name, text, (line,))
            return
        evidence.rewound.append((log, text, line, connection.silent[log.name], connection.until_ns))
        position = begins - 1
    connection.silent.pop(log.name, None)
    gap = (max(1, result.gap_from), result.to_seq) if result.kind == "gap" and result.to_seq else None
    caught_up = result.kind == "caught_up"
    last = max(position, result.to_seq) if result.kind != "records" else result.to_seq
    piece = Piece(position + 1, last, frame.start_ns, frame.end_ns, line, caught_up)
    yield from pieces_are_contiguous(evidence, log, piece, result.records, gap)
    evidence.positions[key] = max(position, last)
    note_heads(log, frame.end_ns, result.to_seq if result.kind != "gap" else None, None, line)


def only_faults_rewind_streams(evidence: Evidence) -> Iterator[Violation]:
    """A stream that began before the position of its client had lost it in a fault, since the topic had a frame."""
    for log, text, line, since_ns, until_ns in evidence.rewound:
        if evidence.faults.first(since_ns) > until_ns:
            yield Repeated(log.name, text, (line,))


def take_cursor(evidence: Evidence, log: Log, operation: CursorPut | CursorGet, line: int) -> Iterator[Violation]:
    """A cursor never goes back in real time, and a put that was accepted is not before what it asked for.

    One that is not there is at 0: only if no put of it had been accepted before, since histories have no deletions of
    cursors or topics.
    """
    key = log.name, operation.args.cursor
    if isinstance(operation, CursorPut) and operation.outcome != "failed":
        puts = evidence.puts.setdefault(key, {})
        puts[operation.args.seq] = min(puts.get(operation.args.seq, operation.start_ns), operation.start_ns)
    result = operation.result
    if result is None:
        return
    known = evidence.cursors.setdefault(key, Highs())
    before, of = known.before(operation.start_ns)
    if result.seq < before:
        yield CursorBack(log.name, f"{key[1]} is at {result.seq}, and was at {before}", (of, line))
    if isinstance(operation, CursorPut) and result.seq < operation.args.seq:
        yield CursorBack(log.name, f"{key[1]} was put to {operation.args.seq}, and is at {result.seq}", (line,))
    known.add(operation.end_ns, result.seq, line)
    if result.seq and evidence.puts.get(key, {}).get(result.seq, operation.end_ns) >= operation.end_ns:
        evidence.cursor_answers.append((key, result.seq, operation.end_ns, line))


def cursors_are_where_they_were_put(evidence: Evidence) -> Iterator[Violation]:
    """Each position of a cursor is one that a client asked for before it was shown."""
    for key, seq, end_ns, line in evidence.cursor_answers:
        if evidence.puts.get(key, {}).get(seq, end_ns) >= end_ns:
            yield CursorBack(key[0], f"{key[1]} is at {seq}, where no client had put it", (line,))
