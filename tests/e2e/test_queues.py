"""Claims about queues over HTTP, with real processes: pushed jobs, dead letters across shards, deaths of workers and
shards."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from proto.model.names import shard_of
from tests.support.service import Service, ask, until


def call(service: Service, method: str, path: str, body: Any = None) -> Any:
    status, answer = service.request(method, f"/v0/topics/{path}", body)
    assert status in (200, 201), answer
    return answer


def in_flight(service: Service) -> int:
    """Requests in flight, with the one that asks."""
    with urlopen(f"{service.url}/v0/metrics", timeout=10) as answer:
        lines = str(answer.read(), "utf-8").splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("topics_http_requests_in_flight "))


class Stream:
    """A /work stream, read event by event."""

    def __init__(self, connection: http.client.HTTPConnection, path: str) -> None:
        connection.request("GET", path, headers={"Accept": "text/event-stream"})
        self.response = connection.getresponse()

    def next(self) -> tuple[str, Any]:
        """Return the next event's name and data, skipping comments; ("end", None) at the end."""
        event = ""
        while line := self.response.readline():
            if line.startswith(b"event: "):
                event = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                return event, json.loads(line[6:])
        return "end", None

    def jobs(self, count: int) -> list[int]:
        found = [self.next() for _ in range(count)]
        assert all(event == "job" for event, _ in found), found
        return [job["$seq"] for _, job in found]


@contextmanager
def working(service: Service, query: str, topic: str) -> Iterator[Stream]:
    connection = service.connect()
    stream = Stream(connection, f"/v0/topics/{topic}/work?{query}")
    try:
        yield stream
    finally:
        stream.response.close()
        connection.close()


def test_jobs_are_produced_claimed_and_acked(shared: Service) -> None:
    assert call(shared, "PUT", "a", {"type": "queue", "durable": True})["config"]["type"] == "queue"
    call(shared, "POST", "a", {"records": [{"data": n} for n in range(3)]})
    answer = call(shared, "POST", "a/claim", {"node": "w", "max": 2})
    assert (answer["count"], answer["ready"]) == (2, 1)
    assert "server_total_ms" in answer["performance"]
    answer = call(shared, "POST", "a/ack", {"node": "w", "seqs": [1]})
    assert answer["acked"] == 1
    assert answer["performance"]["fsync_ms"] > 0
    call(shared, "POST", "a/nack", {"node": "w", "seqs": [2]})
    assert call(shared, "GET", "a")["queue"] == {
        "ready": 2,
        "in_flight": 0,
        "delayed": 0,
        "dead_lettering": 0,
        "dead_lettered": 0,
    }
    connection = shared.connect()
    connection.request("GET", "/v0/metrics")
    assert b'topics_topic_queue_ready{topic="a"} 2.0' in connection.getresponse().read()
    connection.close()


def test_a_claim_finishes_jobs_first_and_says_so_also_after_a_wait(shared: Service) -> None:
    call(shared, "PUT", "fin", {"type": "queue", "durable": True})
    call(shared, "POST", "fin", {"records": [{"data": n} for n in range(4)]})
    jobs = call(shared, "POST", "fin/claim", {"node": "w", "max": 3})["claimed"]
    ids = [job["lease_id"] for job in jobs]
    body = {"node": "w", "ack": {"seqs": [1, 2], "lease_ids": ids[:2]}, "nack": {"seqs": [3], "delay_ms": 60_000}}
    answer = call(shared, "POST", "fin/claim", body)
    assert [job["$seq"] for job in answer["claimed"]] == [4]
    assert (answer["ack"], answer["nack"]) == ({"acked": 2, "skipped": []}, {"nacked": 1, "skipped": []})
    assert answer["performance"]["fsync_ms"] > 0
    answer = call(shared, "POST", "fin/claim", {"node": "w", "wait_ms": 100, "ack": {"seqs": [1, 4]}})
    assert (answer["claimed"], answer["ack"]) == ([], {"acked": 1, "skipped": [1]})
    status, answer = shared.request("POST", "/v0/topics/fin/claim", {"node": "w", "ack": {"seqs": []}})
    assert (status, answer["error"]["detail"]) == (400, {"field": "ack.seqs"})
    assert call(shared, "GET", "fin")["count"] == 1


def test_a_log_answers_409(shared: Service) -> None:
    call(shared, "PUT", "log")
    for method, path, body in (("POST", "claim", {"node": "w"}), ("GET", "work?node=w", None)):
        status, answer = shared.request(method, f"/v0/topics/log/{path}", body)
        assert (status, answer["error"]["code"]) == (409, "not_a_queue")
    assert shared.request("GET", "/v0/topics/none/work?node=w")[0] == 404
    assert shared.request("GET", "/v0/topics/log/work")[0] == 400


