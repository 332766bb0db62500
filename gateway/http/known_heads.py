"""Known heads: the parsed heads of requests that were served, by their bytes.

Clients repeat their heads byte by byte. A head that is known costs one look-up instead of parsing, routing and
authorization: `Head.plan` holds what the API found out. `Content-Length` varies with the body, so its digits are not
part of the bytes that are compared.

A head contains the client's secret. The API has a head remembered only once its key was identified and its request
allowed, and forgets all of them when the keys change.
"""

from __future__ import annotations

from gateway.http.request_head import Head

MOST_HEADS = 2048
MOST_HEAD_BYTES = 1 << 20
LARGEST_BYTES = 2 << 10
"""Longer heads are parsed each time."""
_LENGTHS = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")
_LENGTH_BYTES = len(_LENGTHS[0])
MOST_DIGITS = 15


def cut(raw: bytes) -> tuple[bytes, int | None]:
    """Return a head without the digits of its Content-Length, and their number; None where it has no such header. A
    head that `parse` has to look at each time gives b"".

    The digits are cut out of the first line found, so equal results have been cut at the same place.
    """
    if len(raw) > LARGEST_BYTES:
        return b"", None
    at = raw.find(_LENGTHS[0])
    if at < 0:
        at = raw.find(_LENGTHS[1])
        if at < 0:
            return raw, None
    begin = at + _LENGTH_BYTES
    end = raw.find(b"\r", begin)
    digits = raw[begin:end]
    if not digits.isdigit() or len(digits) > MOST_DIGITS:
        return b"", None
    return raw[:begin] + raw[end:], int(digits)


class KnownHeads:
    """The heads in two generations. A full young one becomes the old one, and the old one is forgotten; a head that is
    found moves to the young one."""

    def __init__(self, most: int = MOST_HEADS, most_bytes: int = MOST_HEAD_BYTES) -> None:
        self._most = most // 2
        self._most_bytes = most_bytes // 2
        self._young: dict[bytes, Head] = {}
        self._old: dict[bytes, Head] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, cut: bytes) -> Head | None:
        head = self._young.get(cut)
        if head is None and (head := self._old.pop(cut, None)) is not None:
            self.keep(cut, head)
        return head

    def keep(self, cut: bytes, head: Head) -> None:
        if cut not in self._young:
            if len(self._young) >= self._most or self._bytes + len(cut) > self._most_bytes:
                self._old, self._young, self._bytes = self._young, {}, 0
            self._bytes += len(cut)
        self._young[cut] = head

    def forget(self) -> None:
        self._young, self._old, self._bytes = {}, {}, 0
