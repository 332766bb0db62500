"""Claims about `topics-spark` as a user runs it: archive, replay, report and audit, on a running service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.dom.minidom
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.support.service import Service, until
from tests.support.spark import ROOT, Spark, SparkError

pytestmark = pytest.mark.spark
SEGMENTS = {
    "TOPICS_CHECKPOINT_INTERVAL_MS": "100",
    "TOPICS_SEGMENT_MAX_EVENTS": "100",
    "TOPICS_WAL_SEGMENT_BYTES": "16384",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), **SEGMENTS) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    session = Spark()
    yield session
    session.close()


DESCRIBED = [
    {"n": 1, "x": 1.5, "s": "a", "deep": {"k": [1]}},
    {"n": None, "x": 2, "s": "b", "mixed": True},
    {"n": 3, "mixed": "yes"},
    "no object",
]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "pyspark_topics.jobs", "--master", "local[2]", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def job(spark: Spark, *arguments: str) -> dict[str, Any]:
    """Run a job in the session that the tests share: the same code after its arguments, without the start of a JVM."""
    said: dict[str, Any] = spark.run(f"""
        from pyspark_topics.jobs.cli import parser
        given = parser().parse_args({list(arguments)!r})
        answer = given.run(spark, given)
    """)
    return said


def write(service: Service, topic: str, *values: Any, **more: Any) -> None:
    records = [{"data": value, "tag": f"t{n % 3}", "node": "n", "meta": {"n": n}} for n, value in enumerate(values)]
    status, answer = service.request("POST", f"/v0/topics/{topic}", {"records": records, **more})
    assert status in (200, 201), answer


def archived(path: Path) -> list[tuple[str, int, int, Any]]:
    """Return topic, epoch, offset and value of each record, read as plain Parquet."""
    files = ds.dataset(path, partitioning=ds.partitioning(flavor="hive", schema=None), exclude_invalid_files=False)
    if not files.files:
        return []
    table = files.to_table(columns=["topic", "epoch", "offset", "value"])
    return sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


def test_the_command_archives_and_says_what_it_did(service: Service, tmp_path: Path) -> None:
    write(service, "cli:orders", *range(10))
    done = command("archive", "--path", str(service.data_dir), "--subscribe", "cli:orders", "--to", str(tmp_path / "a"))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"job": "archive", "commit": 1, "records": 10, "topics": {"cli:orders": 10}, "files": said["files"]}
    assert [(topic, offset) for topic, _, offset, _ in archived(tmp_path / "a")] == [
        ("cli:orders", seq) for seq in range(1, 11)
    ]


def test_errors_of_the_command_are_a_sentence(tmp_path: Path) -> None:
    done = command("audit", "--path", str(tmp_path / "nothing"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"topics-spark audit: {tmp_path}/nothing: there is no such directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("way", ["path", "url"])
def test_each_run_archives_what_is_new(service: Service, spark: Spark, tmp_path: Path, way: str) -> None:
    place = ["--path", str(service.data_dir)] if way == "path" else ["--url", service.url]
    archive = ["archive", *place, "--subscribe-pattern", f"inc{way}.*", "--to", str(tmp_path / "a")]
    expected = []
    for run in range(2):
        for topic in (f"inc{way}:a", f"inc{way}:{run}"):
            first = 1 + sum(name == topic for name, _ in expected)
            write(service, topic, *[{"run": run, "n": n} for n in range(50)])
            expected += [(topic, seq) for seq in range(first, first + 50)]
        said = job(spark, *archive)
        assert (said["commit"], said["records"]) == (run + 1, 100)
        assert [(topic, offset) for topic, _, offset, _ in archived(tmp_path / "a")] == sorted(expected)
    assert job(spark, *archive)["records"] == 0
    assert not list((tmp_path / "a" / "_topics" / "staging").iterdir())


def test_a_topic_made_anew_is_archived_beside_the_old_one(service: Service, spark: Spark, tmp_path: Path) -> None:
    archive = ["archive", "--path", str(service.data_dir), "--subscribe", "anew", "--to", str(tmp_path / "a")]
    write(service, "anew", *range(5))
    job(spark, *archive)
    service.request("DELETE", "/v0/topics/anew")
    write(service, "anew", *range(100, 110))
    with pytest.raises(SparkError, match=r'topic "anew": seq 6 on \(recreated\)'):
        job(spark, *archive)
    job(spark, *archive, "--allow-loss")
    found = archived(tmp_path / "a")
    assert [int(value) for _, _, _, value in found] == [*range(5), *range(100, 110)]
    assert len({epoch for _, epoch, _, _ in found}) == 2


DYING = """
from pyspark_topics.jobs import archive as subject
from pyspark_topics.jobs.store import Store
from pyspark_topics.jobs.cli import parser
class Death(Exception): pass
def dying(real, after):
    calls = [0]
    def instead(self, *arguments):
        calls[0] += 1
        if calls[0] > after:
            raise Death
        return real(self, *arguments)
    return instead
