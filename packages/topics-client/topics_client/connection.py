"""The connection: requests over httpx, and when they are repeated.

    no connection, no whole answer, 502, 504        after a pause that doubles, 50 ms to 2 s
    429 throttled, 503 not_ready, shutting_down     after the pause that the service asks for, else as above
    any other error                                 never

A request that must not be carried out twice is repeated only if the error says that it was not carried out. When
`patience_s` has passed since the first failure, the last error is raised; for appends perhaps earlier (`within_s`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Self, TypedDict
from urllib.parse import quote

import anyio
import httpx

from topics_client.direct import Direct
from topics_client.endpoint import resolve
from topics_client.errors import TopicsError, Unauthorized, Unavailable, error_of
from topics_client.payloads import Decode, Encode, from_json, to_json, writer

TIMEOUT_S = 90.0
"""Longer than the service's own request timeout, after which it answers 503."""
CONNECT_TIMEOUT_S = 10.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_TOLD_AFTER_S = 2.0
_TOKEN_REMEDY = "A key is given as token=, or in TOPICS_TOKEN, which goes to TOPICS_URL only if that is set."
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


log = logging.getLogger("topics_client.connection")
_ours = ContextVar("topics_client_request", default=False)

# Its line for each request is for programs that use httpx themselves.
logging.getLogger("httpx").addFilter(lambda _: not _ours.get())


class Pauses:
    """The pauses between the attempts of one request to a service. `patience_s` None means: for ever."""

    def __init__(self, patience_s: float | None, service: str) -> None:
        self._patience_s = patience_s
        self._service = service
        self._deadline: float | None = None
        self._next_s = _SHORTEST_PAUSE_S
        self._failing_since: float | None = None
        self._told = False

    async def after(self, error: TopicsError, latest: float = math.inf) -> None:
        """Wait before the next attempt. Raises `error` if it can not succeed later, the patience is over, or the
        attempt would begin after `latest`."""
        if not error.transient:
            raise error
        pause_s = max(error.retry_after or 0, self._next_s * random.uniform(0.5, 1))
        self._next_s = min(2 * self._next_s, _LONGEST_PAUSE_S)
        now = anyio.current_time()
        if self._patience_s is not None:
            self._deadline = min(self._deadline or now + self._patience_s, latest)
            if now + pause_s > self._deadline:
                raise error
        self._tell(error, now, pause_s)
        await anyio.sleep(pause_s)

    def _tell(self, error: TopicsError, now: float, pause_s: float) -> None:
        """Log once that attempts continue, unless they end soon with an error."""
        self._failing_since = now if self._failing_since is None else self._failing_since
        left_s = math.inf if self._deadline is None else self._deadline - now
        if not self._told and now + pause_s >= self._failing_since + _TOLD_AFTER_S and left_s > 2 * _TOLD_AFTER_S:
            self._told = True
            how_long = "" if left_s == math.inf else f" for {left_s:.0f} s"
            log.warning("%s: no answer yet (%s); trying again%s", self._service, error, how_long)

    def reset(self) -> None:
        """The service has answered."""
        if self._told and self._failing_since is not None:
            waited_s = anyio.current_time() - self._failing_since
            log.info("%s: the service answers again, after %.0f s", self._service, waited_s)
        self._deadline, self._next_s = None, _SHORTEST_PAUSE_S
        self._failing_since, self._told = None, False


class _Body(httpx.AsyncByteStream):
    """A body in one piece. That of httpx is a generator, which trio warns of when a connection breaks meanwhile."""

    def __init__(self, content: bytes) -> None:
        self._parts = iter([content])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            return part
        raise StopAsyncIteration


class ConnectionOptions(TypedDict, total=False):
    """Options of a client. `key` is the old name of `token`. `direct`: requests of a topic go to the machine that holds
    it, if the service has several and their addresses are reached from here."""

    direct: bool
    context: str | None
    key: str | None
    encode: Encode
    decode: Decode
    patience_s: float
    loads: Callable[[bytes | str], Any]
    transport: httpx.AsyncBaseTransport | None


