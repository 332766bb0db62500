"""Guard: whether a path became slower than it was, on any machine.

    make bench-guard                    compare with bench/guard.json; exit status 1 names the paths that got slower
    make bench-guard ARGS=--update      measure three times and store the medians

A machine's speed cancels out: the cost of a path is the processor time of gateway and shards per request, over that of
one turn of a fixed reference loop, which runs before and after each slice. The loop does what services do in Python:
JSON, dictionaries, joined bytes and messages between two sockets. Processor time does not see waits; `pair` does.

The cost of a path is the median of its slices. A path that seems slower is measured again, up to twice, and is named
only if it is slower each time: half a minute if all is well, a minute and a half at most.
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
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median

from pair import LOADS, Sample, http, processor
from server import Server

STORED = Path(__file__).with_name("guard.json")
PATHS = ("append-1 × 16", "append-100 × 16", "diff-1000 × 8", "state × 16", "health × 16", "append-1 alone")
TOLERANCE = 1.35
"""A path may cost this much more than it did: two runs on a busy machine with two cores differ by a quarter."""
TIMES = 3
"""Measurements to store, and those of a path before it is named."""
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


def measure(paths: Collection[str], rounds: int, seconds: float) -> dict[str, float]:
    """The cost of each path in turns of the reference loop."""
    loads = {load.name: load for load in LOADS if load.name in paths}
    costs: dict[str, list[float]] = {name: [] for name in loads}
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
                sample = http(load, server, streams[name], seconds)
                costs[name].append(cost(sample, (before + reference_s()) / 2))
    return {name: median(found) for name, found in costs.items()}


def cost(sample: Sample, turn_s: float) -> float:
    used = processor([sample])
    return sum(value for part, value in used.items() if part != "load") / 1e6 / turn_s


def medians(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(median(each[name] for each in measured), 3) for name in measured[0]}


def confirmed(
    stored: Mapping[str, float], costs: Mapping[str, float], again: Callable[[Collection[str]], Mapping[str, float]]
) -> dict[str, float]:
    """The costs of the paths that are slower each time. `again` measures paths."""
    found = slower(stored, costs)
    for _ in range(TIMES - 1):
        if found:
            found = slower(stored, again(found))
    return found


def slower(stored: Mapping[str, float], costs: Mapping[str, float], tolerance: float = TOLERANCE) -> dict[str, float]:
    """The costs of the paths that cost more than `tolerance` times what is stored."""
    return {name: cost for name, cost in costs.items() if name in stored and cost > tolerance * stored[name]}


def show(costs: Mapping[str, float], stored: Mapping[str, float]) -> None:
    for name, cost in costs.items():
        compared = f"  {cost / stored[name]:5.2f} of the stored" if name in stored else ""
        print(f"{name:<18} {cost:8.2f} turns{compared}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="measure three times and store the medians")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a slice (default 0.5)")
    asked = parser.parse_args()
    stored = json.loads(STORED.read_text())["costs"] if STORED.exists() else {}
    if not stored and not asked.update:
        sys.stderr.write("guard: nothing is stored: run it with --update on a quiet machine\n")
        return 2

    def again(paths: Collection[str]) -> dict[str, float]:
        costs = measure(paths, asked.rounds, asked.seconds)
        show(costs, stored)
        return costs

    if asked.update:
        about = {"python": platform.python_version(), "cores": os.cpu_count()}
        costs = medians([again(PATHS) for _ in range(TIMES)])
        STORED.write_text(json.dumps({"about": about, "costs": costs}, indent=2, ensure_ascii=False) + "\n")
        return 0
    found = confirmed(stored, again(PATHS), again)
    for name, cost in found.items():
        sys.stderr.write(
            f"guard: slower: {name}: {cost / stored[name]:.2f} times the stored {stored[name]:.2f} turns\n"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