def test_a_stream_is_kept_at_its_max_and_its_jobs_come_back_when_it_goes(shared: Service) -> None:
    call(shared, "PUT", "pushed", {"type": "queue"})
    with working(shared, "node=w&max=2", "pushed") as stream:
        assert stream.response.getheader("content-type", "").startswith("text/event-stream")
        call(shared, "POST", "pushed", {"records": [{"data": {"a": n}} for n in range(4)]})
        event, job = stream.next()
        assert event == "job"
        assert (job["topic"], job["$seq"], job["deliveries"], job["data"]) == ("pushed", 1, 1, {"a": 0})
        assert stream.jobs(1) == [2]
        assert call(shared, "GET", "pushed")["queue"]["in_flight"] == 2
        call(shared, "POST", "pushed/ack", {"node": "w", "seqs": [2]})
        assert stream.jobs(1) == [3]
    until(lambda: call(shared, "GET", "pushed")["queue"]["in_flight"] == 0, "the stream's leases to be released")
    claimed = call(shared, "POST", "pushed/claim", {"node": "v", "max": 9})["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in claimed] == [(1, 2), (3, 2), (4, 1)]


def test_a_stream_ends_when_its_queue_is_gone(shared: Service) -> None:
    call(shared, "PUT", "doomed", {"type": "queue"})
    with working(shared, "node=w", "doomed") as stream:
        call(shared, "POST", "doomed", {"records": [{"data": 0}]})
        assert stream.jobs(1) == [1]
        call(shared, "DELETE", "doomed")
        call(shared, "PUT", "doomed")
        event, problem = stream.next()
        assert event == "error"
        assert problem["code"] in (404, 409)
        assert stream.next() == ("end", None)


def test_dead_letters_reach_another_shard(shared: Service) -> None:
    source = "letters"
    target = next(f"dead{n}" for n in range(100) if shard_of(f"dead{n}", 2) != shard_of(source, 2))
    call(shared, "PUT", source, {"type": "queue", "max_deliveries": 1, "dead_letter": target})
    call(shared, "POST", source, {"records": [{"data": 0}]})
    call(shared, "POST", f"{source}/claim", {"node": "w"})
    call(shared, "POST", f"{source}/nack", {"node": "w", "seqs": [1]})
    assert call(shared, "POST", f"{source}/claim", {"node": "w"})["count"] == 0
    until(lambda: call(shared, "GET", source)["queue"]["dead_lettered"] == 1, "the job to be moved")
    assert call(shared, "GET", source)["count"] == 0
    (copy,) = call(shared, "POST", f"{target}/diff", {"from_seq": 0})["records"]
    assert copy["meta"]["$dead_letter_from"] == source


def test_jobs_can_be_delayed_looked_at_and_brought_back(shared: Service) -> None:
    call(shared, "PUT", "x", {"type": "queue", "max_deliveries": 1, "dead_letter": "x:dead"})
    call(
        shared, "POST", "x", {"records": [{"data": 0, "tag": "t", "meta": {"a": 1}}, {"data": 1, "delay_ms": 300_000}]}
    )
    assert call(shared, "POST", "x/claim", {"node": "w", "max": 9})["count"] == 1
    first, second = call(shared, "POST", "x/peek", {})["jobs"]
    assert (first["$seq"], first["state"], first["node"], first["$tag"]) == (1, "in_flight", "w", "t")
    assert (second["$seq"], second["state"]) == (2, "delayed")
    assert 290_000 < second["due"] - time.time() * 1000 <= 300_000
    page = call(shared, "POST", "x/peek", {"from_seq": 2, "max": 1})
    assert ([job["data"] for job in page["jobs"]], page["delayed"], page["more"]) == ([1], 1, False)
    call(shared, "POST", "x/nack", {"node": "w", "seqs": [1]})
    call(shared, "POST", "x/claim", {"node": "w"})
    until(lambda: call(shared, "GET", "x")["queue"]["dead_lettered"] == 1, "the job to be moved")
    answer = call(shared, "POST", "x:dead/redrive", {"queue": "x", "match": "t"})
    assert (answer["redriven"], answer["seqs"], answer["more"]) == (1, [1], False)
    assert call(shared, "POST", "x:dead/redrive", {"queue": "x"})["redriven"] == 0
    (job,) = call(shared, "POST", "x/claim", {"node": "w"})["claimed"]
    assert (job["deliveries"], job["data"], job["meta"], job["$tag"]) == (1, 0, {"a": 1}, "t")
    status, answer = shared.request("POST", "/v0/topics/x:dead/peek", {})
    assert (status, answer["error"]["code"]) == (409, "not_a_queue")
    status, answer = shared.request("POST", "/v0/topics/x:dead", {"records": [{"data": 0, "delay_ms": 1}]})
    assert (status, answer["error"]["detail"]) == (400, {"field": "delay_ms"})


def test_a_killed_gateway_keeps_no_job(new_service: Callable[..., Service]) -> None:
    """Jobs of its streams are given back at once, and its waiting claims take none."""
    service = new_service().start()
    call(service, "PUT", "q", {"type": "queue"})
    call(service, "PUT", "idle", {"type": "queue"})
    call(service, "POST", "q", {"records": [{"data": 0}]})
    waiting = service.connect()
    body = json.dumps({"node": "w", "wait_ms": 20_000, "lease_ms": 3_600_000})
    with working(service, "node=w&lease_ms=3600000", "q") as stream:
        event, job = stream.next()
        assert (event, job["$seq"]) == ("job", 1)
        waiting.request("POST", "/v0/topics/idle/claim", body, {"Content-Type": "application/json"})
        until(lambda: in_flight(service) == 3, "the stream and the claim to wait")
        service.kill_child("gateway")
    waiting.close()

    def claimed() -> Any:
        status, answer = service.request("POST", "/v0/topics/q/claim", {"node": "v"})
        return answer["claimed"] if status == 200 else None

    until(claimed, "the job to be claimable again")
    call(service, "POST", "idle", {"records": [{"data": 0}]})
    (job,) = call(service, "POST", "idle/claim", {"node": "v"})["claimed"]
    assert job["deliveries"] == 1
    assert service.log_text().count("asker_gone") == 2 * int(service.environment["TOPICS_GATEWAYS"])


def test_each_letter_arrives_once_and_comes_back_once_whoever_dies(new_service: Callable[..., Service]) -> None:
    """Dead letters to another shard and back, while the shards of both topics are killed at random moments."""
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails, to run it again
    chance = random.Random(seed)
    service = new_service().start()
    target = next(f"dead{n}" for n in range(100) if shard_of(f"dead{n}", 2) != shard_of("jobs", 2))
    config = {"type": "queue", "durable": True, "leases_durable": True, "max_deliveries": 1, "dead_letter": target}
    call(service, "PUT", "jobs", config)
    call(service, "PUT", target, {"durable": True, "idempotency_window_ms": 1})
    total = 600
    call(service, "POST", "jobs", {"records": [{"data": n} for n in range(total)]})

    def insist(path: str, body: Any) -> Any:
        """Repeat a request until there is a response."""
        answers: list[Any] = []

        def answered() -> bool:
            try:
                status, answer = service.request("POST", f"/v0/topics/{path}", body)
            except (OSError, http.client.HTTPException):
                return False
            answers.append(answer)
            return status == 200

        until(answered, f"an answer to {path}")
        return answers[-1]

    def held(topic: str) -> list[int]:
        found: list[int] = []
        cursor, over = 0, False
        while not over:
            answer = insist(f"{topic}/diff", {"from_seq": cursor, "limit": 1000})
            found += [record["data"] for record in answer["records"]]
            cursor, over = answer["next_from_seq"], answer["caught_up"]
        return sorted(found)

    def kill() -> None:
        names = chance.sample(["shard-00", "shard-01"], chance.choice((1, 1, 2)))
        before = {name: service.child(name)["incarnation"] for name in names}
        for name in names:
            service.kill_child(name)

        def back() -> bool:
            children = [service.child(name) for name in before]
            new = all(child["incarnation"] > old for child, old in zip(children, before.values(), strict=True))
            return new and service.request("GET", "/v0/ready")[0] == 200

        until(back, "the shards to be back")

    while held("jobs"):
        jobs = insist("jobs/claim", {"node": "w", "max": 40, "lease_ms": 60_000})["claimed"]
        if jobs:
            insist("jobs/nack", {"node": "w", "seqs": [job["$seq"] for job in jobs]})
        if chance.random() < 0.12:
            kill()
    assert held(target) == list(range(total))
    cursor = 0
    while held(target):
        cursor = insist(f"{target}/redrive", {"queue": "jobs", "max": 100})["next_seq"]
        if chance.random() < 0.3:
            kill()
    assert cursor
    assert held("jobs") == list(range(total))


LEASE_MS = 3000


def _work(port: int, node: str, path: str) -> None:
    """A worker: claims jobs, notes them with their deadlines, acks them and notes the accepted acks. It repeats every
    failed request. Every other one acks in the next claim."""
    finishes = random.Random(node).random() < 0.5
    ack: dict[str, Any] | None = None
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    connection: http.client.HTTPConnection | None = None
    while True:
        try:
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            claim = {"node": node, "max": 50, "lease_ms": LEASE_MS, "ack": ack}
            status, answer = ask(connection, "POST", "/v0/topics/jobs/claim", claim)
            if status == 200 and ack is not None:
                done = set(ack["seqs"]) - set(answer["ack"]["skipped"])
                os.write(log, json.dumps([["ack", seq, node, 0, 0] for seq in done]).encode() + b"\n")
                ack = None
            if status != 200 or not answer["count"]:
                time.sleep(0.05)
                continue
            jobs = answer["claimed"]
            rows = [["got", job["$seq"], node, job["deadline"], time.time() * 1000] for job in jobs]
            os.write(log, json.dumps(rows).encode() + b"\n")
            body = {"node": node, "seqs": [j["$seq"] for j in jobs], "lease_ids": [j["lease_id"] for j in jobs]}
            if finishes:
                ack = body
                continue
            status, answer = ask(connection, "POST", "/v0/topics/jobs/ack", body)
            if status == 200:
                done = set(body["seqs"]) - set(answer["skipped"])
                os.write(log, json.dumps([["ack", seq, node, 0, 0] for seq in done]).encode() + b"\n")
        except (OSError, http.client.HTTPException, ValueError):
            if connection is not None:
                connection.close()
            connection = None
            time.sleep(0.05)


def test_every_job_is_done_whoever_dies(tmp_path: Path) -> None:
    """20 000 jobs, 20 workers, durable leases; workers and shards die. Duplicates only after a lease had ended."""
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails, to run it again
    chance = random.Random(seed)
    total, count = 20_000, 20
    spawn = multiprocessing.get_context("spawn")
    with Service(tmp_path) as service:
        call(service, "PUT", "jobs", {"type": "queue", "leases_durable": True})
        for first in range(0, total, 5000):
            call(service, "POST", "jobs", {"records": [{"data": n} for n in range(first, first + 5000)]})
        workers: list[Any] = []

        def hire() -> None:
            node = f"w{len(workers)}"
            worker = spawn.Process(target=_work, args=(service.port, node, str(tmp_path / f"{node}.log")), daemon=True)
            worker.start()
            workers.append(worker)

        try:
            for _ in range(count):
                hire()
            owner = f"shard-{shard_of('jobs', 2):02d}"
            victims = ["shard", "shard", "worker", *chance.choices(("shard", "worker"), (1, 3), k=5)]
            chance.shuffle(victims)
            moments = sorted(chance.sample(range(total // 4, total), len(victims)))

            def left() -> int:
                status, answer = service.request("GET", "/v0/topics/jobs")
                return int(answer["count"]) if status == 200 else total

            deadline = time.monotonic() + 80
            while (rest := left()) and time.monotonic() < deadline:
                while moments and rest <= moments[-1]:
                    moments.pop()
                    if victims.pop() == "shard":
                        service.kill_child(owner)
                        break
                    for victim in chance.sample([w for w in workers if w.is_alive()], 3):
                        victim.kill()  # it may have ended by itself, and a start of another one reaps it
                        hire()
                time.sleep(0.05)
            assert left() == 0
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
    got: dict[int, list[tuple[float, float]]] = {}
    acks: Counter[int] = Counter()
    for path in tmp_path.glob("w*.log"):
        *lines, _ = path.read_bytes().split(b"\n")  # a worker that was killed may have left a part of its last one
        for line in lines:
            for what, seq, _, until_ms, at_ms in json.loads(line):
                if what == "got":
                    got.setdefault(seq, []).append((until_ms, at_ms))
                else:
                    acks[seq] += 1
    assert not moments
    assert max(acks.values()) == 1, "a job was acknowledged twice"
    for seq, deliveries in got.items():
        deliveries.sort()
        for (until_ms, _), (_, at_ms) in pairwise(deliveries):
            assert at_ms > until_ms, f"job {seq} was handed out while its lease was alive"


def test_a_stream_ends_with_a_last_frame_when_the_service_stops(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        call(service, "PUT", "q", {"type": "queue"})
        call(service, "POST", "q", {"records": [{"data": 0}]})
        with working(service, "node=w", "q") as stream:
            assert stream.jobs(1) == [1]
            assert service.process is not None
            service.process.send_signal(signal.SIGTERM)
            event, problem = stream.next()
            assert (event, problem["code"]) == ("error", 503)
            assert stream.next() == ("end", None)
        assert service.wait_exit() == 0
        service.start()
        assert call(service, "GET", "q")["queue"] == {
            "ready": 1,
            "in_flight": 0,
            "delayed": 0,
            "dead_lettering": 0,
            "dead_lettered": 0,
        }