class Connection:
    """Requests to one service."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        *,
        context: str | None = None,
        key: str | None = None,
        encode: Encode = to_json,
        decode: Decode = from_json,
        patience_s: float = 60.0,
        loads: Callable[[bytes | str], Any] = json.loads,
        transport: httpx.AsyncBaseTransport | None = None,
        direct: bool = False,
    ) -> None:
        if key is not None and token is not None:
            raise TypeError("token and key, its old name, are both given; give the token")
        url, token = resolve(url, key if token is None else token, context, os.environ)
        self.patience_s = patience_s
        self.write = writer(encode)
        self.decode = decode
        self._loads = loads
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            transport=transport,
            verify=True if url.lower().startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )  # a context that trusts no certificate costs nothing; one with all those of the system takes 20 ms to make
        self.service = f"{self._http.base_url.scheme}://{self._http.base_url.netloc.decode('ascii')}"
        """Scheme, host and port, for texts: a URL may have a password."""

        self._direct = Direct(self._http.base_url.scheme) if direct else None

    async def close(self) -> None:
        await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        repeat: bool = True,
        within_s: float = math.inf,
        raw: bool = False,
    ) -> Any:
        """Send a request until it is answered, and return the answer, with `raw` its bytes. With `repeat` false it is
        never done twice. No attempt begins later than `within_s` after the first one that may have been carried out."""
        pauses, latest, unknown = Pauses(self.patience_s, self.service), math.inf, False
        while True:
            began = anyio.current_time()
            try:
                answer = await self._once(method, path, body, params, raw=raw)
                pauses.reset()
                return answer
            except TopicsError as error:
                if unknown := unknown or error.outcome != "not_done":
                    error.detail["outcome"] = "unknown"  # also if an attempt before this one may have been carried out
                    if not repeat:
                        raise
                    latest = min(latest, began + within_s)
                await pauses.after(error, latest)

    async def _once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None,
        params: Mapping[str, Any] | None,
        *,
        raw: bool,
    ) -> Any:
        direct = self._direct
        target = path if direct is None else direct.target(path)
        try:
            response = await self._send(self._request(method, target, body, params))
        except httpx.TransportError as error:
            if direct is not None:
                direct.lost(path)
            raise self._unavailable(error) from error
        if direct is not None:
            direct.heard(path, response)
        return response.content if raw and response.is_success else self._answer(response)

    async def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        request.stream = _Body(request.content)
        token = _ours.set(True)
        try:
            return await self._http.send(request, stream=stream)
        finally:
            _ours.reset(token)

    async def open(self, path: str, headers: Mapping[str, str], *, silence_s: float) -> httpx.Response:
        """Open a stream of events, which ends with `httpx.ReadTimeout` after `silence_s`. The caller closes it."""
        request = self._http.build_request(
            "GET",
            path,
            headers={"Accept": "text/event-stream", **headers},
            timeout=httpx.Timeout(silence_s, connect=CONNECT_TIMEOUT_S),
        )
        try:
            response = await self._send(request, stream=True)
            if response.status_code == 200:
                return response
            await response.aread()
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        self._answer(response)
        raise Unavailable(f"HTTP status {response.status_code} in place of a stream", status=response.status_code)

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | bytes | None, params: Mapping[str, Any] | None
    ) -> httpx.Request:
        given = {name: _text(value) for name, value in (params or {}).items() if value is not None}
        if body is None:
            return self._http.build_request(method, path, params=given)
        if not isinstance(body, bytes):
            present = {name: value for name, value in body.items() if value is not None}
            body = json.dumps(present, separators=(",", ":"), allow_nan=False).encode()
        headers = {"Content-Type": "application/json"}
        return self._http.build_request(method, path, params=given, content=body, headers=headers)

    def parsed(self, text: bytes | str) -> Any:
        """Parse an answer or a frame of a stream. Raises `ValueError`."""
        try:
            return self._loads(text)
        except RecursionError:  # old records have up to 980 levels, for which there is room on a stack of its own
            with ThreadPoolExecutor(1) as apart:
                return apart.submit(self._loads, text).result()

    def _answer(self, response: httpx.Response) -> Any:
        try:
            body = self.parsed(response.content)
        except ValueError as error:
            if response.is_success:
                raise Unavailable("the answer is not JSON", status=response.status_code) from error
            body = None
        if response.is_success:
            return body
        if response.has_redirect_location:  # followed, a write would become a read
            where = response.headers["Location"]
            told = f"{self.service} redirects to {where}: give the client the URL of the service"
            raise TopicsError(told, status=response.status_code)
        refusal = error_of(response.status_code, body, response.headers.get("Retry-After"))
        if isinstance(refusal, Unauthorized):
            refusal.add_note(f"asked: {self.service}. {_TOKEN_REMEDY}")
        raise refusal

    def _unavailable(self, error: httpx.TransportError) -> Unavailable:
        detail = {"outcome": "not_done" if isinstance(error, _NOT_SENT) else "unknown"}
        told = Unavailable(f"{type(error).__name__}: {error}", detail=detail)
        told.add_note(f"asked: {self.service}")
        return told


def segment(name: str) -> str:
    """A name as a segment of a path; also `.` and `..`, which a URL takes for this folder and the one above."""
    return quote(name, safe="") if name.strip(".") else "%2E" * len(name)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
