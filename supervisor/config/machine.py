"""Machine: the memory and the cores available to this process and its children, on which default settings depend."""

from __future__ import annotations

import os
from pathlib import Path

from proto.model.memory_shares import DEFAULT_BYTES

MAX_GATEWAYS = 16
SEVERAL_FROM = 6
"""With fewer cores, several gateways need more processor time for the same requests than they gain (docs/adr)."""
CORES_PER_GATEWAY = 3


def default_gateways(cores: int | None = None) -> int:
    """The number of gateways for so many cores; without a number, for those that this process may use."""
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    return 1 if cores < SEVERAL_FROM else min(cores // CORES_PER_GATEWAY, MAX_GATEWAYS)


def memory_bytes(root: Path = Path("/")) -> int:
    """Bytes of the machine's memory or of this process's control group limit, whichever is less."""
    found = [size for size in (_physical(root), *_limits(root)) if size]
    return min(found, default=8 * DEFAULT_BYTES)


def _physical(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:")), 0)


def _limits(root: Path) -> list[int]:
    """Memory limits of this process's control group and its parents, version 2 and 1; 0 for none."""
    found: list[int] = []
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = mount / path.lstrip("/")
        for each in (group, *group.parents):
            found.append(_number(each / name))
            if each == mount:
                break
    return found


def _number(path: Path) -> int:
    """The number in a file; 0 if there is no limit or no such file, because paths may differ in a container."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
