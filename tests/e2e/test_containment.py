"""Claims about a defect in a shard: it harms the request that meets it, in the real service.

Shards of these services have defects: the module below is loaded before their own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proto.model.names import shard_of
from tests.support.releases import topics
from tests.support.service import Service, until

DEFECTS = """
import sys
if "proto.process.fork_server" in sys.orig_argv:
    import os, signal
    from proto.ipc.message import Reply
    from proto.ipc.operations import Fed
    from shardd.operations.cursors import Cursors
    from shardd.operations.append import RecordsAdded
    from shardd.routers.router_operations import Routing
    get, apply, put = Cursors.get, RecordsAdded.apply, Routing.put
    def bad_get(self, request, respond):
        name = request.options.cursor
        if name == "raises":
            raise ZeroDivisionError("a defect")
        if name == "huge":
            respond(Reply(request.id, extra=Fed(1 << 64, 0, 0, 0)))
        elif name == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            get(self, request, respond)
    def bad_put(self, request, respond):
        if request.options.router == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        put(self, request, respond)
    def bad_apply(self, timing):
        if self.columns.data.values == b'"poison"':
            raise ZeroDivisionError("a defect after the write")
        apply(self, timing)
    Cursors.get, RecordsAdded.apply, Routing.put = bad_get, bad_apply, bad_put
"""
NewService = Callable[..., Service]


@pytest.fixture
def defective(new_service: NewService, tmp_path: Path, request: pytest.FixtureRequest) -> Service:
    """Its parameter is the number of gateways."""
    place = tmp_path / "defects"
    place.mkdir()
    (place / "sitecustomize.py").write_text(DEFECTS)
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH", ""))))
    gateways = {"TOPICS_GATEWAYS": request.param} if hasattr(request, "param") else {}
    service = new_service(PYTHONPATH=path, **gateways).start()
    service.request("PUT", "/v0/topics/t", {})
    return service


def pid_of(service: Service, topic: str = "t") -> int:
    return int(service.child(f"shard-{shard_of(topic, 2):02d}")["pid"])


def errors(service: Service) -> dict[tuple[str, str], int]:
    connection = service.connect()
    connection.request("GET", "/v0/metrics", headers={"Accept": "application/json"})
    families = json.loads(connection.getresponse().read())
    connection.close()
    return {
        (each["labels"]["process"], each["labels"]["operation"]): each["value"]
        for each in families["topics_internal_errors_total"]
    }


def test_an_exception_fails_its_request_and_the_shard_serves_on(defective: Service) -> None:
    before = pid_of(defective)
    for _ in range(20):
        status, answer = defective.request("GET", "/v0/topics/t/cursors/raises")
        assert (status, answer["error"]["code"]) == (500, "internal")
    ident = answer["error"]["detail"]["id"]
    until(lambda: f"id={ident}" in defective.log_text(), "the id in the log")
    assert "ZeroDivisionError" in defective.log_text()
    assert pid_of(defective) == before
    assert defective.request("POST", "/v0/topics/t", {"records": [{"data": 1}]})[0] == 200
    assert errors(defective) == {(f"shard-{shard_of('t', 2):02d}", "cursor_get"): 20}


def test_an_answer_that_cannot_be_sent_fails_its_request(defective: Service) -> None:
    before = pid_of(defective)
    status, answer = defective.request("GET", "/v0/topics/t/cursors/huge")
    assert (status, answer["error"]["detail"]["outcome"]) == (500, "unknown")
    assert pid_of(defective) == before


def settled(service: Service, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Ask until the shard is back."""

    def asked() -> tuple[int, Any] | None:
        answer = service.request(method, path, body)
        return None if answer[0] == 503 and answer[1]["error"]["detail"].get("outcome") == "not_done" else answer

    found: tuple[int, Any] = until(asked, "an answer of the shard")
    return found


