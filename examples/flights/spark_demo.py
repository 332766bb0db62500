"""Spark demo: counts the flights beside the running service, archives them, replays them into another, and audits both.

    make demo-spark

    1 the flights are written to a service over HTTP
    2 Spark reads the service's files, while it runs, and finds each carrier's top routes: those of the CSV file
    3 `archive` puts them into Parquet
    4 `replay` writes the archive into a second service
    5 Spark finds the same flights there, in the same order
    6 `audit` finds both data directories clean

Needs Java 17 or newer. `--csv FILE` takes the flights from another zipped file. Ends with a summary line and exit
status 0, or with the difference and exit status 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo import timed
from flights import Difference, Flight, load_csv, route, topic, write_all
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from service import Service

console = Console()
TOP = 3
Routes = dict[str, list[tuple[str, int]]]
"""Carrier → its most flown routes with their counts, in descending order, then by name."""


def routes_of(flights: dict[str, list[Flight]]) -> Routes:
    """Top routes from the CSV file."""
    counted = {carrier: Counter(map(route, rows)) for carrier, rows in flights.items()}
    return {carrier: sorted(c.items(), key=lambda found: (-found[1], found[0]))[:TOP] for carrier, c in counted.items()}


def routes_in(spark: Any, data_dir: Path) -> Routes:
    """Top routes from the files of a service."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    data = f.from_json(f.col("value").cast("string"), "carrier string, origin string, dest string")
    counted = (
        spark.read.format("topics")
        .option("columns", "topic, value")
        .load(str(data_dir))
        .select(data.alias("data"))
        .groupBy("data.carrier", f.concat_ws("-", "data.origin", "data.dest").alias("route"))
        .count()
    )
    place = f.row_number().over(Window.partitionBy("carrier").orderBy(f.desc("count"), "route"))
    rows = counted.withColumn("place", place).where(f.col("place") <= TOP).orderBy("carrier", "place").collect()
    found: Routes = {}
    for row in rows:
        found.setdefault(row["carrier"], []).append((row["route"], row["count"]))
    return found


def differing(spark: Any, one: Path, other: Path) -> int:
    """Number of seqs at which the two services' topics have different records."""
    from pyspark.sql import functions as f

    columns = ["value", "tag", "node"]
    read = spark.read.format("topics").option("columns", "topic, offset, value, tag, node")
    joined = read.load(str(one)).alias("a").join(read.load(str(other)).alias("b"), ["topic", "offset"], "full")
    same = f.lit(True)
    for column in columns:
        same = same & f.col(f"a.{column}").eqNullSafe(f.col(f"b.{column}"))
    return int(joined.where(~(same & f.col("a.value").isNotNull())).count())


@contextmanager
def step(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    console.print(f"{what} [bold]({time.perf_counter() - started:.1f} s)[/bold]")


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Difference(f"{what}: {found}, expected {wanted}")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--csv", type=Path, default=None)
    flights = load_csv(arguments.parse_args().csv)
    total = sum(map(len, flights.values()))
    wanted = routes_of(flights)
    from pyspark_topics.jobs import archive, audit, replay
    from pyspark_topics.jobs.session import session
    from pyspark_topics.jobs.store import Store
    from pyspark_topics.sources import positions

    with (
        tempfile.TemporaryDirectory(prefix="topics-demo-") as directory,
        Service(Path(directory) / "first") as first,
        Service(Path(directory) / "second") as second,
    ):
        timed("write the flights", first.port, flights, write_all)
        names = sorted(map(topic, flights))
        flights.clear()
        spark = session("flights", "local[2]", {"spark.sql.shuffle.partitions": "2"})
        try:
            console.print(f"the service keeps running; Spark reads {first.data_dir}")
            with step("top routes of each carrier"):
                found = routes_in(spark, first.data_dir)
            show(found)
            expect("top routes", found, wanted)
            store = Store(spark, str(Path(directory) / "archive"))
            place = {"path": str(first.data_dir)}
            with step("archived as Parquet"):
                said = archive.run(spark, positions(place), place, store)
            expect("records archived", said["records"], total)
            expect("topics archived", sorted(said["topics"]), names)
            expect("records archived again", archive.run(spark, positions(place), place, store)["records"], 0)
            with step("replayed into a second service"):
                said = replay.run(spark, store, {"url": f"http://127.0.0.1:{second.port}"})
            expect("records replayed", said["records"], total)
            with step("compared with the first one"):
                expect("records that differ", differing(spark, first.data_dir, second.data_dir), 0)
            for service in (first, second):
                with step(f"audited {service.data_dir.name}"):
                    said = audit.run(spark, str(service.data_dir))
                expect(f"audit of the {service.data_dir.name} service", said["findings"], [])
        finally:
            spark.stop()
    console.print(
        f"[bold green]PROOF[/bold green] {total:,} flights of {len(wanted)} carriers: Spark's top routes are the CSV "
        "file's, the archive holds every flight once, the second service has them all in order, both audits are clean",
        soft_wrap=True,
    )
    return 0


def show(found: Routes) -> None:
    table = Table("carrier", *[f"route {place}" for place in range(1, TOP + 1)])
    for carrier, routes in sorted(found.items()):
        table.add_row(carrier, *[f"{name} {count:,}" for name, count in routes])
    console.print(table)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Difference, FileNotFoundError, OSError, RuntimeError) as error:
        console.print(f"[bold red]FAILED[/bold red] {type(error).__name__}: {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
