"""A stream over the files of a shard, driven as by Spark: each record is read once, whatever happens to either side."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from pyspark_topics import offsets, plan, stream
from pyspark_topics.client import Unavailable
from pyspark_topics.columns import EVERYTHING, arrow_schema
from pyspark_topics.errors import CorruptFile
from pyspark_topics.files import Files
from pyspark_topics.offsets import DataLoss, Gap, Position, dump, load
from pyspark_topics.options import BadOption, parse
from pyspark_topics.topic import Topic
from tests.support.bucket_scene import BucketScene
from tests.support.scene import NAMES, Chance, Scene

Row = dict[str, Any]


class Query:
    """One streaming query as Spark runs it. The end of a batch is logged before the batch is read. After a stop, a
    batch that was logged but not committed is read again, and the sink discards its earlier rows of it."""

    def __init__(self, scene: Scene, **options: str) -> None:
        self.scene = scene
        self.given = {**scene.options, "startingOffsets": "earliest", **options}
        self.log: list[str] = []
        self.committed = 0
        self.sink: list[list[Row]] = []
        self.restart()

    def restart(self, **options: str) -> None:
        self.scene.settle()
        self.given |= options
        parsed = parse(self.given, streaming=True)
        self.reader: Any = stream.reader(Files(parsed, arrow_schema(EVERYTHING)), parsed)
        if not self.log:
            self.log.append(json.dumps(self.reader.initialOffset()))

    def batch(self, *, dies: str = "") -> str:
        """Returns the stage reached: "log" or "read"; "" if there was nothing to read. `dies`: log, read or commit."""
        self.scene.settle()
        if len(self.log) - 1 == self.committed:
            start = self.log[-1]
            end = json.dumps(self.reader.latestOffset(json.loads(start), self.reader.getDefaultReadLimit()))
            if end == start:
                return ""
            self.log.append(end)
        if dies == "log":
            self.restart()
            return "log"
        rows = self.read(self.log[-2], self.log[-1])
        self.sink[self.committed :] = [rows]
        if dies == "read":
            self.restart()
            return "read"
        self.committed += 1
        self.reader.commit(json.loads(self.log[-1]))
        if dies == "commit":
            self.restart()
        return "read"

    def read(self, start: str, end: str) -> list[Row]:
        parts = self.reader.partitions(json.loads(start), json.loads(end))
        worker, parts = pickle.loads(pickle.dumps((self.reader, parts)))
        return [row for part in parts for batch in worker.read(part) for row in batch.to_pylist()]

    def drain(self) -> None:
        while self.batch():
            pass

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.sink for row in batch if row["value"] is not None]

    @property
    def told(self) -> list[Row]:
        return [row for batch in self.sink for row in batch if row["value"] is None]


@pytest.fixture(params=[Scene, BucketScene])
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made: Scene = request.param(tmp_path)
    monkeypatch.setattr(plan, "clock_ms", lambda: made.shard.clock.ms)
    return made


def seeds(few: int, all_: int) -> list[Any]:
    """Each seed with a directory, and some with a bucket."""
    long = pytest.mark.long
    return [
        *(pytest.param(Scene, seed, marks=long if seed >= few else ()) for seed in range(all_)),
        *(pytest.param(BucketScene, seed, marks=long if seed else ()) for seed in range(all_ // 2)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "seed"), seeds(3, 40), indirect=["scene"])
def test_every_record_that_stays_comes_once_whatever_dies(scene: Scene, seed: int) -> None:
    chance = Chance(scene, seed)
    rng = random.Random(seed)
    limits = rng.choice([{}, {"maxOffsetsPerTrigger": "13"}, {"maxBytesPerTrigger": "3000"}])
    query = Query(scene, failOnDataLoss="false", **limits)
    for step in range(150):
        for _ in range(rng.randrange(6)):
            chance.step()
        scene.settle()
        before, there = set(read(scene)), query.reader._source.latest()
        if query.batch(dies=rng.choice(["", "", "log", "read", "commit"])) == "read":
            start, end = load(json.loads(query.log[-2])), load(json.loads(query.log[-1]))
            due = {
                (topic, seq)
                for topic, seq, _ in before
                if topic in end
                and there[topic].epoch == end[topic].epoch
                and (start[topic].seq if same(start, end, topic) else 1) <= seq < end[topic].seq
            }
            got = [(row["topic"], row["offset"]) for row in query.sink[-1] if row["value"] is not None]
            assert sorted(got) == sorted(due), f"seed {seed}, step {step}"
    query.drain()
    values = [row["value"] for row in query.rows]
    assert len(set(values)) == len(values), f"seed {seed}: a record twice"
    assert {value for _, _, value in read(scene)} <= set(values), f"seed {seed}: a record lost"


def same(start: Any, end: Any, topic: str) -> bool:
    return topic in start and start[topic].epoch == end[topic].epoch


def read(scene: Scene) -> list[tuple[str, int, bytes]]:
    return [(r[0], r[1], json.dumps(r[3]).encode()) for r in scene.served()]


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "seed"), seeds(2, 30), indirect=["scene"])
def test_what_was_lost_is_told_as_a_diff_tells_it(scene: Scene, seed: int) -> None:
    chance = Chance(scene, seed)
    rng = random.Random(seed)
    query = Query(scene, failOnDataLoss="false", includeTombstones="true")
    told = 0
    for step in range(60):
        for _ in range(rng.randrange(25)):
            chance.step()
        place = load(json.loads(query.log[-1]))
        expected = []
        for name, topic in sorted(scene.shard.shard.directory.visible.items()):
            seq = place[name].seq if name in place and place[name].epoch == topic.epoch else 1
            gap = scene.shard.diff(name, seq - 1).get("tombstone")
            if gap is not None and seq <= topic.records.head_seq:
                assert gap["reason"] != "recreated"
                expected.append((name, gap["gap_from"], gap["gap_to"], gap["reason"]))
        if query.batch():
            got = [
                (r["topic"], r["offset"], r["gap_to"], r["gap_reason"]) for r in query.sink[-1] if r["value"] is None
            ]
            assert sorted(got) == expected, f"seed {seed}, step {step}"
            told += len(got)
    assert told


def test_a_gap_fails_with_its_range_and_passes_where_that_is_allowed(scene: Scene) -> None:
    scene.shard.append("t", *range(10), config={"cap_records": 5})
    query = Query(scene, startingOffsets='{"t": 8}')
    query.drain()
    assert [row["offset"] for row in query.rows] == [8, 9, 10]
    scene.shard.append("t", *range(12))
    with pytest.raises(DataLoss, match=r'topic "t": seq 11 to 17 \(cap\)'):
        query.batch()
    query.restart()
    with pytest.raises(DataLoss, match=r'topic "t": seq 11 to 17 \(cap\)'):
        query.batch()
    query.restart(failOnDataLoss="false")
    query.drain()
    assert [row["offset"] for row in query.rows] == [8, 9, 10, 18, 19, 20, 21, 22]


def test_the_gaps_of_a_range_are_known_without_a_read(scene: Scene) -> None:
    scene.shard.append("t", *range(10), config={"cap_records": 5})
    source = Files(parse({"path": str(scene.path), "failOnDataLoss": "true"}, streaming=True), None)
    end = source.latest()
    assert source.gaps({"t": Position(8, end["t"].epoch)}, end) == []
    scene.shard.append("t", *range(12))
    assert source.gaps(end, source.latest()) == [Gap("t", 11, 17, "cap")]


def test_what_expired_unread_is_a_gap(scene: Scene) -> None:
    scene.shard.append("t", 1, 2, config={"ttl_ms": 1000})
    query = Query(scene)
    query.drain()
    scene.shard.append("t", 3, 4)
    scene.shard.clock.advance(600)
    scene.shard.append("t", 5)
    scene.shard.clock.advance(600)
    with pytest.raises(DataLoss, match=r'topic "t": seq 3 to 4 \(ttl\)'):
        query.batch()


def test_deleted_records_are_no_loss(scene: Scene) -> None:
    scene.shard.append("t", *range(10))
    query = Query(scene)
    scene.shard.call("delete_records", "t", {"before_seq": 6})
    query.drain()
    assert [row["offset"] for row in query.rows] == [6, 7, 8, 9, 10]


def test_a_topic_that_went_or_was_made_anew_is_told_once(scene: Scene) -> None:
    scene.shard.append("t", 1, 2, 3)
    scene.shard.append("u", 1)
    query = Query(scene)
    query.drain()
    scene.shard.call("delete_topic", "t")
    with pytest.raises(DataLoss, match=r'topic "t": seq 4 on \(deleted\)'):
        query.batch()
    query.restart(failOnDataLoss="false")
    query.drain()
    query.restart(failOnDataLoss="true")
    scene.shard.append("u", 2)
    query.drain()
    scene.shard.append("t", "a", "b", "c", "d", "e")
    query.drain()
    assert [(row["topic"], row["offset"]) for row in query.rows[4:]] == [("u", 2), *(("t", n) for n in range(1, 6))]
    scene.shard.call("delete_topic", "t")
    scene.shard.append("t", *range(20))
    with pytest.raises(DataLoss, match=r'topic "t": seq 6 on \(recreated\)'):
        query.batch()


def test_a_topic_that_was_made_anew_after_the_end_was_chosen_is_not_mixed_up(scene: Scene) -> None:
    scene.shard.append("t", 1, 2, 3)
    query = Query(scene, failOnDataLoss="false")
    query.batch(dies="log")
    scene.shard.call("delete_topic", "t")
    scene.shard.append("t", *"abcdef")
    query.drain()
    assert [json.loads(row["value"]) for row in query.rows] == list("abcdef")
    assert [len(batch) for batch in query.sink] == [0, 6]


def test_new_topics_that_match_are_read_from_their_first_record(scene: Scene) -> None:
    scene.shard.append("a1", 1)
    query = Query(scene, subscribePattern="a.*", startingOffsets="latest")
    assert not query.batch()
    scene.shard.append("a2", 1, 2)
    scene.shard.append("b", 1)
    scene.shard.append("a1", 2)
    query.drain()
    assert sorted((row["topic"], row["offset"]) for row in query.rows) == [("a1", 2), ("a2", 1), ("a2", 2)]


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "30"}, {"maxBytesPerTrigger": "500"}])
def test_batches_are_no_larger_than_allowed(scene: Scene, limit: dict[str, str]) -> None:
    for name in NAMES[:3]:
        for n in range(0, 100, 5):
            scene.shard.append(name, *(f"{m:08d}" for m in range(n, n + 5)))
    scene.checkpoint()
    query = Query(scene, **limit)
    query.drain()
    assert sorted((row["topic"], row["offset"]) for row in query.rows) == sorted(
        (name, seq) for name in NAMES[:3] for seq in range(1, 101)
    )
    sizes = [len(batch) for batch in query.sink]
    assert max(sizes) <= 33
    assert sizes[0] >= 20
    # Shares are proportional, so all topics are read side by side.
    assert {row["topic"] for row in query.sink[0]} == set(NAMES[:3])


def test_all_that_is_available_now_ends_where_it_was_when_the_first_batch_was_planned(scene: Scene) -> None:
    scene.shard.append("t", *range(50))
    query = Query(scene, maxOffsetsPerTrigger="20")
    query.reader.prepareForTriggerAvailableNow()
    query.batch()
    scene.shard.append("t", *range(50))
    scene.shard.append("new", 1)
    query.drain()
    assert [len(batch) for batch in query.sink] == [20, 20, 10]
    assert query.reader.reportLatestOffset() == {"t": json.loads(query.log[-1])["t"]}


def test_before_spark_tells_the_place_limits_hold_from_the_first_batch_on(scene: Scene) -> None:
    scene.shard.append("t", *range(50))
    scene.settle()
    options = parse({**scene.options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}, streaming=True)
    source = Files(options, arrow_schema(EVERYTHING))
    reader = stream.StreamReader(source, options)
    place = reader.initialOffset()
    ends = []
    for _ in range(3):
        end = reader.latestOffset()
        reader.partitions(place, end)
        ends.append(end["t"]["seq"])
        place = end
    assert ends == [21, 41, 51]
    # After a restart the position is unknown until a batch was read.
    assert stream.StreamReader(source, options).latestOffset()["t"]["seq"] == 51


def test_before_spark_tells_the_place_a_topic_that_went_while_the_stream_was_stopped_is_told_once(
    scene: Scene,
) -> None:
    scene.shard.append("t", 1, 2, 3)
    scene.shard.append("u", 1)

    def reader(**more: str) -> stream.StreamReader:
        scene.settle()
        options = parse({**scene.options, "startingOffsets": "earliest", **more}, streaming=True)
        return stream.StreamReader(Files(options, arrow_schema(EVERYTHING)), options)

    first = reader()
    begun = first.initialOffset()
    place = first.latestOffset()
    first.partitions(begun, place)
    scene.shard.call("delete_topic", "t")
    scene.shard.append("u", 2)
    for _ in range(2):
        strict = reader()
        end = strict.latestOffset()
        with pytest.raises(DataLoss, match=r'topic "t": seq 4 on \(deleted\)'):
            strict.partitions(place, end)
    lenient = reader(failOnDataLoss="false")
    assert lenient.latestOffset() == end
    assert rows(lenient, place, end) == [("u", 2)]
    after = lenient.latestOffset()
    assert after["t"] == {**place["t"], "gone": True}, "where it is read from if it returns"
    assert rows(reader(), end, after) == []
    again = reader()
    assert again.latestOffset() == end
    assert rows(again, after, end) == [], "told once"


def rows(reader: stream.StreamReader, start: Row, end: Row) -> list[tuple[str, int]]:
    parts = reader.partitions(start, end)
    return [(row["topic"], row["offset"]) for part in parts for one in reader.read(part) for row in one.to_pylist()]


class Down:
    """A source whose service is down, and what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def reach(self) -> None:
        self.asked.append("reach")
        raise Unavailable("down")

    def latest(self) -> offsets.Offsets:
        self.asked.append("latest")
        return {}


