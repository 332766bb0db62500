"""Claims about records with lone surrogate escapes: every process passes them on unchanged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from websockets.sync.client import connect

from proto.model.names import shard_of
from tests.support.events import Watch, watch
from tests.support.service import Service, until

DATA = rb'{"\udc00k":["a\ud83d","\ud83d\ude00","\\ud800","\uDFFF"]}'
META = rb'{"_topics_router":0,"m\uD800":"\ud800"}'
WRITE = b'{"records":[{"data":%b,"meta":%b}]}' % (DATA, META)
SHOWN = b'"data":%b,"meta":' % DATA
KEPT = rb'"m\uD800":"\ud800"'


def raw(service: Service, path: str, body: bytes = b"{}") -> bytes:
    connection = service.connect(20)
    try:
        connection.request("POST", f"/v0/topics/{path}", body, {"Content-Type": "application/json"})
        return connection.getresponse().read()
    finally:
        connection.close()


def ok(service: Service, method: str, path: str, body: Any = None) -> Any:
    status, answer = service.request(method, path, body)
    assert status in (200, 201), answer
    return answer


def test_records_go_through_everything_as_they_were_written(new_service: Callable[..., Service]) -> None:
    service = new_service().start()
    far = next(f"far{n}" for n in range(99) if shard_of(f"far{n}", 2) != shard_of("a", 2))
    dead = next(f"dead{n}" for n in range(99) if shard_of(f"dead{n}", 2) != shard_of("q", 2))
    ok(service, "PUT", "/v0/topics/a", {})
    ok(service, "PUT", f"/v0/routers/a-{far}", {"source": "a", "dest": far})
    ok(service, "PUT", "/v0/topics/q", {"type": "queue", "max_deliveries": 1, "dead_letter": dead})
    with connect(f"ws://127.0.0.1:{service.port}/v0/ws") as socket:
        socket.send('{"op":"subscribe","topic":"a"}')
        socket.send(f'{{"op":"publish","topic":"a","request_id":"\\ud800",{WRITE[1:].decode()}')
        texts = []
        while not any(f'"data":{DATA.decode()}' in text for text in texts):
            texts.append(str(socket.recv(20)))
    with Watch(service, watch(service, topics={"a": {"from_seq": 0}})) as stream:
        stream.wait_seq("a", 1)
        assert SHOWN in stream.raw
        assert KEPT in stream.raw
    ok(service, "POST", "/v0/topics/q", WRITE.decode())
    connection = service.connect(20)
    connection.request("GET", "/v0/topics/q/work?node=w", headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    job = next(line for line in iter(response.readline, b"") if line.startswith(b"data: "))
    assert SHOWN in job
    ok(service, "POST", "/v0/topics/q/nack", {"node": "w", "seqs": [1]})
    until(lambda: SHOWN in raw(service, f"{dead}/diff"), "the dead letter")
    response.close()
    connection.close()
    until(lambda: SHOWN in raw(service, f"{far}/diff"), "the copy")
    for restart in (service.restart, service.kill_group, None):
        for topic in ("a", far, dead):
            answer = raw(service, f"{topic}/diff")
            assert SHOWN in answer
            assert KEPT in answer
        if restart is not None:
            restart()
            if restart == service.kill_group:
                service.start()
    lines = topics(service, "export", "a")
    assert SHOWN in lines
    topics(service, "import", "-", "--topic", "again", given=lines)
    assert SHOWN in raw(service, "again/diff")
    assert b'"redriven":1' in raw(service, f"{dead}/redrive", b'{"queue":"q"}')
    assert SHOWN in raw(service, "q/claim", b'{"node":"w"}')


def topics(service: Service, *arguments: str, given: bytes | None = None) -> bytes:
    command = [sys.executable, "-m", "supervisor.cli", *arguments, "--url", service.url]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, env=service.environment, input=given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
