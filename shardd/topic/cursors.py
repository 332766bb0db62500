"""Named cursors: durable positions of consumers, stored with their topic and deleted with it.

A cursor moves backwards only when the request has `force`. Its name is any text of 1 to 255 bytes of UTF-8.

A cursor keeps its maker, the id of the API key that made it, while it exists. Where there are several keys, one of them
makes at most half of a topic's cursors, so that none takes the last one from the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from operator import attrgetter, countOf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from proto.api.answers import CursorEntry, CursorState
from proto.api.requests import CursorRequest
from proto.model.body import Form
from proto.model.errors import ErrorCode, TopicsError, invalid, throttled
from proto.model.limits import MAX_CURSOR_NAME_BYTES, MAX_U64
from proto.model.names import is_cursor


class Cursor(Struct):
    seq: int
    updated_ts: int
    maker: bytes = b""
    """Id of the key that made it; b"" if there was none, or an earlier release made it."""


_maker = attrgetter("maker")


class Assigned(NamedTuple):
    """The cursor after all its staged changes have committed. `maker` is None if there will be none."""

    seq: int
    maker: bytes | None


class Moving:
    """Assigned positions of cursors: where they will be when all staged moves have committed. Operations that hand out
    records use these and not the visible positions, so that no record is handed out twice."""

    __slots__ = ("_moves",)

    def __init__(self) -> None:
        self._moves: dict[str, tuple[Assigned, int]] = {}
        """What each cursor with staged moves will be, and their number."""

    def assigned(self, name: str, cursor: Cursor | None) -> Assigned:
        move = self._moves.get(name)
        if move is not None:
            return move[0]
        return Assigned(0, None) if cursor is None else Assigned(cursor.seq, cursor.maker)

    def count(self, cursors: Mapping[str, Cursor]) -> int:
        """Number of cursors when all staged moves have committed."""
        return len(cursors) + sum((to.maker is not None) - (name in cursors) for name, (to, _) in self._moves.items())

    def made_by(self, maker: bytes, cursors: Mapping[str, Cursor]) -> int:
        """How many of them are of one maker."""
        made = countOf(map(_maker, cursors.values()), maker)
        for name, (to, _) in self._moves.items():
            now = cursors.get(name)
            made += (to.maker == maker) - (now is not None and now.maker == maker)
        return made

    def begin(self, name: str, to: Assigned) -> None:
        self._moves[name] = (to, self._moves[name][1] + 1 if name in self._moves else 1)

    def ended(self, name: str) -> None:
        """A move has committed."""
        to, under_way = self._moves.pop(name)
        if under_way > 1:
            self._moves[name] = (to, under_way - 1)

    def undone(self, name: str, before: Assigned) -> None:
        """The newest move was undone. `before` is what the cursor was to be before that move."""
        _, under_way = self._moves.pop(name)
        if under_way > 1:
            self._moves[name] = (before, under_way - 1)


def check_count(
    cursors: Mapping[str, Cursor], moving: Moving, most: int, maker: bytes = b"", most_made: int = 0
) -> None:
    """Check that a topic may have one cursor more, of at most `most`, made by a key that may have made at most
    `most_made`. 0 means no limit. Raises `429 throttled`."""
    count = moving.count(cursors) if most or most_made else 0
    if most_made and count >= most_made and moving.made_by(maker, cursors) >= most_made:
        raise throttled(
            "max_cursors_per_key",
            most_made,
            f"one of several keys makes at most {most_made} of the {most} named cursors of a topic "
            "(TOPICS_MAX_CURSORS_PER_TOPIC); delete one that is not used",
        )
    if most and count >= most:
        raise throttled(
            "max_cursors_per_topic",
            most,
            f"a topic has at most {most} named cursors (TOPICS_MAX_CURSORS_PER_TOPIC); delete one that is not used",
        )


MOVE = Form(CursorRequest)


def check_name(name: str) -> str:
    if not is_cursor(name):
        raise invalid(f"a cursor name has 1 to {MAX_CURSOR_NAME_BYTES} bytes of UTF-8", field="cursor")
    return name


def cursor_not_found(topic: str, name: str) -> TopicsError:
    return TopicsError(
        ErrorCode.CURSOR_NOT_FOUND, f'topic "{topic}" has no cursor "{name}"', {"topic": topic, "cursor": name}
    )


def check_position(request: CursorRequest, head_seq: int) -> None:
    """Raises `400 invalid_request` for a position that does not exist."""
    if not 0 <= request.seq <= MAX_U64:
        raise invalid(f"seq is {request.seq}, but must be between 0 and {MAX_U64}", field="seq")
    if request.seq > head_seq:
        raise invalid(f"seq is {request.seq}, but the topic ends at {head_seq}", field="seq", head_seq=head_seq)


def moved(current: Cursor | None, seq: int, force: bool, ts_ms: int, maker: bytes) -> Cursor:
    """The cursor after a request to move it to `seq`. `maker` made it if there is none yet."""
    if current is None:
        return Cursor(seq, ts_ms, maker)
    if seq < current.seq and not force:
        return current
    return Cursor(seq, ts_ms, current.maker)


def entry(name: str, cursor: Cursor, head_seq: int) -> CursorEntry:
    return CursorEntry(name, cursor.seq, max(head_seq - cursor.seq, 0), cursor.updated_ts)


def state(topic: str, name: str, cursor: Cursor, head_seq: int) -> CursorState:
    return CursorState(topic, *astuple(entry(name, cursor, head_seq)))


def following(cursors: Mapping[str, Cursor], after: str, size: int) -> list[str]:
    """Up to `size` names of cursors that follow `after`, in order."""
    names = sorted(cursors)
    start = bisect_right(names, after) if after else 0
    return names[start : start + size]
