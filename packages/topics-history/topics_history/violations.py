"""Violations: a class for each promise that a history can break. Each names the lines of the operations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    topic: str
    text: str
    lines: tuple[int, ...]
    """Lines of the file, from 1: the operations that contradict each other."""

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.lines))
        return f"{type(self).__name__}: {self.topic}: {self.text} (line{'s' * (len(self.lines) > 1)} {lines})"


class Lost(Violation):
    """An acknowledged record is not shown, and no deletion or gap explains that."""


class Hole(Violation):
    """A read or a stream passes over seqs without records, and nothing explains it."""


class NotAPiece(Violation):
    """The records of one answer are not in order, or not in the range that the answer claims."""


class Changed(Violation):
    """One seq has two contents."""


class Doubled(Violation):
    """One append is in the topic twice."""


class Split(Violation):
    """The records of one append do not have consecutive seqs, or not as many as there are."""


class FailedPresent(Violation):
    """An append that had certainly failed is in a topic."""


class Invented(Violation):
    """A content that no client sent to this topic, or to a source of it."""


class OutOfOrder(Violation):
    """An append got a seq that is not after all that had been acknowledged, or seen, before it began."""


class StaleHead(Violation):
    """The head is before a record that was acknowledged before the request."""


class HeadBack(Violation):
    """The head, or the first seq, is before one that was shown before the request."""


class Undeleted(Violation):
    """A record is shown that was deleted before the request."""


class EarlyCaughtUp(Violation):
    """An answer says that there is no more, and there is."""


class Repeated(Violation):
    """A stream delivers a record again, although it was not opened before it."""


class NotOpened(Violation):
    """A frame of a topic that its stream was not opened for."""


class CursorBack(Violation):
    """A cursor is before a position that it had, or where no client put it."""


class LeasesOverlap(Violation):
    """Two workers held one job at the same time."""


class AckedReturned(Violation):
    """A job was leased after its ack."""


class AckedTwice(Violation):
    """Two acks completed the same job."""


class StaleLease(Violation):
    """An ack, a nack or an extend was accepted from a lease that a later one had replaced, or that was never given."""


class CopyMissing(Violation):
    """A router did not copy an acknowledged record."""


class CopyTwice(Violation):
    """A router with `exactly_once` copied a record twice."""


class CopyOrder(Violation):
    """A router copied a record, for the first time, after a later one of its source."""