def test_a_new_stream_asks_whether_the_service_answers_before_anything_else() -> None:
    """Spark 4.0 and 4.1 ask for the latest offset first, later versions for the initial one; those with the trigger
    AvailableNow say so even before."""
    options = parse({"url": "http://127.0.0.1:9", "subscribe": "t"}, streaming=True)
    early = stream.StreamReader(early_source := Down(), options)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        early.latestOffset()
    late: Any = stream.reader(late_source := Down(), options)  # type: ignore[arg-type]
    late.prepareForTriggerAvailableNow()
    with pytest.raises(Unavailable):
        late.initialOffset()
    assert early_source.asked == late_source.asked == ["reach"]


def test_a_stream_in_progress_does_not_ask_again_whether_the_service_answers() -> None:
    options = parse({"url": "http://127.0.0.1:9", "subscribe": "t"}, streaming=True)
    source = Down()
    early = stream.StreamReader(source, options)  # type: ignore[arg-type]
    source.reach = lambda: source.asked.append("reach")  # type: ignore[method-assign]
    assert [early.latestOffset() for _ in range(3)] == [{}, {}, {}]
    assert source.asked == ["reach", "latest", "latest", "latest"]
    late: Any = stream.reader(source, options)  # type: ignore[arg-type]
    late.latestOffset({}, late.getDefaultReadLimit())  # with a place: a stream that goes on from its checkpoint
    assert source.asked[4:] == ["latest"]


