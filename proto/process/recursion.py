"""Recursion limit: in Python 3.11, parsers and encoders in C count the levels of JSON against it, beside the calls on
the stack.

Earlier releases had no other bound on what they took, so records of up to about 980 levels are stored. They are parsed
again where jobs are handed out, dead letters are moved and commands print records, below other calls.
"""

from __future__ import annotations

import sys

LIMIT = 3000
"""A level takes less than 1 KiB of the stack."""


def allow_old_records() -> None:
    """Raise the limit of this process, so that every stored record can be parsed and encoded."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), LIMIT))
