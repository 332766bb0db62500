"""A service of answers that a test lists: each request takes the next one, and is remembered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from topics_client import AsyncClient

Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


def answer(status: int = 200, body: Any = None, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()})


def error(status: int, code: str, detail: Any = None, **headers: str) -> httpx.Response:
    return answer(status, {"error": {"code": code, "message": code, "detail": detail}}, **headers)


def appended(first: int, last: int, **more: Any) -> httpx.Response:
    return answer(
        200,
        {"first_seq": first, "last_seq": last, "count": last - first + 1, "created": False, "deduped": False} | more,
    )


def page(first: int, last: int, head: int, tombstone: Any = None) -> httpx.Response:
    records = [{"$seq": seq, "$ts": 1, "data": seq} for seq in range(first, last + 1)]
    told = {"records": records, "next_from_seq": last, "head_seq": head, "caught_up": last == head}
    return answer(200, told | {"tombstone": tombstone})


def session(wid: str = "w", **topics: int) -> httpx.Response:
    states = {topic: {"from_seq": seq, "head_seq": 9, "earliest_seq": 1} for topic, seq in topics.items()}
    return answer(200, {"wid": wid, "stream_url": f"/v0/watch/{wid}", "topics": states})


def frame(event: str, identity: str | None = None, **told: Any) -> bytes:
    head = f"id: {identity}\n" if identity else ""
    return f"{head}event: {event}\ndata: {json.dumps(told)}\n\n".encode()


def records(topic: str, first: int, last: int) -> bytes:
    rows = [{"$seq": seq, "$ts": 1, "data": seq} for seq in range(first, last + 1)]
    return frame("record", f"{topic}{last}", topic=topic, records=rows, from_seq=first - 1, to_seq=last, head_seq=last)


def stream(*chunks: bytes | Exception) -> httpx.Response:
    async def content() -> AsyncIterator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    return httpx.Response(200, content=content(), headers={"Content-Type": "text/event-stream"})


@dataclass
class Fake:
    """`answers` in the order of requests; `requests` are those that came. After the last answer, a test has failed."""

    answers: list[Answer]
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        assert self.answers, f"no answer is left for {request.method} {request.url}"
        given = self.answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, httpx.Response) else given(request)

    def client(self, **options: Any) -> AsyncClient:
        return AsyncClient("http://fake", transport=httpx.MockTransport(self), **options)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) if request.content else None for request in self.requests]

    @property
    def paths(self) -> list[str]:
        return [f"{request.method} {request.url.path}" for request in self.requests]
