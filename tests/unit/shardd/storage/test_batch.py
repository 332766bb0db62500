"""Claims about batches in memory."""

from __future__ import annotations

from itertools import combinations

from proto.format.frame import Columns, encode_batch, plain
from shardd.storage.batch import Batch


def batch(start: int, gone: tuple[int, ...]) -> Batch:
    columns = Columns(5, 1, plain([b"x" * 10**size for size in range(5)]))
    made = Batch(encode_batch(columns, 1, 1).head, 1, columns)
    made.cut(start)
    for position in gone:
        made.delete([position])
    return made


def test_records_deleted_together_count_as_those_deleted_one_by_one() -> None:
    ranges = [tuple(range(first, stop)) for first in range(5) for stop in range(first + 1, 6)]
    for start in range(3):
        for gone in ((), *combinations(range(5), 1), *combinations(range(5), 2)):
            for positions in ranges:
                together, single = batch(start, gone), batch(start, gone)
                together.delete(positions)
                for position in positions:
                    single.delete([position])
                assert (together.live, together.live_size, together.flags) == (
                    single.live,
                    single.live_size,
                    single.flags,
                )
