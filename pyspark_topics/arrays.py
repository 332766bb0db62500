"""Arrow arrays and scalars of Python values, made from buffers.

`pa.array` and `pa.scalar` import pandas, where it is installed, to learn whether they got a Series. That takes 0.25 s
of CPU in each new Python process of Spark, more than planning a read of a million records. So what plans a read and
what reads files use these functions; both work without pandas.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

_CODES = {pa.uint8(): "B", pa.int32(): "i", pa.int64(): "q", pa.uint64(): "Q"}


def numbers(values: Iterable[int], kind: Any = pa.int64()) -> Any:  # noqa: B008 - types of Arrow are constants
    """Array of whole numbers. Raises `OverflowError`."""
    raw = array(_CODES[kind], values)
    return pa.Array.from_buffers(kind, len(raw), [None, pa.py_buffer(raw)])


def number(value: int, kind: Any = pa.int64()) -> Any:  # noqa: B008
    """Scalar of a whole number. Raises `OverflowError`."""
    return numbers((value,), kind)[0]


def texts(values: Sequence[bytes], kind: Any = pa.binary()) -> Any:  # noqa: B008
    """Array of bytes, or of strings in UTF-8."""
    ends = array("i", accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


FALSE = pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\0")])[0]
