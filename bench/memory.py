"""Memory of each process of the service with its defaults: idle, after records, and some seconds later.

    python bench/memory.py                          500 000 records of 100 bytes in eight topics, written in thousands
    python bench/memory.py --other ../other         and of another checkout, which has its own .venv
    python bench/memory.py --batch 1 --data 1000    written one by one, a kilobyte each
    python bench/memory.py --records 0 --shards 1   of an empty service with one shard
    python bench/memory.py --records 0 --set TOPICS_GATEWAYS=3      of each of three gateways

Proportional set size: what processes share counts once. "own" is the part that is no page of a mapped file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from load import drive, post
from rich import box
from rich.console import Console
from rich.table import Table
from server import HERE, Server

TOPICS = 8
LONGEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Size:
    """MB of one process, or of several."""

    all: float = 0.0
    own: float = 0.0

    def __add__(self, other: Size) -> Size:
        return Size(self.all + other.all, self.own + other.own)


def size(pid: int) -> Size:
    lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
    kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Pss")}
    return Size(kib["Pss"] / 1024, kib["Pss_Anon"] / 1024)


def sizes(server: Server) -> dict[str, Size]:
    """By part of the service, shards and several gateways numbered, and the sum of all."""
    found: dict[str, Size] = {}
    parts = server.processes()
    for kind, name in (("gateway", "gateway"), ("shards", "shard")):
        pids = sorted(pid for pid, part in parts.items() if part == kind)
        for number, pid in enumerate(pids, 1):
            found[name if kind == "gateway" and len(pids) == 1 else f"{name} {number}"] = size(pid)
    found |= {part: size(pid) for pid, part in parts.items() if part not in ("gateway", "shards")}
    return found | {"all": sum(found.values(), Size())}


def write(server: Server, asked: argparse.Namespace) -> None:
    """Write the records, with one connection for each topic."""
    record = b'{"data":"%b"}' % (b"x" * asked.data)
    body = b'{"records":[' + b",".join([record] * asked.batch) + b"]}"
    times = asked.records // asked.batch // TOPICS
    requests = [post(f"/v0/topics/memory:{number}?return_seqs=false", body) for number in range(TOPICS)]
    drive(server.port, [repeat(request, times) for request in requests], LONGEST_S)


def measured(checkout: Path, asked: argparse.Namespace) -> dict[str, dict[str, Size]]:
    """Moment → part → size."""
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="topics-memory-") as directory,
        Server(Path(directory) / "data", asked.shards, checkout, **dict(asked.set)) as server,
    ):
        time.sleep(2)  # what is done after the start is done
        found["idle"] = sizes(server)
        if asked.records:
            write(server, asked)
            found[f"{asked.records:,} records"] = sizes(server)
            time.sleep(asked.settle)
            found[f"{asked.settle:.0f} s later"] = sizes(server)
    return found


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("TOPICS_"):
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPICS_…=value")
    return name, value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, action="append", default=[], help="another checkout, with its own .venv")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=1000, help="records of a request (default 1000)")
    parser.add_argument("--data", type=int, default=100, help="bytes of data of a record (default 100)")
    parser.add_argument("--set", type=setting, action="append", default=[], help="a setting: TOPICS_…=value")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--settle", type=float, default=20.0, help="seconds after the records (default 20)")
    asked = parser.parse_args()
    console = Console(width=max(Console().width, 100))
    for checkout in (HERE, *(each.resolve() for each in asked.other)):
        found = measured(checkout, asked)
        table = Table(checkout.name, *(f"{moment}, MB (own)" for moment in found), box=box.SIMPLE)
        for part in found["idle"]:
            table.add_row(part, *(f"{at[part].all:.1f} ({at[part].own:.1f})" for at in found.values() if part in at))
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
