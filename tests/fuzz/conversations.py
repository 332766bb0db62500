"""Conversations: random requests on one connection, valid and invalid, and the comparison of what two services answer.

A seed decides everything. A group of requests is sent once the one before it is answered. The last request of a
conversation closes the connection. A request that is no HTTP ends it earlier, at both services.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from gateway.http.gzip_coding import SMALLEST_ANSWER

TOPICS = ("jobs", "a:1", "a:2", "b.c", "d-e_f")
SECRETS = ("admin-secret-0123456789", "reader-secret-0123456789", "prefix-secret-0123456789")
KEYS = f"{SECRETS[0]},{SECRETS[1]}:read,{SECRETS[2]}:read+write:a:"
"""The value of TOPICS_API_KEYS that the conversations expect."""
_VARYING = re.compile(r"performance|.*ts|uptime_ms|wid|ticket|url|effective_priority|version")
"""Members that differ between two runs of the same service."""
_VARYING_BYTES = 300
"""The most by which what varies changes the size of an answer."""
_A_TIME_MS = 10**12
_UNSTEADY = frozenset({b"date", b"content-length"})


@dataclass
class Group:
    """Requests sent together. The last of `pieces` has all of their bodies: whether a service closes the connection
    after it refused a body depends on whether the body is there."""

    pieces: list[bytes]
    methods: list[bytes]


Conversation = list[Group]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: Any


class Writer:
    """Writes requests. Without `keyed`, few have an Authorization header."""

    def __init__(self, seed: int, *, keyed: bool) -> None:
        self._random = Random(seed)
        self._keyed = keyed

    def conversation(self, requests: int) -> Conversation:
        made: Conversation = []
        left = requests - 1
        while left > 0:
            raws = [self._request() for _ in range(min(left, self._one(1, 1, 1, 2, 5)))]
            left -= len(raws)
            made.append(Group(self._cut(b"".join(raws), raws[0]), [raw.partition(b" ")[0] for raw in raws]))
        last = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        return [*made, Group([last], [b"GET"])]

    def _cut(self, whole: bytes, first: bytes) -> list[bytes]:
        """Cut the first head in pieces, now and then."""
        if self._chance(0.8):
            return [whole]
        end = first.find(b"\r\n\r\n")
        places = sorted(self._random.randrange(max(end, 1)) for _ in range(self._one(1, 2, 20)))
        pairs = zip([0, *places], [*places, len(whole)], strict=True)
        return [whole[begin:end] for begin, end in pairs if begin < end]

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _one(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _request(self) -> bytes:
        if self._chance(0.01):
            return self._broken()
        method, target, body = self._operation()
        if self._chance(0.02):
            method = self._one("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "PURGE", "get")
        if method == "GET" and self._chance(0.1):
            method = "HEAD"
        if self._chance(0.02):
            target = self._one(target + "?", target + "/", f"http://localhost{target}", target + "%2", "/nope", "*")
        headers = [("Host", "localhost"), *self._authorization(), *self._origin(), *self._oddities()]
        data = b""
        if body is not None:
            data, more = self._framed(body)
            headers += more
        return self._head(method, target, headers) + data

    def _head(self, method: str, target: str, headers: Sequence[tuple[str, str]]) -> bytes:
        if self._chance(0.05):
            headers = self._random.sample(list(headers), len(headers))
        version = "1.0" if self._chance(0.005) else "1.1"
        change = self._one(str, str, str, str.lower, str.lower, str.upper) if self._chance(0.3) else str
        lines = [f"{method} {target} HTTP/{version}", *(f"{change(name)}: {value}" for name, value in headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _operation(self) -> tuple[str, str, bytes | None]:
        topic = f"/v0/topics/{self._one(*TOPICS)}"
        kind = self._random.randrange(100)
        if kind < 35:
            query = self._one("", "", "?return_seqs=false", "?return_seqs=true", "?return_seqs=perhaps")
            return "POST", topic + query, self._records()
        if kind < 60:
            return "POST", f"{topic}/diff", self._diff()
        if kind < 70:
            return "GET", topic + self._one("", "", "?touch=false", "?touch=0&touch=1", "?unknown=1"), None
        if kind < 75:
            return (
                "PUT",
                topic,
                self._one(b"", b"{}", b'{"max_records":50}', b'{"max_records":-1}', b'{"nope":1}', None),
            )
        if kind < 78:
            return "POST", f"{topic}/delete", self._one(b'{"before_seq":3}', b'{"match":["tag","Glob","a*"]}', b"{}")
        if kind < 80:
            return "DELETE", topic + self._one("", "?if_empty=true"), None
        if kind < 83:
            page = self._one("", "?page_size=2", "?page_size=0", "?page_size=x", "?prefix=a", "?cursor=rubbish")
            return "GET", f"/v0/topics{page}", None
        if kind < 90:
            cursor = f"{topic}/cursors/{self._one('c', 'team%2Fa', '%ff', '..')}"
            method = self._one("PUT", "GET", "DELETE")
            return method, cursor, self._one(b'{"seq":1}', b'{"seq":"x"}', b"") if method == "PUT" else None
        return self._other(topic)

    def _other(self, topic: str) -> tuple[str, str, bytes | None]:
        return self._one(
            ("GET", "/v0/health", None),
            ("GET", "/healthz", None),
            ("GET", "/v0/health", b"{}"),
            ("GET", f"{topic}/cursors", None),
            ("GET", "/v0/routers", None),
            ("GET", "/v0/routers/nope", None),
            ("POST", "/v0/tickets", b'{"path":"/v0/ws"}'),
            ("POST", "/v0/tickets", b'{"path":"/v0/health"}'),
            ("GET", "/v0/watch/nope", None),
            ("GET", "/v0/ws", None),
            ("GET", "/v0/topics/%C3%A4", None),
            ("GET", f"/v0/topics/{'x' * 300}", None),
            ("POST", f"{topic}/nope", b"{}"),
        )

    def _records(self) -> bytes:
        if self._chance(0.05):
            return bytes(self._one(b"", b"[]", b"{", b'{"records":[]}', b'{"records":1}', b"\xff", b'{"records":[{}]}'))
        records = []
        for _ in range(self._one(1, 1, 1, 2, 5, 30)):
            record: dict[str, Any] = {"data": self._one(1, None, "x", [1, 2], {"a": {"b": 1.5}}, "é" * 10, "y" * 300)}
            if self._chance(0.3):
                record["tag"] = self._one("a", "ab", "b", "", 5)
            records.append(record)
        return json.dumps({"records": records}, ensure_ascii=self._chance(0.5)).encode()

    def _diff(self) -> bytes:
        asked: dict[str, Any] = {"from_seq": self._one(0, 0, 1, 5, 10**9, -1, "x")}
        if self._chance(0.5):
            asked["limit"] = self._one(1, 2, 100, 0, 10**9)
        if self._chance(0.2):
            asked["include_tags"] = self._one(True, False, 1)
        if self._chance(0.02):
            asked["wait_ms"] = self._one(1, 3)
        if self._chance(0.05):
            asked["max_batch_bytes"] = self._one(100, 1000, -5)
        return json.dumps(asked).encode()

    def _framed(self, body: bytes) -> tuple[bytes, list[tuple[str, str]]]:
        kind = self._one("application/json; charset=utf-8", "text/plain", "") if self._chance(0.03) else ""
        headers = [("Content-Type", kind or "application/json")]
        if self._chance(0.05):
            headers.append(("Content-Encoding", self._one("gzip", "gzip", "identity", "br")))
            if headers[-1][1] == "gzip" and self._chance(0.9):
                body = gzip.compress(body, mtime=0)
        if self._chance(0.1):
            return self._chunked(body), [*headers, ("Transfer-Encoding", "chunked")]
        if self._chance(0.02):
            headers.append(("Expect", "100-continue"))
        length = f"{len(body):0{self._one(1, 1, 1, 1, 5, 16)}d}" if self._chance(0.05) else f"{len(body)}"
        return body, [*headers, ("Content-Length", length)]

    def _chunked(self, body: bytes) -> bytes:
        parts = []
        while body:
            size = self._random.randrange(1, len(body) + 1)
            extension = b";a=b" if self._chance(0.1) else b""
            parts.append(b"%x%b\r\n%b\r\n" % (size, extension, body[:size]))
            body = body[size:]
        trailer = b"a: b\r\n" if self._chance(0.1) else b""
        last = b"z\r\n\r\n" if self._chance(0.01) else b"0\r\n%b\r\n" % trailer
        return b"".join(parts) + last

    def _authorization(self) -> list[tuple[str, str]]:
        if self._chance(0.03 if self._keyed else 0.95):
            return []
        secret = self._one(*(SECRETS[:1] * 8), *SECRETS)
        if self._chance(0.03):
            value = self._one(f"bearer {secret}", f"Bearer  {secret} ", f"Basic {secret}", "Bearer", "", "Bearer wrong")
        else:
            value = f"Bearer {secret}"
        return [("Authorization", value)]

    def _origin(self) -> list[tuple[str, str]]:
        if self._chance(0.97):
            return []
        return list(
            self._one(
                [("Origin", "http://localhost")],
                [("Origin", "http://evil.example")],
                [("Sec-Fetch-Site", "cross-site")],
                [("Origin", "null"), ("Access-Control-Request-Method", "POST")],
                [("Origin", "http://localhost"), ("Access-Control-Request-Method", "POST")],
            )
        )

    def _oddities(self) -> list[tuple[str, str]]:
        if self._chance(0.85):
            return []
        return list(
            self._one(
                [("Accept-Encoding", self._one("gzip", "gzip;q=0", "identity", "*", "br, gzip;q=0.5"))],
                [("Accept", "application/json")],
                [("Idempotency-Key", self._one("k1", "k2", "\xff"))],
                [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")],
                [("traceparent", "nonsense")],
                [("X-Number", str(self._random.randrange(10**6)))],
                [("Connection", self._one("keep-alive", "Keep-Alive, TE", "upgrade", "te"))],
                [("Upgrade", "h2c"), ("Connection", "upgrade")],
                [("Cookie", "a=b"), ("Cookie", "c=d")],
            )
        )

    def _broken(self) -> bytes:
        """Bytes that end the connection, or come close to it."""
        line = b"GET /v0/health HTTP/1.1\r\n"
        host = b"Host: localhost\r\n"
        return bytes(
            self._one(
                line + b"\r\n",
                line + host + host + b"\r\n",
                line + host + b"A: b\r\n folded\r\n\r\n",
                line + host + b"A: b\n\r\n",
                line + host + b"A : b\r\n\r\n",
                line + host + b"A: \x00\r\n\r\n",
                line + host + b"A: b\r\n" * 120 + b"\r\n",
                line + host + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
                line + host + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                line + host + b"Content-Length: +1\r\n\r\n",
                line + host + b"Content-Length: \r\n\r\n",
                line + host + b"Content-Length: 99999999999\r\n\r\n",
                line + host + b"Transfer-Encoding: gzip\r\n\r\n",
                line + host + b"Connection: close\r\n\r\n",
                line + host + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
                b"GET /v0/health#x HTTP/1.1\r\n" + host + b"\r\n",
                b"GET /v0/\xe4 HTTP/1.1\r\n" + host + b"\r\n",
                b"GET /v0/health HTTP/2.0\r\n" + host + b"\r\n",
                b"\r\n\r\n" + line + host + b"\r\n",
                b"POST /v0/topics/jobs HTTP/1.1\r\n" + host + b"Content-Length: 99999999\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00",
            )
        )


def answers(received: bytes, methods: Sequence[bytes]) -> tuple[list[Answer], bool]:
    """Take the answers to a group apart; what varies from run to run is left out. Return them and whether each request
    has its whole answer."""
    found: list[Answer] = []
    asked = list(methods)
    while asked and b"\r\n\r\n" in received:
        head, _, rest = received.partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        status = int(line.split(b" ")[1])
        headers = {name: value for name, _, value in (each.partition(b": ") for each in lines)}
        kept = tuple(sorted((name, value) for name, value in headers.items() if name not in _UNSTEADY))
        length = 0 if asked[0] == b"HEAD" or status == 100 else int(headers.get(b"content-length", b"0"))
        body, received = rest[:length], rest[length:]
        if len(body) < length:
            break
        if status != 100:
            del asked[0]
        if headers.get(b"content-encoding") == b"gzip" and body:
            body = gzip.decompress(body)
        steady = _steady(body)
        if not body or abs(_size(steady) - SMALLEST_ANSWER) < _VARYING_BYTES:
            # The digits of durations decide about compression. Of an answer to HEAD there is no size that is steady.
            kept = tuple(pair for pair in kept if pair[0] not in (b"vary", b"content-encoding"))
        found.append(Answer(status, kept, steady))
    return found, not asked


def _size(steady: Any) -> int:
    """About the size of a body. Two that differ in nothing but what varies have the same."""
    if isinstance(steady, bytes):
        return len(steady)
    return len(json.dumps(steady, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def _steady(body: bytes) -> Any:
    try:
        return _without_varying(json.loads(body))
    except ValueError:
        return body


def without(value: Any, name: str) -> Any:
    """The body of an answer without the members of a name."""
    if isinstance(value, dict):
        return {each: without(inner, name) for each, inner in value.items() if each != name}
    return [without(each, name) for each in value] if isinstance(value, list) else value


def _without_varying(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _one(each) if _VARYING.fullmatch(name) else _without_varying(each) for name, each in value.items()
        }
    return [_without_varying(each) for each in value] if isinstance(value, list) else value


def _one(varying: Any) -> Any:
    """One value for all that may be there. That of a time is as long as a time, of which an answer can have many."""
    return _A_TIME_MS if isinstance(varying, int) and varying > _A_TIME_MS else "varies"