def test_a_stream_begins_where_it_was_told_to(scene: Scene) -> None:
    scene.shard.append("t", 1, 2)
    scene.shard.clock.advance(1000)
    later = scene.shard.clock.ms
    scene.shard.append("t", 3)
    scene.shard.append("u", 1)

    def begin(**options: str) -> dict[str, int]:
        return {topic: at.seq for topic, at in load(json.loads(Query(scene, **options).log[0])).items()}

    assert begin() == {"t": 1, "u": 1}
    assert begin(startingOffsets="latest") == {"t": 4, "u": 2}
    assert begin(startingOffsets='{"t": 2}') == {"t": 2, "u": 1}
    assert begin(startingOffsets='{"t": {"0": -1}, "u": -2}') == {"t": 4, "u": 1}
    assert begin(startingOffsets="", startingTimestamp=str(later)) == {"t": 3, "u": 1}
    assert begin(startingOffsets="", startingTimestamp=str(later + 1)) == {"t": 4, "u": 2}
    assert begin(startingOffsets="", startingOffsetsByTimestamp=json.dumps({"t": later})) == {"t": 3, "u": 1}
    with pytest.raises(BadOption, match='startingOffsets = 9 for topic "t": its last seq is 3'):
        begin(startingOffsets='{"t": 9}')
    with pytest.raises(BadOption, match='the topic "v", which does not exist'):
        begin(startingOffsets='{"v": 1}')


