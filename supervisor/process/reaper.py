"""Reaper: waits for orphans that process 1 inherits, which would otherwise stay in the process table as zombies.

In a container the supervisor is process 1. The code that starts a child waits for it within milliseconds of its end. A
zombie found by two scans, `interval_s` apart, is therefore an orphan. Other zombies are left to the code that started
them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import trio

INTERVAL_S = 2.0


async def run(logger: Any, interval_s: float = INTERVAL_S) -> None:
    """Reap orphans until cancelled."""
    seen: set[int] = set()
    while True:
        await trio.sleep(interval_s)
        dead = await trio.to_thread.run_sync(_dead_children)
        for pid in dead & seen:
            if _reap(pid):
                logger.debug("orphan_reaped", pid=pid)
        seen = dead


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False  # the code that started it was slow and has waited for it meanwhile


def _dead_children() -> set[int]:
    """Process ids of zombies whose parent is this process."""
    ours = str(os.getpid())
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may contain any characters; state and parent follow it.
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state == "Z" and parent == ours:
            found.add(int(path.parent.name))
    return found
