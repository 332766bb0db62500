"""Named cursors: durable positions of consumers, stored with their topic and deleted with it.

A cursor moves backwards only when the request has `force`. Its name is any text of 1 to 255 bytes of UTF-8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import astuple

from proto.api.answers import CursorEntry, CursorState
from proto.api.requests import CursorRequest
from proto.model.body import Form
from proto.model.errors import ErrorCode, TopicsError, invalid
from proto.model.limits import MAX_CURSOR_NAME_BYTES, MAX_U64
from proto.model.names import is_cursor


class Cursor(Struct):
    seq: int
    updated_ts: int


class Moving:
    """Assigned positions of cursors: where they will be when all staged moves have committed. Operations that hand out
    records use these and not the visible positions, so that no record is handed out twice."""

    __slots__ = ("_moves",)

    def __init__(self) -> None:
        self._moves: dict[str, tuple[int, int]] = {}
        """Assigned position and number of staged moves, of each cursor that has any."""

    def position(self, name: str, cursor: Cursor | None) -> int:
        move = self._moves.get(name)
        if move is not None:
            return move[0]
        return 0 if cursor is None else cursor.seq

    def __contains__(self, name: str) -> bool:
        return name in self._moves

    def new(self, cursors: Mapping[str, Cursor]) -> int:
        """Number of cursors that staged moves will create."""
        return sum(name not in cursors for name in self._moves)

    def begin(self, name: str, seq: int) -> None:
        self._moves[name] = (seq, self._moves.get(name, (0, 0))[1] + 1)

    def ended(self, name: str) -> None:
        """A move has committed."""
        seq, under_way = self._moves.pop(name)
        if under_way > 1:
            self._moves[name] = (seq, under_way - 1)

    def undone(self, name: str, before: int) -> None:
        """The newest move was undone. `before` is the assigned position before that move."""
        _, under_way = self._moves.pop(name)
        if under_way > 1:
            self._moves[name] = (before, under_way - 1)


def check_count(cursors: Mapping[str, Cursor], moving: Moving, name: str, most: int) -> None:
    """Raises `429 throttled` if `name` would be one cursor more than a topic may have. A cursor that exists may always
    move."""
    if not most or name in cursors or name in moving:
        return
    if len(cursors) + moving.new(cursors) >= most:
        raise TopicsError(
            ErrorCode.THROTTLED,
            f"a topic has at most {most} named cursors (TOPICS_MAX_CURSORS_PER_TOPIC); delete one that is not used",
            {"limit": "max_cursors_per_topic", "max": most},
            retry_after_ms=1000,
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


def moved(current: Cursor | None, seq: int, force: bool, ts_ms: int) -> Cursor:
    """The cursor after a request to move it to `seq`."""
    if current is not None and seq < current.seq and not force:
        return current
    return Cursor(seq, ts_ms)


def entry(name: str, cursor: Cursor, head_seq: int) -> CursorEntry:
    return CursorEntry(name, cursor.seq, max(head_seq - cursor.seq, 0), cursor.updated_ts)


def state(topic: str, name: str, cursor: Cursor, head_seq: int) -> CursorState:
    return CursorState(topic, *astuple(entry(name, cursor, head_seq)))


def page(cursors: dict[str, Cursor], head_seq: int, after: str, size: int) -> tuple[list[CursorEntry], bool]:
    """Up to `size` entries whose names follow `after`, in order of names; and whether there are more."""
    names = following(cursors, after, size + 1)
    return [entry(name, cursors[name], head_seq) for name in names[:size]], len(names) > size


def following(cursors: Mapping[str, Cursor], after: str, size: int) -> list[str]:
    """Up to `size` names of cursors that follow `after`, in order."""
    names = sorted(cursors)
    start = bisect_right(names, after) if after else 0
    return names[start : start + size]
