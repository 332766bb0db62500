"""Rules of queues: one holder at a time, and acks that hold.

Every time is an interval. A lease was given between the start and the end of its claim, so it was certainly held from
the end of the claim until `lease_ms` after its start, unless its holder began to give it back. Two leases of a job
overlap only if the second claim began and ended while the first was certainly held.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from topics_history.evidence import NEVER_NS, Evidence, Lease, Log, Use
from topics_history.format import Ack, Claim, Extend, Nack
from topics_history.violations import AckedReturned, AckedTwice, LeasesOverlap, StaleLease, Violation

SLACK_NS = 2_000_000
"""A deadline is in whole milliseconds."""
DRIFT = 1000
"""A clock may run fast by one part in as many."""


def _until(start_ns: int, lease_ms: int) -> int:
    lasts_ns = lease_ms * 1_000_000
    return start_ns + lasts_ns - lasts_ns // DRIFT - SLACK_NS


def take_claim(log: Log, claim: Claim, line: int) -> Iterator[Violation]:
    """A lease id is given once."""
    assert claim.result is not None
    until_ns = _until(claim.start_ns, claim.args.lease_ms)
    for seq, _, lease_id in claim.result.jobs:
        if lease_id in log.leases:
            yield LeasesOverlap(log.name, f"job {seq}: {lease_id} was given twice", (log.leases[lease_id].line, line))
        log.leases[lease_id] = Lease(seq, claim.start_ns, claim.end_ns, until_ns, line)


def take_use(log: Log, use: Ack | Nack | Extend, line: int) -> Iterator[Violation]:
    """Only a lease that was given can be used, and an ack completes a job that no other ack has."""
    skipped = frozenset(use.result.skipped) if use.result else frozenset()
    kind = type(use).__name__.lower()
    for seq, lease_id in zip(use.args.seqs, use.args.lease_ids, strict=True):
        if use.outcome == "failed" or seq in skipped:
            continue
        lease = log.leases.get(lease_id)
        accepted = use.outcome == "ok"
        if lease is None or lease.seq != seq:
            if accepted:
                yield StaleLease(log.name, f"job {seq}: {lease_id} was not given, and {kind} accepted it", (line,))
            continue
        if not isinstance(use, Extend):
            lease.released = True
            lease.until_ns = min(lease.until_ns, use.start_ns)
        else:
            until_ns = _until(use.start_ns, use.args.lease_ms)
            lease.until_ns = until_ns if accepted and not lease.released else min(lease.until_ns, until_ns)
        if accepted:
            log.uses.setdefault(seq, []).append(Use(kind, use.start_ns, use.end_ns, line, lease_id))
        if isinstance(use, Ack):
            log.finished[seq] = min(log.finished.get(seq, use.start_ns), use.start_ns)
            if accepted:
                if seq in log.acks:
                    yield AckedTwice(log.name, f"job {seq}", (log.acks[seq][1], line))
                else:
                    log.acks[seq] = (use.end_ns, line)


def leases_are_exclusive(evidence: Evidence, log: Log) -> Iterator[Violation]:
    """No claim gets a job while another worker certainly holds it.

    Leases that are not durable end when a process dies, so they prove nothing after the next fault.
    """
    by_seq: dict[int, list[Lease]] = {}
    for lease in log.leases.values():
        if not log.topic.leases_durable:
            lease.until_ns = min(lease.until_ns, evidence.faults.first(lease.start_ns))
        by_seq.setdefault(lease.seq, []).append(lease)
    for seq, leases in by_seq.items():
        ends: list[int] = []
        held: list[Lease] = []
        latest = leases[0]
        for lease in leases:  # in the order of their ends
            at = bisect_left(ends, lease.start_ns)
            if at and held[at - 1].until_ns > lease.end_ns:
                yield LeasesOverlap(log.name, f"job {seq}", (held[at - 1].line, lease.line))
            latest = max(latest, lease, key=lambda each: each.until_ns)
            ends.append(lease.end_ns)
            held.append(latest)
        yield from _acks_hold(log, seq, leases)


def _acks_hold(log: Log, seq: int, leases: list[Lease]) -> Iterator[Violation]:
    """A completed job is never leased again; a lease that another replaced is of no use."""
    acked_ns, of = log.acks.get(seq, (NEVER_NS, 0))
    for lease in leases:
        if lease.start_ns > acked_ns:
            yield AckedReturned(log.name, f"job {seq}", (of, lease.line))
            break
    ends = [lease.end_ns for lease in leases]
    latest: list[Lease] = []
    for lease in leases:
        latest.append(max(latest[-1], lease, key=lambda each: each.start_ns) if latest else lease)
    for use in log.uses.get(seq, ()):
        at = bisect_left(ends, use.start_ns)
        mine = log.leases[use.lease_id]
        if at and latest[at - 1].start_ns > mine.end_ns:
            text = f"job {seq}: {use.kind} accepted {use.lease_id}, which a later lease had replaced"
            yield StaleLease(log.name, text, (mine.line, latest[at - 1].line, use.line))
