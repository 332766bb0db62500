"""Speed of the lake: topics into tables, compared with the same records from JSON Lines into Delta by Spark.

    make bench-lake                       a table, in about four minutes
    python bench/lake.py --json           the same as JSON
    python bench/lake.py --records N --batches N --dir DIR

Needs Java, and what tools/install-lake.sh installs. A service takes the records (400 000 by default, 200 bytes of data
each, eight topics) and continues to run. `topics-spark lake` reads its files; a streaming query of Spark reads the same
rows from JSON Lines, in the same session (`local[2]`), into a table with the same partitions. Both run three times, in
turn, and the table shows the fastest run. `topics lake` runs before, alone, and `topics-spark lake --format iceberg`
after, with a Spark for it (which takes all records in one batch, as Spark before 4.2 does).

Two loads: all records in four batches, and small batches of 1000 records each. The last column is the number of files
that readers of the table open then, with the files that are joined between batches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lake_in_spark import ICEBERG, LINES, Load, timed
from rich import box
from rich.console import Console
from rich.table import Table
from server import HERE, Server
from spark import TOPICS, body, load, post

LARGE, SMALL = "bench", "small"
LARGE_BATCHES = 4
SMALL_RECORDS = 1000
LOCAL = "topics lake"
HOMES = {"delta": HERE / ".venv/lake", "iceberg": HERE / ".venv/iceberg"}


def prepare(port: int, folder: Path, loads: list[Load]) -> None:
    """Write the records to the service, and as JSON Lines, a batch in two files."""
    load(port, loads[0].records)
    for topic in range(TOPICS):
        post(port, f"{SMALL}{topic}", body(topic, 0, loads[1].records // TOPICS))
    for each in loads:
        (folder / each.name).mkdir()
        part = each.batch // TOPICS // 2
        for number in range(2 * each.batches):
            lines = [row for topic in range(TOPICS) for row in rows(each.name, topic, number * part, part)]
            (folder / each.name / f"{number:04d}.json").write_text("\n".join(lines) + "\n")


def rows(name: str, topic: int, first: int, count: int) -> list[str]:
    return [
        json.dumps(
            {
                "topic": f"{name}{topic}",
                "offset": first + n + 1,
                "timestamp": "2026-01-01T00:00:00Z",
                "tag": record["tag"],
                "value": json.dumps(record["data"]),
            }
        )
        for n, record in enumerate(json.loads(body(topic, first, count))["records"])
    ]


def without_spark(data: Path, folder: Path, loads: list[Load]) -> list[dict[str, Any]]:
    from pyspark_topics.lake import local
    from pyspark_topics.lake.layout import About

    def bring(each: Load, to: Path) -> None:
        source = local.source({"path": str(data), "subscribePattern": f"{each.name}.*"})
        settings = local.Settings(max_records=each.batch)
        writer = local.Writer(local.begin(to, About(), source), source, settings)
        while writer.batch():
            pass
        writer.finish()

    return timed({LOCAL: bring}, folder, loads)


def checked(row: dict[str, Any]) -> dict[str, Any]:
    """A measured row with the number of files of its table. Ends the program if a record is missing, or there twice."""
    from deltalake import DeltaTable
    from pyiceberg.table import StaticTable

    path = f"{row['table']}/events"
    if row["way"] == ICEBERG:
        iceberg = StaticTable.from_metadata(path)
        offsets, files = iceberg.scan(selected_fields=("topic", "offset")).to_arrow(), len(iceberg.inspect.data_files())
    else:
        delta = DeltaTable(path)
        offsets, files = delta.to_pyarrow_dataset().to_table(columns=["topic", "offset"]), len(delta.file_uris())
    each = row["records"] // TOPICS
    distinct = len(offsets.group_by(["topic", "offset"]).aggregate([]))
    if not row["records"] == len(offsets) == distinct or max(offsets["offset"].to_pylist()) != each:
        raise SystemExit(f"{row['way']}: {len(offsets)} rows of {row['records']} records, {distinct} distinct")
    return {**row, "files": files} | ({"batches": 1} if row["way"] == ICEBERG else {})


def table(found: list[dict[str, Any]]) -> Table:
    shown = Table("load", "way", "s", "records/s", "ms a batch", "files", "× JSON Lines", box=box.SIMPLE)
    for column in shown.columns[2:]:
        column.justify = "right"
    for row in sorted(found, key=lambda row: str(row["name"])):
        lines = next(r["seconds"] for r in found if r["way"] == LINES and r["name"] == row["name"])
        shown.add_row(
            f"{row['batches']} × {row['records'] // row['batches']:,}".replace(",", " "),
            row["way"],
            f"{row['seconds']:.2f}",
            f"{row['records'] / row['seconds']:,.0f}".replace(",", " "),
            f"{1000 * row['seconds'] / row['batches']:,.0f}",
            str(row["files"]),
            f"{lines / row['seconds']:.2f}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--batches", type=int, default=20, help="small batches")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    unit = 2 * TOPICS * LARGE_BATCHES
    large = Load(LARGE, given.records // unit * unit, LARGE_BATCHES)
    loads = [large, Load(SMALL, SMALL_RECORDS // (2 * TOPICS) * 2 * TOPICS * given.batches, given.batches)]
    for tables, home in HOMES.items():
        subprocess.run([HERE / "tools/install-lake.sh", home, tables], check=True)
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=given.dir) as name:
        folder = Path(name)
        with Server(folder / "data", 2) as server:
            prepare(server.port, folder, loads)
            plan = json.dumps([asdict(each) for each in loads])
            environment = {**os.environ, "PYTHONPATH": str(HERE), "SPARK_LOCAL_IP": "127.0.0.1"}
            found = without_spark(folder / "data", folder, loads)
            for tables, home in HOMES.items():
                command = [home / "bin/python", HERE / "bench/lake_in_spark.py", tables, folder / "data", folder, plan]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
                found += json.loads(done.stdout.splitlines()[-1])
            found = [checked(row) for row in found]
    if given.json:
        print(json.dumps(found))
    else:
        Console(width=110).print(table(found))


if __name__ == "__main__":
    main()
