"""Claims about the checker as a whole: histories of a service that keeps its promises pass, bent ones do not."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.histories import Story, play
from topics_history import format as f
from topics_history.checker import check

SEEDS = 20
RECORD_BYTES = 1000
"""Memory of the checker for each appended record, as docs/histories.md states it."""


def right(seeds: range, operations: int, clients: int) -> None:
    for seed in seeds:
        report = play(seed, operations, clients).check()
        assert (report.counts, report.unread) == ({}, []), (seed, clients, report.violations[:3])


@pytest.mark.parametrize("clients", [1, 3, 8])
def test_a_service_that_keeps_its_promises_breaks_no_rule(clients: int) -> None:
    right(range(SEEDS), 150, clients)


@pytest.mark.long
@pytest.mark.parametrize("clients", [1, 3, 8, 20])
def test_nor_in_many_longer_histories(clients: int) -> None:
    first = random.SystemRandom().randrange(1 << 32)
    right(range(first, first + 500), 1000, clients)


@pytest.mark.long
def test_a_million_operations_are_checked_in_a_minute_in_bounded_memory(tmp_path: Path) -> None:
    """Half are appends of a record of their own, half reads of eight. The reads take no memory."""
    path = tmp_path / "history"
    with path.open("wb") as file:
        writer = f.Writer(file, {"t": f.Topic()})
        common: dict[str, Any] = {"client": "c", "outcome": "ok", "topic": "t"}
        for n in range(1, 500_001):
            args, result = f.AppendArgs([f"client-{n}/0123456789abcdef"]), f.Appended(n, n, n)
            writer.write(f.Append(start_ns=2 * n, end_ns=2 * n + 1, args=args, result=result, **common))
            low = max(1, n - 7)
            records = [(seq, f"client-{seq}/0123456789abcdef") for seq in range(low, n + 1)]
            read = f.ReadResult(records, n, n, 1, True)
            writer.write(f.Read(start_ns=2 * n, end_ns=2 * n + 1, args=f.ReadArgs(low - 1), result=read, **common))
        writer.close()
    before_bytes, began = peak_bytes(), time.process_time()
    report = check(path)
    took_s = time.process_time() - began
    assert (report.operations, report.records, report.counts) == (1_000_000, 500_000, {})
    assert took_s < 60
    assert (peak_bytes() - before_bytes) / report.records < RECORD_BYTES


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# Mutations: each bends a valid history so that it must be refused, and returns whether it could.

Mutation = Callable[[Story, random.Random], bool]


def _draw(story: Story, rng: random.Random, where: Callable[[Any], Any]) -> Any:
    found = [each for each in story.operations if each.outcome == "ok" and where(each)]
    return rng.choice(found) if found else None


def _final(story: Story, topic: str = "log") -> Any:
    return next(each for each in reversed(story.operations) if isinstance(each, f.Read) and each.topic == topic)


def a_read_lacks_a_record(story: Story, rng: random.Random) -> bool:
    read = _draw(story, rng, lambda each: isinstance(each, f.Read) and each.topic == "copy" and each.result.records)
    if read:
        read.result.records.remove(rng.choice(read.result.records))
    return bool(read)


def a_read_has_another_content(story: Story, rng: random.Random) -> bool:
    read = _draw(story, rng, lambda each: isinstance(each, f.Read) and each.result.records)
    if read:
        at = rng.randrange(len(read.result.records))
        read.result.records[at] = (read.result.records[at][0], "other")
    return bool(read)


def an_append_that_is_there_had_failed(story: Story, rng: random.Random) -> bool:
    kept = {body for _, body in _final(story).result.records}
    append = _draw(story, rng, lambda each: isinstance(each, f.Append) and each.args.bodies[0] in kept)
    if append:
        append.outcome, append.result = "failed", None
    return bool(append)


def an_append_was_acknowledged_elsewhere(story: Story, rng: random.Random) -> bool:
    kept = {body for _, body in _final(story).result.records}
    append = _draw(story, rng, lambda each: isinstance(each, f.Append) and each.args.bodies[0] in kept)
    if append:
        append.result.first_seq += 1
        append.result.last_seq += 1
    return bool(append)


def a_head_lacks_an_acknowledged_record(story: Story, rng: random.Random) -> bool:
    appends = [each for each in story.operations if isinstance(each, f.Append) and each.outcome == "ok"]
    state = _draw(
        story,
        rng,
        lambda each: (
            isinstance(each, f.GetState) and any(each.topic == a.topic and a.end_ns < each.start_ns for a in appends)
        ),
    )
    if state:
        acked = max(a.result.last_seq for a in appends if a.topic == state.topic and a.end_ns < state.start_ns)
        state.result.head_seq = acked - 1
    return bool(state)


def a_cursor_goes_back(story: Story, rng: random.Random) -> bool:
    put = _draw(story, rng, lambda each: isinstance(each, f.CursorPut) and each.result.seq > 0)
    if put:
        story.add(f.CursorGet, None, f.CursorResult(put.result.seq - 1), "", topic="log", args=f.CursorGetArgs("c"))
    return bool(put)


def a_job_returns_after_its_ack(story: Story, rng: random.Random) -> bool:
    ack = _draw(story, rng, lambda each: isinstance(each, f.Ack) and set(each.args.seqs) - set(each.result.skipped))
    if ack:
        seq = (set(ack.args.seqs) - set(ack.result.skipped)).pop()
        body = next(
            body
            for each in story.operations
            if isinstance(each, f.Claim) and each.result
            for number, body, _ in each.result.jobs
            if number == seq
        )
        story.add(f.Claim, None, f.ClaimResult([(seq, body, "new")]), "", topic="jobs", args=f.ClaimArgs("w", 5))
    return bool(ack)


def two_workers_hold_a_job(story: Story, rng: random.Random) -> bool:
    jobs = _final(story, "jobs").result.records
    if jobs:
        for lease in ("one", "two"):
            result = f.ClaimResult([(*jobs[0], lease)])
            story.add(f.Claim, None, result, "", topic="jobs", args=f.ClaimArgs("w", 5000))
    return bool(jobs)


def a_copy_is_missing(story: Story, rng: random.Random) -> bool:
    """The service never made the last copies: no read showed them."""
    last = _final(story, "copy").result.records[-1:]
    if not last or any(isinstance(each, f.Delete) for each in story.operations):
        return False
    acked = {
        body for each in story.operations if isinstance(each, f.Append) and each.result for body in each.args.bodies
    }
    seq, body = last[0]
    if body not in acked or any(body == other for _, other in _final(story, "copy").result.records[:-1]):
        return False
    for each in story.operations:
        if isinstance(each, f.Read) and each.topic == "copy" and each.result:
            each.result.records = [record for record in each.result.records if record[0] != seq]
            each.result.next_from_seq = min(each.result.next_from_seq, seq - 1)
            each.result.head_seq = min(each.result.head_seq or 0, seq - 1)
            each.result.earliest_seq = 1
            if each.args.from_seq >= seq:
                each.args.from_seq = seq - 1
        elif isinstance(each, f.GetState) and each.topic == "copy" and each.result:
            each.result.head_seq = min(each.result.head_seq, seq - 1)
            each.result.earliest_seq = 1
    return True


def a_deleted_record_returns(story: Story, rng: random.Random) -> bool:
    kept = dict(_final(story).result.records)
    shown = {r for each in story.operations if isinstance(each, f.Read) and each.topic == "log" and each.result
             for r in each.result.records}  # fmt: skip
    before = {a.result.first_seq for a in story.operations if isinstance(a, f.Append) and a.topic == "log" and a.result}
    tags = {d.args.tag for d in story.operations if isinstance(d, f.Delete) and d.result}
    gone = [record for record in shown if record[0] not in kept and record[0] in before]
    floor = max((d.args.before_seq or 0 for d in story.operations if isinstance(d, f.Delete) and d.result), default=0)
    gone = [record for record in gone if record[0] < floor] if tags else []
    if gone:
        record = rng.choice(gone)
        result = f.ReadResult([record], record[0])
        story.add(f.Read, None, result, "", topic="log", args=f.ReadArgs(record[0] - 1))
    return bool(gone)


def a_stream_skips_a_record(story: Story, rng: random.Random) -> bool:
    if any(isinstance(each, f.Delete) for each in story.operations):
        return False
    frame = _draw(story, rng, lambda each: isinstance(each, f.Frame) and each.result.records)
    if frame:
        del frame.result.records[rng.randrange(len(frame.result.records))]
    return bool(frame)


MUTATIONS: list[Mutation] = [
    a_read_lacks_a_record,
    a_read_has_another_content,
    an_append_that_is_there_had_failed,
    an_append_was_acknowledged_elsewhere,
    a_head_lacks_an_acknowledged_record,
    a_cursor_goes_back,
    a_job_returns_after_its_ack,
    two_workers_hold_a_job,
    a_copy_is_missing,
    a_deleted_record_returns,
    a_stream_skips_a_record,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_history_is_refused(mutation: Mutation) -> None:
    bent = 0
    for seed in range(SEEDS):
        story = play(seed, 150)
        if mutation(story, random.Random(seed)):
            bent += 1
            assert story.kinds() != [], seed
    assert bent > SEEDS / 10


def test_a_report_shows_the_first_violations_of_a_kind_and_counts_the_rest() -> None:
    story = Story()
    story.append("a", 1)
    for _ in range(50):
        story.read("", to=1)
    report = story.check()
    assert report.counts == {"Lost": 50}
    assert len(report.violations) == 20
