"""Orphan protection: a child never outlives its supervisor.

There are two mechanisms. End-of-file on the control socket ends a child in order. This module is the second: the kernel
kills the child when the *thread* that forked it ends, even if the child is too busy to read its control socket. Linux
only, like the whole service.
"""

from __future__ import annotations

import ctypes
import os
import signal

PARENT_PID_VARIABLE = "TOPICS_SUPERVISOR_PID"
"""Environment variable with the process id of the child's parent at its start."""
_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent: int | None = None) -> None:
    """Have the kernel SIGKILL this process when its parent dies. Exits at once if the parent is already dead.

    `expected_parent` is the parent's process id; None takes it from the environment variable that the supervisor sets.
    Without that variable (a child started by hand) a death before this call is not detected. Raises `OSError` if the
    kernel refuses.
    """
    if expected_parent is None:
        told = os.environ.get(PARENT_PID_VARIABLE, "")
        expected_parent = int(told) if told.isdecimal() else None
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    # If the parent died between fork and prctl, no signal will ever come.
    if expected_parent is not None and os.getppid() != expected_parent:
        os._exit(1)