def test_what_is_read_again_after_a_stop_is_the_same(scene: Scene) -> None:
    scene.shard.append("t", *range(30))
    query = Query(scene)
    query.batch(dies="log")
    first = query.read(query.log[-2], query.log[-1])
    scene.shard.append("t", *range(30))
    scene.checkpoint()
    scene.settle()
    assert query.read(query.log[-2], query.log[-1]) == first
    assert len(first) == 30


def test_one_topic_in_two_paths_is_refused(scene: Scene, tmp_path: Path) -> None:
    scene.shard.append("t", 1)
    scene.settle()
    options = parse({"path": json.dumps([scene.options["path"]] * 2)}, streaming=True)
    with pytest.raises(BadOption, match='"t" is in more than one path'):
        Files(options, arrow_schema(EVERYTHING)).latest()
    assert dump({}) == {}


def test_a_file_that_is_gone_while_positions_are_looked_up_makes_the_planning_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, cold_dir="")
    scene.shard.append("plain", *range(20), config={"ttl_ms": 60_000})
    scene.checkpoint()
    monkeypatch.setattr(plan, "clock_ms", lambda: scene.shard.clock.ms)
    source = Files(parse(scene.options), arrow_schema(EVERYTHING))
    end = source.latest()
    calls: dict[str, Any] = {
        "earliest": source.earliest,
        "since": lambda: source.since({"plain": scene.shard.clock.ms}),
        "weigh": lambda: source.weigh({}, end),
        "gaps": lambda: source.gaps({}, end),
        "partitions": lambda: [(type(part), part.value) for part in source.partitions({}, end)],
    }
    real = Topic.batches
    for name, call in calls.items():
        failures = iter(range(plan.TRIES - 1))

        def gone(topic: Topic, *seqs: int) -> Any:
            if next(failures, None) is not None:  # noqa: B023 - used in this round
                raise FileNotFoundError(2, "removed by a checkpoint")
            return real(topic, *seqs)

        monkeypatch.setattr(Topic, "batches", gone)
        found: Any = call()
        assert next(failures, None) is None, name
        monkeypatch.setattr(Topic, "batches", real)
        assert call() == found
        failures = iter(range(plan.TRIES))
        monkeypatch.setattr(Topic, "batches", gone)
        with pytest.raises(CorruptFile, match="removed by a checkpoint"):
            call()
