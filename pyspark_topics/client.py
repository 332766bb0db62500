"""HTTP client of Spark's tasks: appends, diffs, topics and named cursors.

A client is one kept-alive connection of one task. It is created where it is used and never pickled. Every call is
idempotent (appends carry an idempotency key), so all calls are retried alike:

    no connection, no complete answer    after a pause that doubles, 50 ms to 2 s
    429, 503, and 502, 504 of a proxy    after the time in the answer, else as above
    any other error                      never: raises `ServiceError` with the service's message

After `patience_s` of retries a call raises `Unavailable`. `patience_s` must be shorter than the topics' idempotency
window, because the service may have forgotten the first attempt of a later retry.
"""

from __future__ import annotations

import gzip
import http.client
import json
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from pyspark_topics.errors import log
from pyspark_topics.members import CLOSE, KEY, OPEN, found, scanned
from pyspark_topics.offsets import Gap

PATIENCE_S = 60.0
REACH_S = 6.0
"""Patience of the first check that a service answers, so that a missing service is reported within 10 s."""
REACH_TIMEOUT_S = 2.0
TELL_EVERY_S = 2.0
"""Shortest interval between the log lines of a call that is retried."""
TIMEOUT_S = 90.0
"""Socket timeout, longer than the service's own request timeout, after which it answers 503."""
GZIP_FROM_BYTES = 1024
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_AGAIN = frozenset((429, 502, 503, 504))
_TOO_LARGE = frozenset(("batch_too_large", "payload_too_large"))


