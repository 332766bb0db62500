r"""Lone surrogate escapes: `"\ud800"` is JSON by its grammar, but UTF-8 cannot encode that string.

msgspec refuses such a text even where it only has to find the end of a raw value. A text that msgspec refuses is masked
and parsed a second time; a text that it accepts costs nothing extra. Masking replaces each `\\`, and each `\u` before a
`d`, by two tokens that occur nowhere in the text:

    "\\ud800 \ud800"    →    "<b>ud800 <u>d800"

`\\` is replaced first, from the left, so that a backslash left over from a run starts an escape. Raw values get their
escapes back, byte for byte. Strings get them back too and are parsed again; one that holds a lone surrogate is refused.

All work per escape is done by C code: 8 MiB of escapes take 0.3 s and three times their size in memory. Tokens have two
bytes, like the text they replace. If a text contains every such token, random tokens of six bytes are used. A client's
body is masked up to `MAX_MASKED_BYTES`, so that no client blocks a process. Stored records are masked at any size, so
that a record that was written can always be moved and read.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from proto.model.errors import invalid

T = TypeVar("T")

MAX_MASKED_BYTES = 8 << 20
"""Largest body with lone surrogate escapes, bytes."""
_STEMS = b"\x7f~^`|@#$%&!"
_ALPHABET = string.ascii_letters + string.digits
_MALFORMED = re.compile(rb"\\u[dD](?![0-9a-fA-F]{3})")
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode


class Mask:
    """JSON text with masked surrogate escapes."""

    def __init__(self, text: bytes) -> None:
        """Raises `msgspec.DecodeError` if an escape is malformed."""
        stem = next(stem for stem in _stems() if _is_free(stem, text))
        self._backslash, self._escape = stem + b"z", stem + b"u"
        masked = text.replace(b"\\\\", self._backslash)
        malformed = _MALFORMED.search(masked)
        if malformed is not None:
            at = len(masked[: malformed.start()].replace(self._backslash, b"\\\\"))
            raise msgspec.DecodeError(f"JSON is malformed: invalid character in unicode escape (byte {at})")
        for letter in (b"d", b"D"):
            masked = masked.replace(rb"\u" + letter, self._escape + letter)
        self.text = masked

    def undone(self, text: bytes) -> bytes:
        """JSON text derived from the masked text, with its escapes restored."""
        return text.replace(self._escape, rb"\u").replace(self._backslash, b"\\\\")

    def restored(self, value: Any) -> Any:
        """A value parsed from the masked text, with its escapes restored.

        Raises `400 invalid_request` for a string that holds a lone surrogate.
        """
        if isinstance(value, Raw):
            text = bytes(value)
            return Raw(self.undone(text)) if self._is_in(text) else value
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, Struct):
            for name in value.__struct_fields__:
                before = getattr(value, name)
                after = self.restored(before)
                if after is not before:
                    force_setattr(value, name, after)
            return value
        if isinstance(value, list):
            return list(map(self.restored, value))
        if isinstance(value, dict):
            return {self.restored(name): self.restored(member) for name, member in value.items()}
        return value

    def _is_in(self, text: bytes) -> bool:
        return self._escape in text or self._backslash in text

    def _string(self, value: str) -> str:
        text = value.encode()
        if not self._is_in(text):
            return value
        text = self.undone(_encode(value))
        try:
            return _decode_text(text)
        except msgspec.DecodeError:
            shown = text[:64].decode(errors="replace")
            raise invalid(
                f"{shown} has a lone surrogate, which is no character; only data and meta may have such escapes"
            ) from None


def apply(read: Callable[[bytes], T], text: bytes, most: int | None = None) -> tuple[T, Mask | None]:
    """Call `read` with a JSON text, masked if needed. Returns its result, and the mask if the text was masked.

    Raises the errors of `read`, and `400 invalid_request` for a text of more than `most` bytes that needs masking.
    """
    try:
        return read(text), None
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if rb"\ud" not in text and rb"\uD" not in text:
            raise
        if most is not None and len(text) > most:
            raise invalid(
                f"the body is not JSON, or it has lone surrogate escapes and more than {most} bytes; send it in parts"
            ) from None
    mask = Mask(text)
    return read(mask.text), mask


def decode(decoder: Callable[[bytes], T], text: bytes) -> T:
    """Apply a msgspec decoder to a text. Raises msgspec's errors, and `400 invalid_request` for a string that holds a
    lone surrogate."""
    value, mask = apply(decoder, text)
    return value if mask is None else mask.restored(value)


def edit(change: Callable[[bytes], bytes], text: bytes) -> bytes:
    """Apply `change` to a JSON text, masked if needed. `change` may keep strings and values; it must add no escapes."""
    changed, mask = apply(change, text)
    return changed if mask is None else mask.undone(changed)


def _stems() -> Iterator[bytes]:
    for at in range(len(_STEMS)):
        yield _STEMS[at : at + 1]
    while True:
        yield _STEMS[:1] + "".join(secrets.choice(_ALPHABET) for _ in range(4)).encode()


def _is_free(stem: bytes, text: bytes) -> bool:
    """Whether neither token occurs in the text, nor in a string that the text spells with escapes."""
    if stem + b"u" in text or stem + b"z" in text:
        return False
    if len(stem) > 1:
        return True  # random: escapes spell it only by chance
    spelt = (b"\\u00%02x" % stem[0], b"\\u00%02X" % stem[0])
    return stem + rb"\u00" not in text and not any(each in text for each in spelt)
