"""Machine: the memory and the cores available to this process and its children, on which default settings depend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from proto.model.memory_shares import DEFAULT_BYTES

MAX_GATEWAYS = 16
SEVERAL_FROM = 6
"""With fewer cores, several gateways need more processor time for the same requests than they gain (docs/adr)."""
CORES_PER_GATEWAY = 3
BYTES_PER_GATEWAY = 1 << 30
"""A container may have many cores and little memory. Each gateway is a process of its own."""


def default_gateways(cores: int, memory: int) -> int:
    """The number of gateways for so many cores and bytes of memory."""
    if cores < SEVERAL_FROM:
        return 1
    return max(min(cores // CORES_PER_GATEWAY, memory // BYTES_PER_GATEWAY, MAX_GATEWAYS), 1)


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: those of its affinity, or what its control group may use of their time, rounded
    down, whichever is less; at least 1."""
    found = [int(quota) for quota in _quotas(root) if quota]
    return max(min([len(os.sched_getaffinity(0)), *found]), 1)


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


def _limits(root: Path) -> Iterator[int]:
    """Memory limits of this process's control group and its parents; 0 for none."""
    for group, first in _groups(root, "memory"):
        yield _number(group / ("memory.limit_in_bytes" if first else "memory.max"))


def _quotas(root: Path) -> Iterator[float]:
    """How many cores' time this process's control group and its parents may use; 0 for no limit."""
    for group, first in _groups(root, "cpu"):
        if first:
            quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        else:
            quota, period = _pair(group / "cpu.max")
        yield quota / period if quota > 0 and period > 0 else 0


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The directories of this process's control group and its parents, and whether each is of version 1."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / (f"sys/fs/cgroup/{controller}" if controllers else "sys/fs/cgroup")
        group = mount / path.lstrip("/")
        for each in (group, *group.parents):
            yield each, bool(controllers)
            if each == mount:
                break


def _number(path: Path) -> int:
    """The number in a file; 0 if there is no limit or no such file, because paths may differ in a container."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _pair(path: Path) -> tuple[int, int]:
    """The two numbers in a file; zeros as for `_number`."""
    try:
        one, other = map(int, path.read_text().split())
    except (OSError, ValueError):
        return 0, 0
    return one, other
