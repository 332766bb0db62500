"""Pagination of lists over all shards: the opaque cursor, and one page merged from the shards' pages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter

import msgspec

from proto.ipc.message import Reply
from proto.ipc.operations import Page
from proto.model.errors import TopicsError, invalid
from proto.model.limits import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from proto.model.names import is_topic

_decode_entries = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ANY_ALPHABET = str.maketrans("+/ ", "-_-")


class _Cursor(msgspec.Struct, forbid_unknown_fields=True):
    after: str


_decode_cursor = msgspec.json.Decoder(_Cursor).decode


def page_size(asked: int) -> int:
    """Return the number of entries of a page. 0 means the default; other values are clamped."""
    return DEFAULT_PAGE_SIZE if asked == 0 else min(max(asked, 1), MAX_PAGE_SIZE)


def encode_cursor(after: str) -> str:
    """Return the cursor as base64url, which needs no escaping in a query."""
    return base64.urlsafe_b64encode(msgspec.json.encode(_Cursor(after))).decode()


def decode_cursor(cursor: str, valid: Callable[[str], bool] = is_topic) -> str:
    """Return the name after which the next page begins. Accepts both base64 alphabets, with or without padding.

    Raises `400` for any other text than `encode_cursor` makes, and unless the name is `valid`."""
    text = cursor.translate(_ANY_ALPHABET).rstrip("=")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        after = _decode_cursor(raw).after
    except (binascii.Error, ValueError, RecursionError):
        raise bad_cursor() from None
    if encode_cursor(after).rstrip("=") != text or not valid(after):
        raise bad_cursor()
    return after


def bad_cursor() -> TopicsError:
    return invalid("cursor is not one this server gave out; start again without it", field="cursor")


def merge_pages(what: str, replies: Sequence[Reply[Page]], size: int) -> bytes:
    """Merge one page per shard into one page, as JSON `{what: [entries], "next_cursor"?}`. Each shard's page has at
    least `size` entries, or all that the shard has. Entries stay the shards' JSON text."""
    sources = [
        zip(reply.extra.names, _decode_entries(reply.body), strict=True) for reply in replies if reply.extra is not None
    ]
    merged = merge(*sources, key=itemgetter(0))
    page = list(islice(merged, size))
    more = next(merged, None) is not None or any(reply.extra.more for reply in replies if reply.extra is not None)
    parts = [b'{"', what.encode(), b'":[', b",".join(map(itemgetter(1), page)), b"]"]
    if more and page:
        parts += [b',"next_cursor":"', encode_cursor(page[-1][0]).encode(), b'"']
    parts.append(b"}")
    return b"".join(parts)
