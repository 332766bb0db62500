"""Deletions of records of a topic by tag and by seq, evaluated for many records at once."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics.arrays import FALSE, number, numbers, texts

EQUAL, PREFIX = "Eq", "Glob"


@dataclass(slots=True)
class Deletions:
    """Deletions of one topic. `equal` and `prefixes` map a tag, or a prefix of tags, to the seq before which such
    records are deleted. `seqs` are deleted whatever their tags."""

    equal: dict[bytes, int] = field(default_factory=dict)
    prefixes: dict[bytes, int] = field(default_factory=dict)
    seqs: array[int] = field(default_factory=lambda: array("q"))
    _lookup: Any = None

    def __bool__(self) -> bool:
        return bool(self.equal or self.prefixes or self.seqs)

    def add(self, operator: str, text: bytes, end: int) -> None:
        """Delete records before seq `end` whose tag is `text`, or with `PREFIX` begins with it. Raises `ValueError`."""
        if operator not in (EQUAL, PREFIX):
            raise ValueError(f"the deletion operator {operator!r} is not known")
        ends = self.equal if operator == EQUAL else self.prefixes
        ends[text] = max(ends.get(text, 0), end)
        self._lookup = None

    def after(self, low: int) -> Deletions:
        """The deletions that may affect records from seq `low` on."""
        equal = {tag: end for tag, end in self.equal.items() if end > low}
        prefixes = {prefix: end for prefix, end in self.prefixes.items() if end > low}
        return Deletions(equal, prefixes, array("q", (seq for seq in self.seqs if seq >= low)))

    def dead(self, tags: Any, seqs: Any) -> Any:
        """Boolean array, true for deleted records. `tags` (binary with nulls) and `seqs` (int64) have equal lengths."""
        dead = pa.repeat(FALSE, len(seqs))
        if self.equal:
            if self._lookup is None:
                self._lookup = texts(list(self.equal)), numbers(self.equal.values())
            known, ends = self._lookup
            before = ends.take(pc.index_in(tags, value_set=known))
            dead = pc.fill_null(pc.less(seqs, before), FALSE)
        for prefix, end in self.prefixes.items():
            matching = pc.fill_null(pc.starts_with(tags, pattern=prefix), FALSE)
            dead = pc.or_(dead, pc.and_(matching, pc.less(seqs, number(end))))
        if self.seqs:
            dead = pc.or_(dead, pc.is_in(seqs, value_set=numbers(self.seqs)))
        return dead
