"""Workers of one queue: connections that claim jobs and ack them, in one thread and one epoll."""

from __future__ import annotations

import re
import select
import time
from collections.abc import Iterable

from load import Line, post
from smoke import records

_SEQ = re.compile(rb'"\$seq":(\d+)')
_ACKED = re.compile(rb'"acked":(\d+)')
TOP_UP = 1000


class Workers:
    """`count` workers that claim `batch` jobs at a time of a queue in which about `waiting` jobs wait. They ack them in
    a request of its own, or with `finishing` in the next claim."""

    def __init__(
        self, port: int, path: str, count: int, batch: int, waiting: int, *, key: str = "", finishing: bool = False
    ) -> None:
        self._path, self._batch, self._waiting, self._key, self._finishing = path, batch, waiting, key, finishing
        self._producer = Line(port)
        self._lines = [Line(port) for _ in range(count)]
        self._claim = post(f"{path}/claim", b'{"node":"w","max":%d}' % batch, key)
        self._jobs = post(f"{path}?return_seqs=false", b'{"records":[%b]}' % b",".join(records(TOP_UP)), key)
        self._there = 0
        self._claiming = [True] * count

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for line in (self._producer, *self._lines):
            line.close()

    def run(self, seconds: float) -> tuple[float, int]:
        """Jobs per second that were acked, and the requests of the workers. Jobs are produced meanwhile."""
        with select.epoll() as poll:
            for line in self._lines:
                poll.register(line.fileno(), select.EPOLLIN)
            by_descriptor = {line.fileno(): at for at, line in enumerate(self._lines)}
            self._fill()
            for at, line in enumerate(self._lines):
                self._claiming[at] = True
                line.send(self._claim)
            done = requests = 0
            started = time.perf_counter()
            open_lines = len(self._lines)
            while open_lines:
                late = time.perf_counter() - started >= seconds
                for descriptor, _ in poll.poll(30):
                    at = by_descriptor[descriptor]
                    body = self._lines[at].receive()
                    requests += 1
                    seqs = _SEQ.findall(body) if self._claiming[at] else []
                    if self._claiming[at]:
                        self._there -= len(seqs)
                    done += int(found[1]) if (found := _ACKED.search(body)) else 0
                    if late:
                        open_lines -= 1
                    else:
                        self._lines[at].send(self._next(at, seqs))
                self._fill()
            return done / (time.perf_counter() - started), requests

    def _next(self, at: int, seqs: Iterable[bytes]) -> bytes:
        listed = b",".join(seqs)
        if not listed:
            self._claiming[at] = True
            return self._claim
        if self._finishing:
            body = b'{"node":"w","max":%d,"ack":{"seqs":[%b]}}' % (self._batch, listed)
            return post(f"{self._path}/claim", body, self._key)
        self._claiming[at] = False
        return post(f"{self._path}/ack", b'{"node":"w","seqs":[%b]}' % listed, self._key)

    def _fill(self) -> None:
        while self._there < self._waiting:
            self._producer.ask(self._jobs)
            self._there += TOP_UP
