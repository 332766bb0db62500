"""Batches that hypothesis makes, and their records as rows."""

from __future__ import annotations

from hypothesis import strategies as st

from proto.format.columns import Column, Columns, optional, plain

cells = st.one_of(st.none(), st.binary(max_size=12))


@st.composite
def batches(draw: st.DrawFn) -> Columns:
    count = draw(st.integers(1, 20))

    def column() -> Column | None:
        if draw(st.booleans()):
            return optional([draw(st.binary(max_size=4))] * count)
        return optional(draw(st.lists(cells, min_size=count, max_size=count)))

    ts = draw(st.integers(0, 2**40))
    times = ts if draw(st.booleans()) else [ts + i for i in range(count)]
    data = plain(draw(st.lists(st.binary(min_size=1, max_size=20), min_size=count, max_size=count)))
    return Columns(count, times, data, column(), column(), column(), draw(st.binary(max_size=9)))


def rows(batch: Columns) -> list[tuple[object, ...]]:
    n = batch.count
    columns = [list(c.cells(0, n)) if c else [None] * n for c in (batch.data, batch.tag, batch.node, batch.meta)]
    return list(zip(batch.times(0, n), *columns, strict=True))
