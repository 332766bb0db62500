"""Match: selects records by tag, for deletions and router filters."""

from __future__ import annotations

from typing import Any

from proto.model.errors import invalid

Match = tuple[str, bytes]
"""`("Eq", tag)` or `("Glob", prefix)`. A record without a tag never matches."""


def parse_match(match: str | list[Any], field: str) -> Match:
    """Parse `"tag"`, `["tag", "Eq", text]` or `["tag", "Glob", "prefix*"]`. Raises `400 invalid_request`."""
    if isinstance(match, str):
        return "Eq", match.encode()
    if len(match) != 3 or match[0] != "tag" or not isinstance(match[2], str):
        raise invalid(f'{field} must be a tag, ["tag", "Eq", "X"] or ["tag", "Glob", "X*"]', field=field)
    op, text = match[1], match[2]
    if op == "Eq":
        return "Eq", text.encode()
    if op == "Glob":
        if not text.endswith("*") or "*" in text[:-1]:
            raise invalid(f'{field}: a Glob is a literal prefix followed by one "*", not {text!r}', field=field)
        return "Glob", text[:-1].encode()
    raise invalid(f"{field}: the operator must be Eq or Glob, not {op!r}", field=field)
