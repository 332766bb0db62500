"""Request bodies: from a client's bytes to a typed value, or to `400 invalid_request`.

msgspec checks JSON syntax everywhere but UTF-8 only where it builds strings, so the UTF-8 of the whole body is checked
first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from proto.errors import invalid

T = TypeVar("T")


def parse(decode: Callable[[bytes], T], body: bytes) -> T:
    """Apply a msgspec decoder to a body. An empty body counts as `{}`."""
    if not body or body.isspace():
        body = b"{}"
    try:
        if not body.isascii():
            body.decode()
        return decode(body)
    except msgspec.ValidationError as error:
        raise invalid(f"the body has the wrong shape: {error}") from None
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except msgspec.DecodeError as error:
        raise invalid(f"the body is not JSON (lone surrogate escapes count as malformed): {error}") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None