real = getattr(Store, {method!r})
setattr(Store, {method!r}, dying(real, {after}))
try:
    given = parser().parse_args({arguments!r})
    answer = given.run(spark, given)
except Death:
    answer = "died"
finally:
    setattr(Store, {method!r}, real)
"""


def test_an_archive_that_dies_anywhere_has_each_record_once(service: Service, spark: Spark, tmp_path: Path) -> None:
    """The steps that change files are `create`, `move` and `remove`; the job dies before each of them, and resumes."""
    arguments = [
        "archive",
        "--path",
        str(service.data_dir),
        "--subscribe-pattern",
        "die.*",
        "--to",
        str(tmp_path / "a"),
    ]
    steps = [("create", 0), ("move", 0), ("move", 1), ("remove", 0), ("files", 0)]
    deaths = 0
    for number, (method, after) in enumerate(steps):
        for topic in ("die:a", "die:b"):
            write(service, topic, *range(20))
        answer = spark.run(DYING.format(method=method, after=after, arguments=arguments))
        deaths += answer == "died"
        # Each record visible now exists once.
        seen = [(topic, offset) for topic, _, offset, _ in archived(tmp_path / "a")]
        assert len(seen) == len(set(seen))
        if number % 2:
            job(spark, *arguments)
    assert deaths == 5
    job(spark, *arguments)
    found = [(topic, offset) for topic, _, offset, _ in archived(tmp_path / "a")]
    assert found == [(topic, seq) for topic in ("die:a", "die:b") for seq in range(1, 101)]
    assert not list((tmp_path / "a" / "_topics" / "staging").iterdir())


def test_of_two_runs_at_a_time_one_commits(service: Service, spark: Spark, tmp_path: Path) -> None:
    write(service, "race", *range(10))
    archive = ["archive", "--path", str(service.data_dir), "--subscribe", "race", "--to", str(tmp_path / "a")]
    with pytest.raises(SparkError, match="another run has committed number 1 meanwhile"):
        spark.run(f"""
            from pyspark_topics.jobs.store import Store
            from pyspark_topics.jobs.cli import parser
            given = parser().parse_args({archive!r})
            real = Store.create
            def late(self, *arguments):
                Store.create = real
                given.run(spark, given)
                return real(self, *arguments)
            Store.create = late
            given.run(spark, given)
        """)
    assert len(archived(tmp_path / "a")) == 10


def test_an_archive_is_replayed_with_all_it_has_and_in_order(service: Service, spark: Spark, tmp_path: Path) -> None:
    for n in range(5):
        write(service, "back:a", *[{"n": [n, i, 1.0]} for i in range(40)])
        write(service, "back:b", *[f"{n} {i}" for i in range(40)])
    job(spark, "archive", "--url", service.url, "--subscribe", "back:a,back:b", "--to", str(tmp_path / "a"))
    replay = ["replay", "--from", str(tmp_path / "a"), "--url", service.url, "--prefix", "again:"]
    assert job(spark, *replay)["records"] == 400
    assert job(spark, *replay)["records"] == 400  # repeated: nothing new
    for topic in ("back:a", "back:b"):
        pages = []
        for name in (topic, f"again:{topic}"):
            _, answer = service.request("POST", f"/v0/topics/{name}/diff", {"limit": 1000, "include_tags": True})
            assert answer["caught_up"]
            pages.append([(r["$seq"], r["data"], r["$tag"], r["$node"], r["meta"]) for r in answer["records"]])
        assert pages[0] == pages[1]
        assert len(pages[0]) == 200


def test_json_lines_are_replayed_as_they_are(service: Service, spark: Spark, tmp_path: Path) -> None:
    lines = [
        '{"topic": "lines", "data": {"a": 1.0, "a": 123456789012345678901234567890}, "tag": "x", "meta": {"k": [1e3]}}',
        '{"$seq": 7, "$ts": 5, "$node": "n", "topic": "lines", "data": null}',
        '{"topic": "lines", "value": "text \\u00e4 \\" "}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n\n")
    assert job(spark, "replay", "--from", str(tmp_path), "--url", service.url)["records"] == 3
    from pyspark_topics.client import Client

    with Client(service.url) as client:
        found = client.diff("lines", 0, 10).records.to_pylist()
    by_data = {record["data"]: (record["tag"], record["node"], record["meta"]) for record in found}
    assert by_data == {
        '{"a": 1.0, "a": 123456789012345678901234567890}': ("x", None, '{"k": [1e3]}'),
        "null": (None, "n", None),
        '"text \\u00e4 \\" "': (None, None, None),
    }
    ordered = "".join(f'{{"topic":"ordered","data":{n}}}\n' for n in range(5000))
    (tmp_path / "in.jsonl").write_text('{"topic":"ordered","$topic":{"head_seq":1}}\n' + ordered)
    assert job(spark, "replay", "--from", str(tmp_path), "--url", service.url)["records"] == 5000
    with Client(service.url) as client:
        assert client.diff("ordered", 0, 5000).records["data"].to_pylist() == [str(n) for n in range(1000)]
    (tmp_path / "bad.jsonl").write_text('{"topic": "lines"}\n')
    with pytest.raises(SparkError, match="is not a record: neither data nor value is there"):
        job(spark, "replay", "--from", str(tmp_path), "--url", service.url)


def test_a_report_counts_what_is_there(service: Service, spark: Spark, tmp_path: Path) -> None:
    write(service, "rep:a", *["x" * n for n in range(100)])
    write(service, "rep:b", *range(10))
    service.request("POST", "/v0/topics/rep:a/delete", {"match": "t1"})
    rows = {}
    for by in ("topic", "topic,hour", "tag,node"):
        said = job(
            spark,
            *("report", "--path", str(service.data_dir), "--subscribe-pattern", "rep:.*", "--by", by),
            *("--parquet", str(tmp_path / by), "--svg", str(tmp_path / f"{by}.svg")),
        )
        assert said["records"] == 77
        rows[by] = ds.dataset(tmp_path / by).to_table().to_pylist()
        xml.dom.minidom.parse(str(tmp_path / f"{by}.svg"))
    kept = [n for n in range(100) if n % 3 != 1]
    (first, second) = sorted(rows["topic"], key=lambda row: row["topic"])
    sizes = sorted(n + 2 + 2 + 1 + len(f'{{"n": {n}}}') for n in kept)
    assert (first["topic"], first["records"], first["gaps"]) == ("rep:a", 67, 33)
    assert first["bytes"] == sum(sizes)
    assert abs(first["p50_bytes"] - sizes[33]) <= 2
    assert abs(first["p99_bytes"] - sizes[66]) <= 2
    assert (second["records"], second["gaps"]) == (10, 0)
    assert sum(row["gaps"] for row in rows["topic,hour"]) == 33
    assert {row["tag"]: row["records"] for row in rows["tag,node"]} == {"t0": 38, "t1": 3, "t2": 36}


def audited(spark: Spark, directory: Path) -> tuple[bool, list[tuple[str, str]], list[str]]:
    said = job(spark, "audit", "--path", str(directory))
    found = [(finding["severity"], finding["check"]) for finding in said["findings"]]
    return said["clean"], found, [f"{finding['place']}: {finding['text']}" for finding in said["findings"]]


def test_an_audit_finds_what_was_done_to_the_files(spark: Spark, tmp_path: Path) -> None:
    with Service(tmp_path, **SEGMENTS) as service:
        for guarantee in ("exactly_once", "at_least_once"):
            body = {"source": "src", "dest": f"dst:{guarantee}", "guarantee": guarantee, "create_dest": True}
            status, answer = service.request("PUT", f"/v0/routers/{guarantee}", body)
            assert status == 201, answer
        for n in range(10):
            write(service, "src", *[{"n": n, "i": i} for i in range(50)])
        # The service goes on writing during the audit.
        assert audited(spark, service.data_dir)[0]
        until(lambda: len(list(service.data_dir.rglob("*.data"))) >= 3, "segments")
        assert service.stop() == 0
    assert audited(spark, service.data_dir) == (True, [], [])
    segments = sorted(service.data_dir.rglob("*.data"))

    index = segments[0].with_suffix(".idx")
    good = index.read_bytes()
    index.unlink()
    assert audited(spark, service.data_dir)[:2] == (True, [("note", "index")])
    index.write_bytes(good[:64] + bytes(64) + good[128:] if len(good) > 64 else bytes(len(good)))
    clean, found, texts = audited(spark, service.data_dir)
    assert (clean, found) == (False, [("error", "index")])
    assert str(index) in texts[0]
    index.write_bytes(good)

    data = segments[-1].read_bytes()
    segments[-1].write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    clean, found, texts = audited(spark, service.data_dir)
    assert (clean, found) == (False, [("error", "checksum")])
    assert f"{segments[-1]}, byte 0: " in texts[0]
    segments[-1].write_bytes(data)

    segments[-1].unlink()
    clean, found, texts = audited(spark, service.data_dir)
    assert (clean, found) == (False, [("error", "checksum")])
    assert texts == [f"{segments[-1]}: the file is missing"]


def test_an_audit_compares_routers_destinations_with_their_source(spark: Spark, tmp_path: Path) -> None:
    """The test makes missing, changed, repeated and disordered copies by writing records that no router writes."""
    with Service(tmp_path, **SEGMENTS) as service:
        body = {"source": "src", "dest": "dst", "guarantee": "exactly_once", "create_dest": True}
        assert service.request("PUT", "/v0/routers/r", body)[0] == 201
        write(service, "src", *range(20))

        def copies() -> list[dict[str, Any]]:
            records: list[dict[str, Any]] = service.request("POST", "/v0/topics/dst/diff", {})[1]["records"]
            return records

        until(lambda: len(copies()) == 20, "the copies")
        mark, later = (copies()[n]["meta"]["_topics_router"] for n in (4, 6))
        forged = [{"data": "other", "tag": "t1", "meta": {"_topics_router": mark}}]
        # As the router's copies are if it had another source before, which has the same epoch in another shard.
        forged.append({"data": "former", "tag": "t1", "meta": {"_topics_router": later | {"source": "former"}}})
        service.request("POST", "/v0/topics/dst", {"records": forged})
        service.request("POST", "/v0/topics/dst/delete", {"match": "t2"})
        assert service.stop() == 0
    clean, found, texts = audited(spark, service.data_dir)
    assert not clean
    told = "\n".join(texts)
    assert "1 records were copied more than once, seq 5 first" in told
    assert "copies are not as their source, seq 5 first" in told
    assert "1 copies stand before one of an earlier record" in told
    assert ("note", "routers") in found
    assert "copies are missing; records there are deleted" in told


def test_a_topic_is_described_as_its_records_are(service: Service, spark: Spark) -> None:
    records = [{"data": value} for value in DESCRIBED]
    assert service.request("POST", "/v0/topics/things", {"records": records})[0] == 201
    said = spark.run(f"""
        import contextlib, io
        from pyspark_topics.jobs.cli import parser
        given = parser().parse_args(["describe", "things", "--path", {str(service.data_dir)!r}, "--json"])
        with contextlib.redirect_stdout(io.StringIO()) as out:
            given.run(spark, given)
        answer = out.getvalue()
    """)
    done = json.loads(said)
    assert (done["records"], done["other"]) == (4, 1)
    assert done["ddl"] == "`deep` string, `mixed` string, `n` bigint, `s` string, `x` double"
    by_name = {each["name"]: each for each in done["fields"]}
    assert by_name["n"] | {"example": ""} == {
        "name": "n",
        "ddl": "bigint",
        "missing": 0,
        "nulls": 1,
        "types": {"bigint": 2, "null": 1},
        "example": "",
    }
    assert by_name["x"]["missing"] == 1
    assert by_name["mixed"]["types"] == {"boolean": 1, "string": 1}
    assert by_name["deep"]["example"] == '{"k":[1]}'
