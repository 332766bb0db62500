"""Core dumps are disabled, because a process's memory holds keys that clients sent and records that were written.

Two mechanisms, because each has a gap. A core dump piped into a program (systemd-coredump, apport) ignores the limit on
core files, and a process is dumpable again after every exec. Each process therefore calls `leave_no_core` first.
A process that is not dumpable also denies other processes of the same user to attach or to read its memory; root can.
"""

from __future__ import annotations

import ctypes
import os
import resource

_PR_SET_DUMPABLE = 4


def leave_no_core() -> None:
    """Disable core dumps of this process. Raises `OSError` if the kernel refuses."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_DUMPABLE): {os.strerror(number)}")
