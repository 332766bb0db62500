"""The logic of the paired benchmark and of its load generator. Nothing here measures time."""

from __future__ import annotations

import itertools
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import load
import pair
import pytest
from pair import Pair, Sample


@contextmanager
def answering(*parts: bytes) -> Iterator[int]:
    """A service that answers each request of a connection with these parts, each sent on its own. Yields its port."""

    class Answering(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(65536):
                for part in parts:
                    self.request.sendall(part)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answering) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()


BODY = b"x" * 10_000
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.mark.parametrize("parts", [(ANSWER,), (ANSWER[:20], ANSWER[20:]), (ANSWER[:5000], ANSWER[5000:])])
def test_answers_are_counted_however_they_arrive(parts: tuple[bytes, ...]) -> None:
    with answering(*parts) as port:
        streams = [itertools.repeat(load.get("/"), 7) for _ in range(3)]
        outcome = load.drive(port, streams, 30.0)
    assert outcome.requests == 21
    assert outcome.received_bytes == 21 * len(ANSWER)


def test_a_refusal_ends_the_load_with_its_text() -> None:
    with (
        answering(b"HTTP/1.1 429 No\r\ncontent-length: 4\r\n\r\nslow") as port,
        pytest.raises(load.LoadError, match="slow"),
    ):
        load.drive(port, [itertools.repeat(load.get("/"))], 30.0)


def test_a_line_returns_whole_bodies() -> None:
    with answering(ANSWER[:30], ANSWER[30:]) as port:
        line = load.Line(port)
        assert [line.ask(load.post("/", b"{}")), line.ask(load.get("/"))] == [BODY, BODY]
        line.close()


def test_a_key_is_sent_with_each_request() -> None:
    assert b"authorization: Bearer k\r\n" in load.get("/", "k")
    assert b"authorization" not in load.post("/", b"{}")


def samples(unit: str, this: list[float], other: list[float]) -> dict[str, dict[str, list[Sample]]]:
    return {"a": {"this": [Sample({unit: n}) for n in this], "other": [Sample({unit: n}) for n in other]}}


def test_a_higher_rate_and_a_lower_latency_are_gains() -> None:
    assert pair.compared(samples("/s", [200.0], [100.0]))[0].gain == 2.0
    assert pair.compared(samples("p50 ms", [200.0], [100.0]))[0].gain == 0.5


def test_the_gain_compares_the_sides_of_one_round() -> None:
    """The machine was four times slower in two of three rounds; each side's median is of another round."""
    row = pair.compared(samples("/s", [100.0, 25.0, 26.0], [50.0, 12.5, 52.0]))[0]
    assert (row.this, row.other, row.gain) == (26.0, 50.0, 2.0)


def test_processor_time_is_that_of_all_requests() -> None:
    found = pair.processor([Sample({}, 100, {"load": 0.02}), Sample({}, 300, {"load": 0.02})])
    assert found == {"load": pytest.approx(100.0)}
    assert pair.processor([Sample({"ms": 1.0})]) == {}


def test_the_tables_name_both_sides_and_have_the_budget() -> None:
    cpu = {f"{part} {mode}": 0.001 for part in ("gateway", "shards") for mode in ("user", "system")} | {"load": 0.004}
    sample = Sample({"/s": 2000.0, "p99 ms": 1.0}, 100, cpu, {"gateway": 50, "shards": 150})
    found = {"a": {"this": [sample], "other": [sample]}, "start": samples("ms", [5.0], [10.0])["a"]}
    assert pair.results(found, ["now", "before"]).cells[0] == ["a", "/s", "2,000", "2,000", "1.00"]
    assert pair.budget(found, ["now", "before"]).cells == [
        ["a", name, "10.0", "10.0", "10.0", "10.0", "40.0", "40.0", "0.50", "1.50"] for name in ("before", "now")
    ]
    table = pair.summary(found, ["now", "before"]).markdown().splitlines()
    assert table[0] == "| load | unit | before | now | gain | gateway, µs | shards, µs | wake-ups |"
    assert table[2:] == [
        "| a | /s | 2,000 | 2,000 | 1.0 | 20 → 20 | 20 → 20 | 2.0 → 2.0 |",
        "| start | ms | 10.00 | 5.00 | 2.0 |  |  |  |",
    ]


def test_the_side_that_is_measured_first_changes() -> None:
    compared = Pair([Path("a"), Path("b")], 3, 1.0, 1, [])
    taken = []

    def take(name: str, side: str) -> Sample:
        taken.append(side)
        return Sample({"/s": 1.0})

    compared.rounds(["x"], take)
    assert taken == ["other", "this", "this", "other", "other", "this"]
    assert [len(each) for each in compared.samples["x"].values()] == [3, 3]


def test_loads_are_chosen_by_words_of_their_names() -> None:
    chosen = Pair([], 1, 1.0, 1, ["append", "fsync"])
    assert [chosen.wanted(name) for name in ("append-1 × 16", "state × 16")] == [True, False]
    assert Pair([], 1, 1.0, 1, []).wanted("state × 16")
