"""A child never outlives its supervisor.

Two belts. End-of-file on the control socket is the first and the one that ends a child in order. This module is the
second: the kernel kills the child when the *thread* that forked it ends, which also covers a child that is too busy
to read its control socket. Linux only, as the whole service is.
"""

from __future__ import annotations

import ctypes
import os
import signal

PARENT_PID_VARIABLE = "TOPICS_SUPERVISOR_PID"
"""The environment variable that tells a child who its parent was when it was started."""
_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent: int | None = None) -> None:
    """Have the kernel SIGKILL this process when its parent dies; exit at once if that has happened already.

    `expected_parent` is the parent's process id; None takes it from the environment variable the supervisor sets, and
    without that (a child started by hand) nobody's death is waited for before this call. Raises `OSError` where the
    kernel refuses.
    """
    if expected_parent is None:
        told = os.environ.get(PARENT_PID_VARIABLE, "")
        expected_parent = int(told) if told.isdecimal() else None
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    # The parent may have died between fork and prctl: then no signal will ever come.
    if expected_parent is not None and os.getppid() != expected_parent:
        os._exit(1)
