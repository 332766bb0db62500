"""Claims about the metrics."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observe.metrics import as_json
from proto.ipc.control import Cluster, FiguresWanted, Machine, OtherFigures, ShardState
from proto.ipc.gateway_figures import Accounts, GatewayFigures, ProtocolFigures
from proto.ipc.link import SILENT_S
from proto.ipc.message import Message, Reply, Request, Status
from proto.ipc.operations import Stats
from proto.ipc.remote import KeyPair
from proto.model.keys import Scope
from tests.support.gateway_stage import Script, Stage, key, stage

STATS: dict[str, Any] = {
    "topics": 2,
    "records_live": 7,
    "bytes_live": 70,
    "topics_by_class": {"disk": 1, "fsync": 1},
    "queue_topics": 1,
    "per_topic": [["b", 9, 3, 7, 70], ['a"\\\n', 0, 1, 0, 0]],
    "per_topic_truncated": False,
    "per_queue": [["b", 2, 1, 4, 3, 1500, 5, 'a"\\\n']],
    "records_written": 12,
    "letters_waiting": 3,
    "cursor_lag": [["b", 'c"\\\n', 4], ["b", "d", 0]],
    "cursor_lag_truncated": False,
    "cursors": 4,
    "wal": {
        "frames_total": 10,
        "batches_total": 5,
        "fsyncs_total": 3,
        "bytes_written_total": 1000,
        "rotations_total": 1,
        "queue_depth": 2,
        "queue_depth_peak": 8,
        "submit_full_total": 0,
        "read_only": 0,
    },
    "clock": {"steps": 2, "offset_ms": -7},
    "disk": {"free_bytes": 5000, "refused_total": 3},
    "fsync_us": {"bounds": [100, 500], "counts": [1, 2, 0], "sum": 650.5, "count": 3},
}
NAMED = [
    "topics_topics",
    "topics_topics_by_class",
    "topics_records_live",
    "topics_bytes_live",
    "topics_queue_topics",
    "topics_sse_connections",
    "topics_ready",
    "topics_recovery_progress",
    "topics_uptime_ms",
    "topics_topic_head_seq",
    "topics_topic_earliest_seq",
    "topics_topic_records_live",
    "topics_topic_bytes_live",
    "topics_topic_metrics_truncated",
    "topics_cursors",
    "topics_topic_queue_dead_lettered_total",
    "topics_topic_queue_dead_lettering",
    "topics_topic_queue_oldest_waiting_ms",
    "topics_letters_waiting",
    "topics_cursor_lag",
    "topics_cursor_metrics_truncated",
    "topics_shard_restarts_total",
    "topics_clock_steps_total",
    "topics_clock_offset_ms",
    "topics_disk_free_bytes",
    "topics_disk_refused_total",
    "topics_wal_frames_total",
    "topics_wal_batches_total",
    "topics_wal_fsyncs_total",
    "topics_wal_bytes_written_total",
    "topics_wal_rotations_total",
    "topics_wal_queue_depth",
    "topics_wal_queue_depth_peak",
    "topics_wal_submit_full_total",
    "topics_wal_read_only",
    "topics_wal_fsync_latency_us_bucket",
    "topics_wal_fsync_latency_us_sum",
    "topics_wal_fsync_latency_us_count",
]


def stats(request: Request) -> list[Message]:
    return [Reply(request.id, extra=STATS)]


def say(there: Stage, status: Status) -> None:
    for shard in there.shards:
        shard.status = lambda: status


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_the_text_form_sums_the_shards() -> None:
    async with stage(stats, shards=2) as there, there.client() as client:
        say(there, Status(2, 7, 70))
        answer = await client.ask("GET", "/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = samples(answer.raw)
        assert {name for name, _ in found} >= set(NAMED)
        assert found["topics_topics", ()] == 4
        assert found["topics_records_written_total", ()] == 24
        assert found["topics_topics_by_class", (("class", "fsync"),)] == 2
        assert found["topics_topic_head_seq", (("topic", "b"),)] == 9
        of_queue = {
            "ready": 2,
            "in_flight": 1,
            "dead_lettered_total": 4,
            "dead_lettering": 3,
            "oldest_waiting_ms": 1500,
            "delayed": 5,
        }
        assert {what: found[f"topics_topic_queue_{what}", (("topic", "b"),)] for what in of_queue} == of_queue
        assert found["topics_letters_waiting", ()] == 6
        assert found["topics_topic_head_seq", (("topic", 'a"\\\n'),)] == 0
        assert found["topics_wal_frames_total", ()] == 20
        assert found["topics_wal_queue_depth_peak", ()] == 8
        assert found["topics_wal_fsync_latency_us_bucket", (("le", "100"),)] == 2
        assert found["topics_wal_fsync_latency_us_bucket", (("le", "500"),)] == 6
        assert found["topics_wal_fsync_latency_us_bucket", (("le", "+Inf"),)] == 6
        assert found["topics_wal_fsync_latency_us_count", ()] == 6
        assert found["topics_wal_fsync_latency_us_sum", ()] == 1301
        assert found["topics_disk_free_bytes", ()] == 5000
        assert found["topics_disk_refused_total", ()] == 6
        assert found["topics_shard_restarts_total", (("shard", "1"),)] == 0
        assert found["topics_ready", ()] == 1
        assert found["topics_shard_up", (("shard", "1"),)] == 1


async def test_a_shard_that_is_down_counts_with_what_it_last_said() -> None:
    async with stage(stats, shards=2) as there, there.client() as client:
        say(there, Status(2, 7, 70))
        before = samples((await client.ask("GET", "/v0/metrics")).raw)
        there.lose_shard(1)
        answer = await client.ask("GET", "/v0/metrics")
        assert answer.status == 200
        after = samples(answer.raw)
        for name in ("topics_topics", "topics_records_live", "topics_wal_frames_total"):
            assert after[name, ()] == before[name, ()]
        assert after["topics_ready", ()] == 0
        assert after["topics_recovery_progress", ()] == 0.5
        assert after["topics_shard_up", (("shard", "1"),)] == 0
        assert after["topics_shard_phase", (("phase", "down"), ("shard", "1"))] == 1


async def test_a_shard_that_is_down_counts_with_what_it_last_said_to_a_key_of_some_topics() -> None:
    """The rows stay those of the last scrape that covered all topics."""
    said = STATS

    def script(request: Request) -> list[Message]:
        return [Reply(request.id, extra=said)]

    keys = [key("all"), key("mine", Scope.READ, "mine:")]
    all_topics, mine = ({"Authorization": f"Bearer {each}"} for each in ("all", "mine"))
    async with stage(script, keys=keys) as there, there.client() as client:
        await client.ask("GET", "/v0/metrics", headers=all_topics)
        row = ["mine:a", 1, 1, 1, 1]
        said = STATS | {"records_written": 13, "per_topic": [row], "per_queue": [], "cursors": 0, "cursor_lag": []}
        before = samples((await client.ask("GET", "/v0/metrics", headers=mine)).raw)
        there.lose_shard(0)
        after = samples((await client.ask("GET", "/v0/metrics", headers=mine)).raw)
        for name in ("topics_records_written_total", "topics_wal_frames_total"):
            assert after[name, ()] == before[name, ()] > 0
        kept = samples((await client.ask("GET", "/v0/metrics", headers=all_topics)).raw)
        assert (kept["topics_records_written_total", ()], kept["topics_cursors", ()]) == (13, 4)
        assert kept["topics_topic_head_seq", (("topic", "b"),)] == 9
        assert kept["topics_topic_queue_ready", (("topic", "b"),)] == 2
        assert kept["topics_cursor_lag", (("cursor", "d"), ("topic", "b"))] == 0


async def test_a_shard_that_is_down_counts_the_same_at_each_gateway() -> None:
    """One of them has never asked it."""
    accounts = Accounts()

    async def begin(name: str, there: Stage) -> None:
        say(there, Status(2, 7, 70))
        colleagues = there.gateway.api.service.colleagues

        async def answer(question: FiguresWanted) -> None:
            accounts.report(name, question.figures)
            accounts.answered(question.shards)
            known = {index: accounts.shards[index] for index in question.missing}
            colleagues.heard(OtherFigures(question.number, accounts.others(name, 0), known, accounts.counted()))

        colleagues.asks = True
        there.nursery.start_soon(colleagues.run, answer)

    async with stage(stats, shards=2) as one, stage(stats, shards=2) as two, one.client() as first:
        await begin("one", one)
        await begin("two", two)
        before = samples((await first.ask("GET", "/v0/metrics")).raw)
        async with two.client() as second:
            for there, client in ((two, second), (one, first)):
                there.lose_shard(1)
                after = samples((await client.ask("GET", "/v0/metrics")).raw)
                for name in ("topics_records_written_total", "topics_wal_frames_total"):
                    assert after[name, ()] == before[name, ()] > 0
        assert all(not figures.per_topic for figures in accounts.shards.values())


async def test_no_counter_falls_when_a_shard_is_started_again_or_moves() -> None:
    """A sum that fell would be taken for one that began at 0: all that other shards had counted would be new."""

    def sums(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        found = samples(text).items()
        counters = {each: value for each, value in found if each[0].endswith(("_total", "_bucket", "_count", "_sum"))}
        return {each: value for each, value in counters.items() if "topic_" not in each[0]}

    def begun(request: Request) -> list[Message]:
        return [Reply(request.id, extra={"disk": {"refused_total": 1}})]

    async with stage(stats, shards=2) as there, there.client() as client:
        before = sums((await client.ask("GET", "/v0/metrics")).raw)
        await there.start_shard(1, begun, incarnation=2)
        after = sums((await client.ask("GET", "/v0/metrics")).raw)
        assert all(after[each] >= value for each, value in before.items())
        assert before["topics_disk_refused_total", ()] == 6
        assert after["topics_disk_refused_total", ()] == 7
        there.states[0] = ShardState(0, "standby", holder="http://c")
        there.gateway.shards.update(there.states)
        moved = sums((await client.ask("GET", "/v0/metrics")).raw)
        assert all(moved[each] >= value for each, value in after.items())


async def test_metrics_answer_while_nothing_was_ever_heard_of_a_shard() -> None:
    async with stage(stats) as there, there.client() as client:
        say(there, Status(2, 7, 70))
        there.lose_shard(0)
        found = samples((await client.ask("GET", "/v0/metrics")).raw)
        assert "topics_disk_free_bytes" not in {name for name, _ in found}, "no shard reported it"
        assert {name for name, _ in found} >= {
            name for name in NAMED if not name.startswith(("topics_topic_", "topics_cursor_")) or "tr" in name
        } - {"topics_disk_free_bytes"}


async def test_the_json_form_has_the_same_numbers_and_no_performance() -> None:
    async with stage(stats) as there, there.client() as client:
        say(there, Status(2, 7, 70))
        answer = await client.ask("GET", "/v0/metrics", headers={"Accept": "application/json"})
        content = answer.json
        assert "performance" not in content
        assert content["topics_records_live"] == 7
        assert content["topics_wal_fsyncs_total"] == 3
        assert {"labels": {"topic": "b"}, "value": 9} in content["topics_topic_head_seq"]
        assert content["topics_wal_fsync_latency_us"]["buckets"][-1] == {"le": "+Inf", "count": 3}


async def test_requests_are_counted_by_operation_and_status() -> None:
    async with stage(stats) as there, there.client() as client:
        say(there, Status(2, 7, 70))
        await client.ask("GET", "/v0/health")
        await client.ask("GET", "/nope")
        found = samples((await client.ask("GET", "/v0/metrics")).raw)
        assert found["topics_http_requests_total", (("operation", "health"), ("status", "200"))] == 1
        assert found["topics_http_requests_total", (("operation", "none"), ("status", "404"))] == 1


async def test_a_cursor_shows_how_far_it_is_behind() -> None:
    async with stage(stats) as there, there.client() as client:
        say(there, Status(2, 7, 70))
        found = samples((await client.ask("GET", "/v0/metrics")).raw)
        assert found["topics_cursor_lag", (("cursor", 'c"\\\n'), ("topic", "b"))] == 4
        assert found["topics_cursor_lag", (("cursor", "d"), ("topic", "b"))] == 0
        assert found["topics_cursor_metrics_truncated", ()] == 0
        content = (await client.ask("GET", "/v0/metrics", headers={"Accept": "application/json"})).json
        assert {"labels": {"topic": "b", "cursor": "d"}, "value": 0} in content["topics_cursor_lag"]


async def test_a_label_moves_no_cursor_and_two_that_look_the_same_end_no_scrape() -> None:
    rows = [["b", "\x1b[2J\x9b\u2028", 4], ["b", "\\u001b[2J\\u009b\\u2028", 5]]

    def script(request: Request) -> list[Message]:
        return [Reply(request.id, extra={"cursor_lag": rows})]

    async with stage(script) as there, there.client() as client:
        raw = (await client.ask("GET", "/v0/metrics")).raw
        assert samples(raw)["topics_cursor_lag", (("cursor", "\\u001b[2J\\u009b\\u2028"), ("topic", "b"))] == 5
        assert not {0x1B, 0x9B} & set(raw)
        assert raw.count(b"topics_cursor_lag{") == 1


@pytest.mark.parametrize(("bound", "shown"), [(0, []), (1, ["a"]), (3, ["a", "b", "c"]), (4, ["a", "b", "c", "d"])])
async def test_topics_and_cursors_are_bounded_over_all_shards(bound: int, shown: list[str]) -> None:
    """Two shards with two topics each, and a cursor for each topic."""

    def script(names: list[str]) -> Script:
        def answer(request: Request) -> list[Message]:
            assert request.options == Stats(bound, bound)
            extra = {
                "per_topic": [[name, 1, 1, 1, 1] for name in names[:bound]],
                "per_topic_truncated": bound < len(names),
                "cursor_lag": [[name, "c", 1] for name in names[:bound]],
                "cursor_lag_truncated": bound < len(names),
            }
            return [Reply(request.id, extra=extra)]

        return answer

    async with stage(shards=2, metrics_max_topics=bound) as there, there.client() as client:
        say(there, Status(2, 2, 2))
        there.shards[0].script = script(["a", "d"])
        there.shards[1].script = script(["b", "c"])
        for shard in there.shards:
            shard.own_stats = False
        answer = await client.ask("GET", "/v0/metrics")
        found = samples(answer.raw)
        assert sorted(dict(labels)["topic"] for name, labels in found if name == "topics_topic_head_seq") == shown
        assert sorted(dict(labels)["topic"] for name, labels in found if name == "topics_cursor_lag") == shown
        assert found["topics_topic_metrics_truncated", ()] == (bound < 4)
        assert found["topics_cursor_metrics_truncated", ()] == (bound < 4)
        assert found["topics_topics", ()] == 4


@pytest.mark.parametrize(
    ("accept", "json"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", True),
        ("APPLICATION/JSON", True),
        ("application/*", True),
        ("application/json, text/plain, */*", True),
        ("text/plain, application/json;q=0.9", False),
        ("text/plain;q=0.5, application/json;q=0.4", False),
        ("application/json;q=0", False),
        ("text/plain;version=0.0.4;q=0.3, application/json; q=0.7", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", False),
        ("application/json;q=high", False),
    ],
)
def test_the_weights_of_accept_choose_the_form(accept: str, json: bool) -> None:
    assert as_json(accept.encode()) is json


async def test_letters_of_a_queue_are_counted_only_where_their_topic_is_seen() -> None:
    rows = {"per_queue": [["mine:q", 0, 0, 9, 0, 0, 0, "mine:dead"], ["mine:r", 0, 0, 9, 0, 0, 0, "other:dead"]]}
    rows["per_topic"] = [["mine:dead", 9, 1, 6, 70], ["mine:q", 0, 1, 0, 0], ["other:dead", 9, 1, 8, 70]]

    def script(request: Request) -> list[Message]:
        return [Reply(request.id, extra=STATS | rows)]

    async with stage(script, keys=[key("all"), key("mine", Scope.READ, "mine:")]) as there, there.client() as client:
        for secret, letters in (("all", {"mine:q": 6, "mine:r": 8}), ("mine", {"mine:q": 6})):
            answer = await client.ask("GET", "/v0/metrics", headers={"Authorization": f"Bearer {secret}"})
            found = samples(answer.raw)
            assert letters == {
                dict(labels)["topic"]: value
                for (name, labels), value in found.items()
                if name == "topics_topic_queue_dead_letters"
            }


async def test_a_scrape_adds_what_the_supervisor_has_of_other_gateways() -> None:
    others = GatewayFigures(
        gateways=2,
        deaths=3,
        requests=[("append", 200, 40)],
        internal_errors={"append": 2},
        in_flight=5,
        streams=6,
        uptime_ms=10**9,
        protocols=[ProtocolFigures("rog", 1, [("PUT", "ok", 7)])],
    )
    async with stage() as there, there.client() as client:
        assert (await client.ask("POST", "/v0/topics/a", b"{}")).status == 200
        alone = samples((await client.ask("GET", "/metrics")).raw)
        assert not {"topics_gateways", "topics_gateway_restarts_total"} & {name for name, _ in alone}
        service = there.gateway.api.service
        colleagues = service.colleagues

        async def answer(question: FiguresWanted) -> None:
            colleagues.heard(OtherFigures(question.number, others))

        service.several = colleagues.asks = True
        there.nursery.start_soon(colleagues.run, answer)
        found = samples((await client.ask("GET", "/metrics")).raw)
    served = (("operation", "append"), ("status", "200"))
    assert found["topics_http_requests_total", served] == alone["topics_http_requests_total", served] + 40
    assert found["topics_http_requests_in_flight", ()] == alone["topics_http_requests_in_flight", ()] + 5
    assert found["topics_sse_connections", ()] == 6
    assert found["topics_uptime_ms", ()] == 10**9
    assert (found["topics_gateways", ()], found["topics_gateway_restarts_total", ()]) == (3, 3)
    assert found["topics_rog_commands_total", (("command", "PUT"), ("result", "ok"))] == 7
    errors = (("operation", "append"), ("process", "gateway"))
    assert found["topics_internal_errors_total", errors] == alone.get(("topics_internal_errors_total", errors), 0) + 2


async def test_several_machines_have_a_row_each_and_shards_name_their_holders() -> None:
    keys = KeyPair.new()
    known = [Machine("a", 1, "http://a"), Machine("gone", 2), Machine("c", 3, "http://c")]
    cluster = Cluster("mA", keys.public, keys.secret, member="a", known=known)
    async with stage(shards=4, cluster=cluster) as s:
        s.states[1] = ShardState(1, "standby", holder="http://c")
        s.states[2] = ShardState(2, "standby")
        s.states[3] = ShardState(3, "replay", holder="http://c")
        s.gateway.shards.update(s.states)
        async with s.client() as client:
            answer = await client.ask("GET", "/v0/metrics", headers={"Accept": "application/json"})
        members = [each["labels"] for each in answer.json["topics_member"]]
        assert members == [{"node": "1", "machine": "http://a"}, {"node": "3", "machine": "http://c"}]
        holders = [each["labels"] for each in answer.json["topics_shard_holder"]]
        assert holders == [{"shard": "0", "machine": "http://a"}, {"shard": "1", "machine": "http://c"}]


async def test_a_machine_that_is_alone_has_no_metrics_of_machines() -> None:
    async with stage() as s, s.client() as client:
        answer = await client.ask("GET", "/v0/metrics")
        assert b"topics_member" not in answer.raw
        assert b"topics_shard_holder" not in answer.raw


async def test_a_shard_that_has_been_silent_for_long_costs_its_own_figures_only() -> None:
    async with stage(shards=2) as s, s.client() as client:
        link = s.gateway.shards.links.current(0)
        assert link is not None
        link.silent_s = SILENT_S
        answer = await client.ask("GET", "/v0/metrics", headers={"Accept": "application/json"})
        assert answer.status == 200
        up = {each["labels"]["shard"]: each["value"] for each in answer.json["topics_shard_up"]}
        assert up == {"0": 0, "1": 1}
