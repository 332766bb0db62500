"""What the kernel says of the service's processes. They hide most of it from all but root, as processes with secrets do
(`proto.process.core_dumps`)."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.programs import leave_out


def memory(pid: int) -> int:
    """A process's bytes of private memory plus its share of shared memory; for others than root, all of its memory that
    is no file's. What was swapped out counts: memory that leaks is not used again."""
    try:
        path, fields = f"/proc/{pid}/smaps_rollup", ("Pss:", "SwapPss:")
        return sum(_number(path, field) for field in fields) << 10
    except PermissionError:
        return sum(_number(f"/proc/{pid}/status", field) for field in ("RssAnon:", "VmSwap:")) << 10


def _number(path: str, field: str) -> int:
    return next(int(line.split()[1]) for line in Path(path).read_text().splitlines() if line.startswith(field))


def descriptors(pid: int) -> int:
    """How many descriptors a process has. A test that may not know it is left out."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        leave_out("root, to count the descriptors of the service")


def most_descriptors(pid: int) -> int:
    """As `descriptors`, but for others than root, for how many descriptors the process has room by now."""
    return descriptors(pid) if not os.getuid() else _number(f"/proc/{pid}/status", "FDSize:")
