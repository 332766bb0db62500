"""Claims about what a client notices of a takeover, behind a load balancer that asks /v0/ready: that it waits.

Watch sessions, named cursors, idempotency keys, durable leases, routers and tails go on at the other machine. A watch
session may step back to the position that was saved last; with class `fsync`, nothing else does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_roles import machine, stands_by
from tests.support.balancer import Balancer
from tests.support.events import Watch
from tests.support.service import Service, until
from topics_client import Client

FSYNC = {"durability": "fsync"}
PATIENCE_S = 60


@pytest.fixture
def front(tmp_path: Path) -> Iterator[tuple[Balancer, Service, Service]]:
    """A balancer, the holder behind it, and the standby."""
    one, two = machine(tmp_path, "one"), machine(tmp_path, "two")
    try:
        one.start(wait=False).wait_ready(PATIENCE_S)
        two.start(wait=False)
        until(lambda: stands_by(two), "a standby", PATIENCE_S)
        with Balancer((one, two)) as balancer:
            yield balancer, one, two
    finally:
        one.close()
        two.close()


def insist(front: Balancer, method: str, path: str, body: Any = None) -> Any:
    status, answer = front.request(method, path, body)
    assert status in (200, 201), answer
    return answer


def publish(front: Balancer, topic: str, *data: Any, key: str) -> Any:
    body = {"records": [{"data": each} for each in data], "idempotency_key": key}
    return insist(front, "POST", f"/v0/topics/{topic}", body)


def read(front: Balancer, topic: str) -> list[Any]:
    page = insist(front, "POST", f"/v0/topics/{topic}/diff", {"from_seq": 0, "limit": 1000})
    return [record["data"] for record in page["records"]]


def test_positions_keys_leases_and_copies_go_on_at_the_other_machine(front: tuple[Balancer, Service, Service]) -> None:
    balancer, one, two = front
    for topic in ("events", "copies"):
        insist(balancer, "PUT", f"/v0/topics/{topic}", FSYNC)
    queue = {"type": "queue", "leases_durable": True, **FSYNC}
    insist(balancer, "PUT", "/v0/topics/jobs", queue)
    router = {"source": "events", "dest": "copies", "guarantee": "exactly_once"}
    insist(balancer, "PUT", "/v0/routers/copier", router)
    wid = insist(balancer, "POST", "/v0/watch", {"topics": {"events": {"from_seq": 0}}})["wid"]
    first = publish(balancer, "events", 1, 2, 3, key="a")
    epoch = insist(balancer, "GET", "/v0/topics/events")["epoch"]
    assert insist(balancer, "PUT", "/v0/topics/events/cursors/reader", {"seq": 2})["seq"] == 2
    publish(balancer, "jobs", "first", "second", key="jobs")
    claim = {"node": "worker", "max": 1, "lease_ms": 600_000}
    held = insist(balancer, "POST", "/v0/topics/jobs/claim", claim)["claimed"]
    until(lambda: read(balancer, "copies") == [1, 2, 3], "the copies")
    with Watch(balancer, wid) as stream:  # type: ignore[arg-type]
        stream.wait_seq("events", 3)
        taken, last_id = stream.seqs("events"), stream.last_id

    one.kill_group()

    again = publish(balancer, "events", 1, 2, 3, key="a")
    assert two.is_ready()
    assert (again["deduped"], again["seqs"]) == (True, first["seqs"])
    publish(balancer, "events", 4, 5, key="b")
    with Watch(balancer, wid, last_id) as stream:  # type: ignore[arg-type]
        stream.wait_seq("events", 5)
        came = stream.seqs("events")
    # The session's position may be older than what was sent: then records come again, and none is left out.
    assert came[0] <= taken[-1] + 1
    assert came == list(range(came[0], 6))
    assert insist(balancer, "GET", "/v0/topics/events/cursors/reader")["seq"] == 2
    assert insist(balancer, "GET", "/v0/topics/events")["epoch"] == epoch
    other = insist(balancer, "POST", "/v0/topics/jobs/claim", {**claim, "node": "other", "max": 2})["claimed"]
    assert [job["data"] for job in (*held, *other)] == ["first", "second"], "a durable lease holds"
    done = insist(balancer, "POST", "/v0/topics/jobs/ack", {"node": "worker", "seqs": [held[0]["$seq"]]})
    assert done["acked"] == 1
    until(lambda: len(read(balancer, "copies")) >= 5, "the copies")
    assert read(balancer, "copies") == [1, 2, 3, 4, 5], "no copy twice"


def test_a_tail_and_a_publisher_of_the_python_client_go_on(front: tuple[Balancer, Service, Service]) -> None:
    balancer, one, two = front
    insist(balancer, "PUT", "/v0/topics/events", FSYNC)
    seen: list[Any] = []
    failures: list[BaseException] = []

    def follow(client: Client) -> None:
        try:
            for record in client.tail("events", from_seq=0):
                seen.append(record.data)
                if record.data == "last":
                    return
        except BaseException as error:  # a thread's failure is the test's
            failures.append(error)

    with Client(balancer.url) as client:
        follower = threading.Thread(target=follow, args=(client,))
        follower.start()
        for number in range(10):
            client.publish("events", number)
        until(lambda: len(seen) >= 10 or failures, "the first records")
        one.kill_group()
        for number in range(10, 20):
            client.publish("events", number)
        client.publish("events", "last")
        follower.join(60)
    assert not failures, failures
    assert two.is_ready()
    assert seen == [*range(20), "last"]
