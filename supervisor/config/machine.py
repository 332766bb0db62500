"""What the machine has that settings depend on: its memory, or what this process and its children may have of it."""

from __future__ import annotations

from pathlib import Path

from proto.model.memory_shares import DEFAULT_BYTES


def memory_bytes(root: Path = Path("/")) -> int:
    """The memory of the machine or the limit of our control group, whichever is less."""
    found = [size for size in (_physical(root), *_limits(root)) if size]
    return min(found, default=8 * DEFAULT_BYTES)


def _physical(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:")), 0)


def _limits(root: Path) -> list[int]:
    """Of our control group and those around it, version 2 and 1."""
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
    """What a file says; 0 without a limit, and if it cannot be read: in a container the path may be another one."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