def refused(service: Service, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Ask until the request has ended the shard twice. Returns the answer after that. A gateway that has not heard of a
    death yet sends to the process that is gone, which is no death."""

    def asked() -> tuple[int, Any] | None:
        status, answer = settled(service, method, path, body)
        assert status != 503 or answer["error"]["detail"]["outcome"] == "unknown"
        return None if status == 503 else (status, answer)

    found: tuple[int, Any] = until(asked, "a request to be refused")
    assert service.log_text().count("event=child_died") == 2
    return found


@pytest.mark.parametrize("defective", ["1", "3"], indirect=True)
def test_a_request_that_ended_the_shard_twice_is_not_sent_again(defective: Service) -> None:
    path = "/v0/topics/t/cursors/kills"
    status, answer = refused(defective, "GET", path)
    assert (status, answer["error"]["code"], answer["error"]["detail"]["outcome"]) == (500, "internal", "not_done")
    assert f"suspect={answer['error']['detail']['id']}" in defective.log_text()
    before = pid_of(defective)
    assert {settled(defective, "GET", path)[0] for _ in range(9)} == {500}, "at each gateway"
    assert settled(defective, "GET", "/v0/topics/t/cursors/other")[0] == 404
    assert pid_of(defective) == before


def test_a_write_that_ends_the_shard_after_the_log_has_it_is_there_and_not_sent_again(defective: Service) -> None:
    write = {"records": [{"data": "poison"}]}
    assert refused(defective, "POST", "/v0/topics/t", write)[0] == 500
    status, answer = settled(defective, "POST", "/v0/topics/t/diff", {"from_seq": 0})
    assert (status, [record["data"] for record in answer["records"]]) == (200, ["poison", "poison"])


def test_deaths_over_requests_make_no_pause_grow(defective: Service) -> None:
    """Fifteen within a minute, which a shard that died by itself would be held for."""
    topics = [name for n in range(60) if shard_of(name := f"d{n}", 2) == 0][:15]
    for name in topics:
        settled(defective, "PUT", f"/v0/topics/{name}", {})
    began = time.monotonic()
    for name in topics:
        assert settled(defective, "GET", f"/v0/topics/{name}/cursors/kills")[0] == 503
    assert "child_held" not in defective.log_text()
    assert settled(defective, "GET", f"/v0/topics/{topics[0]}/cursors/x")[0] == 404
    assert time.monotonic() - began < 120


@pytest.mark.parametrize("index", [0, 1])
def test_a_change_of_a_router_that_ends_a_shard_twice_is_not_made_again(defective: Service, index: int) -> None:
    """Whether it ends the shard that makes the changes, or another one that carries out a step of it."""
    dest = next(name for n in range(60) if shard_of(name := f"dest{n}", 2) == index)
    body = {"source": "t", "dest": dest}
    status, answer = refused(defective, "PUT", "/v0/routers/kills", body)
    assert (status, answer["error"]["code"], answer["error"]["detail"]["outcome"]) == (500, "internal", "not_done")
    before = pid_of(defective, dest)
    assert settled(defective, "PUT", "/v0/routers/kills", body)[0] == 500
    assert settled(defective, "PUT", "/v0/routers/harmless", body)[0] == 201
    assert pid_of(defective, dest) == before


LEAKS = """
import sys
if "proto.process.fork_server" in sys.orig_argv:
    import os
    from shardd.topic.records import Records
    LEAK = {leak!r}
    unstored = Records.unstored
    def leaking(self, upto):
        found = unstored(self, upto)
        if found and os.path.exists(LEAK):
            os.remove(LEAK)
            return found[1:]
        return found
    Records.unstored = leaking
"""


def test_a_checkpoint_that_would_lack_records_ends_the_shard_and_loses_none(tmp_path: Path) -> None:
    leak = tmp_path / "leak"
    (tmp_path / "sitecustomize.py").write_text(LEAKS.format(leak=str(leak)))
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    with Service(tmp_path, PYTHONPATH=path, TOPICS_CHECKPOINT_INTERVAL_MS="100") as service:
        service.request("POST", "/v0/topics/t", {"records": [{"data": 0}]})
        until(lambda: "checkpoint_made" in service.log_text(), "a checkpoint")
        before = pid_of(service)
        leak.touch()
        assert service.request("POST", "/v0/topics/t", {"records": [{"data": 1}]})[0] == 200
        until(lambda: "records_missing" in service.log_text(), "a checkpoint that leaves a batch out")
        until(lambda: "child_died" in service.log_text(), "the end of the process")

        def read() -> list[int] | None:
            # Until the gateway has heard of the end, a request goes to the process that is gone.
            status, answer = service.request("POST", "/v0/topics/t/diff", {"from_seq": 0})
            return [record["data"] for record in answer["records"]] if status == 200 else None

        assert until(read, "another process of the shard") == [0, 1]
        assert pid_of(service) != before
        assert service.log_text().count("records_missing") == 1
        assert service.stop() == 0
        topics("verify", "--data-dir", service.data_dir)
