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
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(expected_parent: int | None = None) -> None:
    """Have the kernel SIGKILL this process when its parent dies. Exits at once if the parent is already dead.

    `expected_parent` is the parent's process id; None takes it from the environment variable that the supervisor sets.
    Without that variable (a child started by hand) a death before this call is not detected. Raises `OSError` if the
    kernel refuses.
    """
    if expected_parent is None:
        told = os.environ.get(PARENT_PID_VARIABLE, "")
        expected_parent = int(told) if told.isdecimal() else None
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # If the parent died between fork and prctl, no signal will ever come.
    if expected_parent is not None and os.getppid() != expected_parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of what its descendants leave behind. Raises `OSError` if the kernel
    refuses."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
