"""Claims about processes that hang (SIGSTOP), under a supervisor without a service manager."""

from __future__ import annotations

import os
import signal
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

from proto.model.names import shard_of
from tests.support.service import Service, until

NewService = Callable[..., Service]
TOPICS = [next(name for n in range(40) if shard_of(name := f"hang:{n}", 2) == index) for index in (0, 1)]
RECORD = {"records": [{"data": 1}]}


def test_a_write_that_was_answered_503_is_not_carried_out_later(new_service: NewService) -> None:
    with new_service(TOPICS_HANG_TIMEOUT_MS="0", TOPICS_REQUEST_TIMEOUT_MS="2000") as service:
        for topic in TOPICS:
            assert service.request("POST", f"/v0/topics/{topic}", RECORD)[0] == 201
        pid = service.child("shard-01")["pid"]
        os.kill(pid, signal.SIGSTOP)
        answers: list[tuple[int, Any]] = []

        def write() -> None:
            answers.append(service.request("POST", f"/v0/topics/{TOPICS[1]}", RECORD, timeout_s=30))

        writers = [threading.Thread(target=write) for _ in range(5)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert [status for status, _ in answers] == [503] * 5
        errors = [answer["error"] for _, answer in answers]
        assert {(error["code"], error["detail"]["outcome"]) for error in errors} == {("not_ready", "unknown")}

        def unready() -> Any:
            status, answer = service.request("GET", "/v0/ready")
            return answer if status == 503 else None  # each of several gateways notices by itself

        shards = until(unready, "readiness to notice")["error"]["detail"]["shards"]
        assert [(shard["phase"], shard["answers"]) for shard in shards] == [("ready", True), ("ready", False)]
        assert service.request("POST", f"/v0/topics/{TOPICS[0]}", RECORD)[0] == 200, "the other shard goes on"
        os.kill(pid, signal.SIGCONT)
        until(service.is_ready, "readiness again")
        answer = service.request("POST", f"/v0/topics/{TOPICS[1]}", RECORD)[1]
        assert answer["seqs"] == [2], "nothing came of what was refused"
        assert service.child("shard-01")["incarnation"] == 1


def test_a_shard_that_hangs_is_killed_and_started_again(new_service: NewService) -> None:
    with new_service(TOPICS_HANG_TIMEOUT_MS="3000") as service:
        for topic in TOPICS:
            service.request("POST", f"/v0/topics/{topic}", RECORD)
        os.kill(service.child("shard-01")["pid"], signal.SIGSTOP)
        until(lambda: service.child("shard-01")["incarnation"] == 2, "another shard-01")
        until(service.is_ready, "readiness")
        assert "event=child_hung child=shard-01" in service.log_text()
        assert service.child("shard-00")["incarnation"] == 1
        assert [service.request("GET", f"/v0/topics/{topic}")[1]["head_seq"] for topic in TOPICS] == [1, 1]
        with urllib.request.urlopen(f"{service.url}/v0/metrics", timeout=10) as metrics:
            assert b'topics_shard_hangs_total{shard="1"} 1.0' in metrics.read()
