"""Rules of routers: a copy of each record, in the order of its source, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from topics_history.evidence import Evidence, Log
from topics_history.violations import CopyMissing, CopyOrder, Violation


def copies_are_in_order(evidence: Evidence, log: Log) -> Iterator[Violation]:
    """The first copies of the records of a source have the order of the source.

    Between a topic and one of its sources; over a chain of routers, too.
    """
    for name in sorted(evidence.sources[log.name]):
        source, before, of = evidence.logs[name].at, 0, 0
        for seq in sorted(source):
            copied = log.copies.get(source[seq])
            if copied is None:
                continue
            if copied < before:
                text = f"{source[seq]} of {name} is first at {copied}, and the record before it at {before}"
                yield CopyOrder(log.name, text, (of, evidence.batches[source[seq]].line))
                break
            before, of = copied, evidence.batches[source[seq]].line


def copies_are_complete(evidence: Evidence, log: Log) -> Iterator[Violation]:
    """Each acknowledged record of a source has a copy, once the history is settled and the copies were read.

    Records that a client deleted from the source, or from the topic, may lack one, as may those of lossy topics.
    """
    if not log.read_whole or log.topic.lossy or log.cuts or log.finished:
        return
    for name in evidence.sources[log.name]:
        source = evidence.logs[name]
        if source.topic.lossy or source.cuts or source.finished:
            continue
        for body in source.at.values():
            batch = evidence.batches.get(body)
            if batch is not None and batch.topic == name and batch.acked and body not in log.copies:
                yield CopyMissing(log.name, f"{body} of {name} has no copy", (batch.line,))
                return
