"""HTTP client of the Spark package against a scripted server, and the parser of a diff's answer."""

from __future__ import annotations

import gzip
import json
import threading
import time as clock
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_topics.client import Client, Endpoint, ServiceError, Unavailable, parse_diff
from pyspark_topics.offsets import Gap

Script = list[tuple[int, dict[str, str], Any] | None]


class Scripted:
    """Answers requests in turn: (status, headers, body), or None to hang up. `seen` has what came in."""

    def __init__(self, *script: tuple[int, dict[str, str], Any] | None) -> None:
        self.script: Script = list(script)
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.seen.append((self.command, self.path, dict(self.headers), body))
                answer = outer.script.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, content = answer
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(raw)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_PUT = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(*script: tuple[int, dict[str, str], Any] | None) -> Scripted:
        made.append(Scripted(*script))
        return made[-1]

    yield make
    for server in made:
        server.close()


class Time:
    """Clock that advances with each pause."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def client(server: Scripted, time: Time, **more: Any) -> Client:
    return Client(server.url, clock=time.clock, pause=time.pause, **more)


THROTTLED = {"error": {"code": "throttled", "message": "slow down", "detail": {"retry_after_ms": 1500}}}
WROTE = {"first_seq": 4, "last_seq": 6, "deduped": True}


def test_a_refusal_for_now_is_asked_again_when_it_says(scripted: Callable[..., Scripted]) -> None:
    busy = {"error": {"code": "not_ready", "message": "replaying"}}
    server = scripted((429, {"Retry-After": "2"}, THROTTLED), (503, {"Retry-After": "3"}, busy), (200, {}, WROTE))
    time = Time()
    with client(server, time) as asking:
        appended = asking.append("a:b", b'{"records":[]}')
    assert appended == (3, True)
    assert time.pauses == [1.5, 3.0]
    assert [path for _, path, _, _ in server.seen] == ["/v0/topics/a:b?return_seqs=false"] * 3
    assert server.connections == 1


def test_patience_ends_and_the_error_says_what_was_last(scripted: Callable[..., Scripted]) -> None:
    server = scripted(*[(429, {}, THROTTLED)] * 10)
    time = Time()
    with client(server, time, patience_s=4) as asking, pytest.raises(Unavailable) as caught:
        asking.topic("t")
    assert sum(time.pauses) <= 4
    assert len(server.seen) == 3
    assert caught.value.code == "throttled"
    assert "3 attempts in 4 s" in str(caught.value)
    assert "slow down" in str(caught.value)


def test_a_lost_answer_is_asked_for_again_on_a_new_connection(scripted: Callable[..., Scripted]) -> None:
    server = scripted((200, {}, {"topics": []}), None, (200, {}, WROTE))
    time = Time()
    with client(server, time) as asking:
        assert list(asking.topics()) == []
        asking.append("t", b"{}")
    assert [body for *_, body in server.seen[1:]] == [b"{}", b"{}"]
    assert server.connections == 2


def test_nobody_there_is_said_with_the_address() -> None:
    time = Time()
    asking = Client("http://127.0.0.1:9", patience_s=1, clock=time.clock, pause=time.pause)
    with pytest.raises(Unavailable, match=r"GET http://127\.0\.0\.1:9/v0/topics/t: .*ConnectionRefusedError"):
        asking.topic("t")


@pytest.mark.parametrize("status", [400, 401, 403, 409, 413, 422, 500])
def test_other_refusals_are_final(scripted: Callable[..., Scripted], status: int) -> None:
    server = scripted((status, {}, {"error": {"code": "some_code", "message": "no, because"}}))
    with (
        client(server, Time()) as asking,
        pytest.raises(ServiceError, match=f"{status} some_code: no, because") as caught,
    ):
        asking.append("t", b"{}")
    assert not isinstance(caught.value, Unavailable)
    assert len(server.seen) == 1


def test_the_token_is_sent_and_never_shown(scripted: Callable[..., Scripted]) -> None:
    server = scripted((401, {}, b"<html>no"))
    endpoint = Endpoint.of({"URL": server.url, "Token": "s3cret"})
    assert "s3cret" not in repr(endpoint)
    with endpoint.client() as asking, pytest.raises(ServiceError) as caught:
        asking.topic("t")
    assert "s3cret" not in str(caught.value)
    assert server.seen[0][2]["Authorization"] == "Bearer s3cret"


def test_large_bodies_are_compressed_when_asked_for(scripted: Callable[..., Scripted]) -> None:
    answer = gzip.compress(json.dumps(WROTE).encode())
    server = scripted((200, {"Content-Encoding": "gzip"}, answer), (200, {}, WROTE))
    body = b'{"records":["' + b"x" * 5000 + b'"]}'
    with client(server, Time(), compress=True) as asking:
        assert asking.append("t", body) == (3, True)
        asking.append("t", b"{}")
    (_, _, large, sent), (_, _, small, plain) = server.seen
    assert large["Content-Encoding"] == "gzip"
    assert gzip.decompress(sent) == body
    assert "Content-Encoding" not in small
    assert plain == b"{}"


def test_topics_come_page_by_page(scripted: Callable[..., Scripted]) -> None:
    server = scripted(
        (200, {}, {"topics": [{"topic": "a"}], "next_cursor": "x/="}), (200, {}, {"topics": [{"topic": "b"}]})
    )
    with client(server, Time()) as asking:
        assert [about["topic"] for about in asking.topics("p")] == ["a", "b"]
    assert server.seen[1][1] == "/v0/topics?page_size=1000&prefix=p&cursor=x%2F%3D"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"url": "localhost:4000"},
        {"url": "http://key:secret@localhost:4000"},
        {"url": "http://h", "compression": "zip"},
        {"url": "http://h", "retryTimeoutMs": "x"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ServiceError):
        Endpoint.of(options).client()


# Answers of a diff

REST = {"next_from_seq": 9, "head_seq": 10, "earliest_seq": 2, "caught_up": False, "lag": 1, "performance": {"x": 0.1}}
JSON_TEXT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
).map(lambda value: json.dumps(value, ensure_ascii=False))


@pytest.mark.slow
@given(
    st.lists(st.tuples(JSON_TEXT, st.none() | st.text(), st.none() | JSON_TEXT), max_size=5),
    st.sampled_from(["", " ", "\n "]),
)
def test_every_record_comes_back_as_the_text_it_was(rows: list[tuple[str, str | None, str | None]], space: str) -> None:
    records = []
    for seq, (data, tag, meta) in enumerate(rows, 1):
        members = [f'"$seq":{space}{seq}', f'"$ts": {seq + 5}', '"new": [{"$seq": 1}, "}"]']
        members += [] if tag is None else [f'"$tag":{json.dumps(tag)}']
        members += [f'"data":{space}{data}']
        members += [] if meta is None else [f'"meta":{meta}']
        records.append("{" + f"{space},".join(members) + space + "}")
    body = f'{{"topic":"t","records":{space}[{",".join(records)}],"tombstone":null,{json.dumps(REST)[1:]}'
    found = parse_diff("t", body.encode())
    assert found.records.to_pylist() == [
        {"seq": n, "ts": n + 5, "node": None, "tag": tag, "data": data, "meta": meta}
        for n, (data, tag, meta) in enumerate(rows, 1)
    ]
    assert (found.next_from_seq, found.head_seq, found.earliest_seq, found.gap) == (9, 10, 2, None)


@pytest.mark.parametrize(
    "data", ["1.0", "1e3", "9" * 5000, '{"a":1,"a":2}', '"\\ud800"', "[" * 5000 + "]" * 5000, "1e999"]
)
def test_unusual_json_stays_as_it_is(data: str) -> None:
    body = f'{{"records":[{{"$seq":1,"$ts":2,"data":{data}}}],"tombstone":null,{json.dumps(REST)[1:]}'
    assert parse_diff("t", body.encode()).records.column("data").to_pylist() == [data]


def test_a_tombstone_is_a_gap() -> None:
    lost = {"gap_from": 3, "gap_to": 8, "reason": "cap", "missed_estimate": 6}
    body = json.dumps({"records": [], "tombstone": lost, **REST})
    assert parse_diff("t", body.encode()).gap == Gap("t", 3, 8, "cap")


@pytest.mark.parametrize(
    "body", ["", "[]", "<html>", "{}", '{"records":[{"$seq":1}]}', '{"records":[{]}', '{"records":null}']
)
def test_what_is_no_answer_is_said_to_be_none(body: str) -> None:
    with pytest.raises(ServiceError, match="not the answer of a diff"):
        parse_diff("t", body.encode())


def test_a_call_that_waits_says_so_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    asking = Client("http://127.0.0.1:9", patience_s=20, clock=time.clock, pause=time.pause)
    with pytest.raises(Unavailable):
        asking.topic("t")
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("http://127.0.0.1:9: ConnectionRefusedError: ")
    assert said[0].endswith("; trying for 20 s more")
    assert 5 <= len(said) <= 11


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"retryTimeoutMs": "1000"}])
def test_what_is_to_begin_waits_for_seconds_only(more: dict[str, str]) -> None:
    began = clock.monotonic()
    with pytest.raises(Unavailable, match=r"GET http://127\.0\.0\.1:9/v0/health: given up after .* in [16] s"):
        Endpoint.of({"url": "http://127.0.0.1:9", **more}).reach()
    assert clock.monotonic() - began < 10


@pytest.mark.parametrize("status", [200, 401, 403, 404])
def test_whatever_answers_is_reached(scripted: Callable[..., Scripted], status: int) -> None:
    server = scripted((status, {}, {"error": {"code": "no", "message": "no"}}))
    Endpoint.of({"url": server.url}).reach()
    assert [path for _, path, _, _ in server.seen] == ["/v0/health"]
