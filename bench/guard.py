"""Guard: whether a path became slower than it was, on any machine.

    make bench-guard                    compare with bench/guard.json; exit status 1 names the paths that got slower
    make bench-guard ARGS=--update      measure and store

A machine's speed cancels out: the cost of a path is the processor time of gateway and shards per request, over that of
one turn of a fixed reference loop, which runs before and after each slice. The loop does what services do in Python:
JSON, dictionaries, joined bytes and messages between two sockets. Processor time does not see waits; `pair` does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from pair import LOADS, Sample, http, processor
from server import Server

STORED = Path(__file__).with_name("guard.json")
PATHS = ("append-1 × 16", "append-100 × 16", "diff-1000 × 8", "state × 16", "health × 16", "append-1 alone")
TOLERANCE = 1.35
"""A path may cost this much more than it did: two runs on a busy machine with two cores differ by a quarter."""
TURNS = 400


def turn(pair: tuple[socket.socket, socket.socket], document: bytes) -> int:
    """One turn of the reference loop."""
    left, right = pair
    found = json.loads(document)
    index = {each["id"]: each for each in found["records"]}
    answer = json.dumps({"count": len(index), "ids": sorted(index)}).encode()
    left.sendall(b"".join((len(answer).to_bytes(4, "little"), answer)))
    return len(right.recv(65536))


def reference_s(turns: int = TURNS) -> float:
    """Processor seconds of one turn."""
    document = json.dumps({"records": [{"id": n * 7919 % 1009, "data": "x" * 40} for n in range(10)]}).encode()
    left, right = socket.socketpair()
    with left, right:
        began = time.process_time()
        for _ in range(turns):
            turn((left, right), document)
        return (time.process_time() - began) / turns


def measure(rounds: int, seconds: float) -> dict[str, float]:
    """The cost of each path in turns of the reference loop."""
    loads = {load.name: load for load in LOADS if load.name in PATHS}
    samples: dict[str, list[Sample]] = {name: [] for name in PATHS}
    turns: dict[str, list[float]] = {name: [] for name in PATHS}
    with (
        tempfile.TemporaryDirectory(prefix="topics-guard-") as directory,
        Server(Path(directory) / "data", 2) as server,
    ):
        streams = {name: load.make(server) for name, load in loads.items()}
        for name, load in loads.items():  # warm up
            http(load, server, streams[name], seconds / 4)
        for _ in range(rounds):
            for name, load in loads.items():
                before = reference_s()
                samples[name].append(http(load, server, streams[name], seconds))
                turns[name] += [before, reference_s()]
    return {name: round(cost(samples[name], median(turns[name])), 3) for name in PATHS}


def cost(samples: list[Sample], turn_s: float) -> float:
    used = processor(samples)
    return sum(value for part, value in used.items() if part != "load") / 1e6 / turn_s


def slower(stored: Mapping[str, float], costs: Mapping[str, float], tolerance: float = TOLERANCE) -> list[str]:
    """A line for each path that costs more than `tolerance` times what is stored."""
    return [
        f"{name}: {cost:.2f} turns of the reference loop, {cost / stored[name]:.2f} times the stored {stored[name]:.2f}"
        for name, cost in costs.items()
        if name in stored and cost > tolerance * stored[name]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="store what is measured")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a slice (default 0.5)")
    asked = parser.parse_args()
    costs = measure(asked.rounds, asked.seconds)
    stored = json.loads(STORED.read_text())["costs"] if STORED.exists() else {}
    for name, cost in costs.items():
        print(
            f"{name:<18} {cost:8.2f} turns" + (f"  {cost / stored[name]:5.2f} of the stored" if name in stored else "")
        )
    if asked.update:
        about = {"python": platform.python_version(), "cores": os.cpu_count()}
        STORED.write_text(json.dumps({"about": about, "costs": costs}, indent=2, ensure_ascii=False) + "\n")
        return 0
    if not stored:
        sys.stderr.write("guard: nothing is stored: run it with --update on a quiet machine\n")
        return 2
    found = slower(stored, costs)
    for line in found:
        sys.stderr.write(f"guard: slower: {line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
