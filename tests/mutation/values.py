"""What valid inputs are changed into: awkward values, cut and edited bytes. A seed decides what is random."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

EDGES = sorted({sign * (2**power) + off for power in (0, 31, 32, 53, 63, 64) for sign in (1, -1) for off in (-1, 0, 1)})
"""Integers around which types end."""
JSON_VALUES: tuple[bytes, ...] = (
    *(b"%d" % edge for edge in EDGES),
    b"null",
    b"true",
    b"false",
    b"1.5",
    b"-0",
    b"-0.0",
    b"1e2",
    b"1e400",
    b"-1e400",
    b"1e-400",
    b"1.7976931348623157e308",
    b"1" * 400,
    b"-" + b"9" * 400,
    b"0." + b"0" * 400 + b"1",
    b"1" * 30 + b".5",
    b"01",
    b"+1",
    b"0x10",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b'""',
    b'" "',
    b'"a"',
    b'"*"',
    b'"$x"',
    b'"../../x"',
    b'"%2e%2e"',
    b'"\\ud800"',
    b'"a\\udfffb"',
    b'"\\ud83d\\ude00"',
    b'"\\u0000"',
    b'"\\u2028"',
    b'"a\nb"',
    b'"\x01"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b'"' + "é".encode() * 300 + b'"',
    b'"' + b"a" * 3000 + b'"',
    b'"\\ud800' + b"a" * 3000 + b'"',
    b'"lease_"',
    b'"lease_' + b"g" * 16 + b'"',
    b'"lease_' + b"f" * 16 + b'"',
    b'"lease_' + b"f" * 400 + b'"',
    b"'x'",
    b'"open',
    b"[]",
    b"[null]",
    b"[[]]",
    b'[1,"a",{}]',
    b'["tag","Glob","\\ud800*"]',
    b'["tag","Eq",null]',
    b"[" + b"1," * 2000 + b"1]",
    b"{}",
    b'{"a":1}',
    b'{"":null}',
    b'{"$":[]}',
    b'{"\\ud800":1}',
    b'{"a":1,"a":2}',
    b"[" * 127 + b"]" * 127,
    b"[" * 1100 + b"]" * 1100,
    b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b"[" * 3000,
    b"",
)
"""Texts that stand in place of a JSON value. Some are no JSON."""
UNKNOWN_NAMES = (b'"x"', b'"unknown_field"', b'""', b'"\\ud800"', b'"$generation"', b'"' + b"n" * 3000 + b'"')
WORDS: tuple[bytes, ...] = (
    *(b"%d" % edge for edge in EDGES),
    b"",
    b"+1",
    b"%2B1",
    b"01",
    b"1_0",
    b"1.5",
    b"1e9",
    b"1" * 40,
    b"1" * 41,
    b"9" * 400,
    b"NaN",
    b"null",
    b"true",
    b"TRUE",
    b"abc",
    b"[]",
    b"..",
    b".",
    b"%2e%2e%2f",
    b"a%2Fb",
    b"%00",
    b"%ff",
    b"%ED%A0%80",
    b"%F4%90%80%80",
    b"%",
    b"%zz",
    b"%u0041",
    b"%D9%A3",
    b"%20",
    b"+",
    b"*",
    b"$x",
    b"a" * 255,
    b"a" * 256,
    b"a" * 5000,
    b"%C3%A4" * 300,
    b"x%3Dy%26z",
    b"a=b",
    b";",
)
"""Values in a query or a segment of a path, percent-encoded."""
HEADER_VALUES: tuple[bytes, ...] = (
    b"",
    b"x",
    b",",
    b";",
    b"=",
    b'"',
    b"\xff",
    b"\xed\xa0\x80",
    "é".encode(),
    b"a" * 257,
    b"a" * 4000,
    b"0",
    b"-1",
    b"18446744073709551616",
    b"NaN",
    b"null",
    b"{}",
    b"*",
    b"*/*",
    b"*/*;q=x",
    b"*/*;q=" + b"9" * 400,
    b"application/json;q=0",
    b"application/json; charset=utf-16",
    b"application/json;;;charset",
    b"text/event-stream",
    b"gzip",
    b"gzip, gzip",
    b"gzip;q=0, *;q=nan",
    b"identity;q=0",
    b"br",
    b"deflate",
    b"Bearer",
    b"Bearer ",
    b"Bearer \xff",
    b"Basic eDp5",
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"00-0-0-0",
    b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00",
    b"ff-" + b"f" * 32 + b"-" + b"f" * 16 + b"-ff",
    b"100-continue",
    b"bytes=0-",
    b"null, null",
    b"http://evil.example",
    b"http://[::1",
    b"http://localhost:99999999",
    b"localhost:99999999999999999999",
    b"[::1]:x",
    b"websocket",
    b"close, upgrade",
    b"13, 12",
    b"c.",
    b"p.AA",
    b"e30",
    b"eyJhIjoxfQ==",
)
HEADERS = (
    b"Idempotency-Key",
    b"Last-Event-ID",
    b"traceparent",
    b"tracestate",
    b"Accept",
    b"Accept-Encoding",
    b"Content-Encoding",
    b"Content-Type",
    b"Authorization",
    b"Origin",
    b"Sec-Fetch-Site",
    b"Access-Control-Request-Method",
    b"Host",
    b"Expect",
    b"Range",
    b"If-None-Match",
    b"Connection",
    b"Upgrade",
    b"Sec-WebSocket-Key",
    b"Sec-WebSocket-Version",
    b"Sec-WebSocket-Protocol",
    b"Sec-WebSocket-Extensions",
    b"Cookie",
    b"TE",
    b"X-Forwarded-For",
)
_BYTES = b'{}[]:,"\\0 -+eE.tfn\x00\x7f\xff\xc3\xed\x80'
_MARK = "\x1amark\x1a"


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value inside a JSON value, itself first."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*at, key))


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    if isinstance(value, dict):
        return {key: put(each, at[1:], new) if key == at[0] else each for key, each in value.items()}
    return [put(each, at[1:], new) if index == at[0] else each for index, each in enumerate(value)]


def replaced(value: Any, at: tuple[Any, ...], text: bytes) -> bytes:
    """The JSON of `value` with `text` in the place `at`."""
    return json.dumps(put(value, at, _MARK)).encode().replace(json.dumps(_MARK).encode(), text)


def cuts(raw: bytes) -> Iterator[bytes]:
    for end in range(len(raw)):
        yield raw[:end]


def edited(raw: bytes, random: Random, gems: bytes = _BYTES) -> bytes:
    """Some bytes replaced, inserted, removed or repeated."""
    data = bytearray(raw)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(data) + 1)
        how = random.randrange(5)
        if how == 0 and at < len(data):
            data[at] = random.choice(gems)
        elif how == 1:
            data.insert(at, random.choice(gems))
        elif how == 2:
            del data[at : at + random.choice((1, 1, 3))]
        elif how == 3 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        else:
            to = random.randrange(len(data) + 1)
            data[at:at] = data[min(at, to) : max(at, to)][:200]
    return bytes(data)


def names_bent(value: dict[str, Any]) -> Iterator[bytes]:
    """Unknown names, before whole and broken texts; names given twice, and misspelt."""
    text = json.dumps(value).encode()
    for name in UNKNOWN_NAMES:
        for inner in (b"1", b"[" * 200 + b"]" * 200, b'{"\\ud800":"\\udfff"}'):
            yield b"{%b:%b," % (name, inner) + text[1:]
        yield b"{%b:" % name
        yield b"{%b:" % name + b"[" * 3000 + text[1:]
        yield b"{%b:1," % name + text[1:-1]
        yield b"{%b:1," % name + text[1:-1] + b",}"
    for key in value:
        encoded = json.dumps(key).encode()
        yield text[:-1] + b",%b:null}" % encoded
        yield b"{%b:[]," % encoded + text[1:]
        yield json.dumps({name + "x" * (name == key): each for name, each in value.items()}).encode()
        yield json.dumps({name: each for name, each in value.items() if name != key}).encode()
    yield b"\xef\xbb\xbf" + text
    yield text + b"x"
    yield text + text
    yield text.decode().encode("utf-16")


def bodies(value: Any, random: Random, rounds: int) -> Iterator[bytes]:
    """Every mutation of a JSON body."""
    text = json.dumps(value).encode()
    yield from cuts(text)
    for at in places(value):
        for awkward in JSON_VALUES:
            yield replaced(value, at, awkward)
    if isinstance(value, dict):
        yield from names_bent(value)
    for _ in range(rounds):
        yield edited(text, random)
