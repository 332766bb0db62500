"""Visible text: what others wrote, safe to print on a terminal and within one line, or in a table.

`visible` is that of `proto.model.visible` of the service, because this package is installed alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Rows of cells as lines of a table. The columns at the places `right` are aligned to the right."""
    cells = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip() + "\n")
    return "".join(lines)
