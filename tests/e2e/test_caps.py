"""Claims about the cap over all topics, with real processes: at the cap routers and dead letters wait, then go on."""

from __future__ import annotations

import contextlib
import http.client
import threading
from pathlib import Path
from typing import Any

from proto.model.names import shard_of
from tests.support.service import Service, until

CAP = 100_000


def call(service: Service, method: str, path: str, body: Any = None) -> Any:
    status, answer = service.request(method, f"/v0/{path}", body)
    assert status in (200, 201), answer
    return answer


def held(service: Service) -> dict[str, int]:
    found = {each["topic"]: each["bytes"] for each in call(service, "GET", "topics")["topics"]}
    assert sum(found.values()) <= CAP
    return found


def copies(service: Service) -> dict[int, int]:
    answer = call(service, "POST", "topics/b/diff", {"limit": 1000})
    return {record["$seq"]: record["data"]["n"] for record in answer["records"]}


def test_at_the_cap_routers_and_dead_letters_wait_and_go_on_when_there_is_room(tmp_path: Path) -> None:
    with Service(tmp_path, TOPICS_MAX_TOTAL_BYTES=str(CAP)) as service:
        call(service, "POST", "topics/ballast", {"records": [{"data": "x" * 1000}] * 40})
        call(service, "PUT", "topics/q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"})
        call(service, "POST", "topics/q", {"records": [{"data": "y" * 2000}]})
        call(service, "POST", "topics/q/claim", {"node": "w", "lease_ms": 100})
        call(service, "PUT", "routers/r", {"source": "a", "dest": "b"})
        call(service, "POST", "topics/a", {"records": [{"data": {"n": n, "x": "z" * 1000}} for n in range(40)]})

        def waits() -> bool:
            held(service)
            waits_for = call(service, "GET", "routers/r").get("waits_for")
            return bool(copies(service)) and waits_for == "max_total_bytes"  # it also waits for its first loan

        until(waits, "the router to wait after some copies")

        def buried() -> bool:
            """Claim after the lease has ended: the job goes to the dead letters, which have no room."""
            assert call(service, "POST", "topics/q/claim", {"node": "w"})["count"] == 0
            held(service)
            return bool(call(service, "POST", "topics/q/peek")["jobs"][0]["state"] == "dead_lettering")

        until(buried, "the job to be a dead letter")
        status, answer = service.request("POST", "/v0/topics/a", {"records": [{"data": "x" * 3000}]})
        assert (status, answer["error"]["detail"]["limit"]) == (429, "max_total_bytes")
        with contextlib.closing(service.connect()) as connection:
            connection.request("GET", "/v0/metrics")
            text = connection.getresponse().read().decode()
        assert "topics_letters_waiting 1.0" in text
        assert "topics_routers_waiting 1.0" in text

        before = copies(service)
        assert 0 < len(before) < 40
        name = f"shard-{shard_of('b', 2):02d}"
        killed = service.kill_child(name)
        until(lambda: service.child(name)["incarnation"] > killed and service.is_ready(), "the shard to be back")
        assert copies(service) == before
        held(service)

        call(service, "DELETE", "topics/ballast")
        until(lambda: held(service)["b"] == held(service)["a"], "the copies to be complete")
        assert copies(service) == {n + 1: n for n in range(40)}
        until(lambda: held(service).get("dead"), "the letter to arrive")
        (letter,) = call(service, "POST", "topics/dead/diff")["records"]
        assert letter["data"] == "y" * 2000
        assert call(service, "GET", "topics/q")["queue"]["dead_lettered"] == 1
        assert "waits_for" not in call(service, "GET", "routers/r")


RECORD = {"records": [{"data": 1}]}
SIZE = 17


def total(service: Service) -> int:
    return sum(each["bytes"] for each in call(service, "GET", "topics?page_size=1000")["topics"])


def test_writers_fill_the_total_exactly_although_shards_die_meanwhile(tmp_path: Path) -> None:
    most = 2000
    with Service(tmp_path, shards=4, TOPICS_MAX_TOTAL_BYTES=str(most * SIZE + 3)) as service:
        problems: list[Any] = []

        def write(number: int) -> None:
            refused = 0
            while refused < 20:
                try:
                    status, answer = service.request("POST", f"/v0/topics/t{number}", RECORD)
                except (OSError, http.client.HTTPException):
                    continue
                number = (number + 7) % 40
                if status == 429:
                    if answer["error"]["detail"]["limit"] != "max_total_bytes":
                        problems.append(answer)
                    refused += 1
                elif status not in (200, 201, 503):
                    problems.append(answer)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for name in ("shard-00", "shard-02", "shard-00"):
            before = total(service)
            until(lambda held=before: total(service) > held or held == most * SIZE, "some writes")
            killed = service.kill_child(name)
            until(
                lambda name=name, k=killed: service.child(name)["incarnation"] > k and service.is_ready(), "its return"
            )
            assert total(service) <= most * SIZE
        for thread in threads:
            thread.join()
        assert problems == []
        assert total(service) == most * SIZE


def test_a_refused_router_leaves_no_topic_behind(tmp_path: Path) -> None:
    with Service(tmp_path, shards=2, TOPICS_MAX_TOPICS="1") as service:
        status, answer = service.request("PUT", "/v0/routers/r", {"source": "a", "dest": "b"})
        assert (status, answer["error"]["detail"]["limit"]) == (429, "max_topics")
        assert call(service, "GET", "topics")["topics"] == []
        until(lambda: service.request("PUT", "/v0/topics/a", {})[0] == 201, "room for a topic")
        status, answer = service.request("PUT", "/v0/routers/r", {"source": "a", "dest": "b"})
        assert (status, answer["error"]["detail"]["limit"]) == (429, "max_topics")
        assert [each["topic"] for each in call(service, "GET", "topics")["topics"]] == ["a"]
