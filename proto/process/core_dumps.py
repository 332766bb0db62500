"""No process leaves its memory behind: it may hold keys that clients presented, and everything that was written.

Two belts, because each has a hole: a core dump that is piped into a program (systemd-coredump, apport) does not obey
the limit on core files, and a process is dumpable again after every exec. So each process calls this first. Not
dumpable also means that other processes of the same user cannot attach to it or read its memory; root still can.
"""

from __future__ import annotations

import ctypes
import os
import resource

_PR_SET_DUMPABLE = 4


def leave_no_core() -> None:
    """From now on this process, however it dies, leaves no core dump. Raises `OSError` where the kernel refuses."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_DUMPABLE): {os.strerror(number)}")
