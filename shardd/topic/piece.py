"""Neighbouring records of a topic, taken out of their batches."""

from __future__ import annotations

from dataclasses import dataclass

from proto.format.columns import Columns


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece. `flags` are the delete flags of its records, None if none is deleted."""

    first_seq: int
    columns: Columns
    flags: bytes | None = None

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.columns.count - 1
