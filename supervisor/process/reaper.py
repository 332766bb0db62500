"""Process 1 inherits orphans, and has to wait for them: else each stays in the table of processes as a zombie.

In a container the supervisor is process 1. Its own children are waited for by whoever started them, within
milliseconds of their end; so what is found dead twice, a while apart, is an orphan. Nothing is waited for that somebody
else may want to know about.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import trio

INTERVAL_S = 2.0


async def run(logger: Any, interval_s: float = INTERVAL_S) -> None:
    """Until cancelled."""
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
        return False  # whoever started it was slow, and not gone


def _dead_children() -> set[int]:
    """Zombies whose parent this process is."""
    ours = str(os.getpid())
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything; state and parent follow it.
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state == "Z" and parent == ours:
            found.add(int(path.parent.name))
    return found
