"""Speed of Spark on the server's files, compared with the same records as Parquet and as JSON Lines.

    make bench-spark                      a table, in about three minutes
    python bench/spark.py --json          the same as JSON
    python bench/spark.py --records N --dir DIR

Needs Java. A service takes the records over HTTP (5 million by default, 200 bytes of data each, a tag for every ten,
eight topics in two shards). It continues to run, with its checkpoints, while Spark (`local[2]`) reads its files. Spark
then writes the records as Parquet, uncompressed, and as JSON Lines, and reads these with its own readers, in the same
session. Every query runs three times; the table shows the fastest run, and the least CPU time that Spark's processes
took for one. The sums of all readers are compared. "topics,
selected" names its columns by the option `columns`, because Spark tells the needed columns to its own readers only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from server import Server

TOPICS = 8
PER_WRITE = 5000
RUNS = 3
VALUE = b'{"id":"%08x","kind":"page_view","path":"/products/%04d","user":%d,"ms":41.7,"ok":true,"note":"%s"}'
NOTE = b"x" * 200


def body(topic: int, first: int, count: int) -> bytes:
    """A write. Records of a topic are numbered from 0; their data is 200 bytes."""
    records = []
    for n in range(first, first + count):
        value = VALUE % (n * 2654435761 % 2**32, n % 10_000, 10_000 + n % 90_000, b"")
        value = value[:-2] + NOTE[: 200 - len(value)] + b'"}'
        records.append(b'{"tag":"job-%d","data":%b}' % (n // 10, value))
    return b'{"records":[' + b",".join(records) + b"]}"


def post(port: int, topic: str, write: bytes, connection: http.client.HTTPConnection | None = None) -> None:
    """Send a write, over a connection of its own unless there is one."""
    used = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    used.request("POST", f"/v0/topics/{topic}", write, {"Content-Type": "application/json"})
    response = used.getresponse()
    answer = response.read()
    if connection is None:
        used.close()
    if response.status not in (200, 201):
        raise SystemExit(f"the service answered {response.status}: {answer[:300]!r}")


def load(port: int, records: int) -> None:
    """All topics, two writers."""

    def write(topics: range) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for topic in topics:
            for first in range(0, records // TOPICS, PER_WRITE):
                count = min(PER_WRITE, records // TOPICS - first)
                post(port, f"bench{topic}", body(topic, first, count), connection)
        connection.close()

    writers = [threading.Thread(target=write, args=(range(start, TOPICS, 2),)) for start in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()


def session() -> Any:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    from pyspark_topics import DefaultSource

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(DefaultSource)
    return spark


def queries(records: int) -> dict[str, tuple[str, str, int]]:
    """Query name → the columns it needs, the query, and its number of records."""
    each = records // TOPICS
    low = each // 2
    return {
        "count": ("offset", "select count(*) n from {}", records),
        "sum(length(value))": ("value", "select sum(length(value)) n from {}", records),
        "one topic, a tenth of its seqs": (
            "topic, offset, value",
            f"select sum(length(value)) n from {{}} where topic = 'bench3' and offset > {low} "
            f"and offset <= {low + each // 10}",
            each // 10,
        ),
        "a prefix of tags": (
            "tag, value",
            "select sum(length(value)) n from {} where tag like 'job-12%'",
            records,
        ),
        "one tag": ("tag, value", "select sum(length(value)) n from {} where tag = 'job-1234'", records),
        "offset < 1000": ("offset, value", "select sum(length(value)) n from {} where offset < 1000", 999 * TOPICS),
        "a predicate on JSON": (
            "value",
            "select count(*) n from {} where get_json_object(cast(value as string), '$.user') = '12345'",
            records,
        ),
    }


def cpu_s() -> float:
    """CPU seconds so far of this process and those below it, the JVM and its Python workers, ended ones too."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process ended meanwhile
        pid = int(stat.parent.name)
        parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= found
    return sum(used[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """The shortest time, the least CPU time, and the answer."""
    best, cpu, answer = float("inf"), float("inf"), None
    for _ in range(RUNS):
        before, started = cpu_s(), time.perf_counter()
        answer = work()
        best, cpu = min(best, time.perf_counter() - started), min(cpu, cpu_s() - before)
    return best, cpu, answer


def measure(spark: Any, data: Path, folder: Path, records: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    everything = spark.read.format("topics").load(str(data))
    say("Spark writes Parquet and JSON Lines")
    parquet, lines = str(folder / "parquet"), str(folder / "json")
    everything.write.option("compression", "none").parquet(parquet)
    text = spark.read.parquet(parquet).selectExpr("topic", "offset", "timestamp", "tag", "cast(value as string) value")
    text.write.json(lines)
    frames = {
        "topics": lambda columns: spark.read.format("topics").load(str(data)),
        "topics, selected": lambda columns: spark.read.format("topics").option("columns", columns).load(str(data)),
        "Parquet": lambda columns: spark.read.parquet(parquet),
        "JSON Lines": lambda columns: spark.read.schema(text.schema).json(lines),
    }
    found = []
    for name, (columns, query, about) in queries(records).items():
        answers = {}
        for reader, make in frames.items():
            say(f"{name}: {reader}")

            def run(make: Any = make, query: str = query, columns: str = columns) -> int:
                make(columns).createOrReplaceTempView("records")
                return int(spark.sql(query.format("records")).collect()[0]["n"] or 0)

            seconds, cpu, answers[reader] = timed(run)
            found.append({"query": name, "reader": reader, "seconds": seconds, "cpu_s": cpu, "records": about})
        if len(set(answers.values())) > 1:
            raise SystemExit(f"{name}: the readers do not agree: {answers}")
    return found


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table("query", "reader", "s", "CPU s", "records/s", "MB/s", "topics is", box=box.SIMPLE)
    for column in shown.columns[2:]:
        column.justify = "right"
    for row in rows:
        ours = next(r["seconds"] for r in rows if r["query"] == row["query"] and r["reader"] == "topics, selected")
        rate = row["records"] / row["seconds"]
        shown.add_row(
            row["query"],
            row["reader"],
            f"{row['seconds']:.2f}",
            f"{row['cpu_s']:.2f}",
            f"{rate:,.0f}".replace(",", " "),
            f"{rate * 200 / 1e6:,.0f}".replace(",", " "),
            f"{row['seconds'] / ours:.2f} × as fast",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    console = Console(stderr=True)
    records = given.records // TOPICS * TOPICS
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=given.dir) as name:
        folder = Path(name)
        with Server(folder / "data", 2) as server:
            console.print(f"{records:,} records into the service")
            load(server.port, records)
            spark = session()
            rows = measure(spark, folder / "data", folder, records, console.print)
            version = spark.version
            spark.stop()
    if given.json:
        print(json.dumps({"spark": version, "python": platform.python_version(), "records": records, "rows": rows}))
    else:
        Console(width=110).print(table(rows))


if __name__ == "__main__":
    main()
