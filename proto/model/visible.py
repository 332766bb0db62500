"""Visible text: what others wrote, safe to print on a terminal and within one line.

    escaped                                                     because
    C0, DEL, C1 (0 to 1F, 7F to 9F), also tab and line breaks   a terminal obeys them; lines can be forged
    U+2028, U+2029                                              some programs end a line there
    bidirectional controls                                      the text reads in another order than it has
    lone surrogates                                             they have no UTF-8

Each becomes `\\uXXXX`, as in JSON, so JSON stays the same JSON. Everything else stays as it is, joined emoji included.
A backslash stays, too: plain text is for people, JSON for programs.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