class ServiceError(ValueError):
    """The service refused a request, or an option is invalid. `status` and `code` are those of the answer."""

    def __init__(self, text: str, status: int = 0, code: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.code = code

    @property
    def too_large(self) -> bool:
        """Whether the same records may be accepted in smaller requests."""
        return self.code in _TOO_LARGE or self.status == 413


class Unavailable(ServiceError):
    """The service was not reachable or not ready during the client's whole patience."""


@dataclass(frozen=True, slots=True)
class Diff:
    """Answer of a diff: records in columns as in `COLUMNS`. The next read continues after `next_from_seq`."""

    records: Any
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    gap: Gap | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and credentials of a service, from options. Unlike a client, an endpoint can be pickled for tasks.

    Options: `url`, `token`, `compression` (`gzip`, for slow links, or `none`, the default), `retryTimeoutMs` (default
    60000). `reach_s` is the patience of `reach`; it is `retryTimeoutMs` if that option is given.
    """

    url: str
    token: str = field(default="", repr=False)
    compress: bool = False
    patience_s: float = PATIENCE_S
    reach_s: float = REACH_S

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Endpoint:
        """The endpoint for options, whose names may be in any case. Raises `ServiceError` for an invalid value."""
        given = {name.lower(): value for name, value in options.items()}
        if not given.get("url"):
            raise ServiceError('no url: say .option("url", "http://127.0.0.1:4000"), the address of the service')
        compression = given.get("compression", "none").lower()
        if compression not in ("none", "gzip"):
            raise ServiceError(f"compression {compression!r}: say gzip or none")
        patience_ms = integer(given, "retryTimeoutMs", int(PATIENCE_S * 1000), least=0)
        reach_s = patience_ms / 1000 if "retrytimeoutms" in given else REACH_S
        return cls(given["url"], given.get("token", ""), compression == "gzip", patience_ms / 1000, reach_s)

    def client(self) -> Client:
        return Client(self.url, self.token, compress=self.compress, patience_s=self.patience_s)

    def reach(self) -> None:
        """Check that the service answers, with a short patience. Blocks. Raises `Unavailable`.

        Work in progress waits for a service that is down; new work need not start then.
        """
        with Client(self.url, self.token, patience_s=self.reach_s, timeout_s=REACH_TIMEOUT_S) as client:
            try:
                client.call("GET", "/v0/health")
            except Unavailable:
                raise
            except ServiceError:
                pass  # the service answers; the next request reports an error of key or address


def integer(options: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    """The number in an option; `options` has lower-case names. Raises `ServiceError` if it is less than `least`."""
    value = options.get(name.lower())
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ServiceError(f"{name} {value!r}: say a whole number of at least {least}")
    return number


class Client:
    """HTTP client. `url` is the service's, without `/v0`: `http://127.0.0.1:4000`, or `https://…/prefix` of a proxy."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        compress: bool = False,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        scheme, *address = origin(url)
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise ServiceError("url: it holds a user's name or password, which would be shown; give a key as token")
        self.url = url.rstrip("/")
        self._prefix = parts.path.rstrip("/").removesuffix("/v0")
        self._make: Callable[..., http.client.HTTPConnection] = (
            http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        )
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._compress = compress
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._clock, self._pause = clock, pause
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Operations of the service. All raise `ServiceError`, `Unavailable`.

    def append(self, topic: str, body: bytes) -> tuple[int, bool]:
        """Append records. `body` is that of the API's write, idempotency key included. Returns how many records were
        written, and whether an earlier request with the same key wrote them."""
        answer = self.call("POST", f"/v0/topics/{_quoted(topic)}", body, {"return_seqs": "false"})
        return answer["last_seq"] - answer["first_seq"] + 1, bool(answer.get("deduped"))

    def diff(self, topic: str, from_seq: int, limit: int, max_bytes: int = 8 << 20, *, meta: bool = True) -> Diff:
        """Records with a seq above `from_seq`: `limit` at most, fewer where the service's own limits are lower."""
        asked = {"from_seq": from_seq, "limit": limit, "max_batch_bytes": max_bytes}
        body = json.dumps({**asked, "include_tags": True, "include_meta": meta}).encode()
        return parse_diff(topic, self._call("POST", f"/v0/topics/{_quoted(topic)}/diff", body, {}))

    def topics(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Topics with a prefix, sorted by name: maps with `topic`, `head_seq`, `earliest_seq`, `count`, `bytes`, …"""
        query = {"page_size": "1000", "prefix": prefix}
        while True:
            page = self.call("GET", "/v0/topics", None, query)
            yield from page["topics"]
            if not page.get("next_cursor"):
                return
            query["cursor"] = page["next_cursor"]

    def topic(self, name: str) -> dict[str, Any] | None:
        """State and configuration of a topic; None if it does not exist."""
        try:
            found: dict[str, Any] = self.call("GET", f"/v0/topics/{_quoted(name)}", None, {"touch": "false"})
            return found
        except ServiceError as error:
            if error.status == 404:
                return None
            raise

    def put_cursor(self, topic: str, cursor: str, seq: int) -> None:
        """Advance a named cursor to `seq`. A cursor that is further stays."""
        self.call("PUT", f"/v0/topics/{_quoted(topic)}/cursors/{quote(cursor, safe='')}", b'{"seq":%d}' % seq)

    def call(self, method: str, path: str, body: bytes | None = None, query: dict[str, str] | None = None) -> Any:
        """Call one operation, with retries; blocks. Returns the decoded answer."""
        return json.loads(self._call(method, path, body, query or {}))

    def _call(self, method: str, path: str, body: bytes | None, query: dict[str, str]) -> bytes:
        target = self._prefix + path + ("?" + urlencode(query) if query else "")
        headers = dict(self._headers)
        if self._compress:
            headers["Accept-Encoding"] = "gzip"
        if body is not None:
            headers["Content-Type"] = "application/json"
            if self._compress and len(body) >= GZIP_FROM_BYTES:
                headers["Content-Encoding"] = "gzip"
                body = gzip.compress(body, 1)
        deadline = self._clock() + self._patience_s
        attempt = 0
        told = -TELL_EVERY_S
        while True:
            wait_s, problem, status, code = 0.0, "", 0, ""
            try:
                status, answer_headers, content = self._ask(method, target, body, headers)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                problem = f"{type(error).__name__}: {error}"
            else:
                if status < 300:
                    return content
                code, problem, wait_s = _refusal(status, answer_headers, content)
                if status not in _AGAIN:
                    raise ServiceError(f"{method} {self.url}{path}: {problem}", status, code)
            wait_s = wait_s or _pause_s(attempt)
            attempt += 1
            if self._clock() + wait_s > deadline:
                raise Unavailable(
                    f"{method} {self.url}{path}: given up after {attempt} attempts in {self._patience_s:g} s, the last "
                    f"with: {problem}. See that the service runs and keeps up; retryTimeoutMs allows more time",
                    status,
                    code,
                )
            if self._clock() - told >= TELL_EVERY_S:
                told = self._clock()
                log.warning("%s: %s; trying for %d s more", self.url, problem, deadline - told)
            self._pause(wait_s)

    def _ask(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        if self._connection is None:
            self._connection = self._make(*self._address, timeout=self._timeout_s)
            self._connection.connect()
            # Head and body are two sends; without TCP_NODELAY the second waits for the acknowledgement of the first.
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.request(method, target, body, headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.getheader("Content-Encoding", "") == "gzip":
            content = gzip.decompress(content)
        if response.will_close:
            self.close()
        return response.status, response.headers, content


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a service's address. Raises `ServiceError`."""
    try:
        parts = urlsplit(url)
        default = {"http": 80, "https": 443}[parts.scheme]
        if not parts.hostname:
            raise ValueError
        return parts.scheme, parts.hostname, default if parts.port is None else parts.port
    except (ValueError, KeyError):
        raise ServiceError(f"url {url!r}: give the service's address, such as http://127.0.0.1:4000") from None


def _quoted(topic: str) -> str:
    return quote(topic, safe=":")


def _pause_s(attempt: int) -> float:
    """Seconds before the next attempt. Random, so that tasks that failed together do not retry together."""
    return float(min(_SHORTEST_PAUSE_S * 2 ** min(attempt, 10), _LONGEST_PAUSE_S) * random.uniform(0.5, 1))


def _refusal(status: int, headers: Any, content: bytes) -> tuple[str, str, float]:
    """Code and message of an error answer, and the seconds that it asks to wait (0 if it does not say)."""
    try:
        error = json.loads(content)["error"]
        code, message = str(error["code"]), str(error["message"])
        detail = error.get("detail") or {}
    except (ValueError, KeyError, TypeError):
        # The answer is not the service's, but for example a proxy's page.
        code, message, detail = "", content[:200].decode(errors="replace"), {}
    wait_s = 0.0
    try:
        wait_s = float(detail["retry_after_ms"]) / 1000 if "retry_after_ms" in detail else 0.0
        wait_s = wait_s or float(headers.get("Retry-After") or 0)
    except (TypeError, ValueError):
        pass  # Retry-After may also be a date
    return code, f"{status} {code}: {message}" if code else f"{status}: {message}", max(wait_s, 0.0)


# Answers of a diff. `data` and `meta` are passed on as JSON text (see `members`). This takes 10 µs for a record of 200
# bytes, about as long as parsing it. Reading the files needs no such step.

COLUMNS = pa.schema({"seq": pa.int64(), "ts": pa.int64()} | dict.fromkeys(("node", "tag", "data", "meta"), pa.string()))
"""Columns of a diff. `ts` is in ms; `data` and `meta` are JSON text; `meta` is null where a record has none."""

_PLACES = {"$seq": 0, "$ts": 1, "$node": 2, "$tag": 3, "data": 4, "meta": 5}


def parse_diff(topic: str, body: bytes) -> Diff:
    """Parse the answer of a diff of a topic. Raises `ServiceError` if it is something else."""
    text = body.decode()
    about: dict[str, Any] = {}
    records: Any = None
    try:
        position = found(OPEN.match(text)).end()
        while not CLOSE.match(text, position):
            key = found(KEY.match(text, position))
            position = key.end()
            if key[1] == "records":
                records, position = _records(text, position + 1)
            else:
                about[key[1]], position = json.JSONDecoder().raw_decode(text, position)
        lost = about["tombstone"]
        gap = None if lost is None else Gap(topic, lost["gap_from"], lost["gap_to"], lost["reason"])
        made = pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(records, COLUMNS, strict=True)], schema=COLUMNS
        )
        return Diff(made, about["next_from_seq"], about["head_seq"], about["earliest_seq"], gap)
    except (KeyError, TypeError, ValueError, IndexError, StopIteration) as error:
        raise ServiceError(
            f"not the answer of a diff: {text[:200]!r} ({error!r}); is this url a topics service?"
        ) from error


def _records(text: str, position: int) -> tuple[list[list[Any]], int]:
    """The records of an array whose bracket is before `position`, as columns, and the position after its end."""
    columns: list[list[Any]] = [[] for _ in COLUMNS]
    while opened := OPEN.match(text, position):
        position = opened.end()
        row: list[Any] = [None] * len(columns)
        while key := KEY.match(text, position):
            begin = key.end()
            value, position = scanned(text, begin)
            place = _PLACES.get(key[1])
            if place is not None:
                row[place] = value if place < 4 else text[begin:position]
        row[0], row[1] = int(row[0]), int(row[1])
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        if (closed := CLOSE.match(text, position)) is None:
            raise ValueError("a record has no end")
        position = closed.end()
    return columns, text.index("]", position) + 1
