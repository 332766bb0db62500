"""Claims about supervision of the real service: it starts, drains, recovers, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from proto.model.names import shard_of
from tests.support.service import Service, Watched, until
from tests.support.writers import Writer, verify

NewService = Callable[..., Service]
BY_SHARD = [[name for n in range(40) if shard_of(name := f"heal:{n}", 2) == index][:4] for index in (0, 1)]
PATIENCE_S = 30.0
KILLS = int(os.environ.get("TOPICS_TEST_KILLS", "50"))


@contextmanager
def writing(service: Service, topics: Sequence[Sequence[str]], names: str = "w") -> Iterator[list[Writer]]:
    """One writer for each group of topics, each with at least one ack when the body starts; finished after it. `names`
    begins their names, which records have in their ids: those who write to the same topics need different ones."""
    writers = [Writer(service, f"{names}{n}", group, n, "disk") for n, group in enumerate(topics)]
    for writer in writers:
        writer.start()
    try:
        until(lambda: all(writer.acks for writer in writers), "a first ack for every writer")
        yield writers
    finally:
        for writer in writers:
            writer.stop()
    for writer in writers:
        writer.finish()


def metrics(service: Service) -> str:
    with urlopen(f"{service.url}/v0/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")


def acked_since(writers: Sequence[Writer], moment: float) -> bool:
    """Whether every writer got an ack for a write answered after `moment`."""
    return all(any(a.at > moment and a.status in (200, 201) for a in reversed(w.answers[-50:])) for w in writers)


def test_it_starts_serves_and_ends_with_0_leaving_no_process(service: Service) -> None:
    assert service.request("GET", "/v0/health")[0] == 200
    status, answer = service.request("POST", "/v0/topics/hello", {"records": [{"data": 1}, {"data": "two"}]})
    assert (status, answer["seqs"]) == (201, [1, 2])
    until(lambda: f"topics is ready at {service.url}" in service.log_text(), "the line that says it is ready")
    assert service.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", service.port))


def test_interrupt_ends_it_as_well(service: Service) -> None:
    """Ctrl-C goes to the whole process group: children leave it to the supervisor."""
    watched = Watched(service.pids())
    assert service.process is not None
    os.killpg(service.process.pid, signal.SIGINT)
    assert service.wait_exit() == 0
    assert watched.wait_gone() == []
    assert "child_died" not in service.log_text()


def test_drain_under_load_loses_nothing_that_was_acked(service: Service) -> None:
    with writing(service, BY_SHARD) as writers:
        assert service.stop() == 0
    service.start()
    assert verify(service, writers) > 0
    assert {a.status for w in writers for a in w.answers} <= {200, 201, 503}
    refused = [a.body["error"]["code"] for w in writers for a in w.answers if a.status == 503]
    assert set(refused) <= {"shutting_down"}


def test_killing_the_supervisor_leaves_no_process_and_its_successor_starts_at_once(service: Service) -> None:
    service.request("POST", "/v0/topics/kept", {"records": [{"data": 1}]})
    watched = Watched(service.pids())
    assert service.process is not None
    service.process.kill()
    service.wait_exit()
    service.start()
    assert watched.wait_gone(5) == []
    assert service.request("GET", "/v0/topics/kept")[1]["head_seq"] == 1


def test_killing_the_supervisor_under_load_leaves_no_process_and_loses_nothing(service: Service) -> None:
    with writing(service, BY_SHARD) as writers:
        watched = Watched(service.pids())
        assert service.process is not None
        service.process.kill()
        assert watched.wait_gone(5) == [], "no process starts before all are gone"
        service.wait_exit()
    service.start()
    assert verify(service, writers) > 0


def test_a_killed_shard_heals_while_the_other_never_fails(service: Service) -> None:
    victim, other = BY_SHARD
    with writing(service, [victim, victim, other, other]) as writers:
        incarnation = service.kill_child("shard-00")
        until(lambda: service.child("shard-00")["incarnation"] > incarnation, "a new shard-00", PATIENCE_S)
        until(service.is_ready, "readiness", PATIENCE_S)
        healed_at = time.monotonic()
        until(lambda: acked_since(writers, healed_at), "acks after the heal", PATIENCE_S)
    victims, others = [a for w in writers[:2] for a in w.answers], [a for w in writers[2:] for a in w.answers]
    assert {a.status for a in others} <= {200, 201}
    refused = [a for a in victims if a.status == 503]
    assert {a.body["error"]["code"] for a in refused} <= {"not_ready"}
    assert {a.status for a in victims} <= {200, 201, 503}
    assert not any(w.broken for w in writers), "no connection breaks over a shard"
    assert verify(service, writers) > 0


def test_a_request_that_comes_while_its_shard_is_gone_waits_for_the_next(service: Service) -> None:
    topic = BY_SHARD[0][0]
    assert service.request("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})[0] == 201
    forks = service.status()["fork_server"]
    os.kill(forks, signal.SIGSTOP)  # nothing is forked before the request is there
    try:
        service.kill_child("shard-00")
        until(lambda: service.child("shard-00")["state"] != "serving", "the death to be noticed")
        until(lambda: not service.is_ready(), "the gateway to be told")
        with ThreadPoolExecutor(1) as asking:
            answer = asking.submit(service.request, "POST", f"/v0/topics/{topic}", {"records": [{"data": 2}]})
            until(lambda: "\ntopics_http_requests_in_flight 2.0\n" in metrics(service), "the request to wait")
            os.kill(forks, signal.SIGCONT)
            assert answer.result()[0] == 200
    finally:
        os.kill(forks, signal.SIGCONT)


def test_the_death_of_the_fork_server_is_not_noticed_and_the_next_child_is_forked_by_another(service: Service) -> None:
    with writing(service, BY_SHARD) as writers:
        before = service.status()
        os.kill(before["fork_server"], signal.SIGKILL)
        incarnation = service.kill_child("shard-00")
        until(lambda: service.child("shard-00")["incarnation"] > incarnation, "a new shard-00", PATIENCE_S)
        until(service.is_ready, "readiness", PATIENCE_S)
        healed_at = time.monotonic()
        until(lambda: acked_since(writers, healed_at), "acks after the heal", PATIENCE_S)
    after = service.status()
    assert after["fork_server"] not in (before["fork_server"], None)
    assert after["children"].keys() == before["children"].keys()
    changed = {name for name, child in after["children"].items() if child["pid"] != before["children"][name]["pid"]}
    assert changed == {"shard-00"}
    assert verify(service, writers) > 0


@pytest.mark.long
@pytest.mark.parametrize("victim", ["shard-00", "gateway", "fork server", "supervisor", "all"])
def test_fifty_kills_of_each_process_lose_nothing_and_leave_no_process(new_service: NewService, victim: str) -> None:
    service = new_service(TOPICS_RESTART_LIMIT="1000").start()
    for turn in range(KILLS):
        with writing(service, BY_SHARD, f"{turn}/w") as writers:
            if victim == "supervisor":
                watched = Watched(service.pids())
                assert service.process is not None
                service.process.kill()
                service.wait_exit()
                assert watched.wait_gone(5) == []
            elif victim == "all":
                service.kill_group()
            else:
                if victim == "fork server":
                    os.kill(service.status()["fork_server"], signal.SIGKILL)
                killed = "shard-01" if victim == "fork server" else victim
                n = service.kill_child(killed)
                until(lambda name=killed, n=n: service.child(name)["incarnation"] > n, f"a new {killed}", PATIENCE_S)
        if service.process is None:
            service.start()
        until(service.is_ready, "readiness", PATIENCE_S)
        assert verify(service, writers) > 0
    watched = Watched(service.pids())
    assert service.stop() == 0
    assert watched.wait_gone(5) == []


def test_a_killed_gateway_is_replaced_and_nothing_acked_is_lost(service: Service) -> None:
    with writing(service, BY_SHARD) as writers:
        incarnation = service.kill_child("gateway")
        until(lambda: service.child("gateway")["incarnation"] > incarnation, "a new gateway", PATIENCE_S)
        until(service.is_ready, "readiness", PATIENCE_S)
        healed_at = time.monotonic()
        until(lambda: acked_since(writers, healed_at), "acks after the heal", PATIENCE_S)
    assert {a.status for w in writers for a in w.answers} <= {200, 201, 503}
    assert service.child("gateway")["incarnation"] == incarnation + 1
    started_again = [name for name, child in service.status()["children"].items() if child["incarnation"] > 1]
    assert {name.partition("-")[0] for name in started_again} == {"gateway"}
    assert verify(service, writers) > 0


def test_a_client_that_connects_while_there_is_no_gateway_waits_for_the_next(service: Service) -> None:
    service.kill_child("gateway")
    assert service.request("GET", "/v0/health", timeout_s=10)[0] == 200


def test_a_second_service_on_the_same_data_is_refused(service: Service, new_service: NewService) -> None:
    second = new_service(service.directory).start(wait=False)
    assert second.wait_exit() == 1
    assert service.process is not None
    assert f"in use by process {service.process.pid}" in second.log_text()
    assert service.is_ready()


def test_a_used_port_is_refused(service: Service, new_service: NewService) -> None:
    second = new_service(service.directory / "second", port=service.port)
    second.directory.mkdir()
    second.start(wait=False)
    assert second.wait_exit() == 1
    assert f"cannot listen on 127.0.0.1 port {service.port}: Address already in use" in second.log_text()


def test_another_number_of_shards_is_refused_and_no_number_is_fine(service: Service, new_service: NewService) -> None:
    service.stop()
    other = new_service(service.directory, shards=3).start(wait=False)
    assert other.wait_exit() == 1
    assert "topics reshard" in other.log_text()
    unsaid = new_service(service.directory, shards=None).start()
    shards = {name for name in unsaid.status()["children"] if not name.startswith("gateway")}
    assert shards == {"shard-00", "shard-01"}


def test_beyond_loopback_without_keys_is_refused_unless_allowed(new_service: NewService) -> None:
    refused = new_service(TOPICS_HOST="0.0.0.0").start(wait=False)
    assert refused.wait_exit() == 2
    assert "TOPICS_ALLOW_INSECURE_NO_AUTH=1" in refused.log_text()
    assert not refused.data_dir.exists()


def test_only_topics_whose_source_cannot_start_wait_for_it(service: Service) -> None:
    """A copy is made again from its source after a stop, so it waits; everything else in its shard serves."""
    (copy, other, *_), (source, *_) = BY_SHARD
    service.request("POST", f"/v0/topics/{other}", {"records": [{"data": 0}]})
    router = {"source": source, "dest": copy}
    assert service.request("PUT", "/v0/routers/waits", router)[0] == 201
    service.request("POST", f"/v0/topics/{source}", {"records": [{"data": n} for n in range(3)]})

    def copied() -> bool:
        return bool(service.request("GET", f"/v0/topics/{copy}")[1].get("head_seq") == 3)

    until(copied, "the copies")
    service.kill_group()
    wal = service.data_dir / "shard-01" / "wal"
    wal.rename(service.directory / "elsewhere")
    wal.write_text("no directory")
    service.start(wait=False)
    until(lambda: "ready at" in service.log_text().partition("recovery_failed")[2], "a start without shard-01")
    assert service.request("POST", f"/v0/topics/{other}", {"records": [{"data": 1}]})[1]["seqs"] == [2]
    for method, path, body in (("GET", "", None), ("POST", "", {"records": [{"data": 9}]}), ("POST", "/diff", {})):
        status, answer = service.request(method, f"/v0/topics/{copy}{path}", body)
        assert (status, answer["error"]["code"]) == (503, "not_ready")
        assert answer["error"]["detail"] == {"reason": "source_away"}
    # Records acknowledged meanwhile survive the kill.
    service.kill_group()
    started = len(service.log_text())
    service.start(wait=False)
    until(lambda: "ready at" in service.log_text()[started:], "another start without it")
    assert service.request("GET", f"/v0/topics/{other}")[1]["head_seq"] == 2
    wal.unlink()
    (service.directory / "elsewhere").rename(wal)
    service.wait_ready(60)
    until(copied, "the copies, made again")
    service.request("POST", f"/v0/topics/{source}", {"records": [{"data": 3}]})
    until(lambda: service.request("GET", f"/v0/topics/{copy}")[1]["head_seq"] == 4, "the router to go on")
    answer = service.request("POST", f"/v0/topics/{copy}/diff", {"from_seq": 0})[1]
    assert ([record["data"] for record in answer["records"]], answer["tombstone"]) == ([0, 1, 2, 3], None)


def test_a_shard_whose_log_is_out_of_reach_does_not_stop_the_others(service: Service) -> None:
    topics = [group[0] for group in BY_SHARD]
    for topic in topics:
        service.request("POST", f"/v0/topics/{topic}", {"records": [{"data": n} for n in range(3)]})
    service.kill_group()
    wal = service.data_dir / "shard-01" / "wal"
    wal.rename(service.directory / "elsewhere")
    wal.write_text("no directory")
    service.start(wait=False)
    until(lambda: "ready at" in service.log_text().partition("recovery_failed")[2], "a start without shard-01")
    status, answer = service.request("GET", "/v0/ready")
    assert (status, answer["error"]["code"]) == (503, "not_ready")
    assert [shard["phase"] for shard in answer["error"]["detail"]["shards"]] == ["ready", "failed"]
    assert str(service.data_dir) not in str(answer)
    assert service.request("GET", f"/v0/topics/{topics[0]}")[1]["head_seq"] == 3
    assert service.request("POST", f"/v0/topics/{topics[0]}", {"records": [{"data": 3}]})[1]["seqs"] == [4]
    assert service.request("PUT", f"/v0/topics/{BY_SHARD[0][1]}", {})[0] == 201, "caps do not wait for it either"
    status, answer = service.request("GET", f"/v0/topics/{topics[1]}")
    assert (status, answer["error"]["code"], answer["error"]["detail"]["phase"]) == (503, "not_ready", "failed")
    wal.unlink()
    (service.directory / "elsewhere").rename(wal)
    service.wait_ready()
    assert service.request("GET", f"/v0/topics/{topics[1]}")[1]["head_seq"] == 3
    assert service.stop() == 0
