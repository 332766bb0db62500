"""Delete requests: which records to delete."""

from __future__ import annotations

from proto.api.requests import DeleteRequest
from proto.ipc.message import Request
from proto.ipc.operations import DeleteRecords
from proto.model.body import Form
from proto.model.errors import invalid
from proto.model.limits import MAX_U64
from proto.model.match import Match, parse_match

_FORM = Form(DeleteRequest)


def parse_delete(request: Request[DeleteRecords]) -> tuple[int | None, Match | None]:
    """The request's `before_seq` and `match`; at least one is not None. Raises `400 invalid_request`."""
    asked, request.ignored = _FORM.read(request.body)
    if asked.before_seq is None and asked.match is None:
        raise invalid("a deletion needs before_seq, match or both", field="before_seq")
    if asked.before_seq is not None and not 0 <= asked.before_seq <= MAX_U64:
        raise invalid(f"before_seq is {asked.before_seq}, but must be between 0 and {MAX_U64}", field="before_seq")
    return asked.before_seq, None if asked.match is None else parse_match(asked.match, "match")
