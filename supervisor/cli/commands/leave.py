"""`topics leave`."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.terminal import DataDirOption, Status, complain, fail, tell
from supervisor.process import rundir

POLL_S = 0.1
WITHIN_S = 600.0


def leave(
    data_dir: DataDirOption = None,
    within: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for it.")] = WITHIN_S,
) -> None:
    """Have other machines take the shards of the service that runs here, one by one, and end it then.

    Requests wait while their shard moves. For services of several machines (TOPICS_CLUSTER_LISTEN). Without another
    machine that can take the shards, the service continues; a restart takes the wish to leave back. Exit status: 0 the
    service has left and ended, 1 not possible, 2 wrong settings.
    """
    settings = own_settings(data_dir=data_dir)
    found = rundir.status(settings.runtime_dir, os.environ, settings.data_dir)
    descriptor = None if found is None else rundir.process(found)
    if found is None or descriptor is None:
        fail(f"no service runs here for {settings.data_dir}; run this with its settings, as its user", Status.FAILED)
    if "leaving" not in found:
        fail("the service that runs here has no other machines (TOPICS_CLUSTER_LISTEN); stop it", Status.FAILED)
    asked, until = found.get("pid"), time.monotonic() + within
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGRTMIN)
    except ProcessLookupError:
        fail("the service has ended", Status.FAILED)
    left = 0
    while time.monotonic() < until:
        time.sleep(POLL_S)
        found = rundir.status(settings.runtime_dir, os.environ, settings.data_dir)
        if found is None or found.get("pid") != asked:
            tell("this machine has left")
            return
        left = sum(child.get("phase") == "ready" for name, child in found["children"].items() if "shard" in name)
    complain(f"not done within {within:g} s: {left} shards are still here; the service's log tells why, and continues")
    raise typer.Exit(Status.FAILED)
